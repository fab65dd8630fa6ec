"""What an audit asks of the SQLite ledger, on a connection that cannot write, off the event loop.

The chain is walked in steps, each a statement of its own, so that a long walk does not keep the
write-ahead log from being folded back. A reconciliation compares sums, so it is one transaction
that sees one committed state; SQLite does the summing, and memory stays bounded.

Not here: the sentences (`differences`, `audit`), the order of steps (`sqlite_records`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import apsw
import msgspec

from forebay.core.records import Break, EngineWindow, Reconciled
from forebay.core.usage import Usage, UsageRow
from forebay.ledger import audit, differences, reports, rules, sqlite_sql
from forebay.ledger.audit import Link
from forebay.ledger.differences import Money
from forebay.ledger.sqlite_rows import (
    PRICE_VERSION,
    Columns,
    held_of,
    price_of,
    row_of,
    window_of,
)

ROWS_PER_STEP = 1_000


class Ends(NamedTuple):
    """Where the chain begins and ends, and the smallest and largest sequence of a row if any."""

    seal: Link
    head: Link
    oldest: int | None
    newest: int | None


class Step(NamedTuple):
    """How far a walk along the chain got."""

    rows: int
    last: Link
    found: Break | None


def ends(store: apsw.Connection) -> Ends | None:
    """None: one of the two was deleted."""
    found: list[Columns] = store.execute(sqlite_sql.ENDS).fetchall()
    if len(found) != 1:
        return None
    seal, seal_hash, head, head_hash, oldest, newest = found[0]
    return Ends(Link(seal, seal_hash.hex()), Link(head, head_hash.hex()), oldest, newest)


def follow(store: apsw.Connection, before: Link, through: int) -> Step:
    """The rows after `before`, up to one of this sequence, as far as a step goes."""
    bindings = (before.sequence, through, ROWS_PER_STEP)
    rows = 0
    for columns in store.execute(sqlite_sql.CHAIN, bindings):
        try:
            row = row_of(columns)
        except (ValueError, TypeError, AttributeError, msgspec.DecodeError) as error:
            return Step(rows, before, Break(before.sequence + 1, f"it cannot be read: {error}"))
        if (wrong := audit.problem(row, before)) is not None:
            return Step(rows, before, Break(before.sequence + 1, wrong))
        before = Link(row.sequence, row.hash)
        rows += 1
    return Step(rows, before, None)


def outbox(store: apsw.Connection, after: int, limit: int) -> list[UsageRow]:
    reports.check_limit(limit)
    return [row_of(columns) for columns in store.execute(sqlite_sql.OUTBOX, (after, limit))]


def windows(store: apsw.Connection, since: float) -> list[EngineWindow]:
    return [window_of(columns) for columns in store.execute(sqlite_sql.WINDOWS, (since,))]


def reconcile(store: apsw.Connection) -> Reconciled:
    balances = _Balances(store)
    counts: list[Columns] = []
    with store:  # one committed state for all of it
        sentences = differences.listed(_differences(store, balances))
        counts += store.execute(sqlite_sql.COUNTS)
    rows, holds, all_windows, flagged = counts[0]
    return Reconciled(sentences, rows, holds, balances.summed, all_windows, flagged)


def _differences(store: apsw.Connection, balances: _Balances) -> Iterator[str | None]:
    for columns in store.execute(sqlite_sql.ODD_ROWS):
        sequence, call_id, outcome, input_tokens, cached, output_tokens, *money = columns
        amount, held, *price = money
        name = differences.row_name(sequence, call_id)
        usage = Usage(input_tokens, output_tokens, cached)
        stored = None if price[0] is None else price_of(tuple(price))
        yield differences.of_row(name, outcome, usage, amount, held, stored)
    for sequence, call_id, day in store.execute(sqlite_sql.ODD_PERIODS):
        yield differences.of_periods(differences.row_name(sequence, call_id), day)
    for columns in store.execute(sqlite_sql.ALL_HOLDS):
        price_columns = store.execute(sqlite_sql.PRICE, (columns[PRICE_VERSION],)).fetchall()
        if not price_columns:
            yield f"Hold {columns[0]} has a price version that was never published."
        else:
            yield differences.of_hold(held_of(columns, price_of(price_columns[0])))
    yield from balances
    for scope, count, counted in store.execute(sqlite_sql.OPEN):
        yield differences.of_open(scope, count, counted)
    for kept, counted in store.execute(sqlite_sql.KEPT):
        yield differences.of_kept(kept, counted)
    for columns in store.execute(sqlite_sql.WINDOWS, (float("-inf"),)):
        yield differences.of_window(window_of(columns))


class _Balances:
    """The differences of all balances, and how many scopes and periods money was spoken for in."""

    def __init__(self, store: apsw.Connection) -> None:
        self._store = store
        self.summed = 0

    def __iter__(self) -> Iterator[str]:
        for columns in self._store.execute(sqlite_sql.BALANCES):
            scope, period_id, posted, pending, summed_posted, summed_pending, spoken_for = columns
            self.summed += spoken_for
            kept, summed = Money(posted, pending), Money(summed_posted, summed_pending)
            yield from differences.of_balance(scope, period_id, kept, summed)


def check_drop(store: apsw.Connection, through: Link, limit: float) -> bool:
    """Whether there is something to drop. Raises ValueError if that must not be."""
    if (found := ends(store)) is not None and through == found.seal:
        return False
    rows: list[Columns] = store.execute(sqlite_sql.ROW_HASH, (through.sequence,)).fetchall()
    last = (rows[0][0], rows[0][1].hex()) if rows else None
    rules.check_drop_end(through.sequence, through.hash, last)
    young: list[Columns] = store.execute(sqlite_sql.YOUNG, (through.sequence, limit)).fetchall()
    rules.check_drop_age(young[0][0], limit)
    return True
