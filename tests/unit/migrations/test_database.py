"""Opening forebay.db: fresh, again, from the future, damaged; and what its one thread promises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from forebay.alerts import sql as alerts
from forebay.batch import sql_tables as batch
from forebay.conversation import sql_tables as conversation
from forebay.core.errors import StoreUnavailable
from forebay.migrations import Database, DatabaseRefused, open_database, upgrade
from forebay.tenancy import sql_tables as tenancy

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forebay.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    database = open_database(path)
    yield database
    database.close()


def plainly(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """What another program reads or writes in the file, while we do not have it open."""
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def tables(path: Path) -> set[object]:
    return {row[0] for row in plainly(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def insert(connection: sa.Connection, name: str) -> None:
    connection.execute(
        sa.text("INSERT INTO organisations (id, name, plan, created_at) VALUES (:id, :id, '', 0)"),
        {"id": name},
    )


def count(connection: sa.Connection) -> int:
    return connection.scalar(sa.text("SELECT count(*) FROM organisations")) or 0


def test_an_empty_folder_gets_the_newest_schema_readable_by_its_owner_only(path: Path) -> None:
    open_database(path).close()
    assert {"organisations", "projects", "api_keys", "alembic_version"} <= tables(path)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_opening_again_changes_nothing_and_loses_nothing(path: Path) -> None:
    database = open_database(path)
    await database.run(lambda connection: insert(connection, "acme"))
    database.close()
    schema = plainly(path, "SELECT sql FROM sqlite_master ORDER BY name")
    database = open_database(path)
    assert await database.run(count) == 1
    database.close()
    assert plainly(path, "SELECT sql FROM sqlite_master ORDER BY name") == schema


async def test_the_rooms_tables_are_what_the_migrations_make(database: Database) -> None:
    def differences(connection: sa.Connection) -> list[object]:
        rooms = (tenancy, alerts, conversation, batch)
        tables = [room.METADATA for room in rooms]
        return list(compare_metadata(MigrationContext.configure(connection), tables))

    assert await database.run(differences) == []


async def test_commits_are_durable_and_there_is_no_wal(database: Database) -> None:
    def pragmas(connection: sa.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    full = 2
    assert await database.run(pragmas) == ["truncate", full, 1]


def test_a_schema_of_the_future_is_refused_and_left_alone(path: Path) -> None:
    open_database(path).close()
    plainly(path, "UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(DatabaseRefused, match=r"newer Forebay .*9999.*Install that version"):
        open_database(path)
    assert path.read_bytes() == before


def test_what_the_first_schema_held_is_kept(path: Path) -> None:
    first = sa.create_engine(f"sqlite:///{path}")
    with first.begin() as connection:
        import_module("forebay.migrations.versions.0001_tenancy").upgrade(
            Operations(MigrationContext.configure(connection))
        )
    first.dispose()
    plainly(
        path,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('0001')",
        "INSERT INTO organisations (id, name, plan, created_at) VALUES ('o', 'o', 'standard', 1)",
        "INSERT INTO projects (id, organisation_id, name, created_at) VALUES ('p', 'o', 'p', 1)",
        "INSERT INTO api_keys (id, digest, project_id, name, redacted, created_at, calls_per_minute)"
        " VALUES ('k', x'00', 'p', '', '', 1, 60)",
    )
    open_database(path).close()
    assert plainly(path, "SELECT id, requests_per_minute, tokens_per_minute FROM api_keys") == [
        ("k", 60, None)
    ]
    assert plainly(path, "SELECT id, archived_at FROM projects") == [("p", None)]


def test_a_failed_upgrade_leaves_the_file_as_it_was(path: Path) -> None:
    """The second table of step 0001 cannot be made: the first must not stay behind."""
    plainly(path, "CREATE TABLE projects (mine)")
    with pytest.raises(DatabaseRefused, match="projects already exists"):
        open_database(path)
    assert tables(path) == {"projects"}


def test_an_upgrade_is_undone_with_the_transaction_around_it() -> None:
    engine = sa.create_engine("sqlite://", connect_args={"isolation_level": None})
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        upgrade(connection)
        assert sa.inspect(connection).has_table("api_keys")
        connection.rollback()
        assert not sa.inspect(connection).has_table("api_keys")
    engine.dispose()


def test_a_file_that_is_no_database_is_refused_with_what_to_do(path: Path) -> None:
    path.write_bytes(b"<html>not a database</html>" * 100)
    with pytest.raises(DatabaseRefused, match=r"forebay\.db.*damaged.*backup"):
        open_database(path)


def test_a_damaged_page_is_noticed_at_the_start(path: Path) -> None:
    open_database(path).close()
    rows = ((f"organisation {number}",) for number in range(500))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO organisations (id, name, plan, created_at) VALUES (?1, ?1, '', 0)", rows
        )
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(DatabaseRefused, match=r"(?s)damaged.*move it away"):
        open_database(path)
    assert path.read_bytes() == content


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatabaseRefused, match=r"missing/forebay\.db: No such file"):
        open_database(tmp_path / "missing" / "forebay.db")


def test_a_refused_file_keeps_no_thread_and_no_lock(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    before = threading.active_count()
    with pytest.raises(DatabaseRefused):
        open_database(path)
    assert threading.active_count() == before
    path.unlink()
    open_database(path).close()


def test_a_crash_in_the_middle_of_a_transaction_leaves_none_of_it(path: Path) -> None:
    open_database(path).close()
    program = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA journal_mode = TRUNCATE')\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "row = 'INSERT INTO organisations (id, name, plan, created_at) VALUES (?, ?, \"\", 0)'\n"
        "for n in range(2000): connection.execute(row, (str(n) * 20, str(n) * 20))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert killed.returncode == -9
    assert path.with_name("forebay.db-journal").stat().st_size > 0
    open_database(path).close()
    assert plainly(path, "SELECT count(*) FROM organisations") == [(0,)]


async def test_work_runs_in_order_on_one_thread_that_is_not_ours(database: Database) -> None:
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    await asyncio.gather(
        *(database.run(lambda _, number=number: note(number)) for number in range(50))
    )
    assert [number for number, _ in seen] == list(range(50))
    assert len({thread for _, thread in seen} | {threading.get_ident()}) == 2


async def test_work_that_raises_is_rolled_back_and_raises_here(database: Database) -> None:
    def fail(connection: sa.Connection) -> None:
        insert(connection, "acme")
        raise LookupError("stop")

    with pytest.raises(LookupError, match="stop"):
        await database.run(fail)
    assert await database.run(count) == 0


async def test_a_broken_rule_of_the_schema_stays_an_integrity_error(database: Database) -> None:
    await database.run(lambda connection: insert(connection, "acme"))
    with pytest.raises(IntegrityError):
        await database.run(lambda connection: insert(connection, "acme"))
    with pytest.raises(IntegrityError):
        await database.run(
            lambda connection: connection.execute(
                sa.text(
                    "INSERT INTO projects (id, organisation_id, name, created_at)"
                    " VALUES ('p', 'nobody', 'p', 0)"
                )
            )
        )


async def test_what_waits_is_committed_together_and_each_is_all_or_nothing(
    database: Database,
) -> None:
    """One that raises, breaks a rule or meets a failing store takes nothing with it."""
    commits: list[None] = []
    event.listen(database._engine, "commit", lambda _: commits.append(None))

    def fail(connection: sa.Connection) -> None:
        insert(connection, "undone")
        raise LookupError("stop")

    def add(number: int) -> Callable[[sa.Connection], None]:
        return lambda connection: insert(connection, f"org_{number}")

    held = threading.Event()
    first = asyncio.ensure_future(database.run(lambda _: held.wait()))
    await asyncio.sleep(0.05)  # it runs; the others wait for the thread
    works = [*map(add, range(20)), fail, add(0), *map(add, range(20, 40))]
    group = asyncio.gather(*map(database.run, works), return_exceptions=True)
    await asyncio.sleep(0)
    held.set()
    await first
    faults = [type(each) for each in await group if each is not None]
    assert faults == [LookupError, IntegrityError]
    assert await database.run(count) == 40
    assert len(commits) == 3, "the first, all that waited, and the count"


async def test_a_group_in_which_the_store_fails_is_tried_one_by_one(database: Database) -> None:
    held = threading.Event()
    first = asyncio.ensure_future(database.run(lambda _: held.wait()))
    await asyncio.sleep(0.05)
    works: list[Callable[[sa.Connection], Any]] = [
        lambda connection: insert(connection, "one"),
        lambda connection: connection.exec_driver_sql("SELECT * FROM absent"),
        lambda connection: insert(connection, "two"),
    ]
    group = asyncio.gather(*map(database.run, works), return_exceptions=True)
    await asyncio.sleep(0)
    held.set()
    await first
    assert [type(each) for each in await group] == [type(None), StoreUnavailable, type(None)]
    assert await database.run(count) == 2


async def test_a_failing_store_is_our_error(database: Database) -> None:
    with pytest.raises(StoreUnavailable, match="no such table"):
        await database.run(lambda connection: connection.exec_driver_sql("SELECT * FROM absent"))


async def test_closing_waits_for_running_work_and_may_be_repeated(database: Database) -> None:
    running = asyncio.ensure_future(
        database.run(lambda connection: (insert(connection, "acme"), count(connection))[1])
    )
    await asyncio.sleep(0)
    database.close()
    assert await running == 1
    database.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.run(count)


def test_opening_leaves_the_logging_configuration_alone(path: Path) -> None:
    before = (logging.root.level, list(logging.root.handlers))
    open_database(path).close()
    assert (logging.root.level, list(logging.root.handlers)) == before
    assert logging.getLogger("alembic").level == logging.NOTSET


def test_an_installed_wheel_brings_its_migrations(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "import forebay.migrations as m; assert m.__file__.startswith(sys.argv[1]), m.__file__\n"
        "m.open_database(pathlib.Path(sys.argv[2])).close()\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "site"), str(tmp_path / "forebay.db")],
        check=True,
    )
    assert "api_keys" in tables(tmp_path / "forebay.db")
