"""/v1/responses/…: responses that were stored, and what a prompt would count.

Whoever asks sees the responses of its organisation, nothing else. Only those that were completed are
stored, so there is none to cancel.

Not here: making a response (`responses.py`), how long one is kept (`forebay.pipeline`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.core.dialogue import Page, Turn
from forebay.core.errors import InvalidRequest
from forebay.core.principal import Principal
from forebay.gateway.admin_read import read_query
from forebay.gateway.body import ClientGone
from forebay.gateway.conversation_schema import ItemList, ItemsQuery, wire_items
from forebay.gateway.intake import Intake
from forebay.gateway.meter import enter
from forebay.gateway.respond import Responder
from forebay.gateway.responses import ResponsesShape
from forebay.gateway.responses_schema import (
    DeletedResponse,
    InputTokens,
    WireResponse,
    stored_response,
)
from forebay.gateway.services import GatewaySettings, Services
from forebay.pipeline.turns import ShownTurns

_RESPONSE = "/v1/responses/{id}"


class ResponseQuery(msgspec.Struct, frozen=True):
    """How a response is asked for. But for `stream` all of it asks for nothing that there is."""

    stream: bool = False
    include: list[str] | None = None
    include_obfuscation: bool = False
    starting_after: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: on whose behalf, for which response, and its query."""

    principal: Principal
    turns: ShownTurns
    id: str
    query: bytes

    async def turn(self) -> Turn:
        """Raises NotFound, also for the turn of a chat, which was no response."""
        return await self.turns.response(self.principal, self.id)


class StoredResponse:
    """Serves one verb of one response."""

    def __init__(
        self, do: Callable[[Asked], Awaitable[Any]], services: Services, responder: Responder
    ) -> None:
        self._do = do
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        id_ = scope["path_params"]["id"]
        asked = Asked(principal, self._services.turns, id_, scope["query_string"])
        await self._responder.json(scope, send, await self._do(asked))


class CountInputTokens:
    """Takes what POST /v1/responses takes; runs and charges nothing."""

    def __init__(self, services: Services, settings: GatewaySettings, responder: Responder) -> None:
        shape = ResponsesShape(services.catalog, services.clock)
        self._intake = Intake(shape, services, settings)
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _, call = await self._intake.read(scope, receive)
        except ClientGone:
            return
        tokens = await self._services.pipeline.count(call)
        await self._responder.json(scope, send, InputTokens(input_tokens=tokens))


def response_endpoints(
    services: Services, settings: GatewaySettings, responder: Responder
) -> Iterator[tuple[str, dict[str, ASGIApp]]]:
    """Each path with its endpoints by method. The first would be an id for the others."""

    def stored(do: Callable[[Asked], Awaitable[Any]]) -> StoredResponse:
        return StoredResponse(do, services, responder)

    yield "/v1/responses/input_tokens", {"post": CountInputTokens(services, settings, responder)}
    yield _RESPONSE, {"get": stored(_show), "delete": stored(_delete)}
    yield f"{_RESPONSE}/input_items", {"get": stored(_input_items)}
    yield f"{_RESPONSE}/cancel", {"post": stored(_cancel)}


async def _show(asked: Asked) -> WireResponse:
    if read_query(asked.query, ResponseQuery).stream:
        raise InvalidRequest(
            "stream is true, but a stored response is not streamed: that is not built yet. Leave "
            "stream out.",
            param="stream",
            code="unsupported_value",
        )
    return stored_response(await asked.turn())


async def _delete(asked: Asked) -> DeletedResponse:
    await asked.turns.forget(asked.principal, asked.id)
    return DeletedResponse(id=asked.id)


async def _input_items(asked: Asked) -> ItemList:
    query = read_query(asked.query, ItemsQuery)
    page = Page(query.limit + 1, query.after, query.order == "desc")
    items = await asked.turns.input_items(asked.principal, asked.id, page)
    return wire_items(items[: query.limit], has_more=len(items) > query.limit)


async def _cancel(asked: Asked) -> WireResponse:
    await asked.turn()
    raise InvalidRequest(
        "Cannot cancel a synchronous response. Close the connection of one that is being made.",
        param="response_id",
        code="unsupported_value",
    )
