"""What the SQLite ledger keeps in memory, after the store took something back."""

from __future__ import annotations

import apsw
import pytest

from forebay.core.hold import Account, Claim, Period
from forebay.core.job import Lane
from forebay.core.money import PriceTerms
from forebay.ledger import sqlite_schema
from forebay.ledger.sqlite_rows import Posted
from forebay.ledger.sqlite_verbs import Verbs
from forebay.testing.contracts.ledger import SCOPES, ask, bill


@pytest.fixture
def connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(sqlite_schema.SCHEMA)
    return connection


@pytest.fixture
def verbs(connection: apsw.Connection) -> Verbs:
    return furnished(Verbs(connection, 0))


def furnished(verbs: Verbs) -> Verbs:
    for scope in SCOPES:
        verbs.open_account(Account(scope))
    verbs.publish_price(PriceTerms("small", Lane.INTERACTIVE, 100, 50, 400))
    return verbs


def test_l10_nobody_is_judged_by_beats_that_could_not_be_written(verbs: Verbs) -> None:
    """A store that takes something back may have refused beats as well: ages start afresh."""
    verbs.hold(ask())
    assert verbs.sweep(0.0, 0.0) == []
    verbs.forget()
    assert verbs.sweep(11.0, 0.0) == []
    assert verbs.sweep(20.0, 0.0) == []
    assert [row.reason for row in verbs.sweep(21.5, 0.0)] == ["owner_died"]


def test_l10_a_sweep_needs_a_store_that_can_be_written(
    verbs: Verbs, connection: apsw.Connection
) -> None:
    """Else, on a full disk, it would go on counting the seconds in which beats fail."""
    verbs.hold(ask())
    connection.pragma("query_only", True)
    with pytest.raises(apsw.ReadOnlyError):
        verbs.sweep(0.0, 0.0)


def test_l5_the_chain_goes_on_from_what_was_committed(
    verbs: Verbs, connection: apsw.Connection
) -> None:
    verbs.hold(ask(1))
    verbs.hold(ask(2))
    first = verbs.settle("req_1", 1, bill(3), 0.0)
    connection.execute("BEGIN")
    taken_back = verbs.settle("req_2", 1, bill(4), 0.0)
    connection.execute("ROLLBACK")
    verbs.forget()
    second = verbs.settle("req_2", 1, bill(5), 0.0)
    assert (first.sequence, second.sequence) == (1, 2)
    assert second.previous_hash == first.hash
    assert second.hash != taken_back.hash


def test_l1_sums_of_rows_that_were_sealed_since_are_not_believed(verbs: Verbs) -> None:
    """Rows that are newer than the sums may be among the dropped: they have to be taken again."""
    for number in (1, 2):
        verbs.hold(ask(number))
        verbs.settle(f"req_{number}", 1, bill(1), 0.0)
    assert verbs.set_cap("key_a", None, Period.DAY, None) is False
    assert verbs.seal(2) == 2
    assert verbs.set_cap("key_a", None, Period.DAY, Posted(1, [])) is False
    assert verbs.set_cap("key_a", None, Period.DAY, Posted(2, [])) is True
    assert verbs.set_cap("key_a", None, Period.DAY, None) is True, "it has that period already"


@pytest.mark.parametrize("wrong", [10**9, 0])
def test_l9_a_wrong_count_of_kept_answers_keeps_no_call_from_its_end(
    connection: apsw.Connection, wrong: int
) -> None:
    """Counted too high, it is set right once nothing is left to forget; too low, it stays at 0."""
    verbs = furnished(Verbs(connection, 100))
    for number in (1, 2, 3):
        verbs.hold(ask(number, claim=Claim(f"key-{number}", bytes(32))))
    verbs.settle("req_1", 1, bill(1, answer=b"a"), 0.0)
    connection.execute("UPDATE kept SET bytes = ?", (wrong,))
    verbs.settle("req_2", 1, bill(1, answer=b"b"), 0.0)
    verbs.settle("req_3", 1, bill(1, answer=b"c" * 200), 0.0)
    counted = "SELECT bytes, (SELECT coalesce(sum(kept_bytes), 0) FROM claim) FROM kept"
    assert connection.execute(counted).fetchall() == [(0, 0)]
