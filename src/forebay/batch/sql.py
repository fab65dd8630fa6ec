"""Batches and their items in forebay.db through SQLAlchemy Core: one transaction per verb, a few for
many items that are forgotten.

An outcome, and what it adds to the counts and sums of its batch, are one transaction (B3).

Not here: files (`sql_files`), the tables (`sql_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from forebay.batch.contract import Batches, Learnt, Listing
from forebay.batch.rules import advanced, exists_already
from forebay.batch.sql_files import in_file_row, in_insert, in_order
from forebay.batch.sql_tables import (
    BATCHES,
    IS_PENDING,
    IS_UNFINISHED,
    ITEMS,
    Runner,
    batch_of,
    item_of,
    order_values,
    progress_values,
)
from forebay.core.batch import Answered, Batch, BatchState, Item, ItemState, Place, Refused
from forebay.core.clock import Clock
from forebay.core.errors import StaleAttempt

# What one transaction forgets: others wait for it, and answers may be long.
_STEP_ITEMS = 500


class SqlBatches(Batches):
    """One per process, beside SqlFiles; functions named `_in_…` run in `Runner`."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock

    async def create(self, batch: Batch) -> Batch:
        return await self._runner.run(partial(_in_create, batch, self._clock.now()))

    async def find(self, organisation_id: str, id: str) -> Batch:
        return batch_of(await self._runner.run(partial(_in_row_of, organisation_id, id)))

    async def by_key(self, organisation_id: str, key: str) -> Batch | None:
        return await self._runner.run(partial(_in_by_key, organisation_id, key))

    async def page(self, organisation_id: str, listing: Listing) -> list[Batch]:
        return await self._runner.run(partial(_in_page, organisation_id, listing))

    async def unfinished(self) -> list[Batch]:
        return await self._runner.run(_in_unfinished)

    async def advance(
        self, batch_id: str, to: BatchState, at: float, learnt: Learnt | None = None
    ) -> Batch:
        return await self._runner.run(partial(_in_advance, batch_id, to, at, learnt))

    async def open(self, places: Sequence[Place]) -> None:
        await self._runner.run(partial(_in_open, places))

    async def keep(self, place: Place, attempt: int, answer: bytes) -> None:
        await self._runner.run(partial(_in_keep, place, attempt, answer))

    async def tell(self, place: Place, outcome: Answered | Refused) -> bool:
        return await self._runner.run(partial(_in_tell, place, outcome))

    async def items(self, batch_id: str, after: int, limit: int) -> list[Item]:
        return await self._runner.run(partial(_in_items, batch_id, after, limit))

    async def pending(self) -> list[Place]:
        return await self._runner.run(_in_pending)

    async def forget_items(self, limit: int) -> int:
        forgotten = 0
        while forgotten < limit:
            step = partial(_in_forget_items, min(limit - forgotten, _STEP_ITEMS))
            count = await self._runner.run(step)
            if count == 0:
                break
            forgotten += count
        return forgotten


def _in_create(batch: Batch, now: float, connection: sa.Connection) -> Batch:
    organisation_id, order = batch.scopes.organisation_id, batch.order
    earlier = _in_by_key(organisation_id, order.key, connection)
    if earlier is not None:
        return earlier
    if _in_row(batch.id, connection) is not None:
        raise exists_already("batch", batch.id)
    values = {**order_values(batch), **progress_values(batch)}
    try:
        needed = in_file_row(organisation_id, order.input_file_id, now, connection).id
    except KeyError:
        needed = None
    connection.execute(sa.insert(BATCHES).values(values | {"needed_file_id": needed}))
    return batch


def _in_by_key(organisation_id: str, key: str, connection: sa.Connection) -> Batch | None:
    if not key:
        return None
    same = sa.and_(BATCHES.c.organisation_id == organisation_id, BATCHES.c.order_key == key)
    row = connection.execute(sa.select(BATCHES).where(same)).one_or_none()
    return None if row is None else batch_of(row)


def _in_row(batch_id: str, connection: sa.Connection) -> sa.Row[Any] | None:
    chosen = sa.select(BATCHES).where(BATCHES.c.id == batch_id).with_for_update()
    return connection.execute(chosen).one_or_none()


def _in_row_of(organisation_id: str, id: str, connection: sa.Connection) -> sa.Row[Any]:
    """Raises KeyError (B1)."""
    row = _in_row(id, connection)
    if row is None or row.organisation_id != organisation_id:
        raise KeyError(id)
    return row


def _in_page(organisation_id: str, listing: Listing, connection: sa.Connection) -> list[Batch]:
    chosen = sa.select(BATCHES).where(BATCHES.c.organisation_id == organisation_id)
    after = None
    if listing.after is not None:
        after = _in_row_of(organisation_id, listing.after, connection)
    rows = connection.execute(in_order(chosen, BATCHES, listing, after))
    return [batch_of(row) for row in rows]


def _in_unfinished(connection: sa.Connection) -> list[Batch]:
    chosen = sa.select(BATCHES).where(IS_UNFINISHED)
    ordered = chosen.order_by(BATCHES.c.created_at, BATCHES.c.sequence)
    return [batch_of(row) for row in connection.execute(ordered)]


