"""Conversations in forebay.db through SQLAlchemy Core: one transaction per verb.

Not here: turns (`sql_turns`), statements that both have in common (`sql_rows`), the tables
(`sql_tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from forebay.conversation.contract import Conversations
from forebay.conversation.rules import (
    Size,
    conversation_bytes,
    exists_already,
    items_bytes,
    require_room,
)
from forebay.conversation.settings import ConversationSettings
from forebay.conversation.sql_logs import SqlTurnLogs
from forebay.conversation.sql_rows import (
    conversation_row,
    count,
    forget_conversations,
    forget_summaries_from,
    reserve,
    unlocked_row,
)
from forebay.conversation.sql_summaries import SqlSummaries
from forebay.conversation.sql_tables import (
    CONVERSATIONS,
    ITEMS,
    conversation_of,
    conversation_values,
    item_of,
    item_values,
)
from forebay.conversation.sql_turns import Runner, SqlTurns
from forebay.core.clock import Clock
from forebay.core.dialogue import Conversation, Item, Page

T = TypeVar("T")


class SqlConversations(Conversations):
    """One per process; `turns`, `logs` and `summaries` are the other contracts on the same tables. Called
    from the event loop; functions named `_in_…` run in `Runner`."""

    def __init__(self, runner: Runner, settings: ConversationSettings, clock: Clock) -> None:
        self._runner = runner
        self._settings = settings
        self._clock = clock
        self.turns = SqlTurns(runner, settings, clock)
        self.logs = SqlTurnLogs(runner, clock)
        self.summaries = SqlSummaries(runner, settings, clock)

    async def create(self, conversation: Conversation, items: Sequence[Item]) -> None:
        now = self._clock.now()
        await self._runner.run(partial(self._in_create, conversation, items, now))

    async def find(self, organisation_id: str, id: str) -> Conversation:
        return await self._runner.run(partial(_in_find, organisation_id, id, self._clock.now()))

    async def annotate(
        self, organisation_id: str, id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        now = self._clock.now()
        return await self._runner.run(partial(_in_annotate, organisation_id, id, metadata, now))

    async def delete(self, organisation_id: str, id: str) -> None:
        await self._runner.run(partial(_in_delete, organisation_id, id, self._clock.now()))

    async def add(self, organisation_id: str, id: str, items: Sequence[Item]) -> None:
        now = self._clock.now()
        await self._runner.run(partial(self._in_add, organisation_id, id, items, now))

    async def items(self, organisation_id: str, id: str, page: Page) -> list[Item]:
        now = self._clock.now()
        return await self._runner.run(partial(_in_items, organisation_id, id, page, now))

    async def item(self, organisation_id: str, id: str, item_id: str) -> Item:
        now = self._clock.now()
        return await self._runner.run(partial(_in_item, organisation_id, id, item_id, now))

    async def remove_item(self, organisation_id: str, id: str, item_id: str) -> Conversation:
        now = self._clock.now()
        return await self._runner.run(partial(_in_remove_item, organisation_id, id, item_id, now))

    def _in_create(
        self,
        conversation: Conversation,
        items: Sequence[Item],
        now: float,
        connection: sa.Connection,
    ) -> None:
        _in_require_fresh(conversation.id, now, connection)
        size = Size(len(items), items_bytes(items))
        require_room(self._settings, size)
        own_bytes = conversation_bytes(conversation.metadata)
        needed = own_bytes + size.bytes
        reserve(conversation.organisation_id, needed, now, self._settings, connection)
        sizes = {"own_bytes": own_bytes, "item_count": size.items, "item_bytes": size.bytes}
        values = conversation_values(conversation) | sizes
        connection.execute(sa.insert(CONVERSATIONS).values(values))
        _in_append(conversation.id, items, connection)

    def _in_add(
        self,
        organisation_id: str,
        id: str,
        items: Sequence[Item],
        now: float,
        connection: sa.Connection,
    ) -> None:
        row = unlocked_row(organisation_id, id, now, connection)
        size = Size(row.item_count + len(items), row.item_bytes + items_bytes(items))
        require_room(self._settings, size)
        reserve(organisation_id, items_bytes(items), now, self._settings, connection)
        _in_append(id, items, connection)
        connection.execute(
            sa.update(CONVERSATIONS)
            .where(CONVERSATIONS.c.id == id)
            .values(
                expires_at=now + row.ttl_seconds,
                revision=row.revision + 1,
                item_count=size.items,
                item_bytes=size.bytes,
            )
        )


def _in_require_fresh(id: str, now: float, connection: sa.Connection) -> None:
    chosen = sa.select(CONVERSATIONS.c.expires_at).where(CONVERSATIONS.c.id == id)
    expires_at = connection.scalar(chosen)
    if expires_at is None:
        return
    if expires_at > now:
        raise exists_already(id)
    forget_conversations([id], connection)


def _in_append(id: str, items: Sequence[Item], connection: sa.Connection) -> None:
    if items:
        values = [item_values(item, conversation_id=id) for item in items]
        connection.execute(sa.insert(ITEMS), values)


def _in_find(organisation_id: str, id: str, now: float, connection: sa.Connection) -> Conversation:
    return conversation_of(conversation_row(organisation_id, id, now, connection))


def _in_annotate(
    organisation_id: str,
    id: str,
    metadata: Mapping[str, str],
    now: float,
    connection: sa.Connection,
) -> Conversation:
    row = conversation_row(organisation_id, id, now, connection)
    own_bytes = conversation_bytes(metadata)
    changed = sa.update(CONVERSATIONS).where(CONVERSATIONS.c.id == id)
    connection.execute(changed.values(metadata=dict(metadata), own_bytes=own_bytes))
    count(organisation_id, own_bytes - row.own_bytes, connection)
    return replace(conversation_of(row), metadata=dict(metadata))


def _in_delete(organisation_id: str, id: str, now: float, connection: sa.Connection) -> None:
    conversation_row(organisation_id, id, now, connection)
    forget_conversations([id], connection)


def _in_items(
    organisation_id: str, id: str, page: Page, now: float, connection: sa.Connection
) -> list[Item]:
    conversation_row(organisation_id, id, now, connection)
    place = ITEMS.c.sequence
    chosen = sa.select(ITEMS).where(ITEMS.c.conversation_id == id)
    if page.after is not None:
        after = _in_item_row(id, page.after, connection).sequence
        chosen = chosen.where(place < after if page.newest_first else place > after)
    ordered = chosen.order_by(place.desc() if page.newest_first else place)
    return [item_of(row) for row in connection.execute(ordered.limit(page.limit))]


def _in_item(
    organisation_id: str, id: str, item_id: str, now: float, connection: sa.Connection
) -> Item:
    conversation_row(organisation_id, id, now, connection)
    return item_of(_in_item_row(id, item_id, connection))


def _in_item_row(id: str, item_id: str, connection: sa.Connection) -> sa.Row[Any]:
    """The first of this id. Raises KeyError."""
    chosen = sa.select(ITEMS).where(ITEMS.c.conversation_id == id, ITEMS.c.id == item_id)
    row = connection.execute(chosen.order_by(ITEMS.c.sequence).limit(1)).one_or_none()
    if row is None:
        raise KeyError(item_id)
    return row


def _in_remove_item(
    organisation_id: str, id: str, item_id: str, now: float, connection: sa.Connection
) -> Conversation:
    """The answer of a turn stays with it, without its text."""
    row = unlocked_row(organisation_id, id, now, connection)
    item = _in_item_row(id, item_id, connection)
    forget_summaries_from(id, item.sequence, connection)
    this = ITEMS.c.sequence == item.sequence
    if item.answer and item.turn_id is not None:
        emptied = sa.update(ITEMS).where(this).values(parts=[], size_bytes=0)
        connection.execute(emptied.values(conversation_id=None))
    else:
        connection.execute(sa.delete(ITEMS).where(this))
    connection.execute(
        sa.update(CONVERSATIONS)
        .where(CONVERSATIONS.c.id == id)
        .values(
            revision=row.revision + 1,
            item_count=row.item_count - 1,
            item_bytes=row.item_bytes - item.size_bytes,
        )
    )
    count(organisation_id, -item.size_bytes, connection)
    return replace(conversation_of(row), revision=row.revision + 1)
