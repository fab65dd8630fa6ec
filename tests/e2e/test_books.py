"""The books from outside: audits, exports and archives with a server and without, and after tampering."""

from __future__ import annotations

import asyncio
import csv
import http.client
import io
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import furnish
from forebay.testing.contracts.ledger_records import DAY, settled
from tests.e2e.running import Server, forebay, forebay_json

QUICK = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0"}
LONG_AGO = 1_700_000_000.0  # 2023-11-14 22:13 UTC
FIRST_DAY, NEXT_DAY = "2023-11-15", "2023-11-16"

pytestmark = pytest.mark.timeout(300)


def call(server: Server, content: str, **more: object) -> int:
    """One call that is not streamed; its status."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    with closing(connection):
        body = {"model": "scripted", "messages": [{"role": "user", "content": content}], **more}
        headers = {
            "authorization": f"Bearer {server.key}",
            "content-type": "application/json",
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse().status


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has answered five calls, one of them cut by a stop string."""
    directory = tmp_path_factory.mktemp("served")
    with Server.start("--model", "scripted", data_dir=directory, env=QUICK) as server:
        for number in range(4):
            assert call(server, f"call {number}") == 200
        assert call(server, "[[script length=20 text=abcdef]]", stop="cd") == 200
        yield server


@pytest.fixture
def old_books(tmp_path: Path) -> Path:
    """A data directory with six calls of one day and two of the next, of years ago."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    clock = FakeClock(now=LONG_AGO)

    async def fill() -> None:
        ledger = await SqliteLedger.open(directory / "ledger.db", clock)
        await furnish(ledger)
        await settled(ledger, *range(1, 7), created_at=clock.now())
        clock.advance(DAY)
        await settled(ledger, 7, 8, created_at=clock.now())
        await ledger.close()

    asyncio.run(fill())
    return directory


def verify(directory: Path, *arguments: str | Path) -> tuple[int, str]:
    """The exit code, and all that was said."""
    done = forebay("audit", "verify", "--data-dir", directory, *arguments)
    return done.returncode, done.stdout + done.stderr


def head_of(directory: Path) -> str:
    code, said = verify(directory)
    assert code == 0, said
    found = re.search(r"head: (\d+:[0-9a-f]{64})", said)
    assert found is not None
    return found[1]


def archive(directory: Path, before: str, to: Path) -> Any:
    return forebay_json(
        "ledger", "archive", "--before", before, "--to", to, "--data-dir", directory
    )


def test_a_running_server_is_audited_reconciled_and_exported(served: Server) -> None:
    assert served.command_json("audit", "verify")["rows"] == 5
    head = head_of(served.data_dir)
    assert verify(served.data_dir, "--expect", head)[0] == 0
    found = served.command_json("reconcile")
    assert (found["differences"], found["rows"], found["holds"]) == ([], 5, 0)
    done = served.command("usage", "export", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert "5 calls; go on with --after 5" in done.stderr
    by_id = {row["call_id"]: row for row in served.usage()}
    assert [int(row["sequence"]) for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        known = by_id[row["event_id"]]
        assert int(row["amount_nanos"]) == known["amount_nanos"]
        assert row["amount_usd"] == known["amount_usd"]
        assert int(row["output_tokens"]) == known["output_tokens"]
    later = served.command("usage", "export", "--format", "jsonl", "--after", "3")
    assert [json.loads(line)["event_id"] for line in later.stdout.splitlines()] == [
        row["event_id"] for row in rows[3:]
    ]


def test_without_a_server_the_same_is_said_and_its_engine_counted_what_was_received(
    tmp_path: Path,
) -> None:
    with Server.start("--model", "scripted", data_dir=tmp_path, env=QUICK) as server:
        for number in range(3):
            assert call(server, f"call {number}") == 200
        assert call(server, "[[script length=20 text=abcdef]]", stop="cd") == 200
        before = server.command("usage", "export", "--format", "jsonl").stdout
        head = head_of(tmp_path)
        assert server.stop() == 0
    file = tmp_path / "usage.jsonl"
    done = forebay("usage", "export", "--format", "jsonl", "--output", file, "--data-dir", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert file.read_text() == before
    assert head_of(tmp_path) == head
    found = forebay_json("reconcile", "--data-dir", tmp_path)
    assert (found["differences"], found["flagged_windows"]) == ([], 0)
    assert found["windows"] >= 1
    said = forebay("reconcile", "--data-dir", tmp_path).stdout
    assert said.startswith("4 rows, 0 open holds, ")
    assert said.endswith(": 0 differences\n")


def test_an_engine_that_miscounts_is_a_difference(tmp_path: Path) -> None:
    with Server.start("--model", "scripted", data_dir=tmp_path, env=QUICK) as server:
        assert call(server, "[[script length=10 miscount=1]]") == 200
        assert server.stop() == 0
    done = forebay("reconcile", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert "Engine scripted" in done.stdout
    assert "made 20 tokens in the minute" in done.stdout
    assert "1 difference" in done.stdout
    assert "do not agree" in done.stderr


TAMPERED = {
    "changed": ("UPDATE resolution SET amount_nanos = 0 WHERE sequence = 4", 4, "was changed"),
    "deleted": ("DELETE FROM resolution WHERE sequence = 4", 4, "row 4 is missing"),
    "cut off": ("DELETE FROM resolution WHERE sequence > 6", 7, "rows 7 to 8 are missing"),
    "reordered": (
        "UPDATE resolution SET sequence = -1 WHERE sequence = 4;"
        "UPDATE resolution SET sequence = 4 WHERE sequence = 5;"
        "UPDATE resolution SET sequence = 5 WHERE sequence = -1",
        4,
        "changed or moved",
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_l12_a_row_that_was_changed_deleted_or_moved_is_found(old_books: Path, how: str) -> None:
    statements, sequence, problem = TAMPERED[how]
    with closing(sqlite3.connect(old_books / "ledger.db")) as connection:
        connection.executescript(statements)
    found = forebay("audit", "verify", "--data-dir", old_books, "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["first_break"]["sequence"] == sequence
    assert f"the audit chain breaks at row {sequence}: " in found.stderr
    assert problem in found.stderr


def test_a_chain_that_was_forged_anew_is_told_by_a_head_that_was_noted(old_books: Path) -> None:
    """Whoever can write the file and knows this code can make another whole ledger."""
    assert verify(old_books, "--expect", head_of(old_books))[0] == 0
    forged = f"8:{'ab' * 32}"
    assert "is not the one that was noted" in verify(old_books, "--expect", forged)[1]
    code, said = verify(old_books, "--expect", f"9:{'ab' * 32}")
    assert (code, "the newest is 8: rows are missing" in said) == (1, True)


def test_days_that_are_over_are_archived_and_what_is_left_goes_on_from_them(
    old_books: Path, tmp_path: Path
) -> None:
    head, files = head_of(old_books), tmp_path / "archives"
    files.mkdir()
    first = archive(old_books, FIRST_DAY, files)
    assert first["dropped"] == 6
    assert verify(old_books, "--expect", head)[0] == 0
    assert forebay_json("reconcile", "--data-dir", old_books)["differences"] == []
    with Server.start("--model", "scripted", data_dir=old_books, env=QUICK) as server:
        assert call(server, "while archives are made") == 200
        second = archive(old_books, NEXT_DAY, files)
        assert second["dropped"] == 2
        assert archive(old_books, NEXT_DAY, files) == {"file": None, "dropped": 0}
        both = ("--file", first["file"], "--file", second["file"])
        code, said = verify(old_books, *both, "--expect", head)
        assert (code, "1 row and 8 archived rows verified" in said) == (0, True), said
        done = server.command("usage", "export", "--format", "csv")
        assert "rows 1 to 8 were archived" in done.stderr
        assert len(done.stdout.splitlines()) == 2
        assert server.stop() == 0
    assert "name the archive" in verify(old_books, "--expect", f"3:{'ab' * 32}")[1]
    assert "ends with row 6, which is not" in verify(old_books, "--file", first["file"])[1]
    assert "breaks at row 9" in verify(old_books, *reversed_files(both))[1]
    assert verify(old_books, "--file", second["file"])[0] == 0


def reversed_files(arguments: tuple[str, ...]) -> tuple[str, ...]:
    one, first, two, second = arguments
    return (one, second, two, first)


def test_an_archive_that_was_changed_is_found(old_books: Path, tmp_path: Path) -> None:
    file = Path(archive(old_books, NEXT_DAY, tmp_path)["file"])
    assert verify(old_books, "--file", file)[0] == 0
    copy = tmp_path / "copy.jsonl"
    shutil.copy(file, copy)
    lines = copy.read_text().splitlines(keepends=True)
    for changed, row in (
        ([*lines[:2], lines[2].replace('"amount_nanos":', '"amount_nanos":1'), *lines[3:]], 3),
        ([*lines[:2], *lines[3:]], 3),
        ([lines[0], lines[2], lines[1], *lines[3:]], 2),
    ):
        copy.write_text("".join(changed))
        code, said = verify(old_books, "--file", copy)
        assert code == 1
        assert f"copy.jsonl: the audit chain breaks at row {row}: " in said
    copy.write_text("".join(lines[:-1]))
    assert verify(old_books, "--file", copy)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ledger", "archive", "--before", "2099-01-01", "--to", "."), "Rows of today"),
        (("ledger", "archive", "--before", "soon", "--to", "."), "'soon' is not a UTC day"),
        (("ledger", "archive", "--before", NEXT_DAY, "--to", "gone"), "gone"),
        (("audit", "verify", "--expect", "12"), "not a row's number and hash"),
        (("usage", "export", "--format", "xml"), "xml"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    old_books: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = forebay(*arguments, "--data-dir", old_books, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_where_there_are_no_books_nothing_is_said_about_them(tmp_path: Path) -> None:
    for arguments in (("audit", "verify"), ("reconcile",), ("usage", "export", "--format", "csv")):
        done = forebay(*arguments, "--data-dir", tmp_path / "empty")
        assert done.returncode == 1
        assert "There is no data in" in done.stderr