def _in_advance(
    batch_id: str, to: BatchState, at: float, learnt: Learnt | None, connection: sa.Connection
) -> Batch:
    row = _in_row(batch_id, connection)
    if row is None:
        raise KeyError(batch_id)
    before = batch_of(row)
    after = advanced(before, to, at, learnt)
    if after is before:
        return before
    in_insert([file for file in (learnt or Learnt()).files if file is not None], connection)
    values = progress_values(after)
    if to.is_ended:
        values["needed_file_id"] = None
    connection.execute(sa.update(BATCHES).where(BATCHES.c.id == batch_id).values(values))
    return after


def _in_open(places: Sequence[Place], connection: sa.Connection) -> None:
    for batch_id in dict.fromkeys(place.batch_id for place in places):
        if _in_row(batch_id, connection) is None:
            raise KeyError(batch_id)
    begun = {"state": ItemState.OPEN, "attempt": 0, "answer": b"", "head": b""}
    values = [{"batch_id": each.batch_id, "line": each.line, **begun} for each in places]
    if values:
        connection.execute(insert(ITEMS).on_conflict_do_nothing(), values)


def _in_state(place: Place, connection: sa.Connection) -> tuple[ItemState, int]:
    """With the attempt, without the answer. Raises KeyError."""
    chosen = sa.select(ITEMS.c.state, ITEMS.c.attempt).where(_is_at(place)).with_for_update()
    row = connection.execute(chosen).one_or_none()
    if row is None:
        raise KeyError(place)
    return ItemState(row.state), row.attempt


def _is_at(place: Place) -> sa.ColumnElement[bool]:
    return sa.and_(ITEMS.c.batch_id == place.batch_id, ITEMS.c.line == place.line)


def _in_keep(place: Place, attempt: int, answer: bytes, connection: sa.Connection) -> None:
    state, kept_attempt = _in_state(place, connection)
    if state.has_outcome:
        return
    if attempt < kept_attempt:
        raise StaleAttempt
    kept = sa.update(ITEMS).where(_is_at(place))
    connection.execute(kept.values(state=ItemState.KEPT, attempt=attempt, answer=answer))


def _in_tell(place: Place, outcome: Answered | Refused, connection: sa.Connection) -> bool:
    state, _ = _in_state(place, connection)
    if state.has_outcome:
        return False
    if isinstance(outcome, Refused):
        told: dict[str, Any] = {"state": ItemState.FAILED, "answer": outcome.why}
    elif state is ItemState.KEPT:
        told = {"state": ItemState.COMPLETED, "head": outcome.head}
    else:
        raise KeyError(place)
    connection.execute(sa.update(ITEMS).where(_is_at(place)).values(told))
    mine = sa.update(BATCHES).where(BATCHES.c.id == place.batch_id)
    connection.execute(mine.values(_added(outcome)))
    return True


def _added(outcome: Answered | Refused) -> dict[str, Any]:
    """What an outcome makes of the counts and sums of its batch."""
    if isinstance(outcome, Refused):
        return {"failed": BATCHES.c.failed + 1}
    usage = outcome.usage
    more = {
        "completed": 1,
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "amount_nanos": outcome.amount_nanos,
    }
    return {name: BATCHES.c[name] + amount for name, amount in more.items()}


def _in_items(batch_id: str, after: int, limit: int, connection: sa.Connection) -> list[Item]:
    chosen = sa.select(ITEMS).where(ITEMS.c.batch_id == batch_id, ITEMS.c.line > after)
    return [item_of(row) for row in connection.execute(chosen.order_by(ITEMS.c.line).limit(limit))]


def _in_pending(connection: sa.Connection) -> list[Place]:
    chosen = sa.select(ITEMS.c.batch_id, ITEMS.c.line).where(IS_PENDING)
    living = chosen.join(BATCHES, BATCHES.c.id == ITEMS.c.batch_id).where(IS_UNFINISHED)
    ordered = living.order_by(ITEMS.c.batch_id, ITEMS.c.line)
    return [Place(row.batch_id, row.line) for row in connection.execute(ordered)]


def _in_forget_items(limit: int, connection: sa.Connection) -> int:
    begun = _begun_ids()
    ended = sa.select(sa.func.min(begun.c.id)).join(BATCHES, BATCHES.c.id == begun.c.id)
    batch_id = connection.scalar(ended.where(sa.not_(IS_UNFINISHED)))
    if batch_id is None:
        return 0
    mine = ITEMS.c.batch_id == batch_id
    lines = sa.select(ITEMS.c.line).where(mine).order_by(ITEMS.c.line).limit(limit)
    forgotten = sa.delete(ITEMS).where(mine, ITEMS.c.line.in_(lines))
    return connection.execute(forgotten).rowcount


def _begun_ids() -> sa.CTE:
    """Batches that have items, each found from the one before: there are far fewer than items, and
    far fewer than batches."""
    begun = sa.select(sa.func.min(ITEMS.c.batch_id).label("id")).cte("begun", recursive=True)
    after = sa.select(sa.func.min(ITEMS.c.batch_id)).where(ITEMS.c.batch_id > begun.c.id)
    later = sa.select(after.scalar_subquery()).where(begun.c.id.is_not(None))
    return begun.union_all(later)
