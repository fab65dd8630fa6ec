"""What an audit finds in a SQLite file that somebody changed behind the ledger's back (L12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Account, Claim, Period
from forebay.core.records import EngineWindow
from forebay.core.usage import Kind
from forebay.ledger import differences, sqlite_audits, sqlite_schema, sqlite_verbs
from forebay.ledger.sqlite import SqliteLedger
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.ledger import PLAIN, ask, bill, furnish
from forebay.testing.contracts.ledger_records import DAY, check_audit, settled

VERSION_2 = Path(__file__).with_name("ledger_version_2.sql")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def ledger(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqliteLedger]:
    """Steps are small, so that a few rows take several."""
    monkeypatch.setattr(sqlite_audits, "ROWS_PER_STEP", 3)
    monkeypatch.setattr(sqlite_verbs, "ROWS_PER_DROP", 4)
    opened = await SqliteLedger.open(path, clock)
    yield opened
    await opened.close()


def tamper(path: Path, statements: str) -> None:
    """Run statements as somebody who has the file and knows how to switch our checks off."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
        connection.execute("DROP TRIGGER resolution_ends_its_hold")
        connection.execute(statements)


TAMPERED = [
    ("UPDATE resolution SET amount_nanos = 0 WHERE sequence = 12", 12, "was changed"),
    ("UPDATE resolution SET output_tokens = 1 WHERE sequence = 12", 12, "was changed"),
    ("UPDATE resolution SET organisation_id = 'org_b' WHERE sequence = 12", 12, "was changed"),
    ("UPDATE resolution SET hash = zeroblob(32) WHERE sequence = 12", 12, "was changed"),
    ("UPDATE resolution SET previous_hash = zeroblob(32) WHERE sequence = 12", 12, "link"),
    ("UPDATE resolution SET kind = 'summary' WHERE sequence = 12", 12, "was changed"),
    ("UPDATE resolution SET lane = 'express' WHERE sequence = 12", 12, "cannot be read"),
    ("UPDATE resolution SET finish_reasons = x'7b' WHERE sequence = 12", 12, "cannot be read"),
    ("UPDATE resolution SET hash = x'00' WHERE sequence = 12", 12, "was changed"),
    ("DELETE FROM resolution WHERE sequence = 12", 12, "row 12 is missing"),
    ("DELETE FROM resolution WHERE sequence BETWEEN 12 AND 19", 12, "rows 12 to 19 are missing"),
    ("DELETE FROM resolution WHERE sequence = 20", 20, "row 20 is missing"),
    ("DELETE FROM resolution WHERE sequence > 15", 16, "rows 16 to 20 are missing"),
    (
        "UPDATE resolution SET sequence = -1 WHERE sequence = 12;"
        "UPDATE resolution SET sequence = 12 WHERE sequence = 13;"
        "UPDATE resolution SET sequence = 13 WHERE sequence = -1",
        12,
        "changed or moved",
    ),
    (
        "UPDATE resolution SET sequence = 21, call_id = 'req_21' WHERE sequence = 20",
        20,
        "row 20 is missing",
    ),
    ("UPDATE head SET sequence = 19", 20, "did not write it"),
    ("UPDATE head SET hash = zeroblob(32)", 20, "not the row that was written"),
    ("DELETE FROM head", 0, "note of its newest row"),
    ("DELETE FROM seal", 0, "note of its newest row"),
]


@pytest.mark.parametrize("sealed", [0, 9])
@pytest.mark.parametrize(("statements", "sequence", "problem"), TAMPERED)
async def test_l12_what_was_tampered_with_is_found_at_its_place(
    ledger: SqliteLedger, path: Path, clock: FakeClock, statements: str, sequence: int,
    problem: str, sealed: int,
) -> None:  # fmt: skip
    await furnish(ledger)
    rows = await settled(ledger, *range(1, 21))
    clock.jump_wall(4 * DAY)
    if sealed:
        assert await ledger.records.drop(sealed, rows[sealed - 1].hash) == sealed
    await check_audit(ledger)
    tamper(path, statements)
    found = (await ledger.records.verify()).first_break
    assert found is not None
    assert found.sequence == sequence
    assert problem in found.problem


