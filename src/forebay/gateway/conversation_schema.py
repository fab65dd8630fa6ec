"""The wire types of the Conversations API, as OpenAI names them; encoded by msgspec.

Not here: an item (`items.py`), how bodies are read (`conversation_request.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forebay.core.dialogue import Conversation, Item
from forebay.gateway.items import WireItem, wire_item

MAX_LISTED = 100


class WireConversation(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation. `expires_at` is ours: when it is forgotten if nobody uses it until then."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]
    expires_at: int


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a conversation. OpenAI's types have no null for the ids of an empty one."""

    object: Literal["list"] = "list"
    data: list[WireItem]
    first_id: str
    last_id: str
    has_more: bool


class ItemsQuery(msgspec.Struct, frozen=True):
    """Which part is asked for. `include` asks for nothing that there is here."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    include: list[str] | None = None


def wire_conversation(conversation: Conversation) -> WireConversation:
    """As it is sent."""
    return WireConversation(
        id=conversation.id,
        created_at=int(conversation.created_at),
        metadata=dict(conversation.metadata),
        expires_at=int(conversation.expires_at),
    )


def wire_items(items: Sequence[Item], *, has_more: bool = False) -> ItemList:
    """As they are sent."""
    return ItemList(
        data=[wire_item(item) for item in items],
        first_id=items[0].id if items else "",
        last_id=items[-1].id if items else "",
        has_more=has_more,
    )
