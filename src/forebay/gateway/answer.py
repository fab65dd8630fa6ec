"""A call's events become the answer to its request, for every endpoint that generates.

Not streamed: the events are collected and one JSON body is sent; every failure is a plain HTTP
error. Streamed: the status line leaves with the first delta, or after `first_byte_seconds` of
waiting in the queue. Until then a failure is a plain HTTP error too; afterwards it is an event in
the stream, and `[DONE]` still ends it.

Each request has its own task, the relay, which iterates the pipeline and sends; and one watcher
(`watch.py`), which notices a client that leaves and does what is due by the clock. Cost per chunk:
one step of the pipeline, one splice of bytes, one send (shared by chunks that are ready together).

Not here: how a request becomes a call (`intake.py`), what that goes through (`forebay.pipeline`),
what requests and answers of one endpoint look like (a `Shape`: `chat.py`, `completions.py`,
`responses.py`).
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Receive, Scope, Send

from forebay.core.call import Call
from forebay.core.delta import TokenLogprob
from forebay.core.dialogue import Window
from forebay.core.errors import ForebayError, InternalError, Signal
from forebay.core.event import Admitted, CallEvent, Delta, Failed, Finished, Started
from forebay.core.money import format_usd
from forebay.gateway.body import ClientGone
from forebay.gateway.errors import Headers, refusal
from forebay.gateway.idempotency import REPLAYED
from forebay.gateway.intake import Intake, Reader
from forebay.gateway.report import report_refusal, report_unhandled
from forebay.gateway.request import ApiRequest
from forebay.gateway.respond import Responder, request_id
from forebay.gateway.schema import TIERS, Head, WireUsage, settled_usage, wire_usage
from forebay.gateway.services import GatewaySettings, KeepAlive, Services
from forebay.gateway.sse import COMMENT, DONE, HEADERS, AnswerWriter
from forebay.gateway.watch import ClientWatch

# x-forebay-ignored stays small whatever is sent.
_NAMES_SHOWN, _NAME_CHARACTERS = 20, 64
_UNSAFE_IN_HEADER = re.compile(r"[^A-Za-z0-9_.\[\]-]")


@dataclass(slots=True)
class Output:
    """All of one choice. `finish_reason` is OpenAI's word."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, delta: Delta) -> None:
        """It goes on like this."""
        self.texts.append(delta.text)
        self.logprobs.extend(delta.logprobs)


class Shape(Reader, Protocol):
    """How one endpoint's requests are read and its answers are written."""

    id_prefix: str

    def whole(
        self, head: Head, request: ApiRequest, outputs: Sequence[Output], usage: WireUsage
    ) -> object:
        """The body of a call that is not streamed."""

    def writer(self, head: Head, request: ApiRequest) -> AnswerWriter:
        """What renders the events of one stream."""


@dataclass(frozen=True, slots=True)
class Relayed(ABC):
    """One request that is answered with events, and all that this takes."""

    scope: Scope
    receive: Receive
    send: Send
    services: Services
    settings: GatewaySettings
    responder: Responder

    @property
    def request_id(self) -> str:
        """Of the request whose call this is about: errors name it."""
        return request_id(self.scope)

    @property
    def opens_late(self) -> bool:
        """Whether the status line waits for the first token."""
        return True

    @property
    def may_break_off(self) -> bool:
        """Whether the events may stop before their end, to be read on another time."""
        return False

    @property
    def include_usage(self) -> bool:
        """Whether the usage is the last event."""
        return True

    @property
    def running_usage(self) -> bool:
        """Whether each event has the usage so far."""
        return False

    @abstractmethod
    def events(self) -> AsyncGenerator[list[CallEvent], None]:
        """From Admitted on. Closing it: the client has left."""

    @abstractmethod
    def writer(self, admitted: Admitted) -> AnswerWriter:
        """What renders them."""

    def headers(self, admitted: Admitted) -> Headers:
        """What only we say about an answer."""
        headers = [(b"x-forebay-model", admitted.model.encode())]
        return headers if admitted.window is None else [*headers, *_window(admitted.window)]


