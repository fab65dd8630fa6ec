"""GET /livez, /readyz, / and (admin) /metrics: for load balancers, people and Prometheus.

Alive means that this process answers; ready means that a call sent now would be served.

Not here: what readiness depends on (`forebay.wiring` hands over a function that knows).
"""

from __future__ import annotations

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from forebay import __version__
from forebay.gateway.errors import doc_url
from forebay.gateway.respond import Responder, request_id
from forebay.gateway.schema import WireError
from forebay.gateway.services import Services


class Live:
    """200 as long as the event loop turns."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._responder.json(scope, send, {"status": "alive"})


class Ready:
    """200, or 503 with every reason."""

    def __init__(self, services: Services, responder: Responder) -> None:
        self._health = services.health
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        readiness = self._health()
        if readiness.ready:
            await self._responder.json(scope, send, {"status": "ready", "reasons": []})
            return
        message = f"Not ready: {' '.join(readiness.reasons)} (request id: {request_id(scope)})"
        error = WireError(
            message=message,
            type="server_error",
            param=None,
            code="not_ready",
            doc_url=doc_url(self._responder.public_url, "not_ready"),
        )
        await self._responder.json(
            scope,
            send,
            {"status": "not ready", "reasons": readiness.reasons, "error": error},
            status=503,
            headers=[(b"retry-after", b"1"), (b"retry-after-ms", b"1000")],
        )


class Index:
    """What a person sees who opens the address in a browser."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = {
            "service": "forebay",
            "version": __version__,
            "base_url": "/v1",
            "docs": "/llms.txt",
            "hint": "An OpenAI-compatible API: set your client's base_url to this address + /v1.",
        }
        await self._responder.json(scope, send, answer)


class Exposition:
    """Prometheus' text format."""

    def __init__(self, services: Services, responder: Responder) -> None:
        self._metrics = services.metrics
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await self._responder.body(scope, send, 200, self._metrics.exposition(), headers)
