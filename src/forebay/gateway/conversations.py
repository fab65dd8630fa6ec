"""/v1/conversations…: dialogues that the server remembers, in the shape of OpenAI's Conversations API.

An endpoint is a row: path, method, how its body is read, and a function. Whoever asks sees the
conversations of its organisation, nothing else: an id of another organisation's is answered as one
that does not exist.

Not here: what is done with them (`forebay.pipeline`), bodies (`conversation_request.py`), answers
(`conversation_schema.py`), calls that go on from a conversation (the Responses API).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from forebay.core.dialogue import Item, Page
from forebay.core.principal import Principal
from forebay.gateway.admin_read import read_query
from forebay.gateway.answer import ignored_header
from forebay.gateway.body import ClientGone, decode_object, read_body
from forebay.gateway.conversation_request import (
    ConversationRequest,
    parse_conversation,
    parse_items,
    parse_metadata,
)
from forebay.gateway.conversation_schema import (
    DeletedConversation,
    ItemList,
    ItemsQuery,
    WireConversation,
    wire_conversation,
    wire_items,
)
from forebay.gateway.items import WireItem, wire_item
from forebay.gateway.meter import enter
from forebay.gateway.request import asks_to_be_strict, require_nothing_ignored
from forebay.gateway.respond import Responder
from forebay.gateway.services import Background, GatewaySettings, Services
from forebay.pipeline.dialogues import Dialogues

_CONVERSATIONS = "/v1/conversations"
_CONVERSATION = "/v1/conversations/{id}"
_ITEMS = "/v1/conversations/{id}/items"
_ITEM = "/v1/conversations/{id}/items/{item_id}"
_EXAMPLE = '{"items": […]}'

Parse = Callable[[Mapping[str, Any]], ConversationRequest]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: on whose behalf, the ids in its path, what its body and its query say."""

    principal: Principal
    dialogues: Dialogues
    background: Background
    path: Mapping[str, str]
    query: bytes
    body: ConversationRequest
    items: tuple[Item, ...]

    @property
    def id(self) -> str:
        return self.path["id"]


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the route table. Without `parse` there is no body."""

    path: str
    method: str
    do: Callable[[Asked], Awaitable[Any]]
    parse: Parse | None = None


class ConversationEndpoint:
    """Serves one operation."""

    def __init__(
        self,
        operation: Operation,
        services: Services,
        settings: GatewaySettings,
        responder: Responder,
    ) -> None:
        self._operation = operation
        self._services = services
        self._settings = settings
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        principal = await enter(scope, services)
        try:
            body = await self._body(scope, receive)
        except ClientGone:
            return
        asked = Asked(
            principal,
            services.dialogues,
            services.background,
            scope["path_params"],
            scope["query_string"],
            body,
            tuple(Item(services.ids.new("msg"), role, parts) for role, parts in body.items),
        )
        answer = await self._operation.do(asked)
        headers = [(b"x-forebay-ignored", ignored_header(body.ignored))] if body.ignored else []
        await self._responder.json(scope, send, answer, headers=headers)

    async def _body(self, scope: Scope, receive: Receive) -> ConversationRequest:
        """What the body asks for. One without any is an empty object."""
        parse = self._operation.parse
        if parse is None:
            return ConversationRequest()
        raw = await read_body(scope, receive, self._settings)
        body = parse(decode_object(raw, _EXAMPLE) if raw.strip() else {})
        if asks_to_be_strict(scope["headers"]):
            require_nothing_ignored(body)
        if body.ignored:
            self._services.metrics.unknown_fields.inc(len(body.ignored))
        return body


def conversation_endpoints(
    services: Services, settings: GatewaySettings, responder: Responder
) -> Iterator[tuple[str, dict[str, ConversationEndpoint]]]:
    """Each path with its endpoints by method."""
    by_path: dict[str, dict[str, ConversationEndpoint]] = {}
    for operation in OPERATIONS:
        endpoint = ConversationEndpoint(operation, services, settings, responder)
        by_path.setdefault(operation.path, {})[operation.method] = endpoint
    yield from by_path.items()


async def _create(asked: Asked) -> WireConversation:
    body = asked.body
    made = await asked.dialogues.create(
        asked.principal, asked.items, metadata=body.metadata, ttl_seconds=body.ttl_seconds
    )
    return wire_conversation(made)


async def _retrieve(asked: Asked) -> WireConversation:
    return wire_conversation(await asked.dialogues.find(asked.principal, asked.id))


async def _update(asked: Asked) -> WireConversation:
    metadata = asked.body.metadata
    return wire_conversation(await asked.dialogues.annotate(asked.principal, asked.id, metadata))


async def _delete(asked: Asked) -> DeletedConversation:
    await asked.dialogues.delete(asked.principal, asked.id)
    await asked.background.forget(asked.id)
    return DeletedConversation(id=asked.id)


async def _append(asked: Asked) -> ItemList:
    await asked.dialogues.add(asked.principal, asked.id, asked.items)
    return wire_items(asked.items)


async def _list(asked: Asked) -> ItemList:
    query = read_query(asked.query, ItemsQuery)
    page = Page(query.limit + 1, query.after or None, newest_first=query.order == "desc")
    found = await asked.dialogues.items(asked.principal, asked.id, page)
    return wire_items(found[: query.limit], has_more=len(found) > query.limit)


async def _item(asked: Asked) -> WireItem:
    item_id = asked.path["item_id"]
    return wire_item(await asked.dialogues.item(asked.principal, asked.id, item_id))


async def _remove(asked: Asked) -> WireConversation:
    item_id = asked.path["item_id"]
    return wire_conversation(await asked.dialogues.remove_item(asked.principal, asked.id, item_id))


OPERATIONS = (
    Operation(_CONVERSATIONS, "post", _create, parse_conversation),
    Operation(_CONVERSATION, "get", _retrieve),
    Operation(_CONVERSATION, "post", _update, parse_metadata),
    Operation(_CONVERSATION, "delete", _delete),
    Operation(_ITEMS, "get", _list),
    Operation(_ITEMS, "post", _append, parse_items),
    Operation(_ITEM, "get", _item),
    Operation(_ITEM, "delete", _remove),
)
