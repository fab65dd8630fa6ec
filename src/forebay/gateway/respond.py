"""Sends answers: one place that knows which headers every response has, and counts them.

Every response has `x-request-id`, what is left of the caller's limits (`meter.py`), and what CORS has
to say where it is on. A response is started
once; whoever starts it marks the scope, so that an error that comes later is not sent as a second
response.

Not here: what is in a body.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.types import Scope, Send

from forebay.core.errors import ForebayError
from forebay.gateway.cors import Cors
from forebay.gateway.errors import refusal
from forebay.gateway.meter import StandingOf, limit_headers
from forebay.gateway.schema import ErrorAnswer
from forebay.observe.metrics import Metrics

REQUEST_ID = "forebay.request_id"
_STARTED = "forebay.started"
_JSON = (b"content-type", b"application/json")

HeaderPairs = Iterable[tuple[bytes, bytes]]


def request_id(scope: Scope) -> str:
    """The id that the app gave this request; also the id of the call that it becomes."""
    id_: str = scope[REQUEST_ID]
    return id_


def started(scope: Scope) -> bool:
    """Whether a response has begun."""
    return _STARTED in scope


class Responder:
    """Shared by all handlers of an app. `public_url`: what clients call this server, if known."""

    def __init__(
        self,
        metrics: Metrics,
        public_url: str = "",
        cors: Cors | None = None,
        *,
        standing_of: StandingOf,
    ) -> None:
        self.public_url = public_url
        self.cors = cors
        self._standing_of = standing_of
        self._responses = metrics.http_responses

    async def start(self, scope: Scope, send: Send, status: int, headers: HeaderPairs) -> None:
        """Send the status line and headers."""
        scope[_STARTED] = True
        route = scope.get("route")
        # Routes are a fixed table, so the label is bounded; a path nobody serves has no route.
        self._responses.labels(getattr(route, "path", "none"), str(status)).inc()
        limits = limit_headers(scope, self._standing_of)
        sent = [(b"x-request-id", request_id(scope).encode()), *headers, *limits]
        if self.cors is not None:
            sent += self.cors.answer(scope["headers"])
        await send({"type": "http.response.start", "status": status, "headers": sent})

    async def body(
        self, scope: Scope, send: Send, status: int, body: bytes, headers: HeaderPairs
    ) -> None:
        """Send a whole response."""
        length = (b"content-length", b"%d" % len(body))
        await self.start(scope, send, status, [length, *headers])
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def nothing(self, scope: Scope, send: Send, headers: HeaderPairs) -> None:
        """Send 204, which has no body and no length."""
        await self.start(scope, send, 204, headers)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def json(
        self,
        scope: Scope,
        send: Send,
        answer: object,
        *,
        status: int = 200,
        headers: HeaderPairs = (),
    ) -> None:
        """Send an object as JSON."""
        await self.body(scope, send, status, msgspec.json.encode(answer), [_JSON, *headers])

    async def error(
        self, scope: Scope, send: Send, error: ForebayError, headers: HeaderPairs = ()
    ) -> None:
        """Send an error as its row of the table says."""
        seen = refusal(error, request_id(scope), self.public_url)
        await self.json(
            scope,
            send,
            ErrorAnswer(seen.body),
            status=seen.status,
            headers=[*seen.headers, *headers],
        )
