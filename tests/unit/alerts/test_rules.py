"""What a reply means, and when it is tried again."""

from __future__ import annotations

import pytest

from forebay.alerts import MOST_ATTEMPTS, Verdict, judge, retry_seconds
from forebay.alerts.rules import longest_wait_seconds, oldest_day_kept

DAY_SECONDS = 86_400


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_success_is_one(status: int) -> None:
    assert judge(status) is Verdict.DELIVERED


@pytest.mark.parametrize("status", [None, 100, 301, 307, 400, 401, 404, 429, 500, 503])
def test_everything_else_has_failed_redirects_too(status: int | None) -> None:
    assert judge(status) is Verdict.FAILED


def test_gone_means_that_it_wants_no_more() -> None:
    assert judge(410) is Verdict.GONE


def test_waits_grow_threefold_from_five_seconds_to_a_bound_for_a_day() -> None:
    waits = [retry_seconds(attempts, 0.5) for attempts in range(1, MOST_ATTEMPTS)]
    assert waits[:7] == [5, 15, 45, 135, 405, 1_215, 3_645]
    assert set(waits[7:]) == {10_000}
    total = sum(wait for wait in waits if wait is not None)
    assert 0.95 * DAY_SECONDS < total < DAY_SECONDS
    assert retry_seconds(MOST_ATTEMPTS, 0.5) is None


def test_a_wait_varies_by_a_fifth_and_is_never_longer_than_the_longest() -> None:
    assert retry_seconds(1, 0.0) == 4
    assert retry_seconds(1, 0.999_999_999) == pytest.approx(6)
    assert (retry_seconds(10, 0.999_999_999) or 0) < longest_wait_seconds()


def test_the_oldest_day_kept_is_two_before_also_over_months() -> None:
    assert oldest_day_kept("2027-03-01") == "2027-02-27"
