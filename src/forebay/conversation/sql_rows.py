"""Statements that several verbs of dialogues have in common; all run inside of a verb's transaction.

Bytes are counted ahead: a row per organisation, and columns of conversations and turns. Whatever is
deleted is taken off by the same statements that delete it. What has expired but is not swept yet
counts no more either (C6): before anything is refused for it, it is deleted.

Not here: the verbs (`sql`, `sql_turns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from forebay.conversation.rules import require_organisation_room
from forebay.conversation.settings import ConversationSettings
from forebay.conversation.sql_tables import (
    CONVERSATIONS,
    EVERY_CONVERSATION,
    ITEMS,
    ORGANISATIONS,
    SUMMARIES,
    TURN_LOGS,
    TURNS,
)
from forebay.core.errors import ConversationLocked

# What one transaction deletes of expired things: 100 rows and their items, or one large conversation.
_STEP_ROWS = 100
_STEP_ITEMS = 2_000


def conversation_row(
    organisation_id: str, id: str, now: float, connection: sa.Connection
) -> sa.Row[Any]:
    """Of EVERY_CONVERSATION. Raises KeyError (C1, C2)."""
    chosen = EVERY_CONVERSATION.where(
        CONVERSATIONS.c.id == id,
        CONVERSATIONS.c.organisation_id == organisation_id,
        CONVERSATIONS.c.expires_at > now,
    )
    row = connection.execute(chosen.with_for_update(of=CONVERSATIONS)).one_or_none()
    if row is None:
        raise KeyError(id)
    return row


def unlocked_row(
    organisation_id: str, id: str, now: float, connection: sa.Connection
) -> sa.Row[Any]:
    """The same, if no call works on it: otherwise raises ConversationLocked (C4)."""
    row = conversation_row(organisation_id, id, now, connection)
    if row.open_id is not None:
        if row.open_expires_at > now:
            raise ConversationLocked
        forget_turns([row.open_id], connection)
    return row


def reserve(
    organisation_id: str,
    size_bytes: int,
    now: float,
    settings: ConversationSettings,
    connection: sa.Connection,
) -> None:
    """Count so much more. Raises ConversationFull if it is too much (C6)."""
    mine = ORGANISATIONS.c.organisation_id == organisation_id
    stored = ORGANISATIONS.c.stored_bytes
    fits = stored + size_bytes <= settings.organisation_bytes
    added = sa.update(ORGANISATIONS).where(mine).values(stored_bytes=stored + size_bytes)
    if connection.execute(added.where(fits)).rowcount:
        return
    while forget_expired(now, connection, organisation_id):
        pass
    before = connection.scalar(sa.select(stored).where(mine))
    require_organisation_room(settings, (before or 0) + size_bytes)
    first = sa.insert(ORGANISATIONS).values(
        organisation_id=organisation_id, stored_bytes=size_bytes
    )
    connection.execute(first if before is None else added)


def count(organisation_id: str, size_bytes: int, connection: sa.Connection) -> None:
    """Count so much more, or less, in any case."""
    connection.execute(
        sa.update(ORGANISATIONS)
        .where(ORGANISATIONS.c.organisation_id == organisation_id)
        .values(stored_bytes=ORGANISATIONS.c.stored_bytes + size_bytes)
    )


def forget_conversations(ids: Sequence[str], connection: sa.Connection) -> None:
    """Delete them with all of their items and turns."""
    chosen = CONVERSATIONS.c.id.in_(ids)
    theirs = TURNS.c.conversation_id.in_(ids)
    turns = sa.select(TURNS.c.id).where(theirs)
    freed = _freed(CONVERSATIONS, chosen, connection) + _freed(TURNS, theirs, connection)
    items = sa.select(ITEMS.c.sequence).where(ITEMS.c.conversation_id.in_(ids))
    forget_summaries(items, connection)
    forget_summaries(_later_items(turns), connection)
    connection.execute(sa.update(TURNS).where(TURNS.c.after_id.in_(turns)).values(after_id=None))
    connection.execute(sa.delete(ITEMS).where(ITEMS.c.conversation_id.in_(ids)))
    connection.execute(sa.delete(ITEMS).where(ITEMS.c.turn_id.in_(turns)))
    connection.execute(sa.delete(TURN_LOGS).where(TURN_LOGS.c.turn_id.in_(turns)))
    connection.execute(sa.delete(TURNS).where(theirs))
    connection.execute(sa.delete(CONVERSATIONS).where(chosen))
    _take_off(freed, connection)


def forget_turns(ids: Sequence[str], connection: sa.Connection) -> None:
    """Delete them, with their items that are no conversation's. What came after one of them now goes
    on from what that one went on from."""
    chosen = TURNS.c.id.in_(ids)
    freed = _freed(TURNS, chosen, connection)
    forget_summaries(_later_items(sa.select(TURNS.c.id).where(chosen)), connection)
    gone, before = sa.bindparam("gone", type_=sa.Text), TURNS.alias("before")
    relinked = sa.select(before.c.after_id).where(before.c.id == gone).scalar_subquery()
    connection.execute(
        sa.update(TURNS).where(TURNS.c.after_id == gone).values(after_id=relinked),
        [{"gone": id} for id in ids],
    )
    mine = ITEMS.c.turn_id.in_(ids)
    connection.execute(sa.delete(ITEMS).where(mine, ITEMS.c.conversation_id.is_(None)))
    connection.execute(sa.update(ITEMS).where(mine).values(turn_id=None))
    connection.execute(sa.delete(TURN_LOGS).where(TURN_LOGS.c.turn_id.in_(ids)))
    connection.execute(sa.delete(TURNS).where(chosen))
    _take_off(freed, connection)


def forget_summaries_from(id: str, sequence: int, connection: sa.Connection) -> None:
    """Those that cover this item of a conversation: its own, and those of chains that begin in it."""
    theirs, behind = ITEMS.c.conversation_id == id, ITEMS.c.sequence >= sequence
    forget_summaries(sa.select(ITEMS.c.sequence).where(theirs, behind), connection)
    turns = sa.select(TURNS.c.id).join(ITEMS, ITEMS.c.turn_id == TURNS.c.id)
    begun = turns.where(TURNS.c.conversation_id == id, behind)
    forget_summaries(_later_items(begun), connection)


def forget_summaries(items: sa.Select[Any] | Sequence[int], connection: sa.Connection) -> None:
    """Those that end with one of these items: sequences, or a query of them."""
    chosen = SUMMARIES.c.item_sequence.in_(items)
    freed = _freed(SUMMARIES, chosen, connection)
    if freed:
        connection.execute(sa.delete(SUMMARIES).where(chosen))
        _take_off(freed, connection)


def _later_items(turns: sa.Select[Any]) -> sa.Select[Any]:
    """The items of these turns and of all that goes on from them, but for a conversation's."""
    later = sa.select(TURNS.c.id).where(TURNS.c.id.in_(turns)).cte("later", recursive=True)
    later = later.union(sa.select(TURNS.c.id).where(TURNS.c.after_id == later.c.id))
    of_turns = ITEMS.c.turn_id.in_(sa.select(later.c.id))
    return sa.select(ITEMS.c.sequence).where(of_turns, ITEMS.c.conversation_id.is_(None))


