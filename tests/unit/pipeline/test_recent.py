"""The window of ended calls."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core.job import Lane
from forebay.core.principal import OPERATOR
from forebay.core.usage import Outcome, Timings, Usage, UsageRow
from forebay.pipeline.recent import RecentCalls, percentile, summarise

NOW = 1_800_000_000.0


def row(call_id: str = "req", at: float = NOW, **changes: Any) -> UsageRow:
    values: dict[str, Any] = {
        "sequence": 1,
        "call_id": call_id,
        "organisation_id": "org",
        "project_id": "proj",
        "key_id": "key",
        "model": "small",
        "lane": Lane.INTERACTIVE,
        "outcome": Outcome.COMPLETED,
        "reason": "ended",
        "attempt": 1,
        "usage": Usage(10, 5),
        "timings": Timings(1, 100, 200),
        "price_version": 1,
        "amount_nanos": 1_000,
        "created_at": at,
        "resolved_at": at,
        "previous_hash": "",
        "hash": "",
    }
    return UsageRow(**(values | changes))


def test_only_the_last_minute_counts():
    recent = RecentCalls()
    for seconds in (90, 59, 1, 0):
        recent.add(row(f"req_{seconds}", NOW - seconds))
    assert [each.call_id for each in recent.within(NOW)] == ["req_59", "req_1", "req_0"]
    assert recent.output_tokens == {("small", Lane.INTERACTIVE): 20}
    assert recent.knows(["req_90", "req_1", "req_7"]) == {"req_90", "req_1"}


def test_what_the_operator_pays_for_earns_nothing():
    recent = RecentCalls()
    recent.add(row("req_1"))
    recent.add(row("req_2", key_id=OPERATOR.key_id, organisation_id=OPERATOR.organisation_id))
    assert [each.amount_nanos for each in recent.within(NOW)] == [1_000, 0]


def test_a_window_that_had_to_forget_speaks_of_the_time_it_remembers():
    recent = RecentCalls(most_calls=10)
    for number in range(100):
        recent.add(row(str(number), NOW - 100 + number))
    calls, seconds = recent.within(NOW), recent.covered_seconds(NOW)
    assert (len(calls), seconds) == (10, 10)
    assert summarise(calls, seconds).calls_per_minute == 60
    assert summarise(calls, seconds).nanos_per_hour == 3600 * 1_000


def test_a_summary_of_nothing_and_of_calls_without_a_first_token():
    assert summarise([], 60).ttft_p50_ms is None
    recent = RecentCalls()
    recent.add(row(timings=Timings(None, None, 5)))
    recent.add(row(timings=Timings(1, 30, 50)))
    summary = summarise(recent.within(NOW), recent.covered_seconds(NOW))
    assert (summary.calls_per_minute, summary.ttft_p50_ms, summary.ttft_p95_ms) == (2, 30, 30)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([7], 95, 7), ([1, 2], 50, 1), ([1, 2, 3], 50, 2), (range(1, 101), 95, 95)],
)
def test_a_percentile_is_a_value_that_was_seen(values, percent, expected):
    assert percentile(values, percent) == expected
