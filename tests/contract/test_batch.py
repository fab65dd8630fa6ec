"""The contracts of files and batches in memory and on a disk, and what only SQLite can get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from forebay.batch import Batches, Blobs, Files, Learnt
from forebay.batch.disk import DiskBlobs
from forebay.batch.memory import MemoryBatches, MemoryBlobs, MemoryFiles, MemoryState
from forebay.batch.sql import SqlBatches
from forebay.batch.sql_files import SqlFiles
from forebay.batch.sql_tables import METADATA
from forebay.core.batch import BatchState
from forebay.migrations import Database, open_database
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.batch import *  # noqa: F403
from forebay.testing.contracts.batch import (
    NOW,
    OLDEST,
    SETTINGS,
    WHY,
    answer,
    batch_of,
    begin,
    file_of,
    refusal_of,
    walk,
)
from forebay.testing.contracts.batch_blobs import *  # noqa: F403
from forebay.testing.contracts.batch_blobs import Damage
from forebay.testing.contracts.batch_files import *  # noqa: F403
from tests.contract.direct import Direct

Both = tuple[Files, Batches]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=NOW)


@pytest.fixture(params=["memory", "sql"])
async def both(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[Both]:
    if request.param == "memory":
        state = MemoryState(SETTINGS, clock)
        yield MemoryFiles(state), MemoryBatches(state)
        return
    database = open_database(tmp_path / "forebay.db")
    yield opened(database, clock)
    database.close()


def opened(database: Any, clock: FakeClock) -> Both:
    return SqlFiles(database, SETTINGS, clock), SqlBatches(database, clock)


@pytest.fixture
def files(both: Both) -> Files:
    return both[0]


@pytest.fixture
def batches(both: Both) -> Batches:
    return both[1]


@pytest.fixture(params=["memory", "disk"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Blobs, Damage]:
    if request.param == "memory":
        blobs = MemoryBlobs()

        async def damage(id: str, change: Callable[[bytes], bytes | None]) -> None:
            changed = change(blobs._contents.pop(id))
            if changed is not None:
                blobs._contents[id] = changed

        return blobs, damage

    async def damage_file(id: str, change: Callable[[bytes], bytes | None]) -> None:
        path = tmp_path / "files" / id
        changed = change(path.read_bytes())
        path.unlink()
        if changed is not None:
            path.write_bytes(changed)

    return DiskBlobs(tmp_path / "files"), damage_file


@pytest.fixture
def blobs(stored: tuple[Blobs, Damage]) -> Blobs:
    return stored[0]


@pytest.fixture
def damage(stored: tuple[Blobs, Damage]) -> Damage:
    return stored[1]


async def test_files_and_batches_outlive_the_process(tmp_path: Path, clock: FakeClock) -> None:
    database = open_database(tmp_path / "forebay.db")
    files, batches = opened(database, clock)
    await files.add(file_of())
    places = await begin(batches, 3)
    await answer(batches, places[0])
    await batches.keep(places[1], 2, b"kept")
    output = Learnt(files=(file_of("file-out"), None))
    await batches.create(batch_of("batch_2", key="once"))
    await walk(batches, "batch_2", BatchState.FINALIZING)
    await batches.advance("batch_2", BatchState.COMPLETED, NOW, output)
    told = (
        await files.page("org_a", OLDEST),
        await batches.page("org_a", OLDEST),
        await batches.items("batch_1", 0, 10),
    )
    database.close()

    clock.advance(1_000)
    database = open_database(tmp_path / "forebay.db")
    files, batches = opened(database, clock)
    assert await batches.page("org_a", OLDEST) == told[1]
    assert await batches.items("batch_1", 0, 10) == told[2]
    assert await batches.pending() == places[1:]
    assert await batches.create(batch_of("batch_3", key="once")) == told[1][1]
    # The input is needed (B7), the output has expired (B9).
    assert await files.page("org_a", OLDEST) == told[0][:1]
    assert await files.sweep(10) == ["file-out"]
    assert await refusal_of(files.find("org_a", "file-out")) == "file-out"
    database.close()


class Watched:
    """A database that knows what each transaction changed, and what it asked."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.changes: list[int] = []
        self.asked: list[tuple[str, Any]] = []

    async def run(self, work: Callable[[sa.Connection], Any]) -> Any:
        return await self._database.run(lambda connection: self._run(work, connection))

    def _run(self, work: Callable[[sa.Connection], Any], connection: sa.Connection) -> Any:
        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            self.asked.append((statement, parameters))

        before = connection.scalar(sa.text("SELECT total_changes()"))
        sa.event.listen(connection, "before_cursor_execute", note)
        answer = work(connection)
        sa.event.remove(connection, "before_cursor_execute", note)
        self.changes.append(connection.scalar(sa.text("SELECT total_changes()")) - before)
        return answer

    async def plans(self) -> list[str]:
        """How SQLite goes about what was asked last."""
        statement, parameters = self.asked[-1]

        def explained(connection: sa.Connection) -> list[str]:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            return [row.detail for row in rows]

        return await self._database.run(explained)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    database = open_database(tmp_path / "forebay.db")
    yield Watched(database)
    database.close()


