"""What an auditor may do, on the ledger in memory."""

from __future__ import annotations

import pytest

from forebay.core.errors import InvalidRequest
from forebay.core.records import EngineWindow
from forebay.ledger.memory import MemoryLedger
from forebay.pipeline.bookkeeping import PAGE_ROWS, SHOWN_WINDOWS, Bookkeeping
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import PLAIN, furnish
from forebay.testing.contracts.ledger_records import DAY, settled

TODAY = "2027-01-15"
IN_TWO_DAYS = "2027-01-16"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=PLAIN.created_at)


@pytest.fixture
def ledger(clock: FakeClock) -> MemoryLedger:
    return MemoryLedger(clock)


@pytest.fixture
def books(ledger: MemoryLedger, clock: FakeClock) -> Bookkeeping:
    return Bookkeeping(ledger.records, clock)


async def test_the_chain_is_verified_and_its_head_is_told(
    books: Bookkeeping, ledger: MemoryLedger
) -> None:
    await furnish(ledger)
    *_, last = await settled(ledger, 1, 2)
    assert await books.verify() == {
        "rows": 2,
        "head_sequence": 2,
        "head_hash": last.hash,
        "first_break": None,
    }


async def test_differences_are_told_and_the_newest_windows_with_a_restart(
    books: Bookkeeping, ledger: MemoryLedger
) -> None:
    await ledger.records.record_window(EngineWindow("small", "b", 0.0, 10, 9, 0))
    for minute in range(1, SHOWN_WINDOWS + 3):
        window = EngineWindow("small", "b", 60.0 * minute, 5, 3, 2, complete=False)
        await ledger.records.record_window(window)
    found = await books.reconcile()
    assert len(found["differences"]) == 1
    assert (found["windows"], found["flagged_windows"]) == (SHOWN_WINDOWS + 3, SHOWN_WINDOWS + 2)
    assert [each["minute_at"] for each in found["flagged"]] == [
        60.0 * minute for minute in range(3, SHOWN_WINDOWS + 3)
    ]
    assert found["flagged"][0]["discarded_tokens"] == 2


async def test_rows_come_in_pages_oldest_first(books: Bookkeeping, ledger: MemoryLedger) -> None:
    await furnish(ledger)
    rows = await settled(ledger, 1, 2, 3)
    assert [row["sequence"] for row in await books.outbox(limit=2)] == [1, 2]
    [row] = await books.outbox(after=2)
    assert (row["call_id"], row["hash"]) == ("req_3", rows[2].hash)
    assert await books.outbox(after=3) == []


@pytest.mark.parametrize(
    ("after", "limit"), [(-1, 1), (0, 0), (0, PAGE_ROWS + 1), (2**63, 1), (0, -1)]
)
async def test_a_page_that_is_none_is_refused(books: Bookkeeping, after: int, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="A page is 1 to"):
        await books.outbox(after, limit)


async def test_days_that_are_over_can_be_taken_out_once_somebody_has_their_rows(
    books: Bookkeeping, ledger: MemoryLedger, clock: FakeClock
) -> None:
    await furnish(ledger)
    await settled(ledger, 1, 2, 3)
    clock.advance(DAY)
    await settled(ledger, 4, created_at=clock.now())
    clock.advance(2 * DAY)
    page = await books.archivable(IN_TWO_DAYS)
    assert [row["sequence"] for row in page] == [1, 2, 3]
    assert await books.archivable(IN_TWO_DAYS, after=3) == []
    with pytest.raises(InvalidRequest, match="another hash"):
        await books.drop(IN_TWO_DAYS, 3, page[0]["hash"])
    assert await books.drop(IN_TWO_DAYS, 3, page[2]["hash"]) == {"dropped": 3}
    assert [row["sequence"] for row in await books.outbox()] == [4]
    assert (await books.verify())["rows"] == 1


async def test_a_row_that_was_resolved_later_than_its_day_stays(
    books: Bookkeeping, ledger: MemoryLedger, clock: FakeClock
) -> None:
    await furnish(ledger)
    clock.advance(DAY)
    await settled(ledger, 1, created_at=PLAIN.created_at)
    clock.advance(2 * DAY)
    assert await books.archivable(IN_TWO_DAYS) == []


@pytest.mark.parametrize("day", [TODAY, "2027-01-14", "2099-01-01"])
async def test_the_last_two_days_stay(books: Bookkeeping, day: str) -> None:
    with pytest.raises(
        InvalidRequest, match="Rows of today and of the 2 days before it stay"
    ) as refused:
        await books.archivable(day)
    assert refused.value.param == "before"


async def test_what_is_no_day_is_refused(books: Bookkeeping) -> None:
    with pytest.raises(InvalidRequest, match="'soon' is not a UTC day"):
        await books.archivable("soon")
