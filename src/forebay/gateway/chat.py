"""POST /v1/chat/completions: one HTTP request becomes one call, its events become the answer.

Not streamed: the events are collected and one JSON body is sent; every failure is a plain HTTP
error. Streamed: the status line leaves with the first delta, or after `first_byte_seconds` of
waiting in the queue. Until then a failure is a plain HTTP error too; afterwards it is an event in
the stream, and `[DONE]` still ends it.

Each request has its own task, the relay, which iterates the pipeline and sends; and one watcher
(`watch.py`), which notices a client that leaves and does what is due by the clock. Cost per chunk:
one step of the pipeline, one splice of bytes, one send (shared by chunks that are ready together).

Not here: what a call goes through (`forebay.pipeline`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from forebay.core.call import Call, Route
from forebay.core.delta import FinishReason
from forebay.core.errors import ForebayError, InternalError, Signal
from forebay.core.event import Admitted, CallEvent, Delta, Failed, Finished
from forebay.core.money import format_usd
from forebay.gateway.auth import bearer
from forebay.gateway.body import ClientGone, decode_object, read_body
from forebay.gateway.errors import Headers, refusal
from forebay.gateway.report import report_refusal, report_unhandled
from forebay.gateway.request import ChatRequest, parse
from forebay.gateway.respond import Responder, request_id
from forebay.gateway.schema import (
    TIERS,
    AssistantMessage,
    ChatCompletion,
    Choice,
    WireUsage,
    settled_usage,
    wire_usage,
)
from forebay.gateway.services import GatewaySettings, KeepAlive, Services
from forebay.gateway.sse import COMMENT, DONE, HEADERS, ChunkWriter, StreamHead, error_event
from forebay.gateway.watch import ClientWatch

# x-forebay-ignored stays small whatever is sent.
_NAMES_SHOWN, _NAME_CHARACTERS = 20, 64
_UNSAFE_IN_HEADER = re.compile(r"[^A-Za-z0-9_.\[\]-]")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with all that answering it takes."""

    scope: Scope
    receive: Receive
    send: Send
    request: ChatRequest
    call: Call
    services: Services
    settings: GatewaySettings
    responder: Responder

    def completion_id(self) -> str:
        """OpenAI's kind of id, from ours, so that either finds the other in a log."""
        return "chatcmpl-" + self.call.id.removeprefix("req_")

    def created(self) -> int:
        return int(self.services.clock.now())

    def headers(self, route: Route) -> Headers:
        """What only we say about an answer."""
        headers = [(b"x-forebay-model", route.model.encode())]
        if self.request.ignored:
            headers.append((b"x-forebay-ignored", _ignored_header(self.request.ignored)))
        return headers


class ChatCompletions:
    """The ASGI callable. Any number of requests at once."""

    def __init__(self, services: Services, settings: GatewaySettings, responder: Responder) -> None:
        self._services = services
        self._settings = settings
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        answer: StreamedAnswer | WholeAnswer | None = None
        try:
            principal = await services.pipeline.enter(bearer(scope["headers"]))  # ① ②
            request = parse(decode_object(await read_body(scope, receive, self._settings)))
            if request.ignored:
                services.metrics.unknown_fields.inc(len(request.ignored))
            call = Call(
                id=request_id(scope),
                principal=principal,
                model=request.model,
                messages=request.messages,
                lane=request.lane,
                streamed=request.streamed,
                max_output_tokens=request.max_output_tokens,
                sampling=request.sampling,
            )
            exchange = Exchange(
                scope, receive, send, request, call, services, self._settings, self._responder
            )
            answer = (StreamedAnswer if request.streamed else WholeAnswer)(exchange)
            with services.metrics.open_calls.track_inprogress():
                await answer.run()
        except ClientGone:
            return
        except ForebayError as error:
            if answer is None or not answer.admitted:
                report_refusal(services.metrics, error, request_id(scope))
            raise


class WholeAnswer:
    """Collects a call's text and sends it as one body."""

    def __init__(self, exchange: Exchange) -> None:
        self._x = exchange
        self._route: Route | None = None

    @property
    def admitted(self) -> bool:
        """Whether the call got as far as the queue."""
        return self._route is not None

    async def run(self) -> None:
        """Answer, or raise what the client is to be told; returns quietly if it has left."""
        x = self._x
        texts: list[str] = []
        ending: Finished | Failed | None = None
        watch = ClientWatch(x.receive, x.services.spawn)
        async with watch, aclosing(x.services.pipeline.run(x.call)) as bunches:
            async for event in _each(bunches):
                if isinstance(event, Delta):
                    texts.append(event.text)
                elif isinstance(event, Admitted):
                    self._route = event.route
                elif isinstance(event, Finished):
                    ending = event
                    watch.finished = True
                    await self._send(event, "".join(texts))
                elif isinstance(event, Failed):
                    ending = event
        if isinstance(ending, Failed):
            raise ending.error
        if ending is None and not watch.gone:
            raise InternalError

    async def _send(self, event: Finished, text: str) -> None:
        x, route = self._x, self._route
        if route is None:
            raise InternalError
        completion = ChatCompletion(
            id=x.completion_id(),
            created=x.created(),
            model=x.request.model,
            choices=[
                Choice(index=i, message=AssistantMessage("assistant", text), finish_reason=reason)
                for i, reason in enumerate(_reasons(event))
            ],
            usage=settled_usage(event.usage),
            service_tier=TIERS[route.lane],
            system_fingerprint=route.fingerprint,
        )
        cost = (b"x-forebay-cost-usd", format_usd(event.amount_nanos).encode())
        await x.responder.json(x.scope, x.send, completion, headers=[cost, *x.headers(route)])


