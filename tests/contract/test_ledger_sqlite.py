"""What only the ledger on SQLite promises: the store's own checks, group commit, start and end."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from forebay.core.errors import InsufficientQuota, StoreUnavailable, TooManyOpenCalls
from forebay.core.hold import Account, Claim, Hold, UsageQuery
from forebay.core.usage import UsageRow
from forebay.ledger import sqlite as room
from forebay.ledger import sqlite_schema
from forebay.ledger.audit import first_break
from forebay.ledger.sqlite import SqliteLedger, check_library
from forebay.system import share_the_interpreter
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import H, ask, bill, check_books, figures, furnish, gather


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def ledger(path: Path, clock: FakeClock) -> AsyncIterator[SqliteLedger]:
    opened = await SqliteLedger.open(path, clock)
    yield opened
    await opened.close()


def raw(path: Path, statement: str, *bindings: Any) -> list[Any]:
    """Run a statement as somebody who does not know our rules."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        return connection.execute(statement, bindings).fetchall()


def spoil(path: Path, content: bytes, *, offset: int = 0) -> None:
    """Write over a part of the file, as a failing disk does."""
    path.touch()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize(
    ("statement", "invariant"),
    [
        ("UPDATE balance SET pending_nanos = pending_nanos + 1 WHERE scope = 'key_a'", "L2"),
        ("UPDATE balance SET posted_nanos = posted_nanos + 1 WHERE scope = 'key_a'", "L2"),
        ("UPDATE balance SET pending_nanos = -1", "L1"),
        ("UPDATE balance SET posted_nanos = -1", "L1"),
        ("UPDATE balance SET posted_nanos = 0.5", "an amount is an integer"),
        ("UPDATE account SET open_holds = open_holds + 1 WHERE scope = 'key_a'", "L15"),
        ("UPDATE account SET open_holds = -1", "L15"),
        ("UPDATE account SET cap_nanos = -1", "caps"),
        ("UPDATE resolution SET amount_nanos = hold_nanos + 1", "L3"),
        ("UPDATE resolution SET amount_nanos = -1", "L3"),
        ("UPDATE resolution SET call_id = 'req_3' WHERE call_id = 'req_2'", "L4"),
        ("UPDATE hold SET id = 'req_1' WHERE id = 'req_4'", "L4"),
        ("UPDATE price SET cached_input_nanos = input_nanos + 1", "L3"),
        ("DELETE FROM price", "L11"),
        ("DELETE FROM balance WHERE scope = 'key_a'", "L1"),
        ("DELETE FROM account WHERE scope = 'key_a'", "L15"),
        ("UPDATE claim SET key = 'key-1'", "L9"),
        ("UPDATE claim SET answer = x'00'", "L9"),
        ("UPDATE kept SET bytes = -1", "L9"),
        ("UPDATE hold SET key_period = '1999-01'", "L1"),
    ],
)
async def test_the_store_itself_refuses_to_break_an_invariant(
    ledger: SqliteLedger, path: Path, statement: str, invariant: str
) -> None:
    """L1-L4, L9, L11, L15: whoever asks, and also when our own code does."""
    await furnish(ledger, cap_nanos=3 * H, max_open_holds=2)
    for number in (2, 3):
        await ledger.hold(ask(number))
        await ledger.settle(f"req_{number}", 1, bill(30))
    opened = [await ledger.hold(ask(1, claim=Claim("key-1", bytes(32))))]
    opened.append(await ledger.hold(ask(4, claim=Claim("key-2", bytes(32)))))
    with pytest.raises(apsw.ConstraintError):
        raw(path, statement)
    await check_books(ledger, opened)


async def test_a_lowered_limit_of_open_calls_follows_down_as_they_end(
    ledger: SqliteLedger, path: Path
) -> None:
    """L15: the high-water mark of concurrency behaves as the one of money (L2)."""
    await furnish(ledger, max_open_holds=3)
    for number in (1, 2, 3):
        await ledger.hold(ask(number))
    await ledger.set_max_open_holds("key_a", 1)
    marks = []
    for number in (1, 2, 3):
        with pytest.raises(TooManyOpenCalls):
            await ledger.hold(ask(9))
        await ledger.settle(f"req_{number}", 1, bill(1))
        marks += raw(path, "SELECT open_high_water FROM account WHERE scope = 'key_a'")
    assert marks == [(2,), (1,), (1,)]
    assert isinstance(await ledger.hold(ask(9)), Hold)