async def test_items_are_forgotten_in_bounded_steps(watched: Watched, clock: FakeClock) -> None:
    _, batches = opened(watched, clock)
    for id in ("batch_1", "batch_2"):
        await begin(batches, 1_300, id)
        await batches.advance(id, BatchState.CANCELLING, NOW)
        await batches.advance(id, BatchState.CANCELLED, NOW)
    watched.changes.clear()
    assert await batches.forget_items(2_000) == 2_000
    assert sum(watched.changes) == 2_000
    assert max(watched.changes) <= 500
    assert await batches.forget_items(2_000) == 600


async def test_expired_files_are_swept_in_bounded_steps(watched: Watched, clock: FakeClock) -> None:
    files, _ = opened(watched, clock)
    adding = (files.add(file_of(f"file-{number}", size_bytes=0)) for number in range(1_100))
    await asyncio.gather(*adding)
    clock.advance(1_000)
    watched.changes.clear()
    assert len(await files.sweep(1_050)) == 1_050
    assert max(watched.changes) <= 500
    assert len(await files.sweep(1_050)) == 50


async def test_what_is_asked_often_is_found_without_looking_at_every_row(
    watched: Watched, clock: FakeClock
) -> None:
    """With all that ever was in the tables, of which little is unfinished."""
    files, batches = opened(watched, clock)
    await files.add(file_of())
    (place,) = await begin(batches, 1)
    await batches.keep(place, 1, b"")
    for asked, indexes in (
        (batches.pending(), {"batch_items_pending", "sqlite_autoindex_batches_1"}),
        (batches.unfinished(), {"batches_unfinished"}),
        (batches.items("batch_1", 0, 10), {"sqlite_autoindex_batch_items_1"}),
        (batches.page("org_a", OLDEST), {"batches_of_organisation"}),
        (files.page("org_a", OLDEST), {"files_of_organisation", "ix_batches_needed_file_id"}),
        (files.used_bytes("org_a"), {"files_of_organisation", "ix_batches_needed_file_id"}),
        (batches.tell(place, WHY), {"sqlite_autoindex_batches_1"}),
    ):
        await asked
        plan = await watched.plans()
        used = {word for line in plan for word in line.split() if "batch" in word or "of_" in word}
        assert indexes <= used, plan
        assert not [line for line in plan if "TEMP B-TREE" in line], plan


async def test_indexes_are_about_the_states_that_there_are(watched: Watched) -> None:
    """The schema's steps say it in words of their own."""
    made = sa.text("SELECT name, sql FROM sqlite_master WHERE sql LIKE '%INDEX%batch%'")
    migrated = dict(await watched.run(lambda it: it.execute(made).all()))
    database = Direct(METADATA)
    meant = dict(await database.run(lambda it: it.execute(made).all()))
    database.engine.dispose()
    assert migrated == meant
    unfinished = [f"'{each}'" for each in BatchState if not each.is_ended]
    assert f"state IN ({', '.join(unfinished)})" in meant["batches_unfinished"]
