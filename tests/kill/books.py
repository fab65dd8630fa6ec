"""The books of a data directory, audited from outside while no server runs.

Everything is computed anew here, from the tables alone: sums of holds and settlements against the
balances (L1, L15), every amount from its price version (L11), the chain of hashes (L5).

Not here: what the engine made and what clients saw (`test_kill.py`).
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import apsw

from forebay.core.usage import UsageRow
from forebay.ledger.audit import first_break
from forebay.ledger.pricing import amount_nanos, hold_nanos
from forebay.ledger.sqlite_rows import price_of, row_of
from forebay.ledger.sqlite_sql import ROW_COLUMNS

_SCOPES = ("organisation", "project", "key")
_PENDING = " UNION ALL ".join(
    f"SELECT {scope}_id, {scope}_period, amount_nanos FROM hold"  # noqa: S608 - constants
    for scope in _SCOPES
)
_POSTED = " UNION ALL ".join(
    f"SELECT {scope}_id, {scope}_period, amount_nanos FROM resolution"  # noqa: S608 - constants
    for scope in _SCOPES
)
_OPEN = " UNION ALL ".join(
    f"SELECT {scope}_id FROM hold"  # noqa: S608 - constants
    for scope in _SCOPES
)


@dataclass(frozen=True)
class Books:
    """What was found: every resolution in order, the ids of the unresolved holds, what is wrong."""

    rows: list[UsageRow]
    holds: list[str]
    faults: list[str]


def audit(data_dir: Path) -> Books:
    """Read both stores of a directory that nobody has open."""
    faults = [
        f"forebay.db: {each}" for each in _integrity(sqlite3.connect(data_dir / "forebay.db"))
    ]
    ledger = apsw.Connection(str(data_dir / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        faults += [f"ledger.db: {each}" for each in _integrity(ledger)]
        rows = [
            row_of(columns)
            for columns in ledger.execute(
                f"SELECT {ROW_COLUMNS} FROM resolution ORDER BY sequence"  # noqa: S608 - a constant
            )
        ]
        if (broken := first_break(rows)) is not None:
            faults.append(f"the chain breaks at {broken}")
        faults += _conservation(ledger) + _amounts(ledger, rows)
        holds = [str(each) for (each,) in ledger.execute("SELECT id FROM hold")]
        return Books(rows, holds, faults)
    finally:
        ledger.close()


def _integrity(store: sqlite3.Connection | apsw.Connection) -> list[str]:
    found = store.execute("PRAGMA integrity_check").fetchall()
    if isinstance(store, sqlite3.Connection):
        store.close()
    return [] if found == [("ok",)] else [str(each) for (each,) in found]


def _conservation(ledger: apsw.Connection) -> list[str]:
    """L1: pending = Σ holds, posted = Σ settlements. L15: open holds = holds."""
    faults = []
    for column, entries in (("pending_nanos", _PENDING), ("posted_nanos", _POSTED)):
        sums: dict[tuple[str, str], int] = {}
        for scope, period, nanos in ledger.execute(entries):
            sums[scope, period] = sums.get((scope, period), 0) + nanos
        for scope, period, kept in ledger.execute(
            f"SELECT scope, period_id, {column} FROM balance"  # noqa: S608 - a constant
        ):
            real = sums.pop((scope, period), 0)
            if kept != real:
                faults.append(
                    f"{column} of {scope} in {period!r} is {kept}, its entries are {real}"
                )
        faults += [f"{column} of {scope} has no balance: {real}" for scope, real in sums.items()]
    counts: dict[str, int] = {}
    for (scope,) in ledger.execute(_OPEN):
        counts[scope] = counts.get(scope, 0) + 1
    for scope, kept in ledger.execute("SELECT scope, open_holds FROM account"):
        if kept != counts.get(scope, 0):
            faults.append(f"open_holds of {scope} is {kept}, not {counts.get(scope, 0)}")
    return faults


def _amounts(ledger: apsw.Connection, rows: list[UsageRow]) -> list[str]:
    """L11, L3: what was charged is what the pinned price says, or nothing, and within the hold."""
    prices = {
        price.version: price
        for price in map(
            price_of,
            ledger.execute(
                "SELECT version, model, lane, input_nanos, cached_input_nanos, output_nanos FROM price"
            ),
        )
    }
    faults = []
    for row in rows:
        due = amount_nanos(prices[row.price_version], row.usage)
        if row.amount_nanos not in (0, due):
            faults.append(f"{row.call_id} was charged {row.amount_nanos}, its price says {due}")
    for id_, version, tokens, ceiling, choices, kept in ledger.execute(
        "SELECT id, price_version, input_tokens, ceiling_tokens, choices, amount_nanos FROM hold"
    ):
        if kept != hold_nanos(prices[version], tokens, ceiling, choices):
            faults.append(f"the hold {id_} is {kept}")
    return faults