async def test_a_failed_operation_rolls_back_alone(ledger: SqliteLedger, path: Path) -> None:
    """The poisoned hold has already reserved on every scope when its last statement fails."""
    await furnish(ledger)
    raw(
        path,
        "CREATE TRIGGER poison BEFORE INSERT ON hold WHEN NEW.id = 'req_5' "
        "BEGIN SELECT raise(ABORT, 'poisoned'); END",
    )
    answers = await gather(ledger.hold(ask(number)) for number in range(10))
    refused = answers.pop(5)
    assert isinstance(refused, StoreUnavailable)
    assert "poisoned" in refused.message
    await check_books(ledger, answers)


async def test_l5_the_chain_is_whole_after_a_settlement_that_failed(
    ledger: SqliteLedger, path: Path
) -> None:
    await furnish(ledger)
    raw(
        path,
        "CREATE TRIGGER poison BEFORE DELETE ON hold WHEN OLD.id = 'req_2' "
        "BEGIN SELECT raise(ABORT, 'poisoned'); END",
    )
    holds = [await ledger.hold(ask(number)) for number in range(5)]
    answers = await gather(ledger.settle(hold.id, 1, bill(1)) for hold in holds)
    assert isinstance(answers[2], StoreUnavailable)
    assert [row.sequence for row in answers if isinstance(row, UsageRow)] == [1, 2, 3, 4]
    await check_books(ledger, [holds[2]])
    raw(path, "DROP TRIGGER poison")
    assert (await ledger.settle("req_2", 1, bill(1))).sequence == 5
    await check_books(ledger)


async def test_l9_claim_and_answer_are_stored_with_their_hold_and_settlement_or_not_at_all(
    ledger: SqliteLedger, path: Path
) -> None:
    await furnish(ledger)
    request = ask(1, claim=Claim("key-1", bytes(32)))
    for event, verb in (
        ("INSERT", lambda: ledger.hold(request)),
        ("UPDATE", lambda: ledger.settle("req_1", 1, bill(1, answer=b"kept"))),
    ):
        before = await ledger.recall("org_a", "key-1"), await figures(ledger)
        raw(
            path,
            f"CREATE TRIGGER poison BEFORE {event} ON claim "
            "BEGIN SELECT raise(ABORT, 'poisoned'); END",
        )
        with pytest.raises(StoreUnavailable, match="poisoned"):
            await verb()
        assert (await ledger.recall("org_a", "key-1"), await figures(ledger)) == before
        raw(path, "DROP TRIGGER poison")
        await verb()
    assert (await ledger.recall("org_a", "key-1")).answer == b"kept"
    counted = "SELECT (SELECT bytes FROM kept) - (SELECT sum(kept_bytes) FROM claim)"
    assert raw(path, counted) == [(0,)]


async def test_a_lost_transaction_fails_its_whole_batch_and_nothing_else(
    ledger: SqliteLedger, path: Path
) -> None:
    """As when the disk is full: SQLite rolls back everything, so nobody may be told of success."""
    await furnish(ledger)
    kept = await ledger.hold(ask(100))
    raw(
        path,
        "CREATE TRIGGER poison BEFORE INSERT ON hold WHEN NEW.id = 'req_5' "
        "BEGIN SELECT raise(ROLLBACK, 'disk full'); END",
    )
    answers = await gather(ledger.hold(ask(number)) for number in range(10))
    granted = [answer for answer in answers if isinstance(answer, Hold)]
    failed = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    assert len(granted) + len(failed) == 10
    assert {"disk full" in error.message for error in failed} == {True}
    assert answers[5] in failed
    await check_books(ledger, [kept, *granted])
    raw(path, "DROP TRIGGER poison")
    again = [await ledger.hold(ask(number)) for number in range(10)]
    await check_books(ledger, [kept, *again])


