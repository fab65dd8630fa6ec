"""/v1/responses/…: responses that were stored, and what a prompt would count.

Whoever asks sees the responses of its organisation, nothing else: those that were completed, and in
the background all.

Not here: making a response (`responses.py`, `background.py`), how long one is kept (`forebay.pipeline`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.core.dialogue import Page, Turn
from forebay.core.errors import InvalidRequest
from forebay.core.principal import Principal
from forebay.gateway.admin_read import read_query
from forebay.gateway.answer import StreamedAnswer
from forebay.gateway.background import Reading, stored_response
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
)
from forebay.gateway.services import GatewaySettings, Services
from forebay.pipeline.turns import unknown

_RESPONSE = "/v1/responses/{id}"


class ResponseQuery(msgspec.Struct, frozen=True):
    """How a response is asked for. With `stream` its events are, those with a number above
    `starting_after`; the rest asks for nothing that there is."""

    stream: bool = False
    include: list[str] | None = None
    include_obfuscation: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: on whose behalf, for which response, and its query."""

    principal: Principal
    services: Services
    id: str
    query: bytes = b""

    async def turn(self) -> Turn:
        """Raises NotFound, also for the turn of a chat, which was no response."""
        return await self.services.turns.response(self.principal, self.id)

    async def ended(self) -> Turn:
        """The same, cancelled if it had not ended."""
        turn = await self.turn()
        if turn.state.is_pending:
            try:
                return await self.services.background.cancel(turn)
            except KeyError:
                raise unknown("Response", self.id) from None
        return turn


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
        asked = Asked(principal, self._services, id_, scope["query_string"])
        await self._responder.json(scope, send, await self._do(asked))


class ShowResponse:
    """Sends one response, or the events of one that is made in the background."""

    def __init__(self, services: Services, settings: GatewaySettings, responder: Responder) -> None:
        self._services = services
        self._settings = settings
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, responder = self._services, self._responder
        principal = await enter(scope, services)
        turn = await Asked(principal, services, scope["path_params"]["id"]).turn()
        query = read_query(scope["query_string"], ResponseQuery)
        if not query.stream:
            await responder.json(scope, send, stored_response(turn, services))
            return
        if not turn.background or not await services.background.is_logged(turn):
            raise InvalidRequest(
                "stream is true, but this response was not made with background and stream both "
                "true: it has no events to read. Leave stream out.",
                param="stream",
                code="unsupported_value",
            )
        after = -1 if query.starting_after is None else query.starting_after
        place = (scope, receive, send, services, self._settings, responder)
        await StreamedAnswer(Reading(*place, turn, after)).run()


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
    show = ShowResponse(services, settings, responder)
    yield _RESPONSE, {"get": show, "delete": stored(_delete)}
    yield f"{_RESPONSE}/input_items", {"get": stored(_input_items)}
    yield f"{_RESPONSE}/cancel", {"post": stored(_cancel)}


async def _delete(asked: Asked) -> DeletedResponse:
    await asked.ended()
    await asked.services.turns.forget(asked.principal, asked.id)
    return DeletedResponse(id=asked.id)


async def _input_items(asked: Asked) -> ItemList:
    query = read_query(asked.query, ItemsQuery)
    page = Page(query.limit + 1, query.after, query.order == "desc")
    items = await asked.services.turns.input_items(asked.principal, asked.id, page)
    return wire_items(items[: query.limit], has_more=len(items) > query.limit)


async def _cancel(asked: Asked) -> WireResponse:
    turn = await asked.ended()
    if not turn.background:
        raise InvalidRequest(
            "Cannot cancel a synchronous response. Close the connection of one that is being made.",
            param="response_id",
            code="unsupported_value",
        )
    return stored_response(turn, asked.services)
