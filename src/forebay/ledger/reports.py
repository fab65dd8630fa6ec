"""What can be asked about resolved holds, pure: which rows match a query, and how they are summed.

A row belongs to the time at which its hold was made, as its money does: the usage of a month sums
to what the month's budget posted. Sums take every row, also of calls that were free: those show
what ran, with the amount 0.

Not here: the balances' arithmetic (`rules`), reading rows from a store (the backends).
"""

from __future__ import annotations

from dataclasses import replace

from forebay.core.hold import Account, Balance, UsageQuery
from forebay.core.usage import UsageRow, UsageSlice, UsageTotal
from forebay.ledger.rules import day_id

GROUPS = ("key", "project", "organisation", "model", "day")


def check_query(query: UsageQuery) -> None:
    """Raise ValueError for a limit that is none."""
    check_limit(query.limit)


def check_limit(limit: int) -> None:
    """Raise ValueError for a limit that is none."""
    if limit < 0:
        raise ValueError(f"a limit of {limit} rows is negative")


def check_group(by: str) -> None:
    """Raise ValueError for sums nobody keeps."""
    if by not in GROUPS:
        raise ValueError(f"usage cannot be summed by {by!r}, only by {', '.join(GROUPS)}")


def matches(query: UsageQuery, row: UsageRow) -> bool:
    """Whether the query asks for this row (L14: never one of another organisation)."""
    return (
        query.organisation_id in (None, row.organisation_id)
        and query.project_id in (None, row.project_id)
        and query.key_id in (None, row.key_id)
        and query.call_id in (None, row.call_id)
        and (query.since is None or row.created_at >= query.since)
        and (query.until is None or row.created_at < query.until)
    )


def group_of(row: UsageRow, by: str) -> str:
    """The group that a row is summed in."""
    groups = {
        "key": row.key_id,
        "project": row.project_id,
        "organisation": row.organisation_id,
        "model": row.model,
    }
    return groups[by] if by in groups else day_id(row.created_at)


def added(total: UsageTotal, row: UsageRow) -> UsageTotal:
    """The total with one more row."""
    return UsageTotal(
        group=total.group,
        calls=total.calls + 1,
        input_tokens=total.input_tokens + row.usage.input_tokens,
        cached_input_tokens=total.cached_input_tokens + row.usage.cached_input_tokens,
        output_tokens=total.output_tokens + row.usage.output_tokens,
        amount_nanos=total.amount_nanos + row.amount_nanos,
    )


def slice_of(row: UsageRow, width_seconds: int) -> UsageSlice:
    """The slice that a row belongs to, still empty."""
    start = int(row.created_at // width_seconds) * width_seconds
    return UsageSlice(
        start=start,
        project_id=row.project_id,
        key_id=row.key_id,
        model=row.model,
        lane=row.lane,
        calls=0,
        input_tokens=0,
        cached_input_tokens=0,
        output_tokens=0,
        amount_nanos=0,
    )


def with_row(before: UsageSlice, row: UsageRow) -> UsageSlice:
    """The slice with one more row."""
    return replace(
        before,
        calls=before.calls + 1,
        input_tokens=before.input_tokens + row.usage.input_tokens,
        cached_input_tokens=before.cached_input_tokens + row.usage.cached_input_tokens,
        output_tokens=before.output_tokens + row.usage.output_tokens,
        amount_nanos=before.amount_nanos + row.amount_nanos,
    )


def no_balance(scope: str) -> Balance:
    """The balance of a scope without an account: cap 0 and zeros."""
    return Balance(
        Account(scope, cap_nanos=0),
        period_id="",
        posted_nanos=0,
        pending_nanos=0,
        high_water_nanos=0,
        open_holds=0,
    )