@pytest.mark.parametrize(
    ("statements", "sequence"),
    [
        ("UPDATE seal SET hash = zeroblob(32)", 5),
        ("UPDATE seal SET sequence = 3", 4),
        ("UPDATE seal SET sequence = 0, hash = zeroblob(32)", 1),
        (
            "UPDATE seal SET sequence = (SELECT sequence FROM head), hash = (SELECT hash FROM head)",
            5,
        ),
    ],
)
async def test_l12_a_seal_that_was_moved_is_found(
    ledger: SqliteLedger, path: Path, clock: FakeClock, statements: str, sequence: int
) -> None:
    await furnish(ledger)
    rows = await settled(ledger, *range(1, 9))
    clock.jump_wall(4 * DAY)
    await ledger.records.drop(4, rows[3].hash)
    tamper(path, statements)
    found = (await ledger.records.verify()).first_break
    assert found is not None
    assert found.sequence == sequence


async def test_l12_rows_that_were_deleted_are_missed_for_ever(
    ledger: SqliteLedger, path: Path, clock: FakeClock
) -> None:
    """The chain goes on from what was written last, not from what is found."""
    await furnish(ledger)
    await settled(ledger, 1, 2, 3)
    await ledger.close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DELETE FROM resolution WHERE sequence = 3")
    again = await SqliteLedger.open(path, clock)
    (row,) = await settled(again, 4)
    found = (await again.records.verify()).first_break
    await again.close()
    assert row.sequence == 4
    assert found is not None
    assert found.problem == "row 3 is missing"


async def test_a_ledger_that_lost_its_newest_row_settles_nothing(
    path: Path, clock: FakeClock
) -> None:
    ledger = await SqliteLedger.open(path, clock)
    await furnish(ledger)
    await ledger.hold(ask(1))
    tamper(path, "DELETE FROM head")
    with pytest.raises(StoreUnavailable, match="newest row; audit it"):
        await ledger.settle("req_1", 1, bill(1))
    await ledger.close()


