"""The two applications: their route tables, and what every request goes through first and last.

First the request gets its id and a tidied path; a browser that asks for permission (CORS, if it is
on) gets its answer; then the route table; last, whatever was raised becomes an answer in our error
shape. There is no middleware: this is all there is.

Paths: slashes are collapsed, one at the end is dropped, `/v1/x` and `/x` are the same, and so is
`/v1/v1/x` (base URLs are configured by people). Nothing is ever redirected: clients drop the body
of a redirected POST.

Not here: what the resources do (one file each).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.core.clock import IdSource
from forebay.core.errors import (
    ForebayError,
    InternalError,
    InvalidKey,
    MethodNotAllowed,
    NotFound,
    Signal,
)
from forebay.gateway.admin import Endpoint
from forebay.gateway.admin_operations import ADMIN_OPERATIONS
from forebay.gateway.answer import Generation
from forebay.gateway.background import Responding
from forebay.gateway.batches import batch_endpoints
from forebay.gateway.chat import ChatShape
from forebay.gateway.compatibility import COMPATIBILITY_PATH
from forebay.gateway.completions import CompletionShape
from forebay.gateway.conversations import conversation_endpoints
from forebay.gateway.cors import Cors
from forebay.gateway.docs import (
    ErrorDocuments,
    compatibility_page,
    error_page,
    openapi,
    overview,
)
from forebay.gateway.errors import DOCS_PATH
from forebay.gateway.files import file_endpoints
from forebay.gateway.guesses import Guesses
from forebay.gateway.health import Exposition, Index, Live, Ready
from forebay.gateway.models import GetModel, ListModels
from forebay.gateway.openapi import admin_document, public_document
from forebay.gateway.report import report_unhandled
from forebay.gateway.respond import REQUEST_ID, Responder, request_id, started
from forebay.gateway.responses import ResponsesShape
from forebay.gateway.services import GatewaySettings, Services
from forebay.gateway.stored_responses import response_endpoints
from forebay.gateway.unserved import UNSERVED, Unserved
from forebay.gateway.usage_me import ShowOwnUsage

_SLASHES = re.compile(r"/{2,}")
_PREFIX = "/v1"
_PATH_CHARACTERS = 100
# First parts of OpenAI's other paths: with or without /v1, a client that asks for one of these has
# found the API, and is told that the endpoint is missing, not that its base URL is wrong.
_UNBUILT = frozenset(
    ("assistants", "audio", "containers", "evals", "fine_tuning", "images", "moderations",
     "organization", "realtime", "threads", "uploads", "vector_stores", "videos")
)  # fmt: skip
_HEALTH = "Health is at GET /livez (the process answers) and GET /readyz (calls can be served)."
_DOCUMENTATION = (
    f"An overview is at GET /llms.txt, all errors are explained at GET {DOCS_PATH}; the rest of "
    "the documentation is in docs/reference of the source."
)
# What people try first, and where it is instead.
_POINTERS = {
    "/health": _HEALTH,
    "/healthz": _HEALTH,
    "/live": _HEALTH,
    "/ready": _HEALTH,
    "/ping": _HEALTH,
    "/status": _HEALTH,
    "/docs": _DOCUMENTATION,
    "/redoc": _DOCUMENTATION,
    "/metrics": "Metrics are at GET /metrics of the admin listener (setting admin_port).",
}

_ALL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

# What a path that leads nowhere is answered with, after "There is nothing at …".
Hint = Callable[[str], str]


def build_public(services: Services, settings: GatewaySettings) -> ASGIApp:
    """What clients may reach."""
    cors = Cors(settings.cors_origins) if settings.cors_origins else None
    standing_of = services.pipeline.standing
    responder = Responder(services.metrics, settings.public_url, cors, standing_of=standing_of)
    chat = Generation(ChatShape(), services, settings, responder)
    completions = Generation(CompletionShape(), services, settings, responder)
    responses = Responding(
        ResponsesShape(services.catalog, services.clock), services, settings, responder
    )
    document = public_document(settings.public_url.rstrip("/"))
    routes = [
        Route("/v1/chat/completions", Methods(responder, post=chat)),
        Route("/v1/completions", Methods(responder, post=completions)),
        Route("/v1/responses", Methods(responder, post=responses)),
        *(Route(path, Methods(responder, post=Unserved(path, services))) for path in UNSERVED),
        Route("/v1/models", Methods(responder, get=ListModels(services, responder))),
        Route("/v1/models/{id:path}", Methods(responder, get=GetModel(services, responder))),
        Route("/v1/usage/me", Methods(responder, get=ShowOwnUsage(services, responder))),
        Route("/livez", Methods(responder, get=Live(responder))),
        Route("/readyz", Methods(responder, get=Ready(services, responder))),
        Route(DOCS_PATH, Methods(responder, get=error_page(responder))),
        Route(f"{DOCS_PATH}/{{code}}", Methods(responder, get=ErrorDocuments(responder))),
        Route(COMPATIBILITY_PATH, Methods(responder, get=compatibility_page(responder))),
        Route("/llms.txt", Methods(responder, get=overview(responder))),
        Route("/openapi.json", Methods(responder, get=openapi(document, responder))),
        Route("/v1", Methods(responder, get=Index(responder))),
        Route("/", Methods(responder, get=Index(responder))),
    ]
    for path, verbs in response_endpoints(services, settings, responder):
        routes.append(Route(path, Methods(responder, **verbs)))
    for path, methods in conversation_endpoints(services, settings, responder):
        routes.append(Route(path, Methods(responder, **methods)))
    for endpoints in (file_endpoints, batch_endpoints):
        for path, verbs in endpoints(services, settings, responder):
            routes.append(Route(path, Methods(responder, **verbs)))
    guesses = Guesses(settings, services.clock)
    return Front(routes, responder, services.ids, lambda path: _public_hint(path, routes), guesses)


def build_admin(services: Services, settings: GatewaySettings) -> ASGIApp:
    """What operators may reach, on a listener of its own. Never from other sites' scripts."""
    standing_of = services.pipeline.standing
    responder = Responder(services.metrics, settings.public_url, standing_of=standing_of)
    routes = [
        Route("/metrics", Methods(responder, get=Exposition(services, responder))),
        Route("/openapi.json", Methods(responder, get=openapi(admin_document(), responder))),
        Route("/livez", Methods(responder, get=Live(responder))),
        Route("/readyz", Methods(responder, get=Ready(services, responder))),
    ]
    by_path: dict[str, dict[str, ASGIApp]] = {}
    for operation in ADMIN_OPERATIONS:
        endpoint = Endpoint(operation, services.administration, settings, responder)
        by_path.setdefault(operation.path, {})[operation.method.lower()] = endpoint
    routes += [Route(path, Methods(responder, **methods)) for path, methods in by_path.items()]
    guesses = Guesses(settings, services.clock)
    return Front(routes, responder, services.ids, lambda _: _admin_hint(routes), guesses)