def forget_expired(
    now: float, connection: sa.Connection, organisation_id: str | None = None
) -> bool:
    """Delete some of what has expired, of this organisation or of all; False if there was nothing."""
    for table, forget in ((CONVERSATIONS, forget_conversations), (TURNS, forget_turns)):
        size = table.c.item_count if table is CONVERSATIONS else sa.literal(1)
        expired = sa.select(table.c.id, size.label("size")).where(table.c.expires_at <= now)
        if organisation_id is not None:
            expired = expired.where(table.c.organisation_id == organisation_id)
        rows = connection.execute(expired.order_by(table.c.expires_at).limit(_STEP_ROWS)).all()
        ids: list[str] = []
        items = 0
        for row in rows:
            items += row.size
            if ids and items > _STEP_ITEMS:
                break
            ids.append(row.id)
        if ids:
            forget(ids, connection)
            return True
    return False


def _freed(
    table: sa.Table, chosen: sa.ColumnElement[bool], connection: sa.Connection
) -> Counter[str]:
    """What these rows count, by organisation."""
    counted = table.c.size_bytes if table is SUMMARIES else table.c.own_bytes + table.c.item_bytes
    total = sa.func.sum(counted)
    each = sa.select(table.c.organisation_id, total.label("total")).where(chosen)
    rows = connection.execute(each.group_by(table.c.organisation_id))
    return Counter({row.organisation_id: int(row.total) for row in rows})


def _take_off(freed: Counter[str], connection: sa.Connection) -> None:
    for organisation_id, size_bytes in sorted(freed.items()):
        count(organisation_id, -size_bytes, connection)
