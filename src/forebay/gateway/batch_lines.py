"""Lines of batches: what one asks for, and how its outcome is written. Pure.

    input    {"custom_id": …, "method": "POST", "url": the batch's endpoint, "body": what that takes}
    output   {"id": …, "custom_id": …, "response": {"status_code": 200, "request_id": …, "body": …}, "error": null}
    errors   the same with the status and the error of a call that failed; of one that was not run
             `response` is null, and `error` says why

A body is read by the same reader and an answer written by the same writer as over HTTP. What asks for a
stream or for something that is remembered is refused; `service_tier` says nothing, for a batch is in
the batch lane. Written again, a line is the same bytes.

Not here: whether there is such a model, which lines run and when (`forebay.pipeline`).
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from forebay.catalog.contract import Catalog
from forebay.core.batch import BatchState, LineError, Place
from forebay.core.call import Call
from forebay.core.clock import Clock
from forebay.core.errors import CallerError, ForebayError, InvalidRequest
from forebay.core.event import Admitted, Delta, Finished
from forebay.core.job import Lane
from forebay.core.principal import Principal
from forebay.gateway.answer import Output, Shape, whole_answer
from forebay.gateway.body import decode_object
from forebay.gateway.chat import ChatShape
from forebay.gateway.completions import CompletionShape
from forebay.gateway.errors import told, with_request_id
from forebay.gateway.read import missing, seen, text, wrong_type
from forebay.gateway.request import ApiRequest
from forebay.gateway.responses import ResponsesShape
from forebay.gateway.responses_schema import WireResponse
from forebay.gateway.schema import TIERS, ErrorAnswer, WireError
from forebay.gateway.services import GatewaySettings
from forebay.gateway.sse import encode_safely
from forebay.pipeline.batch_lines import LineRefused, ReadLine
from forebay.pipeline.kept_answer import events_of

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES)
MAX_CUSTOM_ID_CHARACTERS = 512

_KEYS = {
    "custom_id": "Send a name for the line, by which its answer is found.",
    "method": "Send POST.",
    "url": "Send the endpoint of the batch.",
    "body": "Send what the endpoint takes.",
}
# Of a response: nobody is there to go on with it, or to ask for it.
_REMEMBERED = ("conversation", "previous_response_id", "background", "store")
_UNRUN = {
    BatchState.EXPIRED: ("batch_expired", "The batch expired before this line was run."),
    BatchState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this line was run."),
}


class _Named(msgspec.Struct):
    custom_id: str


class _Why(msgspec.Struct, frozen=True):
    """What is kept of a call that failed."""

    status: int
    error: WireError


class LineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint answered."""

    status_code: int
    request_id: str
    body: Any


class LineFault(msgspec.Struct, frozen=True):
    """Why a line was not run."""

    code: str
    message: str


class WireLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an output or an error file."""

    id: str
    custom_id: str
    response: LineAnswer | None
    error: LineFault | None


@dataclass(frozen=True, slots=True)
class _Asked:
    shape: Shape
    request: ApiRequest


class BatchLines:
    """The `LineFormat` of one server."""

    def __init__(self, catalog: Catalog, clock: Clock, settings: GatewaySettings) -> None:
        self._most_line_bytes = settings.max_body_bytes
        self._shapes: Mapping[str, Shape] = {
            CHAT: ChatShape(),
            COMPLETIONS: CompletionShape(),
            RESPONSES: ResponsesShape(catalog, clock),
        }

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ENDPOINTS

    @property
    def most_line_bytes(self) -> int:
        return self._most_line_bytes

    def read(self, content: bytes, place: Place, endpoint: str, principal: Principal) -> ReadLine:
        try:
            custom_id, body = self._envelope(content, endpoint)
            shape = self._shapes[endpoint]
            request = _request(shape, body, endpoint)
        except InvalidRequest as invalid:
            raise _refused(invalid, invalid.param) from None
        call = _call(request, place, principal, len(content))
        return ReadLine(custom_id, call, _Asked(shape, request))

    def custom_id(self, content: bytes) -> str:
        bare = content.removeprefix(codecs.BOM_UTF8)
        return msgspec.json.decode(bare, type=_Named).custom_id

    def answer(self, line: ReadLine, head: Admitted, kept: bytes) -> bytes:
        asked = line.request
        assert isinstance(asked, _Asked)
        outputs = [Output() for _ in range(line.call.choices)]
        *deltas, end = events_of(kept)
        for event in deltas:
            assert isinstance(event, Delta)
            outputs[event.choice].add(event)
        assert isinstance(end, Finished)
        body = whole_answer(asked.shape, asked.request, head, outputs, end)
        if isinstance(body, WireResponse) and body.completed_at is not None:
            # When it ended is not kept, and must not depend on when this is written.
            body = msgspec.structs.replace(body, completed_at=body.created_at)
        return _line(line.custom_id, line.call.id, 200, body)

    def fault(self, error: ForebayError) -> bytes:
        refusal = told(error)
        return msgspec.json.encode(_Why(refusal.status, refusal.body))

    def faulty(self, custom_id: str, place: Place, why: bytes) -> bytes:
        found, id_ = msgspec.json.decode(why, type=_Why), place.call_id
        return _line(custom_id, id_, found.status, ErrorAnswer(with_request_id(found.error, id_)))

    def unrun(self, custom_id: str, place: Place, ended: BatchState) -> bytes:
        code, message = _UNRUN[ended]
        fault = LineFault(code, f"{message} Nothing was charged for it.")
        return _written(WireLine(id=place.call_id, custom_id=custom_id, response=None, error=fault))

    def _envelope(self, content: bytes, endpoint: str) -> tuple[str, dict[str, Any]]:
        """Its name and its body. Raises LineRefused, InvalidRequest."""
        if len(content) > self._most_line_bytes:
            raise LineRefused(
                LineError(
                    "line_too_long",
                    f"This line has at least {len(content)} bytes; the limit is "
                    f"{self._most_line_bytes} bytes. Shorten it.",
                )
            )
        line = _decoded(content)
        for name, hint in _KEYS.items():
            if line.get(name) is None:
                raise missing(name, hint)
        custom_id = text(
            line["custom_id"],
            "custom_id",
            low=1,
            high=MAX_CUSTOM_ID_CHARACTERS,
            if_empty=_KEYS["custom_id"],
        )
        if line["method"] != "POST":
            raise InvalidRequest(
                f"method is {seen(line['method'])}, but must be POST.",
                param="method",
                code="invalid_method",
            )
        if line["url"] != endpoint:
            raise InvalidRequest(
                f"url is {seen(line['url'])}, which does not match the batch endpoint {endpoint}.",
                param="url",
                code="invalid_url",
            )
        body = line["body"]
        if not isinstance(body, dict):
            raise wrong_type("body", "an object", body)
        return custom_id, body


def _call(request: ApiRequest, place: Place, principal: Principal, body_bytes: int) -> Call:
    id_, continued, numbers = place.call_id, request.continued, count(1)

    def new_id(prefix: str) -> str:
        return f"{prefix}_{id_}_{next(numbers)}"

    return Call(
        id=id_,
        principal=principal,
        model=request.model,
        lane=Lane.BATCH,
        streamed=False,
        messages=request.messages,
        prompt=request.prompt,
        max_output_tokens=request.max_output_tokens,
        choices=request.choices,
        sampling=request.sampling,
        remembrance=continued.remembrance(id_, new_id) if continued else None,
        body_bytes=body_bytes,
        background=True,
        place=place,
    )


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        return decode_object(content, '{"custom_id": …, "method": …, "url": …, "body": …}')
    except InvalidRequest as invalid:
        message = "This line" + invalid.message.removeprefix("The request body")
        raise InvalidRequest(message, code="invalid_json_line") from None


def _request(shape: Shape, body: Mapping[str, Any], endpoint: str) -> ApiRequest:
    """Check every field. Raises LineRefused."""
    try:
        return shape.parse(_alone(body, endpoint))
    except CallerError as error:
        raise _refused(error, f"body.{error.param}" if error.param else "body") from None


def _alone(body: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    """A body that asks for one whole answer, in the batch lane, of which nothing is stored. Raises
    InvalidRequest for what asks for anything else."""
    if body.get("stream") is True:
        raise InvalidRequest(
            "Streaming is not supported in a batch: its answers come in a file. Leave stream out.",
            param="stream",
            code="streaming_unsupported",
        )
    names = _REMEMBERED if endpoint == RESPONSES else _REMEMBERED[:1]
    for name in names:
        if body.get(name) not in (None, False):
            raise InvalidRequest(
                f"{name} is {seen(body[name])}, which is not supported in a batch: its lines go on "
                f"from nothing, and nothing but the output is stored. Leave {name} out.",
                param=name,
                code="unsupported_value",
            )
    own = {"store": False} if endpoint == RESPONSES else {}
    return {**body, "service_tier": TIERS[Lane.BATCH], **own}


def _refused(error: CallerError, param: str | None) -> LineRefused:
    code = told(error).body.code or "invalid_request"
    if code == "missing_required_parameter" and param is not None and param.startswith("body."):
        code = "invalid_request"
    return LineRefused(LineError(code, error.message, param=param))


def _line(custom_id: str, call_id: str, status: int, body: object) -> bytes:
    response = LineAnswer(status_code=status, request_id=call_id, body=body)
    return _written(WireLine(id=call_id, custom_id=custom_id, response=response, error=None))


def _written(line: WireLine) -> bytes:
    return encode_safely(line) + b"\n"
