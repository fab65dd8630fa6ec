from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer

from forebay.cli.audit import Archive, _expect, _head, _join, read
from forebay.cli.failure import Failure
from forebay.ledger import Link, archived
from forebay.ledger.memory import MemoryLedger
from forebay.pipeline.bookkeeping import Bookkeeping
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import furnish
from forebay.testing.contracts.ledger_records import DAY, settled


class Ledger:
    """Six rows, of which the first ones are archived in files of two."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.ledger = MemoryLedger(self.clock)
        self.books = Bookkeeping(self.ledger.records, self.clock)

    async def fill(self, *, dropped: int) -> None:
        await furnish(self.ledger)
        self.rows = await settled(self.ledger, *range(1, 7))
        lines = [msgspec.json.encode(archived(row)) + b"\n" for row in self.rows]
        self.files = [self.directory / f"{n}.jsonl" for n in range(3)]
        for number, file in enumerate(self.files):
            file.write_bytes(b"".join(lines[2 * number : 2 * number + 2]))
        if dropped:
            self.clock.advance(5 * DAY)
            await self.ledger.records.drop(dropped, self.rows[dropped - 1].hash)

    async def ask(self, verb: str, *, after: int, limit: int) -> object:
        assert verb == "usage.outbox"
        return await self.books.outbox(after, limit)

    def link(self, sequence: int) -> tuple[int, str]:
        return sequence, self.rows[sequence - 1].hash


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


async def test_archives_in_their_order_are_one_chain(ledger: Ledger) -> None:
    await ledger.fill(dropped=0)
    found = read(ledger.files, wanted=3)
    assert (found.rows, found.first, found.noted) == (6, 1, ledger.rows[2].hash)
    assert found.last == Link(*ledger.link(6))
    assert read(ledger.files[1:]).first == 3


async def test_archives_out_of_order_or_with_one_missing_do_not_follow(ledger: Ledger) -> None:
    await ledger.fill(dropped=0)
    first, second, third = ledger.files
    with pytest.raises(Failure, match=r"1\.jsonl: the audit chain breaks at row 7: rows are out"):
        read([third, second])
    with pytest.raises(Failure, match=r"2\.jsonl.* at row 3: rows 3 to 4 are missing"):
        read([first, third])


async def test_an_empty_archive_verifies_nothing(ledger: Ledger) -> None:
    await ledger.fill(dropped=0)
    ledger.files[0].write_bytes(b"")
    with pytest.raises(Failure, match="no row"):
        read(ledger.files[:1])
    assert read([]).last is None


@pytest.mark.parametrize("dropped", [0, 2, 4, 6])
async def test_an_archive_joins_the_ledger_where_its_rows_left_it_or_still_are(
    ledger: Ledger, dropped: int
) -> None:
    await ledger.fill(dropped=dropped)
    for last in range(max(dropped, 1), 7):
        await _join(ledger.ask, Link(*ledger.link(last)), ledger.link(6))


async def test_an_archive_that_ends_too_early_or_is_of_other_books_does_not_join(
    ledger: Ledger,
) -> None:
    await ledger.fill(dropped=4)
    for sequence, digits in ((2, ledger.rows[1].hash), (4, "0" * 64), (6, "0" * 64), (9, "0" * 64)):
        with pytest.raises(Failure, match=f"ends with row {sequence}, which is not"):
            await _join(ledger.ask, Link(sequence, digits), ledger.link(6))


async def test_a_head_that_was_noted_is_looked_for_in_the_ledger_and_in_archives(
    ledger: Ledger,
) -> None:
    await ledger.fill(dropped=4)
    head = ledger.link(6)
    for sequence in (5, 6):
        await _expect(ledger.ask, Archive(), ledger.link(sequence), head)
    await _expect(ledger.ask, Archive(noted=ledger.rows[2].hash), ledger.link(3), head)
    for expect, archive, message in (
        ((5, "0" * 64), Archive(), "is not the one that was noted"),
        ((3, "0" * 64), Archive(noted=ledger.rows[2].hash), "is not the one that was noted"),
        ((3, "0" * 64), Archive(), "has left the ledger"),
        ((7, "0" * 64), Archive(), "the newest is 6: rows are missing"),
    ):
        with pytest.raises(Failure, match=message):
            await _expect(ledger.ask, archive, expect, head)


async def test_the_head_of_a_ledger_that_is_all_archived_is_known(ledger: Ledger) -> None:
    await ledger.fill(dropped=6)
    await _expect(ledger.ask, Archive(), ledger.link(6), ledger.link(6))


@pytest.mark.parametrize("text", ["", "7", "7:", f"x:{'0' * 64}", f"0:{'0' * 64}", f"7:{'g' * 64}"])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a row's number and hash"):
        _head(text)


def test_a_head_is_read_as_it_is_printed() -> None:
    assert _head(f"17:{'ab' * 32}") == (17, "ab" * 32)
