"""What is known of files, in forebay.db through SQLAlchemy Core: one transaction per verb.

Not here: batches (`sql`), the tables (`sql_tables`), the bytes (`disk`).
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import sqlalchemy as sa

from forebay.batch.contract import FileInUse, Files, Listing
from forebay.batch.rules import exists_already, require_room
from forebay.batch.settings import BatchSettings
from forebay.batch.sql_tables import BATCHES, FILES, Runner, file_of
from forebay.core.batch import StoredFile
from forebay.core.clock import Clock

# What one transaction takes out.
_STEP_FILES = 500


class SqlFiles(Files):
    """One per process, called from the event loop; functions named `in_…` run in `Runner`."""

    def __init__(self, runner: Runner, settings: BatchSettings, clock: Clock) -> None:
        self._runner = runner
        self._settings = settings
        self._clock = clock

    async def add(self, file: StoredFile) -> None:
        await self._runner.run(partial(self._in_add, file, self._clock.now()))

    async def find(self, organisation_id: str, id: str) -> StoredFile:
        now = self._clock.now()
        row = await self._runner.run(partial(in_file_row, organisation_id, id, now))
        return file_of(row)

    async def page(self, organisation_id: str, listing: Listing) -> list[StoredFile]:
        now = self._clock.now()
        return await self._runner.run(partial(_in_page, organisation_id, listing, now))

    async def remove(self, organisation_id: str, id: str) -> None:
        await self._runner.run(partial(_in_remove, organisation_id, id, self._clock.now()))

    async def used_bytes(self, organisation_id: str) -> int:
        now = self._clock.now()
        used_bytes, _ = await self._runner.run(partial(_in_used, organisation_id, now))
        return used_bytes

    async def sweep(self, limit: int) -> list[str]:
        ids: list[str] = []
        while len(ids) < limit:
            step = partial(_in_sweep, self._clock.now(), min(limit - len(ids), _STEP_FILES))
            swept = await self._runner.run(step)
            if not swept:
                break
            ids += swept
        return ids

    async def ids(self) -> list[str]:
        every = sa.select(FILES.c.id).order_by(FILES.c.sequence)
        return await self._runner.run(lambda connection: list(connection.scalars(every)))

    def _in_add(self, file: StoredFile, now: float, connection: sa.Connection) -> None:
        _in_require_new(file, connection)
        used_bytes, files = _in_used(file.organisation_id, now, connection)
        require_room(self._settings, used_bytes + file.size_bytes, files + 1)
        connection.execute(sa.insert(FILES).values(asdict(file)))


def in_file_row(
    organisation_id: str, id: str, now: float, connection: sa.Connection
) -> sa.Row[Any]:
    """Of FILES. Raises KeyError (B1, B7, B9)."""
    chosen = sa.select(FILES).where(FILES.c.id == id, FILES.c.organisation_id == organisation_id)
    row = connection.execute(chosen.where(_is_there(now))).one_or_none()
    if row is None:
        raise KeyError(id)
    return row


def in_insert(files: list[StoredFile], connection: sa.Connection) -> None:
    """Whatever B8 says."""
    for file in files:
        _in_require_new(file, connection)
        connection.execute(sa.insert(FILES).values(asdict(file)))


def _in_require_new(file: StoredFile, connection: sa.Connection) -> None:
    if connection.scalar(sa.select(FILES.c.sequence).where(FILES.c.id == file.id)) is not None:
        raise exists_already("file", file.id)


def _is_there(now: float) -> sa.ColumnElement[bool]:
    """It has not expired, or a batch needs it."""
    return sa.or_(FILES.c.expires_at.is_(None), FILES.c.expires_at > now, _is_needed())


def _is_needed() -> sa.ColumnElement[bool]:
    return sa.exists().where(BATCHES.c.needed_file_id == FILES.c.id)


def _in_page(
    organisation_id: str, listing: Listing, now: float, connection: sa.Connection
) -> list[StoredFile]:
    chosen = sa.select(FILES).where(FILES.c.organisation_id == organisation_id, _is_there(now))
    if listing.purpose is not None:
        chosen = chosen.where(FILES.c.purpose == listing.purpose)
    after = None
    if listing.after is not None:
        after = in_file_row(organisation_id, listing.after, now, connection)
    rows = connection.execute(in_order(chosen, FILES, listing, after))
    return [file_of(row) for row in rows]


def in_order(
    chosen: sa.Select[Any],
    table: sa.Table,
    listing: Listing,
    after: sa.Row[Any] | None,
) -> sa.Select[Any]:
    """These by time of creation, those after this row."""
    columns = (table.c.created_at, table.c.sequence)
    if after is not None:
        place, last = sa.tuple_(*columns), sa.tuple_(after.created_at, after.sequence)
        chosen = chosen.where(place < last if listing.newest_first else place > last)
    order = [column.desc() for column in columns] if listing.newest_first else columns
    return chosen.order_by(*order).limit(listing.limit)


def _in_remove(organisation_id: str, id: str, now: float, connection: sa.Connection) -> None:
    row = in_file_row(organisation_id, id, now, connection)
    needing = sa.select(BATCHES.c.id).where(BATCHES.c.needed_file_id == id)
    batch_id = connection.scalar(needing.order_by(BATCHES.c.sequence).limit(1))
    if batch_id is not None:
        raise FileInUse(batch_id)
    connection.execute(sa.delete(FILES).where(FILES.c.sequence == row.sequence))


def _in_used(organisation_id: str, now: float, connection: sa.Connection) -> tuple[int, int]:
    """Bytes and number of an organisation's files."""
    total = sa.select(sa.func.sum(FILES.c.size_bytes), sa.func.count())
    mine = total.where(FILES.c.organisation_id == organisation_id, _is_there(now))
    used_bytes, files = connection.execute(mine).one()
    return int(used_bytes or 0), files


def _in_sweep(now: float, limit: int, connection: sa.Connection) -> list[str]:
    expired = sa.select(FILES.c.id).where(FILES.c.expires_at <= now, sa.not_(_is_needed()))
    ordered = expired.order_by(FILES.c.expires_at, FILES.c.sequence).limit(limit)
    ids = list(connection.scalars(ordered))
    connection.execute(sa.delete(FILES).where(FILES.c.id.in_(ids)))
    return ids