WRONG = [
    (
        "UPDATE balance SET posted_nanos = 7 WHERE scope = 'key_a' AND posted_nanos > 0",
        "key_a (2027-01-15) has 0.000000007 USD posted; its settlements sum to 0.00000043.",
    ),
    (
        "UPDATE balance SET pending_nanos = 0 WHERE scope = 'prj_a'",
        "prj_a (total) has 0.00 USD pending; its open holds sum to 0.000001.",
    ),
    (
        "UPDATE sealed SET posted_nanos = 0 WHERE scope = 'org_a'",
        "org_a (total) has 0.00000064 USD posted; its settlements sum to 0.00000043.",
    ),
    (
        "UPDATE account SET open_holds = 3 WHERE scope = 'key_a'",
        "key_a counts 3 open calls; it has 1 open holds.",
    ),
    (
        "DELETE FROM balance WHERE scope = 'org_a'",
        "org_a (total) has 0.00 USD posted; its settlements sum to 0.00000064.",
    ),
    (
        "INSERT INTO balance (scope, period_id, posted_nanos) VALUES ('key_a', '2020-01-01', 5)",
        "key_a (2020-01-01) has 0.000000005 USD posted; its settlements sum to 0.00.",
    ),
    (
        "UPDATE resolution SET amount_nanos = 213 WHERE sequence = 2",
        "Row 2 (req_2) was charged 0.000000213 USD; its usage costs 0.00000022.",
    ),
    (
        "UPDATE resolution SET amount_nanos = 0 WHERE sequence = 2",
        "Row 2 (req_2) was completed, but charged 0 of 0.00000022 USD.",
    ),
    (
        "UPDATE kept SET bytes = 7",
        "The answers kept for idempotency keys are counted as 7 bytes; they have 0.",
    ),
    (
        "DELETE FROM kept; UPDATE claim SET resolution = 1, answer = x'00', kept_bytes = 1",
        "The answers kept for idempotency keys are counted as 0 bytes; they have 1.",
    ),
    (
        "UPDATE resolution SET amount_nanos = 1001 WHERE sequence = 2",
        "Row 2 (req_2) was charged 0.000001001 USD, more than its hold of 0.000001.",
    ),
    (
        "UPDATE resolution SET output_tokens = 81, amount_nanos = 0 WHERE sequence = 2",
        "Row 2 (req_2) counts more tokens than its hold of 0.000001 USD could pay for.",
    ),
    (
        "UPDATE resolution SET cached_input_tokens = 101 WHERE sequence = 2",
        "Row 2 (req_2) has counts that cannot be: Usage(input_tokens=100, output_tokens=2, "
        "cached_input_tokens=101, finish_reasons=(None,), counted='ids') cannot be: "
        "0 <= cached <= input and 0 <= output.",
    ),
    (
        "UPDATE resolution SET price_version = 9 WHERE sequence = 2",
        "Row 2 (req_2) has a price version that was never published.",
    ),
    (
        "UPDATE resolution SET key_period = '2020-01-01' WHERE sequence = 2",
        "Row 2 (req_2) began on 2027-01-15, but is stored with a period that this day is not in.",
    ),
    (
        "UPDATE hold SET amount_nanos = 999",
        "Hold req_9 reserves 0.000000999 USD; the most it can cost is 0.000001.",
    ),
    (
        "UPDATE hold SET price_version = 9",
        "Hold req_9 has a price version that was never published.",
    ),
    (
        "INSERT INTO engine_window VALUES ('small', 'boot-1', 60.0, 5, 3, 1, 1)",
        "Engine small (boot-1) made 5 tokens in the minute at 60; 3 were received and 1 discarded.",
    ),
]


@pytest.mark.parametrize(("statements", "sentence"), WRONG)
async def test_l1_l3_l11_l15_every_number_that_is_wrong_is_a_sentence(
    ledger: SqliteLedger, path: Path, clock: FakeClock, statements: str, sentence: str
) -> None:
    await furnish(ledger, cap_nanos=10_000, period=Period.DAY)
    await ledger.hold(ask(1, created_at=PLAIN.created_at - DAY))
    first = await ledger.settle("req_1", 1, bill(1))
    clock.jump_wall(4 * DAY)
    await ledger.records.drop(1, first.hash)
    await settled(ledger, 2)
    await ledger.hold(ask(3))
    await ledger.settle("req_3", 1, bill(1))
    await ledger.hold(ask(9, claim=Claim("key-1", bytes(32))))
    assert (await ledger.records.reconcile()).differences == ()
    tamper(path, statements)
    assert sentence in (await ledger.records.reconcile()).differences


async def test_of_very_many_differences_the_first_are_listed(
    ledger: SqliteLedger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "MOST_SENTENCES", 3)
    await furnish(ledger)
    await settled(ledger, *range(1, 8))
    tamper(path, "UPDATE resolution SET price_version = 9")
    found = (await ledger.records.reconcile()).differences
    assert [sentence[:5] for sentence in found] == ["Row 1", "Row 2", "Row 3", "And 4"]