@dataclass(frozen=True, slots=True)
class Exchange(Relayed):
    """One request for one call."""

    shape: Shape
    request: ApiRequest
    call: Call

    @property
    def include_usage(self) -> bool:
        return self.request.include_usage

    @property
    def running_usage(self) -> bool:
        return self.request.running_usage

    def events(self) -> AsyncGenerator[list[CallEvent], None]:
        return self.services.pipeline.run(self.call)

    def writer(self, admitted: Admitted) -> AnswerWriter:
        return self.shape.writer(head_of(self.shape, self.request, admitted), self.request)

    def headers(self, admitted: Admitted) -> Headers:
        headers = Relayed.headers(self, admitted)
        if admitted.replayed:
            headers.append(REPLAYED)
        if self.request.ignored:
            headers.append((b"x-forebay-ignored", ignored_header(self.request.ignored)))
        return headers


def head_of(shape: Shape, request: ApiRequest, admitted: Admitted) -> Head:
    """What whole answers and chunks have in common. The id is OpenAI's kind, made from ours, so that
    either finds the other in a log."""
    window = admitted.window
    return Head(
        id=shape.id_prefix + admitted.call_id.removeprefix("batch_").removeprefix("req_"),
        created=int(admitted.created_at),
        model=request.model,
        service_tier=TIERS[admitted.lane],
        system_fingerprint=admitted.fingerprint,
        conversation_id=window.conversation_id if window else None,
        window="" if window is None or window.is_whole else str(window),
    )


def whole_answer(
    shape: Shape,
    request: ApiRequest,
    admitted: Admitted,
    outputs: Sequence[Output],
    event: Finished,
) -> object:
    """The body of a call that has ended like this."""
    for output, reason in zip(outputs, _reasons(event), strict=True):
        output.finish_reason = reason
    usage = settled_usage(event.usage)
    return shape.whole(head_of(shape, request, admitted), request, outputs, usage)


