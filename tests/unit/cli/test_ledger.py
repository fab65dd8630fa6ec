"""Archiving step by step, on the ledger in memory; what a crash between two steps leaves."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import audit, desk, ledger
from forebay.cli.failure import Failure
from forebay.ledger.memory import MemoryLedger
from forebay.pipeline.bookkeeping import Bookkeeping
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import furnish
from forebay.testing.contracts.ledger_records import DAY, check_audit, settled

BEFORE = "2027-01-16"
NAME = "forebay-ledger-000000000001-000000000005.jsonl"


class Crash(Exception):
    """The power goes."""


class Books:
    """Five rows of 15 January and one of the 17th, asked about on the 19th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.ledger = MemoryLedger(self.clock)
        self.crash_at = ""
        books = Bookkeeping(self.ledger.records, self.clock)
        self._verbs: dict[str, Any] = {
            "ledger.archivable": books.archivable,
            "ledger.drop": books.drop,
        }
        monkeypatch.setattr(desk, "asking", self.asking)

    async def fill(self) -> None:
        await furnish(self.ledger)
        await settled(self.ledger, *range(1, 6))
        self.clock.advance(2 * DAY)
        await settled(self.ledger, 6, created_at=self.clock.now())
        self.clock.advance(2 * DAY)

    @asynccontextmanager
    async def asking(self, _settings: Any) -> AsyncIterator[Any]:
        async def ask(verb: str, **args: Any) -> Any:
            if verb == self.crash_at:
                raise Crash
            pages = {"limit": 2} if verb == "ledger.archivable" else {}
            return await self._verbs[verb](**args, **pages)

        yield ask

    def archive(self, directory: Path) -> dict[str, Any]:
        return asyncio.run(ledger._archive(None, BEFORE, directory))

    def left(self) -> list[int]:
        return [row.sequence for row in asyncio.run(self.ledger.records.outbox(0, 100))]


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    books = Books(monkeypatch)
    asyncio.run(books.fill())
    return books


def test_rows_of_days_that_are_over_move_into_a_file_that_verifies(
    books: Books, tmp_path: Path
) -> None:
    before = asyncio.run(books.ledger.balances("key_a"))
    found = books.archive(tmp_path)
    assert found == {"file": str(tmp_path / NAME), "dropped": 5}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    read = audit.read([tmp_path / NAME])
    assert (read.rows, read.first) == (5, 1)
    assert books.left() == [6]
    assert asyncio.run(books.ledger.balances("key_a")) == before
    asyncio.run(check_audit(books.ledger))
    assert books.archive(tmp_path) == {"file": None, "dropped": 0}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("verb", ["ledger.archivable", "ledger.drop"])
def test_a_crash_drops_nothing_and_the_same_command_ends_what_was_begun(
    books: Books, tmp_path: Path, verb: str
) -> None:
    books.crash_at = verb
    with pytest.raises(Crash):
        books.archive(tmp_path)
    assert books.left() == [1, 2, 3, 4, 5, 6]
    complete = [path for path in tmp_path.iterdir() if path.suffix == ".jsonl"]
    assert len(complete) == (verb == "ledger.drop")
    assert [audit.read([path]).rows for path in complete] == [5] * len(complete)
    books.crash_at = ""
    books.archive(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert books.left() == [6]


def test_a_file_of_other_books_is_never_written_over(books: Books, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("theirs")
    with pytest.raises(Failure, match="not of these books; nothing was dropped"):
        books.archive(tmp_path)
    assert (tmp_path / NAME).read_text() == "theirs"
    assert books.left() == [1, 2, 3, 4, 5, 6]


def test_what_is_not_read_back_as_it_was_written_drops_nothing(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that lies, or a row that was changed in the ledger."""
    write = ledger._write

    def damage(edit: Callable[[list[str]], list[str]]) -> None:
        async def badly(ask: Any, before: str, path: Path) -> Any:
            last = await write(ask, before, path)
            rewrite(path, edit)
            return last

        monkeypatch.setattr(ledger, "_write", badly)

    damage(lambda lines: [line.replace('"req_3"', '"req_9"') for line in lines])
    with pytest.raises(Failure, match="breaks at row 3: it was changed"):
        books.archive(tmp_path)
    damage(lambda lines: lines[:4])
    with pytest.raises(Failure, match="is not what was written; nothing was dropped"):
        books.archive(tmp_path)
    assert books.left() == [1, 2, 3, 4, 5, 6]


def rewrite(path: Path, edit: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))


def test_two_commands_do_not_write_one_file(books: Books, tmp_path: Path) -> None:
    with (tmp_path / "forebay-ledger.partial").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Failure, match="Another command is writing"):
            books.archive(tmp_path)
