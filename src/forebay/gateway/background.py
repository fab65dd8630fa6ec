"""Responses in the background: how they are begun, and how their events are read, now or again.

    POST /v1/responses          background: the response, queued; with stream, its events as they come
    GET  /v1/responses/{id}     stream, starting_after: the events, from the first or after a number

Both streams are readings of what is stored: whoever reads may leave and come again.

Not here: making one (`forebay.pipeline.background`), what the events look like (`response_events.py`),
the other verbs of a response (`stored_responses.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from forebay.core.dialogue import Turn
from forebay.core.errors import IdempotencyKeyInUse, NotFound
from forebay.core.event import Admitted, CallEvent
from forebay.gateway.answer import (
    Answer,
    Exchange,
    Generation,
    Relayed,
    StreamedAnswer,
    ignored_header,
)
from forebay.gateway.errors import Headers, refusal
from forebay.gateway.idempotency import REPLAYED
from forebay.gateway.response_events import BackgroundEvents
from forebay.gateway.responses_schema import ID_PREFIX, WireResponse, answered, frame_of
from forebay.gateway.services import Services
from forebay.gateway.sse import AnswerWriter
from forebay.pipeline.background import failure


@dataclass(frozen=True, slots=True)
class Reading(Relayed):
    """Somebody reads the events of a response, those with a number above `after`."""

    turn: Turn
    after: int = -1
    more_headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def request_id(self) -> str:
        return self.turn.call_id

    @property
    def opens_late(self) -> bool:
        return False

    @property
    def may_break_off(self) -> bool:
        return True

    def events(self) -> AsyncGenerator[list[CallEvent], None]:
        return self.services.background.read(self.turn)

    def writer(self, admitted: Admitted) -> AnswerWriter:
        return BackgroundEvents(frame_of(self.turn), self.services.clock, after=self.after)

    def headers(self, admitted: Admitted) -> Headers:
        return [*Relayed.headers(self, admitted), *self.more_headers]


class Responding(Generation):
    """POST /v1/responses."""

    def answer(self, exchange: Exchange) -> Answer:
        if exchange.request.background:
            return BegunAnswer(exchange)
        return super().answer(exchange)


class BegunAnswer:
    """Begins a response in the background, or finds the one that its idempotency key has begun."""

    def __init__(self, exchange: Exchange) -> None:
        self._x = exchange
        self._admitted: Admitted | None = None

    @property
    def admitted(self) -> bool:
        """Whether the call got as far as the queue."""
        return self._admitted is not None

    async def run(self) -> None:
        """Answer at once; raises what refuses the call."""
        x, services = self._x, self._x.services
        headers: Headers = []
        if x.request.ignored:
            headers.append((b"x-forebay-ignored", ignored_header(x.request.ignored)))
        call_id = await services.background.begun_before(x.call)
        if call_id is None:
            self._admitted, turn = await services.background.start(x.call)
        else:
            turn = await self._begun_before(call_id)
            headers.append(REPLAYED)
        if x.request.streamed:
            place = (x.scope, x.receive, x.send, services, x.settings, x.responder)
            await StreamedAnswer(Reading(*place, turn, more_headers=tuple(headers))).run()
            return
        if self._admitted is not None:
            headers += Relayed.headers(x, self._admitted)
        await x.responder.json(x.scope, x.send, stored_response(turn, services), headers=headers)

    async def _begun_before(self, call_id: str) -> Turn:
        """Raises IdempotencyKeyInUse: it may be about to be stored, or was deleted."""
        id_ = ID_PREFIX + call_id.removeprefix("req_")
        try:
            return await self._x.services.turns.response(self._x.call.principal, id_)
        except NotFound:
            raise IdempotencyKeyInUse from None


def stored_response(turn: Turn, services: Services) -> WireResponse:
    """A response as it stands."""
    if turn.said is not None and not turn.state.is_pending:
        return answered(turn, turn.said)
    frame = frame_of(turn)
    if turn.state.is_pending:
        return frame.begun("in_progress" if services.background.is_begun(turn) else "queued")
    return frame.unanswered(refusal(failure(turn), turn.call_id).body)