async def test_a_walk_begins_again_when_rows_leave_before_it(
    ledger: SqliteLedger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await furnish(ledger)
    rows = await settled(ledger, *range(1, 12))
    clock.jump_wall(4 * DAY)
    ends = sqlite_audits.ends
    seen = []

    def first_look(store: apsw.Connection) -> sqlite_audits.Ends | None:
        found = ends(store)
        if not seen:  # what a drop that began after this look leaves behind
            with closing(apsw.Connection(store.filename)) as other:
                verbs = sqlite_verbs.Verbs(other, 0)
                verbs.seal(8)
        seen.append(found)
        return found

    monkeypatch.setattr(sqlite_audits, "ends", first_look)
    verified = await ledger.records.verify()
    assert (verified.rows, verified.head_hash, verified.first_break) == (7, rows[-1].hash, None)
    assert len(seen) == 3


async def test_a_file_of_version_2_is_brought_up_to_date(path: Path, clock: FakeClock) -> None:
    """It has two settlements, an open hold and a beat; all go on as if it had been ours."""
    fresh = await SqliteLedger.open(path, clock)
    await furnish(fresh, cap_nanos=10_000, period=Period.MONTH)
    rows = await settled(fresh, 1, 2)
    hold = await fresh.hold(ask(3))
    await fresh.beat("gateway-1", 1, {"req_3": 5})
    await fresh.close()
    old = path.with_name("old.db")
    with closing(apsw.Connection(str(old))) as connection:
        connection.execute(VERSION_2.read_text())
        connection.execute("PRAGMA foreign_keys = OFF; DROP TRIGGER hold_reserves")
        connection.execute("DROP TRIGGER resolution_ends_its_hold")
        connection.execute("ATTACH ? AS fresh", (str(path),))
        tables = "SELECT name FROM main.sqlite_schema WHERE type = 'table'"
        for (table,) in connection.execute(tables).fetchall():
            columns = [
                name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})")
            ]
            names = ", ".join(columns)
            connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM fresh.{table}")  # noqa: S608 - names of the schema
        connection.execute("DETACH fresh")
        triggers = VERSION_2.read_text()
        connection.execute(
            triggers[triggers.index("CREATE TRIGGER") : triggers.index("CREATE TABLE beat")]
        )
    upgraded = await SqliteLedger.open(old, clock)
    assert await upgraded.records.outbox(0, 10) == rows
    assert (await upgraded.balances("key_a")).account == Account("key_a", 10_000, Period.MONTH)
    assert await upgraded.hold(ask(3)) == hold
    (row,) = await settled(upgraded, 4)
    assert (row.sequence, row.previous_hash) == (3, rows[-1].hash)
    assert (await check_audit(upgraded)).holds == 1
    await upgraded.records.record_window(EngineWindow("small", "boot", 60.0, 1, 1, 0))
    await upgraded.close()
    assert described(old) == described(path)
    await (await SqliteLedger.open(old, clock)).close()


async def test_a_file_of_version_3_is_brought_up_to_date(path: Path, clock: FakeClock) -> None:
    """Its rows and holds were clients' calls, and verify as before."""
    fresh = await SqliteLedger.open(path, clock)
    await furnish(fresh)
    rows = await settled(fresh, 1)
    await fresh.hold(ask(2))
    await fresh.close()
    before = described(path)
    with closing(apsw.Connection(str(path))) as connection:
        for table in ("hold", "resolution"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN kind")
        connection.pragma("user_version", 3)
    upgraded = await SqliteLedger.open(path, clock)
    assert await upgraded.records.outbox(0, 10) == rows
    assert [row.kind for row in await settled(upgraded, 2)] == [Kind.CALL]
    await check_audit(upgraded)
    await upgraded.close()
    assert described(path) == before


def described(path: Path) -> dict[str, object]:
    """What the file's tables, indexes and triggers are, however they came to be."""
    with closing(apsw.Connection(str(path))) as connection:
        made = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
        columns = {
            name: connection.execute(f"PRAGMA table_info({name})").fetchall()
            for kind, name, _ in made
            if kind == "table"
        }
        rest = {name: sql for kind, name, sql in made if kind != "table"}
        version = connection.pragma("user_version"), connection.pragma("application_id")
    assert version == (sqlite_schema.SCHEMA_VERSION, sqlite_schema.APPLICATION_ID)
    return {**columns, **rest}
