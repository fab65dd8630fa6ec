"""The ledger's third contract, `Records`, as tests: outbox, audit, archive, windows of engines (L12).

Fixtures as in `forebay.testing.contracts.ledger`, where the plain call and its prices are; the
ledger's `records` is the third contract on its store.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import StoreUnavailable, UnknownHold
from forebay.core.hold import Bill, Period, UsageQuery
from forebay.core.records import EngineWindow, Reconciled, Verified
from forebay.core.usage import Outcome, Usage, UsageRow
from forebay.ledger.audit import first_break
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import PLAIN, H, ask, bill, figures, furnish

DAY = 86_400.0
START = PLAIN.created_at  # 2027-01-15 08:00 UTC
WINDOW = EngineWindow("small", "boot-1", 1_800_000_000.0, 100, 90, 10)


async def settled(ledger: Any, *numbers: int, **changes: Any) -> list[UsageRow]:
    rows = []
    for number in numbers:
        await ledger.hold(ask(number, **changes))
        rows.append(await ledger.settle(f"req_{number}", 1, bill(number % 80)))
    return rows


async def check_audit(ledger: Any) -> Reconciled:
    """L5, L12: the chain verifies; L1, L15: the books are right."""
    verified: Verified = await ledger.records.verify()
    assert verified.first_break is None
    reconciled: Reconciled = await ledger.records.reconcile()
    assert reconciled.differences == ()
    assert reconciled.rows == verified.rows
    return reconciled


async def test_an_empty_ledger_verifies_and_reconciles(ledger: Any) -> None:
    assert await ledger.records.verify() == Verified(0, 0, "0" * 64, None)
    assert await ledger.records.reconcile() == Reconciled((), 0, 0, 0, 0, 0)


async def test_the_outbox_is_read_by_sequence_oldest_first(ledger: Any) -> None:
    await furnish(ledger)
    rows = await settled(ledger, 1, 2, 3, 4, 5)
    outbox = ledger.records.outbox
    assert await outbox(0, 2) == rows[:2]
    assert await outbox(2, 100) == rows[2:]
    assert await outbox(5, 100) == []
    assert await outbox(0, 0) == []
    with pytest.raises(ValueError, match="negative"):
        await outbox(0, -1)


async def test_l12_the_chain_verifies_and_names_its_newest_row(ledger: Any) -> None:
    await furnish(ledger)
    rows = await settled(ledger, *range(1, 8))
    await ledger.hold(ask(9))
    assert await ledger.records.verify() == Verified(7, 7, rows[-1].hash, None)


async def test_l1_l11_l15_the_books_are_right_after_every_kind_of_ending(
    ledger: Any, clock: FakeClock
) -> None:
    await furnish(ledger, cap_nanos=10 * H, period=Period.DAY)
    await settled(ledger, 1, 2)
    await ledger.hold(ask(3))
    await ledger.release("req_3", 1, bill(1, outcome=Outcome.FAILED))
    await ledger.hold(ask(4, created_at=START - DAY))
    await ledger.hold(ask(5, owner="gateway-2"))
    await ledger.beat("gateway-2", 1, {"req_5": 7})
    await ledger.hold(ask(6))
    await ledger.sweep(0.0)
    await ledger.beat("gateway-1", 1, {})
    assert len(await ledger.sweep(10.0)) == 1
    reconciled = await check_audit(ledger)
    assert reconciled == Reconciled((), rows=4, holds=2, balances=4, windows=0, flagged_windows=0)
    await ledger.set_cap("key_a", 10 * H, Period.MONTH)
    assert (await check_audit(ledger)).balances == 3


async def test_l3_what_was_completed_and_not_charged_is_a_difference(ledger: Any) -> None:
    """Any other ending may be free, and what costs nothing is."""
    await furnish(ledger)
    for number, outcome in enumerate(Outcome, start=1):
        await ledger.hold(ask(number))
        await ledger.release(f"req_{number}", 1, bill(1, outcome=outcome))
    await ledger.hold(ask(8))
    await ledger.release("req_8", 1, Bill(Usage(0, 0)))
    sequence = 1 + list(Outcome).index(Outcome.COMPLETED)
    assert (await ledger.records.reconcile()).differences == (
        f"Row {sequence} (req_{sequence}) was completed, but charged 0 of 0.00000021 USD.",
    )


async def test_l1_a_period_that_changes_while_calls_run_stays_exact(ledger: Any) -> None:
    await furnish(ledger)

    async def calls(first: int) -> None:
        for number in range(first, first + 15):
            await ledger.hold(ask(number, created_at=START + DAY * (number % 40)))
            if number % 3:
                await ledger.settle(f"req_{number}", 1, bill(number % 80))

    async def changes() -> None:
        for period in (Period.DAY, Period.MONTH, Period.TOTAL, Period.DAY, Period.MONTH):
            for scope in ("key_a", "org_a", "prj_a"):
                await ledger.set_cap(scope, None, period)

    await asyncio.gather(changes(), *(calls(first) for first in range(0, 150, 15)))
    assert (await check_audit(ledger)).holds == 50


async def test_dropped_rows_leave_their_sums_and_a_seal(ledger: Any, clock: FakeClock) -> None:
    await furnish(ledger, cap_nanos=1_000 * H, period=Period.MONTH)
    rows = await settled(ledger, *range(1, 31))
    opened = await ledger.hold(ask(90))
    before = await figures(ledger)
    clock.jump_wall(4 * DAY)
    newer = await settled(ledger, 40, created_at=clock.now())
    assert await ledger.records.drop(rows[19].sequence, rows[19].hash) == 20
    left = [*rows[20:], *newer]
    assert await ledger.records.outbox(0, 100) == left
    assert await ledger.usage(UsageQuery()) == left[::-1]
    assert await ledger.records.verify() == Verified(11, 31, newer[0].hash, None)
    assert (await check_audit(ledger)).rows == 11
    assert await ledger.records.drop(rows[19].sequence, rows[19].hash) == 0, "again"
    assert await ledger.records.drop(rows[29].sequence, rows[29].hash) == 10
    await check_audit(ledger)
    assert await figures(ledger) == (before[0] + newer[0].amount_nanos, *before[1:])
    for period in (Period.DAY, Period.TOTAL, Period.MONTH):
        await ledger.set_cap("key_a", 1_000 * H, period)
        await check_audit(ledger)
    with pytest.raises(UnknownHold):
        await ledger.settle("req_1", 1, bill(1))
    (row,) = await settled(ledger, 91, created_at=clock.now())
    assert (row.sequence, row.previous_hash) == (32, newer[0].hash)
    assert await ledger.hold(ask(90)) == opened
    await check_audit(ledger)


async def test_the_chain_goes_on_when_every_row_was_dropped(ledger: Any, clock: FakeClock) -> None:
    await furnish(ledger)
    rows = await settled(ledger, 1, 2)
    clock.jump_wall(4 * DAY)
    assert await ledger.records.drop(2, rows[-1].hash) == 2
    assert await ledger.records.verify() == Verified(0, 2, rows[-1].hash, None)
    (row,) = await settled(ledger, 3)
    assert row.sequence == 3
    assert first_break([*rows, row]) is None, "an archive and the ledger are one chain"
    await check_audit(ledger)


async def test_rows_of_the_last_two_days_are_never_dropped(ledger: Any, clock: FakeClock) -> None:
    """Neither those created nor those resolved since; the clock says 2027-01-15 08:00."""
    await furnish(ledger)
    await ledger.hold(ask(1))
    await ledger.hold(ask(2))
    first = await ledger.settle("req_1", 1, bill(1))
    clock.jump_wall(2 * DAY)
    drop = ledger.records.drop
    with pytest.raises(ValueError, match=r"row 1 was created or resolved on 2027-01-15 or later"):
        await drop(1, first.hash)
    clock.jump_wall(DAY - 8 * 3_600)
    second = await ledger.settle("req_2", 1, bill(1))
    with pytest.raises(ValueError, match="row 2 was created or resolved on 2027-01-16"):
        await drop(2, second.hash)
    with pytest.raises(ValueError, match="before 2027-01-16 at the latest"):
        await drop(1, first.hash, before="2027-01-17")
    with pytest.raises(ValueError, match="row 1 was created or resolved on 2027-01-15"):
        await drop(1, first.hash, before="2027-01-15")
    with pytest.raises(ValueError, match="'yesterday' is not a UTC day"):
        await drop(1, first.hash, before="yesterday")
    assert (await check_audit(ledger)).rows == 2
    assert await drop(1, first.hash, before="2027-01-16") == 1


async def test_only_who_has_the_rows_can_drop_them(ledger: Any, clock: FakeClock) -> None:
    await furnish(ledger)
    rows = await settled(ledger, 1, 2)
    clock.jump_wall(4 * DAY)
    for sequence, hash in ((1, rows[1].hash), (3, rows[1].hash), (0, "0" * 63 + "1")):
        with pytest.raises(ValueError, match="nothing was dropped"):
            await ledger.records.drop(sequence, hash)
    assert await ledger.records.drop(0, "0" * 64) == 0
    assert (await check_audit(ledger)).rows == 2


async def test_a_window_of_an_engine_is_kept_once_for_each_minute_and_boot(ledger: Any) -> None:
    records = ledger.records
    later = replace(WINDOW, minute_at=WINDOW.minute_at + 60)
    other = replace(WINDOW, boot="boot-2", complete=False)
    for window in (later, other, replace(WINDOW, engine_tokens=1), WINDOW):
        await records.record_window(window)
    assert await records.windows(0.0) == [WINDOW, other, later]
    assert await records.windows(later.minute_at) == [later]
    for senseless in ({"engine": ""}, {"boot": ""}, {"engine_tokens": -1}, {"minute_at": 61.0}):
        with pytest.raises(ValueError):
            await records.record_window(replace(WINDOW, **senseless))


async def test_l8_tokens_of_an_engine_that_nobody_received_are_a_difference(ledger: Any) -> None:
    """A restart within the minute proves nothing: such a window is flagged."""
    for window in (
        WINDOW,
        replace(WINDOW, boot="boot-2", engine_tokens=101),
        replace(WINDOW, boot="boot-3", engine_tokens=99, complete=False),
    ):
        await ledger.records.record_window(window)
    reconciled = await ledger.records.reconcile()
    assert (reconciled.windows, reconciled.flagged_windows) == (3, 1)
    assert reconciled.differences == (
        "Engine small (boot-2) made 101 tokens in the minute at 1800000000; "
        "90 were received and 10 discarded.",
    )


async def test_windows_leave_with_the_rows_of_their_day_unless_they_differ(
    ledger: Any, clock: FakeClock
) -> None:
    await furnish(ledger)
    (row,) = await settled(ledger, 1)
    differs = replace(WINDOW, boot="boot-2", engine_tokens=7)
    later = replace(WINDOW, minute_at=WINDOW.minute_at + 3 * DAY)
    for window in (WINDOW, differs, replace(WINDOW, boot="boot-3", complete=False), later):
        await ledger.records.record_window(window)
    clock.jump_wall(4 * DAY)
    await ledger.records.drop(1, row.hash)
    assert await ledger.records.windows(0.0) == [differs, later]


async def test_the_records_of_a_closed_ledger_refuse(ledger: Any) -> None:
    await ledger.close()
    records = ledger.records
    for refused in (
        records.outbox(0, 1),
        records.verify(),
        records.reconcile(),
        records.drop(0, "0" * 64),
        records.record_window(WINDOW),
        records.windows(0.0),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await refused