class Generation:
    """The ASGI callable of an endpoint that generates. Any number of requests at once."""

    def __init__(
        self, shape: Shape, services: Services, settings: GatewaySettings, responder: Responder
    ) -> None:
        self._shape = shape
        self._services = services
        self._settings = settings
        self._responder = responder
        self._intake = Intake(shape, services, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        answer: Answer | None = None
        try:
            request, call = await self._intake.read(scope, receive)
            place = (scope, receive, send, services, self._settings, self._responder)
            exchange = Exchange(*place, self._shape, request, call)
            answer = self.answer(exchange)
            with services.metrics.open_calls.track_inprogress():
                await answer.run()
        except ClientGone:
            return
        except ForebayError as error:
            if answer is None or not answer.admitted:
                report_refusal(services.metrics, error, request_id(scope))
            raise

    def answer(self, exchange: Exchange) -> Answer:
        """How this one is answered."""
        return StreamedAnswer(exchange) if exchange.request.streamed else WholeAnswer(exchange)


class Answer(Protocol):
    """How one request is answered."""

    @property
    def admitted(self) -> bool:
        """Whether the call got as far as the queue."""

    async def run(self) -> None:
        """Answer, or raise what the client is to be told; returns quietly if it has left."""


class WholeAnswer:
    """Collects a call's output and sends it as one body."""

    def __init__(self, exchange: Exchange) -> None:
        self._x = exchange
        self._admitted: Admitted | None = None

    @property
    def admitted(self) -> bool:
        """Whether the call got as far as the queue."""
        return self._admitted is not None

    async def run(self) -> None:
        """Answer, or raise what the client is to be told; returns quietly if it has left."""
        x = self._x
        outputs = [Output() for _ in range(x.call.choices)]
        ending: Finished | Failed | None = None
        watch = ClientWatch(x.receive, x.services.spawn)
        async with watch, aclosing(x.services.pipeline.run(x.call)) as bunches:
            async for event in _each(bunches):
                if isinstance(event, Delta):
                    outputs[event.choice].add(event)
                elif isinstance(event, Admitted):
                    self._admitted = event
                elif isinstance(event, Finished):
                    ending = event
                    watch.finished = True
                    await self._send(event, outputs)
                elif isinstance(event, Failed):
                    ending = event
        if isinstance(ending, Failed):
            raise ending.error
        if ending is None and not watch.gone:
            raise InternalError

    async def _send(self, event: Finished, outputs: Sequence[Output]) -> None:
        x, admitted = self._x, self._admitted
        if admitted is None:
            raise InternalError
        answer = whole_answer(x.shape, x.request, admitted, outputs, event)
        cost = (b"x-forebay-cost-usd", format_usd(event.amount_nanos).encode())
        await x.responder.json(x.scope, x.send, answer, headers=[cost, *x.headers(admitted)])


class StreamedAnswer:
    """Relays events as server-sent events.

    The relay and the watcher's duties both send; the lock keeps the status line before all else
    and chunks whole. Whoever sends first opens the stream.
    """

    def __init__(self, relayed: Relayed) -> None:
        self._x = relayed
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._admitted: Admitted | None = None
        self._writer: AnswerWriter | None = None
        self._opened = False
        self._overdue = not relayed.opens_late
        self._ended = False
        self._begun: set[int] = set()
        self._output_tokens = 0
        self._last_sent_at = self._loop.time()
        self._open_by = self._last_sent_at + relayed.settings.first_byte_seconds

    @property
    def admitted(self) -> bool:
        """Whether the call got as far as the queue."""
        return self._admitted is not None

    async def run(self) -> None:
        """Answer; raises what the client is to be told as long as nothing has been sent."""
        x = self._x
        self._watch = ClientWatch(
            x.receive,
            x.services.spawn,
            duty=self._duty,
            first_due=min(self._open_by, self._last_sent_at + x.settings.keep_alive_seconds),
        )
        try:
            async with self._watch, aclosing(x.events()) as bunches:
                async for bunch in bunches:
                    await self._relay(bunch)
            if not self._ended and not self._watch.gone:
                if not x.may_break_off or not self._opened:
                    raise InternalError
                self._watch.finished = True
                await x.send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as fault:
            if not self._opened:
                raise
            await self._fail(fault)

    async def _relay(self, bunch: Sequence[CallEvent]) -> None:
        """What was ready together leaves together, in one send."""
        out: list[bytes] = []
        for event in bunch:
            if isinstance(event, Delta):
                self._delta(event, out)
            elif isinstance(event, Admitted):
                await self._admit(event)
            elif isinstance(event, Started):
                self._start(out)
            elif isinstance(event, Finished):
                self._finish(event, out)
                await self._end(b"".join(out))
                return
            elif isinstance(event, Failed):
                if out and self._opened:
                    await self._write(b"".join(out))
                raise event.error
        if out:
            await self._write(b"".join(out))

    async def _admit(self, event: Admitted) -> None:
        self._admitted = event
        self._writer = self._x.writer(event)
        if self._overdue:
            await self._open_early()

    def _start(self, out: list[bytes]) -> None:
        if self._writer is not None and (begun := self._writer.started()):
            out.append(begun)

    def _delta(self, event: Delta, out: list[bytes]) -> None:
        self._output_tokens += len(event.token_ids)
        writer = self._begin(event.choice, out)
        if event.text or event.logprobs:
            running = self._running()
            out.append(writer.content(event.choice, event.text, event.logprobs, running))

    def _begin(self, choice: int, out: list[bytes]) -> AnswerWriter:
        """The first chunk of a choice, where its endpoint has one."""
        writer = self._writer
        if writer is None:
            raise InternalError
        if choice not in self._begun:
            self._begun.add(choice)
            out.append(writer.begin(choice, self._running()))
        return writer

    def _finish(self, event: Finished, out: list[bytes]) -> None:
        for choice, reason in enumerate(_reasons(event)):
            writer = self._begin(choice, out)
            out.append(writer.finish(choice, reason, self._running()))
        if self._x.include_usage:
            out.append(writer.usage(settled_usage(event.usage), event.completed_at))

    def _running(self) -> WireUsage | None:
        if not self._x.running_usage or self._admitted is None:
            return None
        return wire_usage(self._admitted.input_tokens, self._output_tokens)

    async def _fail(self, fault: Exception) -> None:
        """End an open stream with an error event, unless its real end was already sent."""
        x = self._x
        error = fault
        if not isinstance(fault, ForebayError) or isinstance(fault, Signal):
            report_unhandled(fault, x.request_id)
            error = InternalError()
        if not self._ended and isinstance(error, ForebayError):
            seen = refusal(error, x.request_id, x.settings.public_url)
            assert self._writer is not None  # who opened the stream had one
            await self._end(self._writer.error(seen.body))

    async def _write(self, data: bytes) -> None:
        if not data:
            return  # nothing that this endpoint shows
        async with self._lock:
            if not self._opened:
                data = await self._open() + data
            self._last_sent_at = self._loop.time()
            await self._x.send({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self, data: bytes) -> None:
        self._watch.finished = self._ended = True
        async with self._lock:
            if not self._opened:
                data = await self._open() + data
            last = {"type": "http.response.body", "body": data + DONE, "more_body": False}
            await self._x.send(last)

    async def _open(self) -> bytes:
        """Send the status line; answers what has to follow it. The lock is held, the call admitted."""
        x, admitted, writer = self._x, self._admitted, self._writer
        assert admitted is not None
        assert writer is not None
        self._opened = True
        self._last_sent_at = self._loop.time()
        await x.responder.start(x.scope, x.send, 200, [*HEADERS, *x.headers(admitted)])
        return writer.opening()

    async def _open_early(self) -> None:
        """Before there is anything to say."""
        async with self._lock:
            if not self._opened and (first := await self._open()):
                await self._x.send({"type": "http.response.body", "body": first, "more_body": True})

    async def _duty(self) -> float | None:
        """What the watcher does between events: open a waiting stream, keep a silent one alive."""
        settings, now = self._x.settings, self._loop.time()
        if not self._opened:
            if now < self._open_by:
                return self._open_by
            self._overdue = True  # not admitted yet: then `_admit` opens
            if self.admitted:
                await self._open_early()
            return now + settings.keep_alive_seconds
        due = self._last_sent_at + settings.keep_alive_seconds
        if now < due:
            return due
        if not self._lock.locked():  # else what waits for the client will be the sign
            await self._sign_of_life()
        return self._loop.time() + settings.keep_alive_seconds

    async def _sign_of_life(self) -> None:
        settings, writer = self._x.settings, self._writer
        if settings.keep_alive is not KeepAlive.OFF and not self._ended and writer is not None:
            chunk = settings.keep_alive is KeepAlive.CHUNK and self._begun
            await self._write(writer.nothing(min(self._begun)) if chunk else COMMENT)


async def _each(bunches: AsyncIterator[list[CallEvent]]) -> AsyncIterator[CallEvent]:
    async for bunch in bunches:
        for event in bunch:
            yield event


def _reasons(event: Finished) -> list[str]:
    """Why each choice ended. A made-up reason would be a lie, so a missing one is our fault."""
    reasons = [reason.value for reason in event.finish_reasons if reason is not None]
    if not reasons or len(reasons) < len(event.finish_reasons):
        raise InternalError
    return reasons


def _window(window: Window) -> Headers:
    """What of the past the call was given, and which conversation it goes on with."""
    headers = [(b"x-forebay-window", str(window).encode())]
    if window.conversation_id is not None:
        headers.append((b"x-forebay-conversation", window.conversation_id.encode()))
    if window.renewed:
        headers.append((b"x-forebay-conversation-renewed", b"true"))
    return headers


def ignored_header(names: Sequence[str]) -> bytes:
    """The value of `x-forebay-ignored`."""
    shown = [_UNSAFE_IN_HEADER.sub("?", name[:_NAME_CHARACTERS]) for name in names[:_NAMES_SHOWN]]
    if len(names) > _NAMES_SHOWN:
        shown.append(f"+{len(names) - _NAMES_SHOWN}")
    return ", ".join(shown).encode()
