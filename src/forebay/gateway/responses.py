"""POST /v1/responses: how its requests are read and its answers written (see `answer.py`).

Not here: responses that were stored (`stored_responses.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forebay.catalog.contract import Catalog
from forebay.core.clock import Clock
from forebay.core.errors import InternalError
from forebay.gateway.answer import Output
from forebay.gateway.request import ApiRequest
from forebay.gateway.response_events import ResponseEvents
from forebay.gateway.responses_request import parse_response
from forebay.gateway.responses_schema import ID_PREFIX, Echo, Frame, WireResponse
from forebay.gateway.schema import Head, WireUsage


class ResponsesShape:
    """Items in, items out; one answer."""

    id_prefix = ID_PREFIX

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    def parse(self, body: Mapping[str, Any]) -> ApiRequest:
        """Check every field. Raises InvalidRequest, UnsupportedParameter."""
        return parse_response(body, self._catalog.defaults)

    def whole(
        self, head: Head, request: ApiRequest, outputs: Sequence[Output], usage: WireUsage
    ) -> WireResponse:
        """The body of a call that is not streamed."""
        frame, (output,) = _frame(head, request), outputs
        complete = output.finish_reason != "length"
        message = frame.message(output.text, output.logprobs, complete=complete)
        return frame.ended(message, usage, self._clock.now())

    def writer(self, head: Head, request: ApiRequest) -> ResponseEvents:
        """What renders the events of one stream."""
        return ResponseEvents(_frame(head, request), self._clock)


def _frame(head: Head, request: ApiRequest) -> Frame:
    continued = request.continued
    if continued is None:
        raise InternalError
    echo = msgspec.json.decode(continued.record, type=Echo)
    conversation_id = head.conversation_id or continued.conversation_id
    return Frame(head.id, head.created, conversation_id, echo, head.window)
