"""The ledger on SQLite: one file, one writing thread with group commit, three reading threads.

    event loop ──operation──▶ writer thread: BEGIN, a savepoint each, COMMIT ──answers──▶ event loop
               ──question───▶ a reading thread of its kind: a read-only connection ─answer──▶

What the walk of a call asks, reports and audits have a thread each: none waits for the next kind.

The money has a file of its own (`ledger.db`), opened through apsw only: it brings its own SQLite.
WAL with synchronous=FULL: what was answered survives the process and the power. No memory map: an
I/O error must be an error code, not a signal.

Invariants: all of `contract.py`; `sqlite_schema` says which of them the store itself refuses to break.

Not here: the SQL (`sqlite_sql`), what the verbs do (`sqlite_verbs`), the decisions (`rules`), and
the lock that keeps a second process out of the directory (wiring).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw

from forebay.core.clock import Clock
from forebay.core.errors import StoreUnavailable
from forebay.core.hold import (
    Account,
    Balance,
    Bill,
    Hold,
    HoldRequest,
    Period,
    Remembered,
    UsageQuery,
)
from forebay.core.money import Price, PriceTerms
from forebay.core.usage import UsageRow, UsageSlice, UsageTotal
from forebay.ledger import rules, sqlite_reads, sqlite_schema
from forebay.ledger.contract import Books, Ledger
from forebay.ledger.sqlite_reader import Reader
from forebay.ledger.sqlite_records import SqliteRecords
from forebay.ledger.sqlite_rows import encode_progress
from forebay.ledger.sqlite_verbs import Verbs
from forebay.ledger.sqlite_writer import GroupCommit

OLDEST_SQLITE = (3, 51, 3)  # 3.7.0 to 3.51.2 can lose committed pages when a WAL is reset
BUSY_MS = 5_000  # a backup or a checkpoint may hold the file this long
WAL_LIMIT_BYTES = 64 << 20  # a WAL that a long reader let grow is cut back to this
REPAIR = (
    "Stop the server, keep a copy of the file, and restore the last backup or recover what is left "
    "with: sqlite3 ledger.db .recover | sqlite3 recovered.db"
)


class Readers(NamedTuple):
    """The reading threads, each for one kind of question."""

    calls: Reader
    reports: Reader
    audits: Reader


class SqliteLedger(Ledger, Books):
    """Made by `open`; used from the event loop that opened it, by any number of its tasks."""

    def __init__(self, writer: GroupCommit, verbs: Verbs, readers: Readers, clock: Clock) -> None:
        self._writer = writer
        self._verbs = verbs
        self._readers = readers
        self._clock = clock
        self.records = SqliteRecords(writer, verbs, readers.audits, clock)

    @classmethod
    async def open(
        cls, path: Path, clock: Clock, *, answers_bytes: int = rules.KEPT_ANSWER_BYTES
    ) -> SqliteLedger:
        """Open or create the file, check it, and start the threads.

        `answers_bytes` bounds the answers kept for idempotency keys. Raises
        StoreUnavailable saying what is wrong and what to do.
        """
        writing, *reading = await asyncio.to_thread(_connect, path)
        verbs = Verbs(writing, answers_bytes)
        loop = asyncio.get_running_loop()
        writer = GroupCommit(writing, loop, on_rollback=verbs.forget)
        names = (f"ledger-{kind}" for kind in Readers._fields)
        return cls(writer, verbs, Readers(*map(Reader, reading, names)), clock)

    async def hold(self, request: HoldRequest) -> Hold:
        return await self._writer.submit(partial(self._verbs.hold, request))

    async def dispatch(self, hold_id: str, attempt: int) -> None:
        await self._writer.submit(partial(self._verbs.dispatch, hold_id, attempt))

    async def adopt(self, hold_id: str, owner: str) -> int:
        return await self._writer.submit(partial(self._verbs.adopt, hold_id, owner))

    async def settle(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        at = self._clock.now()
        return await self._writer.submit(partial(self._verbs.settle, hold_id, attempt, bill, at))

    async def release(self, hold_id: str, attempt: int, bill: Bill) -> UsageRow:
        at = self._clock.now()
        return await self._writer.submit(partial(self._verbs.release, hold_id, attempt, bill, at))

    async def beat(self, process: str, counter: int, progress: Mapping[str, int]) -> None:
        rules.check_progress(progress)
        packed = encode_progress(dict(progress))  # here: the caller may change it while we wait
        await self._writer.submit(partial(self._verbs.beat, process, counter, packed))

    async def sweep(self, monotonic: float) -> list[UsageRow]:
        at = self._clock.now()
        return await self._writer.submit(partial(self._verbs.sweep, monotonic, at))

    async def balances(self, scope: str) -> Balance:
        now = self._clock.now()
        return await self._readers.reports.ask(
            lambda store: sqlite_reads.balances(store, scope, now)
        )

    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        now = self._clock.now()
        return await self._readers.calls.ask(
            lambda store: sqlite_reads.recall(store, organisation_id, key, now)
        )

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        # One call's is in a request's way; all others may take long.
        readers = self._readers.calls if query.call_id else self._readers.reports
        return await readers.ask(lambda store: sqlite_reads.usage(store, query))

    async def totals(self, query: UsageQuery, *, by: str) -> list[UsageTotal]:
        return await self._readers.reports.ask(lambda store: sqlite_reads.totals(store, query, by))

    async def slices(self, query: UsageQuery, *, width_seconds: int) -> list[UsageSlice]:
        return await self._readers.reports.ask(
            lambda store: sqlite_reads.slices(store, query, width_seconds)
        )

    async def price(self, version: int) -> Price:
        return await self._readers.calls.ask(lambda store: sqlite_reads.price(store, version))

    async def open_account(self, account: Account) -> bool:
        return await self._writer.submit(partial(self._verbs.open_account, account))

    async def set_cap(
        self, scope: str, cap_nanos: int | None, period: Period | None = None
    ) -> None:
        """A new period's sums are taken beside the calls that go on; the writer adds what is newer.

        They are taken again if rows that they do not know were dropped meanwhile.
        """
        change = partial(self._verbs.set_cap, scope, cap_nanos, period)
        posted = None
        while not await self._writer.submit(partial(change, posted)):
            posted = await self._readers.reports.ask(
                lambda store: sqlite_reads.posted(store, scope, period)
            )

    async def set_max_open_holds(self, scope: str, max_open_holds: int | None) -> None:
        await self._writer.submit(partial(self._verbs.set_max_open_holds, scope, max_open_holds))

    async def top_up(self, scope: str, amount_nanos: int, id: str) -> Account:
        at = self._clock.now()
        return await self._writer.submit(partial(self._verbs.top_up, scope, amount_nanos, id, at))

    async def publish_price(self, terms: PriceTerms) -> Price:
        return await self._writer.submit(partial(self._verbs.publish_price, terms))

    async def close(self) -> None:
        """Readers first: the last connection to close folds the WAL back into the file."""
        for reader in self._readers:
            await reader.close()
        await self._writer.close()


def check_library(version: str) -> None:
    """Raise StoreUnavailable for a SQLite whose WAL mode can corrupt a file."""
    if tuple(int(part) for part in version.split(".")) < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreUnavailable(
            f"apsw brings SQLite {version}, whose WAL mode can lose committed data; "
            f"{oldest} or newer is needed. Upgrade apsw."
        )


def _connect(path: Path) -> list[apsw.Connection]:
    """The writer's and one for each reader, or StoreUnavailable and nothing left open."""
    check_library(apsw.sqlite_lib_version())
    opened: list[apsw.Connection] = []
    _create_private(path)
    try:
        opened.append(apsw.Connection(str(path)))
        _prepare_file(opened[0], path)
        for _ in Readers._fields:
            opened.append(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY))
            _set_up(opened[-1], "query_only = ON")
    except Exception as error:
        for connection in opened:
            connection.close()
        raise _refusal(path, error) from error
    return opened


