"""What the SQLite ledger keeps in memory, after the store took something back."""

from __future__ import annotations

import apsw
import pytest

from forebay.core.hold import Account, Period
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
    verbs = Verbs(connection, 0)
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
