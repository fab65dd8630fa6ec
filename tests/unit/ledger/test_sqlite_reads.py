"""How SQLite finds what reports ask for: by an index, never by reading every row."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from forebay.core.hold import Period, UsageQuery
from forebay.ledger import sqlite_reads, sqlite_schema
from forebay.ledger.reports import GROUPS

TIMES: dict[str, Any] = {"since": 1.0, "until": 2.0}
BY_KEY = "resolution_key (key_id=? AND created_at>? AND created_at<?)"
BY_PROJECT = "resolution_project (project_id=? AND created_at>? AND created_at<?)"
BY_ORGANISATION = "resolution_organisation (organisation_id=? AND created_at>? AND created_at<?)"


class Explained:
    """An empty ledger that keeps the plans of what it was asked."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.execute(sqlite_schema.SCHEMA)
        self.steps: list[str] = []

    def execute(self, statement: str, bindings: Any) -> apsw.Cursor:
        plan = self._connection.execute(f"EXPLAIN QUERY PLAN {statement}", bindings)
        self.steps += [step for *_, step in plan]
        return self._connection.execute(statement, bindings)

    def looked_at(self) -> list[str]:
        """How each table was read."""
        return [step for step in self.steps if step.startswith(("SCAN", "SEARCH"))]


@pytest.mark.parametrize(
    ("scopes", "index"),
    [
        ({"key_id": "key_a"}, BY_KEY),
        ({"project_id": "prj_a"}, BY_PROJECT),
        ({"organisation_id": "org_a"}, BY_ORGANISATION),
        ({"organisation_id": "org_a", "project_id": "prj_a"}, BY_PROJECT),
        ({"organisation_id": "org_a", "project_id": "prj_a", "key_id": "key_a"}, BY_KEY),
        ({}, "resolution_created (created_at>? AND created_at<?)"),
    ],
)
def test_a_report_of_a_time_reads_the_rows_of_its_narrowest_scope(
    scopes: dict[str, Any], index: str
) -> None:
    store: Any = Explained()
    query = UsageQuery(**scopes, **TIMES)
    sqlite_reads.usage(store, query)
    sqlite_reads.slices(store, query, 60)
    for by in GROUPS:
        sqlite_reads.totals(store, query, by)
    assert store.looked_at() == [f"SEARCH resolution USING INDEX {index}"] * (2 + len(GROUPS))


def test_a_call_is_found_by_its_id() -> None:
    store: Any = Explained()
    sqlite_reads.usage(store, UsageQuery("org_a", "prj_a", "key_a", "req_1", **TIMES))
    (step,) = store.looked_at()
    assert step.endswith("(call_id=?)")


def test_what_a_scope_posted_is_summed_from_its_own_rows() -> None:
    """A cap's new period asks for that, of a ledger of any size."""
    store: Any = Explained()
    sqlite_reads.posted(store, "key_a", Period.DAY)
    assert not [step for step in store.looked_at() if step.startswith("SCAN resolution")]
    for column in ("organisation", "project", "key"):
        expected = f"SEARCH resolution USING INDEX resolution_{column} ({column}_id=?)"
        assert expected in store.looked_at()