def _create_private(path: Path) -> None:
    """An empty file for its owner alone; SQLite gives the write-ahead log the rights of the file.

    One that exists is left alone, not even opened: closing it would drop the locks that another
    connection of this process has on it.
    """
    with contextlib.suppress(OSError):  # SQLite says better why it cannot be opened
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare_file(connection: apsw.Connection, path: Path) -> None:
    _set_up(connection)
    _check_whose(connection, path)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != [("wal",)]:
        raise StoreUnavailable(
            f"{path} cannot be put into WAL mode (it stays in {mode[0][0]!r} mode). "
            "Use a local file system."
        )
    _set_up(connection, "synchronous = FULL", f"journal_size_limit = {WAL_LIMIT_BYTES}")
    found = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        what = " ".join("; ".join(found).split())
        raise StoreUnavailable(f"{path} is damaged ({what}). {REPAIR}")
    version = connection.pragma("user_version")
    if version != sqlite_schema.SCHEMA_VERSION:
        with connection:
            for step in _steps(version):
                connection.execute(step)
            connection.pragma("application_id", sqlite_schema.APPLICATION_ID)
            connection.pragma("user_version", sqlite_schema.SCHEMA_VERSION)


def _steps(version: int) -> list[str]:
    """What makes a file of this version one of ours; 0 is an empty one."""
    if version == 0:
        return [sqlite_schema.SCHEMA]
    return [sqlite_schema.UPGRADES[v] for v in range(version, sqlite_schema.SCHEMA_VERSION)]


def _set_up(connection: apsw.Connection, *pragmas: str) -> None:
    connection.set_busy_timeout(BUSY_MS)
    for pragma in ("foreign_keys = ON", "mmap_size = 0", "trusted_schema = OFF", *pragmas):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _check_whose(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file of a newer version, or one that is not a ledger, before anything is written."""
    version = connection.pragma("user_version")
    if version > sqlite_schema.SCHEMA_VERSION:
        raise StoreUnavailable(
            f"{path} was written by a newer Forebay (schema {version}; this one knows "
            f"{sqlite_schema.SCHEMA_VERSION}). Upgrade Forebay."
        )
    if 0 < version < sqlite_schema.OLDEST_VERSION:
        raise StoreUnavailable(
            f"{path} has schema {version}, from before the first release; this Forebay reads "
            f"{sqlite_schema.OLDEST_VERSION} and newer. Name another data directory, or delete this one."
        )
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    ours = connection.pragma("application_id") == sqlite_schema.APPLICATION_ID
    if tables and not (ours and version):
        raise StoreUnavailable(f"{path} is not a ledger of Forebay. Name another data directory.")


def _refusal(path: Path, error: Exception) -> Exception:
    """What to tell the operator at start."""
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreUnavailable(f"{path} is damaged ({error}). {REPAIR}")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(f"{path} is in use by another process ({error}). Stop that one.")
    if isinstance(error, apsw.Error):
        return StoreUnavailable(
            f"{path} cannot be opened ({type(error).__name__}: {error}). Check that its directory "
            "exists, belongs to this user, and has free space."
        )
    return error
