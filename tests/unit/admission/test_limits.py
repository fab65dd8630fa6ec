"""GCRA with refunds: what passes and what comes back, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from throttled import MemoryStore, Quota, RateLimiterRegistry, RateLimiterType, per_min, utils

from forebay.admission.limits import DAY_MICROS, MINUTE_MICROS, Bucket

EXAMPLES = 400


def took(bucket: Bucket, now: int, cost: int, serial: int | None = None) -> bool:
    """Take if it can be taken now."""
    if bucket.wait_micros(now, cost) != 0:
        return False
    bucket.take(now, cost, serial)
    return True


@dataclass
class Take:
    """One that passed: `net` is what was not returned so far."""

    at: int
    net: int
    serial: int


def what_is_left_by_definition(bucket: Bucket, takes: list[Take], now: int) -> int:
    """What passes at once if the permits that came back had never been taken."""
    owed, at = Fraction(0), 0
    for take in takes:
        owed = max(Fraction(0), owed - Fraction((take.at - at) * bucket.limit, MINUTE_MICROS))
        owed, at = owed + take.net, take.at
    owed = max(Fraction(0), owed - Fraction((now - at) * bucket.limit, MINUTE_MICROS))
    return int(bucket.limit - owed)


def require_a2s_bound(limit: int, takes: list[Take], now: int) -> None:
    """Over every interval that ends now, with no rounding allowed for."""
    total = 0
    for take in reversed(takes):
        total += take.net
        assert total * MINUTE_MICROS <= limit * (MINUTE_MICROS + now - take.at), "A2"


@settings(max_examples=EXAMPLES, deadline=None)
@given(limit=st.integers(1, 500), data=st.data())
def test_a2_in_any_t_seconds_what_was_taken_and_not_returned_is_within_the_bound(
    limit: int, data: Any
) -> None:
    """And a4: every permit that comes back is there again, but for what time has given back: the
    bucket is at each moment what it would be if what was returned had never been taken."""
    bucket, now = Bucket(limit), 0
    takes: list[Take] = []
    open_: list[Take] = []
    pauses = st.sampled_from((0, 1, 999_983, 7_000_000, 31_000_000, 90_000_000))
    for serial in range(1, data.draw(st.integers(1, 60)) + 1):
        now += data.draw(pauses)
        if open_ and data.draw(st.booleans()):
            take = open_.pop(data.draw(st.integers(0, len(open_) - 1)))
            back = data.draw(st.integers(0, take.net))
            bucket.give_back(now, take.serial, back)
            bucket.give_back(now, take.serial, take.net)  # again: nothing
            take.net -= back
        else:
            cost = data.draw(st.integers(0, max(1, limit)))
            left = what_is_left_by_definition(bucket, takes, now)
            passed = took(bucket, now, cost, serial)
            assert passed == (cost <= left), "A2, A4: not too little either"
            if passed:
                take = Take(now, cost, serial)
                takes.append(take)
                open_.append(take)
        assert bucket.left(now) == what_is_left_by_definition(bucket, takes, now)
        require_a2s_bound(limit, takes, now)


@given(
    costs=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_a4_at_one_moment_everything_comes_back_in_whatever_order(
    costs: list[int], order: Any
) -> None:
    bucket = Bucket(1500)
    serials = list(enumerate(costs, 1))
    for serial, cost in serials:
        assert took(bucket, 5, cost, serial)
    order.shuffle(serials)
    for serial, cost in serials:
        bucket.give_back(5, serial, cost)
    assert bucket.left(5) == 1500


def test_a4_what_time_has_given_back_is_not_given_twice() -> None:
    bucket = Bucket(60)
    assert took(bucket, 0, 60, 1)
    assert took(bucket, 30_000_000, 30, 2), "half of the first came back with time"
    bucket.give_back(30_000_000, 1, 60)
    assert bucket.left(30_000_000) == 30, "30 of 60 were taken at this moment"


def test_what_a_full_bucket_had_forgotten_does_not_come_back() -> None:
    bucket = Bucket(60)
    assert took(bucket, 0, 10, 1)
    assert took(bucket, 20_000_000, 10, 2)
    bucket.give_back(20_000_000, 1, 10)
    assert bucket.left(20_000_000) == 50


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    limit=st.sampled_from((1, 2, 3, 5, 6, 10, 12, 15, 20, 30, 60)),
    steps=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 70)), max_size=60),
)
def test_without_refunds_it_is_the_gcra_of_throttled_py(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    """Passed or not, what is left, when the rest is there and when a refused call passes.

    That library counts in floating point and takes no permits back. So limits divide a minute and
    times are whole seconds: where its numbers are exact, ours must be the same. It stores no limit
    for calls dearer than the burst; it names a time for them at which they fail again, we name none.
    """
    store, now = MemoryStore(), 1_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "now_mono_f", lambda: float(now))
        patch.setattr(utils, "now_sec", lambda: now)
        quota: Quota = per_min(limit, burst=limit)
        theirs = RateLimiterRegistry.get(RateLimiterType.GCRA.value)(quota, store)
        ours = Bucket(limit)
        for pause, cost in steps:
            now += pause
            micros = now * 1_000_000
            wait = ours.wait_micros(micros, cost)
            expected = theirs.limit("key", cost)
            assert (wait != 0) == expected.limited
            if wait == 0:
                ours.take(micros, cost)
            elif wait is not None:
                assert wait == expected.state.retry_after * 1_000_000
            state = theirs.peek("key")
            assert ours.left(micros) == state.remaining
            assert ours.full_in_micros(micros) == state.reset_after * 1_000_000


@given(limit=st.integers(1, 100_000), now=st.integers(0, 10**15))
def test_a_fresh_bucket_lets_exactly_the_limit_through_at_once(limit: int, now: int) -> None:
    bucket = Bucket(limit)
    assert took(bucket, now, limit)
    assert not took(bucket, now, 1)
    assert bucket.left(now) == 0


@given(
    limit=st.integers(1, 1000),
    taken=st.integers(0, 1000),
    cost=st.integers(1, 1000),
    now=st.integers(0, 10**12),
)
def test_the_wait_that_a_refusal_names_is_exact(
    limit: int, taken: int, cost: int, now: int
) -> None:
    bucket = Bucket(limit)
    bucket.take(now, min(taken, limit))
    wait = bucket.wait_micros(now, cost)
    if wait:
        assert bucket.wait_micros(now + wait - 1, cost) == 1
        assert bucket.wait_micros(now + wait, cost) == 0


@given(limit=st.integers(0, 1000), more=st.integers(1, 1000))
def test_a2_a_call_dearer_than_the_limit_never_passes(limit: int, more: int) -> None:
    assert Bucket(limit).wait_micros(10**12, limit + more) is None


@pytest.mark.parametrize("period", [MINUTE_MICROS, DAY_MICROS])
def test_a_bucket_may_be_forgotten_exactly_when_it_is_full(period: int) -> None:
    bucket = Bucket(6, period)
    bucket.take(0, 2)
    assert bucket.full_in_micros(0) == period // 3
    assert bucket.full_in_micros(period // 3 - 1) == 1
    assert bucket.full_in_micros(period // 3) == 0


@given(limit=st.integers(1, 1000), other=st.integers(1, 1000))
def test_a_changed_limit_keeps_the_debt_in_time(limit: int, other: int) -> None:
    bucket = Bucket(limit)
    bucket.take(0, limit, 1)
    bucket.set_limit(other)
    assert bucket.full_in_micros(MINUTE_MICROS - 1) == 1
    assert bucket.full_in_micros(MINUTE_MICROS) == 0


@given(limit=st.integers(1, 1000), other=st.integers(1, 1000), back=st.integers(0, 1000))
def test_under_a_changed_limit_no_more_comes_back_than_is_owed(
    limit: int, other: int, back: int
) -> None:
    bucket = Bucket(limit)
    bucket.take(0, limit, 1)
    bucket.set_limit(other)
    bucket.give_back(0, 1, back)
    assert bucket.left(0) <= min(back, other)


def test_a_limit_raised_from_zero_starts_full() -> None:
    bucket = Bucket(0)
    bucket.set_limit(5)
    assert took(bucket, 10, 5)


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Bucket(-1)
    with pytest.raises(ValueError, match="negative"):
        Bucket(1).wait_micros(0, -1)