async def test_a_store_that_another_process_keeps_locked_is_unavailable_not_wrong(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "BUSY_MS", 20)
    async with aclosing(closable(await SqliteLedger.open(path, clock))) as opened:
        ledger = await anext(opened)
        await furnish(ledger)
        with closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=r"BusyError.*nothing was charged"):
                await ledger.hold(ask(1))
            other.execute("ROLLBACK")
        await check_books(ledger, [await ledger.hold(ask(1))])


async def closable(ledger: SqliteLedger) -> AsyncIterator[SqliteLedger]:
    try:
        yield ledger
    finally:
        await ledger.close()


async def test_l6_an_accepted_hold_is_made_also_when_its_caller_is_gone(
    ledger: SqliteLedger,
) -> None:
    await furnish(ledger)
    task = asyncio.ensure_future(ledger.hold(ask(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await check_books(ledger, [await ledger.hold(ask(1))])


async def test_close_finishes_what_was_accepted(path: Path, clock: FakeClock) -> None:
    ledger = await SqliteLedger.open(path, clock)
    await furnish(ledger)
    tasks = [asyncio.ensure_future(ledger.hold(ask(number))) for number in range(500)]
    await asyncio.sleep(0)
    await ledger.close()
    holds = [await task for task in tasks]
    assert not path.with_name("ledger.db-wal").exists(), "the log is folded back into the file"
    again = await SqliteLedger.open(path, clock)
    await check_books(again, holds)
    await again.close()


async def test_everything_survives_a_restart_and_the_chain_goes_on(
    path: Path, clock: FakeClock
) -> None:
    first = await SqliteLedger.open(path, clock)
    await furnish(first, cap_nanos=5 * H)
    hold = await first.hold(ask(1))
    await first.hold(ask(2))
    await first.dispatch(hold.id, 3)
    await first.settle("req_2", 1, bill(1))
    await first.beat("gateway-1", 5, {"req_1": 9})
    await first.close()
    second = await SqliteLedger.open(path, clock)
    assert (await second.hold(ask(1))).attempt == 3
    assert (await second.balances("key_a")).account == Account("key_a", 5 * H)
    assert await second.sweep(0.0) == [], "a new keeper gives everyone its 10 s"
    (row,) = await second.sweep(10.0)
    assert (row.sequence, row.attempt, row.usage.output_tokens) == (2, 3, 9)
    await check_books(second)
    await second.close()


async def test_nobody_else_may_read_the_file_nor_its_log(path: Path, clock: FakeClock) -> None:
    before = os.umask(0)
    try:
        opened = await SqliteLedger.open(path, clock)
    finally:
        os.umask(before)
    files = list(path.parent.glob("ledger.db*"))
    assert {file.name for file in files} >= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    await opened.close()


async def test_a_busy_event_loop_does_not_starve_the_writer(
    path: Path, clock: FakeClock, request: pytest.FixtureRequest
) -> None:
    """A loop that is never idle shares the interpreter; with Python's default switch interval
    single holds took many seconds (see `sqlite_writer`)."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    share_the_interpreter()
    ledger = await SqliteLedger.open(path, clock)
    await furnish(ledger)
    loop = asyncio.get_running_loop()

    async def busy(done: asyncio.Event) -> None:
        while not done.is_set():
            until = loop.time() + 0.0005
            while loop.time() < until:
                pass
            await asyncio.sleep(0)

    async def calls(first: int) -> None:
        for number in range(first, first + 20):
            await ledger.hold(ask(number))
            await ledger.settle(f"req_{number}", 1, bill(1))

    done = asyncio.Event()
    burning = asyncio.ensure_future(busy(done))
    async with asyncio.timeout(20):
        await asyncio.gather(*(calls(first) for first in range(0, 160, 20)))
    done.set()
    await burning
    assert (await figures(ledger))[1:] == (0, 0)
    await ledger.close()


async def test_reading_never_waits_for_a_refused_or_a_running_write(ledger: SqliteLedger) -> None:
    await furnish(ledger, cap_nanos=H)
    answers = await gather(
        verb
        for number in range(20)
        for verb in (ledger.hold(ask(number)), ledger.usage(UsageQuery()))
    )
    assert sum(isinstance(answer, Hold) for answer in answers) == 1
    assert sum(isinstance(answer, InsufficientQuota) for answer in answers) == 19
    assert answers.count([]) == 20


async def test_a_damaged_or_foreign_file_is_refused_with_what_to_do(
    path: Path, clock: FakeClock
) -> None:
    spoil(path, b"this is no database, and long enough to be read as a header" * 20)
    with pytest.raises(StoreUnavailable, match=r"damaged.*last backup"):
        await SqliteLedger.open(path, clock)
    path = path.with_name("guests.db")
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE guests (name TEXT)")
    with pytest.raises(StoreUnavailable, match="not a ledger"):
        await SqliteLedger.open(path, clock)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchall() == [("delete",)], "left as it was"


async def test_a_torn_page_is_found_at_the_start(path: Path, clock: FakeClock) -> None:
    ledger = await SqliteLedger.open(path, clock)
    await furnish(ledger)
    for number in range(200):
        await ledger.hold(ask(number))
    await ledger.close()
    ((page,),) = raw(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'hold_owner'")
    spoil(path, b"\xff" * 4096, offset=(page - 1) * 4096)
    with pytest.raises(StoreUnavailable, match=r"damaged.*last backup"):
        await SqliteLedger.open(path, clock)


async def test_a_file_of_a_newer_version_is_left_alone(path: Path, clock: FakeClock) -> None:
    await (await SqliteLedger.open(path, clock)).close()
    raw(path, f"PRAGMA user_version = {sqlite_schema.SCHEMA_VERSION + 1}")
    with pytest.raises(StoreUnavailable, match=r"newer Forebay"):
        await SqliteLedger.open(path, clock)
    raw(path, f"PRAGMA user_version = {sqlite_schema.OLDEST_VERSION - 1}")
    with pytest.raises(StoreUnavailable, match=r"before the first release"):
        await SqliteLedger.open(path, clock)


async def test_a_locked_store_refuses_a_whole_batch_after_one_wait(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying each operation alone would wait for the lock once more for each of them."""
    monkeypatch.setattr(room, "BUSY_MS", 300)
    ledger = await SqliteLedger.open(path, clock)
    await furnish(ledger)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    loop = asyncio.get_running_loop()
    start = loop.time()
    answers = await gather(ledger.hold(ask(number)) for number in range(40))
    waited = loop.time() - start
    other.execute("ROLLBACK")
    other.close()
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert waited < 5  # forty waits would take twelve seconds
    assert isinstance(await ledger.hold(ask(1)), Hold)
    await ledger.close()


async def test_a_missing_directory_is_named(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere.ledger\.db cannot be opened.*directory"):
        await SqliteLedger.open(tmp_path / "nowhere" / "ledger.db", clock)


async def test_a_file_that_is_locked_at_the_start_is_said_to_be_in_use(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "BUSY_MS", 20)
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="in use by another process"):
            await SqliteLedger.open(path, clock)


def test_a_library_with_the_wal_reset_bug_is_refused() -> None:
    for version in ("3.40.1", "3.51.2"):
        with pytest.raises(StoreUnavailable, match=r"3\.51\.3 or newer"):
            check_library(version)
    for version in ("3.51.3", "3.54.1", "4.0.0"):
        check_library(version)
    check_library(apsw.sqlite_lib_version())


async def test_money_is_written_with_full_synchronisation_into_strict_tables(
    ledger: SqliteLedger, path: Path
) -> None:
    """L6, L13: what was answered is on the disk. The writer's connection is the one that matters."""
    with ExitStack() as stack:
        connection, reader, *_ = [stack.enter_context(closing(c)) for c in room._connect(path)]
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == 2
        assert connection.pragma("foreign_keys") == 1
        assert connection.pragma("mmap_size") == 0
        with pytest.raises(apsw.ReadOnlyError):
            reader.execute("DELETE FROM hold")
    tables = raw(path, "SELECT name, strict FROM pragma_table_list WHERE schema = 'main'")
    assert {name for name, strict in tables if not strict} <= {"sqlite_schema"}
    assert len(tables) == 15
    assert first_break(await ledger.usage(UsageQuery())) is None
