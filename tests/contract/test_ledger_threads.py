"""Who waits for whom in the SQLite ledger: calls wait for no report, and nobody for an audit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forebay.core.hold import Claim, Period, UsageQuery
from forebay.ledger import sqlite_audits, sqlite_reads
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import H, ask, bill, furnish
from forebay.testing.contracts.ledger_records import DAY, check_audit, settled


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    opened = await SqliteLedger.open(tmp_path / "ledger.db", FakeClock())
    yield opened
    await opened.close()


@asynccontextmanager
async def endless(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, ask_it: Callable[[], Awaitable[Any]]
) -> AsyncIterator[asyncio.Future[Any]]:
    """While the block runs, that question is being answered; it ends with the block."""
    begun, end, question = threading.Event(), threading.Event(), getattr(room, name)

    def slow(*args: Any, **named: Any) -> Any:
        begun.set()
        assert end.wait(60)
        return question(*args, **named)

    monkeypatch.setattr(room, name, slow)
    running = asyncio.ensure_future(ask_it())
    try:
        assert await asyncio.to_thread(begun.wait, 60)
        async with asyncio.timeout(30):
            yield running
        assert not running.done()
    finally:
        end.set()
        await running


async def test_l9_a_call_with_a_key_waits_for_no_report_and_no_audit(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(ledger)
    await ledger.hold(ask(1, claim=Claim("key-1", bytes(32))))
    query = UsageQuery(key_id="key_a")
    slow = partial(endless, monkeypatch)
    async with (
        slow(sqlite_reads, "totals", lambda: ledger.totals(query, by="key")),
        slow(sqlite_audits, "reconcile", ledger.records.reconcile),
    ):
        remembered = await ledger.recall("org_a", "key-1")
        assert remembered is not None
        assert remembered.call_id == "req_1"
        assert (await ledger.price(1)).version == 1
        await ledger.hold(ask(2))
        await ledger.settle("req_2", 1, bill(1))


async def test_l1_a_new_period_and_a_report_wait_for_no_audit(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(ledger, cap_nanos=10 * H)
    await settled(ledger, 1)
    async with endless(monkeypatch, sqlite_audits, "reconcile", ledger.records.reconcile):
        await ledger.set_cap("key_a", 10 * H, Period.DAY)
        assert (await ledger.balances("key_a")).period_id == "2027-01-15"
        assert len(await ledger.usage(UsageQuery())) == 1
    await check_audit(ledger)


async def test_l1_sums_that_a_drop_overtook_are_taken_again(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told of a new period that there is not."""
    await furnish(ledger, cap_nanos=10 * H)
    await settled(ledger, 1)
    taken = sqlite_reads.posted
    seen: list[int] = []

    def overtaken(*asked: Any) -> Any:
        posted = taken(*asked)
        seen.append(posted.through_sequence)
        if len(seen) == 1:
            asyncio.run_coroutine_threadsafe(archive(), loop).result(30)
        return posted

    async def archive() -> None:
        (last,) = await settled(ledger, 2)
        ledger._clock.jump_wall(4 * DAY)  # type: ignore[attr-defined]
        assert await ledger.records.drop(last.sequence, last.hash) == 2

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(sqlite_reads, "posted", overtaken)
    await ledger.set_cap("key_a", 10 * H, Period.MONTH)
    assert seen == [1, 2]
    assert (await ledger.balances("key_a")).account.period is Period.MONTH
    await check_audit(ledger)