class StreamedAnswer:
    """Relays a call's events as server-sent events.

    The relay and the watcher's duties both send; the lock keeps the status line before all else
    and chunks whole. Whoever sends first opens the stream.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._x = exchange
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._route: Route | None = None
        self._writer: ChunkWriter | None = None
        self._opened = False
        self._overdue = False
        self._ended = False
        self._introduced = False
        self._input_tokens = 0
        self._output_tokens = 0
        self._last_sent_at = self._loop.time()
        self._open_by = self._last_sent_at + exchange.settings.first_byte_seconds

    @property
    def admitted(self) -> bool:
        """Whether the call got as far as the queue."""
        return self._route is not None

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
            async with self._watch, aclosing(x.services.pipeline.run(x.call)) as bunches:
                async for bunch in bunches:
                    await self._relay(bunch)
            if not self._ended and not self._watch.gone:
                raise InternalError
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
        x, route = self._x, event.route
        self._route = route
        self._input_tokens = event.input_tokens
        head = StreamHead(
            id=x.completion_id(),
            created=x.created(),
            model=x.request.model,
            service_tier=TIERS[route.lane],
            system_fingerprint=route.fingerprint,
        )
        self._writer = ChunkWriter(head, include_usage=x.request.include_usage)
        if self._overdue:
            async with self._lock:
                await self._open()

    def _delta(self, event: Delta, out: list[bytes]) -> None:
        self._output_tokens += len(event.token_ids)
        writer = self._introduce(out)
        if event.text:
            out.append(writer.content(event.choice, event.text, self._running()))

    def _introduce(self, out: list[bytes]) -> ChunkWriter:
        """The first chunk of the stream says who speaks."""
        writer = self._writer
        if writer is None:
            raise InternalError
        if not self._introduced:
            self._introduced = True
            out.append(writer.role(0, self._running()))
        return writer

    def _finish(self, event: Finished, out: list[bytes]) -> None:
        writer = self._introduce(out)
        for choice, reason in enumerate(_reasons(event)):
            out.append(writer.finish(choice, reason, self._running()))
        if self._x.request.include_usage:
            out.append(writer.usage(settled_usage(event.usage)))

    def _running(self) -> WireUsage | None:
        if not self._x.request.running_usage:
            return None
        return wire_usage(self._input_tokens, self._output_tokens)

    async def _fail(self, fault: Exception) -> None:
        """End an open stream with an error event, unless its real end was already sent."""
        x = self._x
        error = fault
        if not isinstance(fault, ForebayError) or isinstance(fault, Signal):
            report_unhandled(fault, request_id(x.scope))
            error = InternalError()
        if not self._ended and isinstance(error, ForebayError):
            await self._end(error_event(refusal(error, request_id(x.scope)).body))

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            if not self._opened:
                await self._open()
            self._last_sent_at = self._loop.time()
            await self._x.send({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self, data: bytes) -> None:
        self._watch.finished = self._ended = True
        async with self._lock:
            if not self._opened:
                await self._open()
            last = {"type": "http.response.body", "body": data + DONE, "more_body": False}
            await self._x.send(last)

    async def _open(self) -> None:
        """Send the status line. The lock is held, the call admitted."""
        x, route = self._x, self._route
        assert route is not None
        self._opened = True
        self._last_sent_at = self._loop.time()
        await x.responder.start(x.scope, x.send, 200, [*HEADERS, *x.headers(route)])

    async def _duty(self) -> float | None:
        """What the watcher does between events: open a waiting stream, keep a silent one alive."""
        settings, now = self._x.settings, self._loop.time()
        if not self._opened:
            if now < self._open_by:
                return self._open_by
            self._overdue = True  # not admitted yet: then `_admit` opens
            if self.admitted:
                async with self._lock:
                    if not self._opened:
                        await self._open()
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
            chunk = settings.keep_alive is KeepAlive.CHUNK and self._introduced
            await self._write(writer.nothing(0) if chunk else COMMENT)


async def _each(bunches: AsyncIterator[list[CallEvent]]) -> AsyncIterator[CallEvent]:
    async for bunch in bunches:
        for event in bunch:
            yield event


def _reasons(event: Finished) -> list[str]:
    """Why each choice ended. A made-up reason would be a lie, so a missing one is our fault."""
    return [_reason(reason) for reason in event.finish_reasons]


def _reason(reason: FinishReason | None) -> str:
    if reason is None:
        raise InternalError
    return reason.value


def _ignored_header(names: Sequence[str]) -> bytes:
    shown = [_UNSAFE_IN_HEADER.sub("?", name[:_NAME_CHARACTERS]) for name in names[:_NAMES_SHOWN]]
    if len(names) > _NAMES_SHOWN:
        shown.append(f"+{len(names) - _NAMES_SHOWN}")
    return ", ".join(shown).encode()
