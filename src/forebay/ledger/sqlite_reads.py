"""What is asked of the SQLite ledger, on a connection that cannot write, off the event loop.

Each question is one statement and so sees one committed state; a question asked after a verb was
answered sees that verb (WAL readers see every commit before they start).

Not here: anything that changes a row (`sqlite_verbs`).
"""

from __future__ import annotations

import apsw

from forebay.core.hold import Account, Balance, Period, Remembered, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import Price
from forebay.core.usage import UsageRow, UsageSlice, UsageTotal
from forebay.ledger import reports, rules, sqlite_sql
from forebay.ledger.sqlite_rows import Columns, Posted, price_of, remembered_of, row_of


def balances(connection: apsw.Connection, scope: str, now: float) -> Balance:
    day = rules.day_id(now)
    found = connection.execute(sqlite_sql.BALANCE, (scope, day)).fetchall()
    if not found:
        return reports.no_balance(scope)
    columns: Columns = found[0]
    cap, period, max_open, open_holds, posted, pending, high_water = columns
    account = Account(scope, cap, Period(period), max_open)
    period_id = rules.period_id(account.period, day)
    return Balance(account, period_id, posted, pending, high_water, open_holds)


def recall(
    connection: apsw.Connection, organisation_id: str, key: str, now: float
) -> Remembered | None:
    found = connection.execute(sqlite_sql.CLAIM, (organisation_id, key)).fetchall()
    remembered = remembered_of(key, found[0]) if found else None
    return remembered if remembered and rules.is_remembered(remembered, now) else None


def usage(connection: apsw.Connection, query: UsageQuery) -> list[UsageRow]:
    reports.check_query(query)
    statement, bindings = _filtered(sqlite_sql.ROWS, query, sqlite_sql.NEWEST)
    return [row_of(columns) for columns in connection.execute(statement, bindings)]


def totals(connection: apsw.Connection, query: UsageQuery, by: str) -> list[UsageTotal]:
    reports.check_query(query)
    reports.check_group(by)
    statement, bindings = _filtered(sqlite_sql.TOTALS[by], query, sqlite_sql.LARGEST)
    return [UsageTotal(*columns) for columns in connection.execute(statement, bindings)]


def slices(connection: apsw.Connection, query: UsageQuery, width_seconds: int) -> list[UsageSlice]:
    statement, bindings = _filtered(sqlite_sql.SLICES, query, sqlite_sql.BY_SLICE)
    rows = connection.execute(statement, bindings | {"width": width_seconds})
    return [
        UsageSlice(start, project, key, model, Lane(lane), *sums)
        for start, project, key, model, lane, *sums in rows
    ]


def price(connection: apsw.Connection, version: int) -> Price:
    found = connection.execute(sqlite_sql.PRICE, (version,)).fetchall()
    if not found:
        raise KeyError(f"price version {version} was never published")
    return price_of(found[0])


def posted(connection: apsw.Connection, scope: str, period: Period | None) -> Posted:
    """What the scope's balances of that period have to be, as of one committed state."""
    names = {"scope": scope, "period": period}
    found: list[Columns] = connection.execute(sqlite_sql.POSTED, names).fetchall()
    (through_sequence, _, _), *sums = found
    return Posted(through_sequence, [(period_id, nanos) for _, period_id, nanos in sums])


def _filtered(
    statement: str, query: UsageQuery, ending: str
) -> tuple[str, dict[str, str | int | float]]:
    """The statement with only the filters that the query has, so that SQLite can use an index.

    A plus keeps it from the index of a wider scope.
    """
    wanted = {name: getattr(query, name) for name in (*sqlite_sql.SCOPES, *sqlite_sql.TIMES)}
    bindings = {name: value for name, value in wanted.items() if value is not None}
    narrowest, *wider = [
        sqlite_sql.SCOPES[name] for name in bindings if name in sqlite_sql.SCOPES
    ] or [""]
    times = [sqlite_sql.TIMES[name] for name in bindings if name in sqlite_sql.TIMES]
    where = " AND ".join(filter(None, [narrowest, *(f"+{each}" for each in wider), *times]))
    parts = (statement, "WHERE" if where else "", where, ending)
    return " ".join(parts), {**bindings, "limit": query.limit}