def _public_hint(path: str, routes: Sequence[Route]) -> str:
    pointer = _POINTERS.get(path.removeprefix(_PREFIX))
    if path.startswith("/docs/"):
        pointer = _DOCUMENTATION
    if pointer is not None:
        return pointer
    if path.startswith(f"{_PREFIX}/"):
        api = [r for r in routes if r.path.startswith(f"{_PREFIX}/") and r.path not in UNSERVED]
        return f"This endpoint is not supported. The API has {_listed(api)}."
    return "An OpenAI client's base_url should end in /v1: this server's address + /v1."


def _admin_hint(routes: Sequence[Route]) -> str:
    return f"This is the admin listener. It has {_listed(routes)}; the API is on the other one."


def _listed(routes: Sequence[Route]) -> str:
    """Method and path of each, but for those that are one item of a listed path."""
    return ", ".join(
        f"{route.endpoint.methods[0]} {route.path}"
        for route in routes
        if "{" not in route.path and isinstance(route.endpoint, Methods)
    )


class Methods:
    """One path's handlers by method; others get 405 in our shape.

    HEAD is GET, whose body the connection leaves out. OPTIONS says which methods there are.
    """

    def __init__(
        self,
        responder: Responder,
        *,
        get: ASGIApp | None = None,
        post: ASGIApp | None = None,
        delete: ASGIApp | None = None,
    ) -> None:
        self._responder = responder
        handlers = {"GET": get, "HEAD": get, "POST": post, "DELETE": delete}
        self._handlers = {name: handler for name, handler in handlers.items() if handler}
        self.methods = tuple(self._handlers)
        self._allow = [(b"allow", ", ".join((*self.methods, "OPTIONS")).encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["method"])
        if handler is not None:
            await handler(scope, receive, send)
            return
        if scope["method"] == "OPTIONS":
            await self._responder.nothing(scope, send, self._allow)
            return
        error = MethodNotAllowed(
            f"{scope['path'][:_PATH_CHARACTERS]} does not take {scope['method']}, only "
            f"{', '.join(self.methods)}."
        )
        await self._responder.error(scope, send, error, self._allow)


class Front:
    """The outermost callable of an application."""

    def __init__(
        self,
        routes: Sequence[Route],
        responder: Responder,
        ids: IdSource,
        hint: Hint,
        guesses: Guesses,
    ) -> None:
        self._router = Router(routes, redirect_slashes=False, default=Nothing(hint))
        self.routes = routes
        self._responder = responder
        self._ids = ids
        self._guesses = guesses
        roots = (route.path.split("/") for route in routes)
        api = frozenset(parts[2] for parts in roots if parts[1] == "v1" and len(parts) > 2)
        self._api = api | _UNBUILT if api else api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks HTTP, not {scope['type']}")
        scope[REQUEST_ID] = self._ids.new("req")
        scope["path"] = self.tidy(scope["path"])
        cors = self._responder.cors
        try:
            if cors is None or not await self._grant(cors, scope, send):
                await self._router(scope, receive, send)
        except Exception as fault:
            await self._failed(scope, send, fault)

    def tidy(self, path: str) -> str:
        """The path as the route table spells it."""
        if "//" in path:
            path = _SLASHES.sub("/", path)
        if len(path) > 1 and path.endswith("/"):
            path = path[:-1]
        while path.startswith("/v1/v1"):
            path = path.removeprefix(_PREFIX)
        if not path.startswith(_PREFIX) and path.removeprefix("/").split("/", 1)[0] in self._api:
            path = _PREFIX + path
        return path

    async def _grant(self, cors: Cors, scope: Scope, send: Send) -> bool:
        """Answer a preflight, which has no key; false if this is none that is granted."""
        if scope["method"] != "OPTIONS":
            return False
        granted = cors.preflight(scope["headers"], self._methods(scope))
        if granted is not None:
            await self._responder.nothing(scope, send, granted)
        return granted is not None

    def _methods(self, scope: Scope) -> tuple[str, ...]:
        """Those of the path; where there is none, all that its 404 could be asked for with."""
        for route in self.routes:
            endpoint = route.endpoint
            if isinstance(endpoint, Methods) and route.matches(scope)[0] is not Match.NONE:
                return endpoint.methods
        return _ALL_METHODS

    async def _failed(self, scope: Scope, send: Send, fault: Exception) -> None:
        error = fault
        if not isinstance(fault, ForebayError) or isinstance(fault, Signal):
            report_unhandled(fault, request_id(scope))
            error = InternalError()
        elif isinstance(fault, InvalidKey):
            error = self._guesses.refuse(scope, fault)
        if started(scope):
            # Half an answer has left. Ending the connection is the only honest way to say so.
            raise fault
        assert isinstance(error, ForebayError)
        await self._responder.error(scope, send, error)


class Nothing:
    """Where no route leads. Raises; `Front` answers."""

    def __init__(self, hint: Hint) -> None:
        self._hint = hint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        shown = path if len(path) <= _PATH_CHARACTERS else path[:_PATH_CHARACTERS] + "…"
        raise NotFound(f"There is nothing at {scope['method']} {shown}. {self._hint(path)}")
