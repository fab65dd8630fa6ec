"""GCRA: what passes, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.limits import MINUTE_MICROS, Bucket, take


@given(
    limit=st.integers(1, 500),
    steps=st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(1, 20)), max_size=200),
)
def test_in_any_t_seconds_at_most_the_limit_times_one_plus_t_over_sixty_pass(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    """A2's bound, over every interval between two calls, with no rounding allowed for."""
    bucket, now = Bucket(limit), 0
    passed: list[tuple[int, int]] = []
    for pause, cost in steps:
        now += pause
        verdict = take(bucket, now, cost=cost)
        bucket = verdict.bucket
        if verdict.allowed:
            passed.append((now, cost))
    for first in range(len(passed)):
        total = 0
        for at, cost in passed[first:]:
            total += cost
            micros = at - passed[first][0]
            assert total * MINUTE_MICROS <= limit * (MINUTE_MICROS + micros)


@given(limit=st.integers(1, 100_000), now=st.integers(0, 10**15))
def test_a_fresh_bucket_lets_exactly_the_limit_through_at_once(limit: int, now: int) -> None:
    bucket = take(Bucket(limit), now, cost=limit).bucket
    refused = take(bucket, now)
    assert not refused.allowed
    assert refused.bucket == bucket, "a refusal takes nothing (A1)"


@given(
    limit=st.integers(1, 1000),
    taken=st.integers(0, 1000),
    cost=st.integers(1, 1000),
    now=st.integers(0, 10**12),
)
def test_the_wait_that_a_refusal_names_is_exact(
    limit: int, taken: int, cost: int, now: int
) -> None:
    bucket = take(Bucket(limit), now, cost=min(taken, limit)).bucket
    verdict = take(bucket, now, cost=cost)
    if verdict.wait_micros:
        assert take(bucket, now + verdict.wait_micros, cost=cost).allowed
        assert not take(bucket, now + verdict.wait_micros - 1, cost=cost).allowed


@given(limit=st.integers(0, 1000), more=st.integers(1, 1000))
def test_a_call_dearer_than_the_limit_never_passes(limit: int, more: int) -> None:
    verdict = take(Bucket(limit), 10**12, cost=limit + more)
    assert not verdict.allowed
    assert verdict.wait_micros is None


def test_a_bucket_may_be_forgotten_exactly_when_it_is_full() -> None:
    bucket = take(Bucket(6), 0, cost=2).bucket
    assert not bucket.is_full(19_999_999)
    assert bucket.is_full(20_000_000)


@given(limit=st.integers(1, 1000), other=st.integers(1, 1000))
def test_a_changed_limit_keeps_the_debt_in_time(limit: int, other: int) -> None:
    bucket = take(Bucket(limit), 0, cost=limit).bucket.with_limit(other)
    assert not bucket.is_full(MINUTE_MICROS - 1)
    assert bucket.is_full(MINUTE_MICROS)


def test_a_limit_raised_from_zero_starts_full() -> None:
    assert take(Bucket(0).with_limit(5), 10, cost=5).allowed


@pytest.mark.parametrize(("limit", "cost"), [(1, -1), (-1, 0)])
def test_negative_numbers_are_refused(limit: int, cost: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        take(Bucket(limit), 0, cost=cost)
