"""Turns in forebay.db through SQLAlchemy Core: one transaction per verb, a few for a sweep.

A turn's items are its own until it is shown; then they become its conversation's in the same
transaction (C5). A chain of turns is followed by a recursive query.

Not here: conversations (`sql`), statements that both have in common (`sql_rows`), the tables
(`sql_tables`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from forebay.conversation.contract import Turns
from forebay.conversation.rules import (
    CALL_SECONDS,
    Size,
    items_bytes,
    require_revision,
    require_room,
    turn_bytes,
)
from forebay.conversation.settings import ConversationSettings
from forebay.conversation.sql_rows import (
    conversation_row,
    count,
    forget_expired,
    forget_turns,
    reserve,
    unlocked_row,
)
from forebay.conversation.sql_tables import (
    CONVERSATIONS,
    EVERY_TURN,
    IS_PENDING,
    IS_SUMMARISED,
    ITEMS,
    SUMMARIES,
    SUMMARY_COLUMNS,
    TURNS,
    item_of,
    item_values,
    summary_of,
    turn_of,
    turn_values,
)
from forebay.core.clock import Clock
from forebay.core.dialogue import Ending, Past, Pending, Said, Turn, TurnState

T = TypeVar("T")


class Runner(Protocol):
    """The open database: runs a function in a transaction of its own, off the event loop."""

    async def run(self, work: Callable[[sa.Connection], T]) -> T: ...


class SqlTurns(Turns):
    """One per process, beside SqlConversations."""

    def __init__(self, runner: Runner, settings: ConversationSettings, clock: Clock) -> None:
        self._runner = runner
        self._settings = settings
        self._clock = clock

    async def past(
        self, organisation_id: str, *, conversation_id: str | None, previous_id: str | None
    ) -> Past:
        now = self._clock.now()
        if conversation_id is not None:
            said = partial(_in_said, organisation_id, conversation_id, now)
            return await self._runner.run(said)
        if previous_id is not None:
            chained = partial(_in_chained, organisation_id, previous_id, now)
            return await self._runner.run(chained)
        return Past()

    async def begin(self, turn: Turn, *, revision: int = 0) -> None:
        await self._runner.run(partial(self._in_begin, turn, revision, self._clock.now()))

    async def keep(self, turn_id: str, attempt: int, said: Said) -> None:
        await self._runner.run(partial(_in_keep, turn_id, attempt, said, self._clock.now()))

    async def show(self, turn_id: str) -> None:
        await self._runner.run(partial(_in_show, turn_id, self._clock.now()))

    async def drop(self, turn_id: str, ending: Ending | None = None) -> None:
        await self._runner.run(partial(_in_drop, turn_id, ending, self._clock.now()))

    async def find(self, organisation_id: str, turn_id: str) -> Turn:
        return await self._runner.run(
            partial(_in_find, organisation_id, turn_id, self._clock.now())
        )

    async def delete(self, organisation_id: str, turn_id: str) -> None:
        await self._runner.run(partial(_in_delete, organisation_id, turn_id, self._clock.now()))

    async def sweep(self) -> list[Pending]:
        while await self._runner.run(partial(forget_expired, self._clock.now())):
            pass
        return await self._runner.run(_in_pending)

    def _in_begin(self, turn: Turn, revision: int, now: float, connection: sa.Connection) -> None:
        if (known := in_turn_row(turn.id, connection)) is not None:
            if lives(known, now):
                return
            forget_turns([turn.id], connection)
        before = _in_size_before(turn, revision, now, connection)
        size = items_bytes(turn.input)
        require_room(self._settings, Size(before.items + len(turn.input) + 1, before.bytes + size))
        own_bytes = turn_bytes(turn)
        reserve(turn.organisation_id, own_bytes + size, now, self._settings, connection)
        places = {
            "after_id": turn.previous_id if turn.conversation_id is None else None,
            "own_bytes": own_bytes,
            "item_bytes": size,
        }
        connection.execute(sa.insert(TURNS).values(turn_values(turn) | places))
        if turn.input:
            values = [item_values(item, turn_id=turn.id) for item in turn.input]
            connection.execute(sa.insert(ITEMS), values)
        if turn.conversation_id is not None:
            ttl = CONVERSATIONS.c.ttl_seconds
            longer = sa.case((ttl > CALL_SECONDS, ttl), else_=CALL_SECONDS)
            connection.execute(_touch(turn.conversation_id).values(expires_at=now + longer))


def _in_size_before(turn: Turn, revision: int, now: float, connection: sa.Connection) -> Size:
    """Of what it goes on from, if it may."""
    if turn.conversation_id is not None:
        row = unlocked_row(turn.organisation_id, turn.conversation_id, now, connection)
        require_revision(row.revision, revision)
        return Size(row.item_count, row.item_bytes)
    if turn.previous_id is None:
        return Size()
    _in_shown_row(turn.organisation_id, turn.previous_id, now, connection)
    return _in_chain_size(turn.organisation_id, turn.previous_id, now, connection)


def _in_keep(turn_id: str, attempt: int, said: Said, now: float, connection: sa.Connection) -> None:
    row = in_pending_row(turn_id, now, connection)
    if row is None or attempt < row.attempt:
        return
    added = said.output.size_bytes - _in_forgotten_answer(row, connection)
    answer = item_values(said.output, turn_id=turn_id, answer=True)
    connection.execute(sa.insert(ITEMS).values(answer))
    connection.execute(
        sa.update(TURNS)
        .where(TURNS.c.id == turn_id)
        .values(
            state=TurnState.KEPT,
            attempt=attempt,
            usage=asdict(said.usage),
            completed_at=said.completed_at,
            item_bytes=row.item_bytes + added,
        )
    )
    count(row.organisation_id, added, connection)


def _in_forgotten_answer(row: sa.Row[Any], connection: sa.Connection) -> int:
    """Delete the answer of a pending turn, if it has one; how many bytes that were."""
    if row.state != TurnState.KEPT:
        return 0
    old = sa.and_(ITEMS.c.turn_id == row.id, ITEMS.c.answer)
    size = connection.scalar(sa.select(ITEMS.c.size_bytes).where(old)) or 0
    connection.execute(sa.delete(ITEMS).where(old))
    return size


def _in_show(turn_id: str, now: float, connection: sa.Connection) -> None:
    row = in_pending_row(turn_id, now, connection)
    if row is None:
        return
    if row.state == TurnState.OPEN:
        _in_drop(turn_id, None, now, connection)
        return
    shown = _in_ended(row, connection).values(state=TurnState.SHOWN)
    if row.conversation_id is None:
        connection.execute(shown)
        return
    connection.execute(shown.values(item_bytes=0))
    mine = sa.update(ITEMS).where(ITEMS.c.turn_id == turn_id)
    moved = connection.execute(mine.values(conversation_id=row.conversation_id)).rowcount
    connection.execute(
        _touch(row.conversation_id).values(
            revision=CONVERSATIONS.c.revision + 1,
            expires_at=now + CONVERSATIONS.c.ttl_seconds,
            item_count=CONVERSATIONS.c.item_count + moved,
            item_bytes=CONVERSATIONS.c.item_bytes + row.item_bytes,
        )
    )


def _in_ended(row: sa.Row[Any], connection: sa.Connection) -> sa.Update:
    """What of a row changes however it ends: there is no job any more."""
    job_bytes = len(row.job or b"")
    if job_bytes:
        count(row.organisation_id, -job_bytes, connection)
    ended = sa.update(TURNS).where(TURNS.c.id == row.id)
    return ended.values(job=None, own_bytes=row.own_bytes - job_bytes)


def _in_drop(turn_id: str, ending: Ending | None, now: float, connection: sa.Connection) -> None:
    row = in_pending_row(turn_id, now, connection)
    if row is None:
        return
    if row.background and ending is not None:
        freed = _in_forgotten_answer(row, connection)
        count(row.organisation_id, -freed, connection)
        values = {"state": ending.state, "reason": ending.reason, "usage": None}
        values |= {"completed_at": None, "item_bytes": row.item_bytes - freed}
        connection.execute(_in_ended(row, connection).values(values))
    else:
        forget_turns([turn_id], connection)
    if row.conversation_id is not None:
        until = now + CONVERSATIONS.c.ttl_seconds
        connection.execute(_touch(row.conversation_id).values(expires_at=until))


def _touch(conversation_id: str) -> sa.Update:
    return sa.update(CONVERSATIONS).where(CONVERSATIONS.c.id == conversation_id)


def _in_find(organisation_id: str, turn_id: str, now: float, connection: sa.Connection) -> Turn:
    row = in_turn_row(turn_id, connection)
    if row is None or row.organisation_id != organisation_id or not lives(row, now):
        raise KeyError(turn_id)
    items = sa.select(ITEMS).where(ITEMS.c.turn_id == turn_id).order_by(ITEMS.c.sequence)
    return turn_of(row, connection.execute(items))


def _in_delete(organisation_id: str, turn_id: str, now: float, connection: sa.Connection) -> None:
    row = in_turn_row(turn_id, connection)
    mine = row is not None and row.organisation_id == organisation_id and lives(row, now)
    if row is None or not mine or TurnState(row.state).is_pending:
        raise KeyError(turn_id)
    forget_turns([turn_id], connection)


def _in_pending(connection: sa.Connection) -> list[Pending]:
    """Sorted here: to sort them itself, SQLite would rather look at every turn that there is."""
    columns = (TURNS.c.sequence, TURNS.c.id, TURNS.c.organisation_id, TURNS.c.call_id)
    rows = connection.execute(sa.select(*columns).where(IS_PENDING)).all()
    ordered = sorted(rows, key=lambda row: int(row.sequence))
    return [Pending(row.id, row.organisation_id, row.call_id) for row in ordered]


def in_turn_row(turn_id: str, connection: sa.Connection) -> sa.Row[Any] | None:
    """Of EVERY_TURN, though it may have expired."""
    chosen = EVERY_TURN.where(TURNS.c.id == turn_id).with_for_update(of=TURNS)
    return connection.execute(chosen).one_or_none()


def in_pending_row(turn_id: str, now: float, connection: sa.Connection) -> sa.Row[Any] | None:
    """Of EVERY_TURN; None if it is gone or not pending."""
    row = in_turn_row(turn_id, connection)
    gone = row is None or not TurnState(row.state).is_pending or not lives(row, now)
    return None if gone else row


def _in_shown_row(
    organisation_id: str, turn_id: str, now: float, connection: sa.Connection
) -> sa.Row[Any]:
    row = in_turn_row(turn_id, connection)
    theirs = row is not None and row.organisation_id == organisation_id
    if row is None or not theirs or row.state != TurnState.SHOWN or not lives(row, now):
        raise KeyError(turn_id)
    return row


def lives(row: sa.Row[Any], now: float) -> bool:
    """A turn of a conversation goes with it, if not before (C2)."""
    until = row.conversation_expires_at
    return bool(row.expires_at > now and (until is None or until > now))


def _in_said(organisation_id: str, id: str, now: float, connection: sa.Connection) -> Past:
    row = conversation_row(organisation_id, id, now, connection)
    locked = row.open_id is not None and row.open_expires_at > now
    rows = _in_items_of(id, None, connection)
    return Past(tuple(map(item_of, rows)), row.revision, locked, summary_of(rows))


def _in_chained(
    organisation_id: str, previous_id: str, now: float, connection: sa.Connection
) -> Past:
    rows = _in_chained_rows(organisation_id, previous_id, now, connection)
    return Past(tuple(map(item_of, rows)), summary=summary_of(rows))


def in_past_rows(
    organisation_id: str,
    conversation_id: str | None,
    previous_id: str | None,
    now: float,
    connection: sa.Connection,
) -> list[sa.Row[Any]]:
    """The items of a past, oldest first, with SUMMARY_COLUMNS. Raises KeyError."""
    if conversation_id is not None:
        conversation_row(organisation_id, conversation_id, now, connection)
        return _in_items_of(conversation_id, None, connection)
    if previous_id is None:
        return []
    return _in_chained_rows(organisation_id, previous_id, now, connection)


def _in_chained_rows(
    organisation_id: str, previous_id: str, now: float, connection: sa.Connection
) -> list[sa.Row[Any]]:
    _in_shown_row(organisation_id, previous_id, now, connection)
    chain = _chain(organisation_id, previous_id)
    columns = (chain.c.conversation_id.label("begun_in"), ITEMS, *SUMMARY_COLUMNS)
    steps = sa.select(*columns).join(ITEMS, ITEMS.c.turn_id == chain.c.id)
    steps = steps.outerjoin(SUMMARIES, IS_SUMMARISED)
    steps = _living(steps, chain, now).order_by(chain.c.depth.desc(), ITEMS.c.sequence)
    rows = connection.execute(steps).all()
    items = [row for row in rows if row.begun_in is None]
    begun = [row for row in rows if row.begun_in is not None]
    if begun:
        items[:0] = _in_items_of(begun[-1].begun_in, begun[-1].sequence, connection)
    return items


def _in_chain_size(
    organisation_id: str, previous_id: str, now: float, connection: sa.Connection
) -> Size:
    """What `_in_chained` would answer, in numbers."""
    chain = _chain(organisation_id, previous_id)
    sums = (sa.func.count(), sa.func.sum(ITEMS.c.size_bytes), sa.func.max(ITEMS.c.sequence))
    steps = sa.select(chain.c.conversation_id, *sums).join(ITEMS, ITEMS.c.turn_id == chain.c.id)
    size = Size()
    rows = connection.execute(_living(steps, chain, now).group_by(chain.c.conversation_id)).all()
    for id, items, total, last in rows:
        if id is not None:
            until = _items_of(id, last).with_only_columns(*sums)
            items, total, _ = connection.execute(until).one()
        size = Size(size.items + items, size.bytes + int(total or 0))
    return size


def _chain(organisation_id: str, turn_id: str) -> sa.CTE:
    """The turns from this one back to the first; only that one can be a conversation's."""
    columns = (TURNS.c.id, TURNS.c.after_id, TURNS.c.conversation_id, TURNS.c.expires_at)
    mine = TURNS.c.organisation_id == organisation_id
    newest = sa.select(*columns, sa.literal(0).label("depth")).where(mine, TURNS.c.id == turn_id)
    chain = newest.cte("chain", recursive=True)
    older = sa.select(*columns, chain.c.depth + 1).where(mine, TURNS.c.id == chain.c.after_id)
    return chain.union_all(older)


def _living(steps: sa.Select[Any], chain: sa.CTE, now: float) -> sa.Select[Any]:
    begun_in = CONVERSATIONS.c.id == chain.c.conversation_id
    lives = sa.or_(CONVERSATIONS.c.id.is_(None), CONVERSATIONS.c.expires_at > now)
    return steps.outerjoin(CONVERSATIONS, begun_in).where(chain.c.expires_at > now, lives)


def _in_items_of(id: str, last: int | None, connection: sa.Connection) -> list[sa.Row[Any]]:
    chosen = _items_of(id, last).add_columns(*SUMMARY_COLUMNS).outerjoin(SUMMARIES, IS_SUMMARISED)
    return list(connection.execute(chosen.order_by(ITEMS.c.sequence)))


def _items_of(id: str, last: int | None) -> sa.Select[Any]:
    """Of a conversation, up to and with the one of this sequence."""
    chosen = sa.select(ITEMS).where(ITEMS.c.conversation_id == id)
    return chosen if last is None else chosen.where(ITEMS.c.sequence <= last)
