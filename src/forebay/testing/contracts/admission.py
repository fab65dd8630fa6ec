"""The contract suite of `forebay.admission`.

Fixtures: `clock` (a FakeClock that the backend's time follows) and `admission` (an Admission on
that clock, made with `SETTINGS`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission import Admission, AdmissionSettings
from forebay.core.errors import Overloaded, RateLimited
from forebay.core.job import Depth, Flow, Lane
from forebay.core.principal import Principal, RateLimits, Scopes
from forebay.testing.clock import FakeClock

SETTINGS = AdmissionSettings(premium_deadline_seconds=5.0, interactive_deadline_seconds=10.0)
POOL = "pool"
KEY = Principal(Scopes("org_1", "proj_1", "key_1"), 1, frozenset(Lane), key_limits=RateLimits(3))
FLOW = Flow(Lane.INTERACTIVE, "org_1", "proj_1")
OTHER = Flow(Lane.INTERACTIVE, "org_2", "proj_2")


def a_depth(waiting_cost: int, waiting: int = 1) -> Depth:
    """A flow with this much cost waiting."""
    return Depth(waiting, 1, waiting_cost, 0.0, 100)


async def knocks(admission: Admission, principal: Principal, calls: int) -> int:
    """How many of so many calls in a row pass."""
    passed = 0
    for _ in range(calls):
        try:
            await admission.knock(principal)
            passed += 1
        except RateLimited:
            continue
    return passed


def saturate(admission: Admission, clock: FakeClock, *, cost_per_second: int) -> None:
    """Ten seconds in which the pool serves this much while jobs wait."""
    for _ in range(11):
        admission.served(POOL, cost_per_second, busy=True)
        clock.advance(1.0)
    admission.served(POOL, cost_per_second, busy=True)


# -- ② knock ------------------------------------------------------------------------------------------


async def test_a1_a_minute_of_calls_passes_at_once_and_then_at_the_limits_pace(
    admission: Admission, clock: FakeClock
) -> None:
    assert await knocks(admission, KEY, 10) == 3
    with pytest.raises(RateLimited, match="3 calls a minute") as refusal:
        await admission.knock(KEY)
    assert refusal.value.retry_after_seconds == pytest.approx(20.0)
    clock.advance(19.9)
    assert await knocks(admission, KEY, 1) == 0
    clock.advance(0.2)
    assert await knocks(admission, KEY, 10) == 1
    clock.advance(3600)
    assert await knocks(admission, KEY, 10) == 3


async def test_a1_a_refused_call_takes_nothing(admission: Admission, clock: FakeClock) -> None:
    """Knocking without pause does not keep the door closed."""
    assert await knocks(admission, KEY, 100) == 3
    for _ in range(40):
        clock.advance(0.5)
        await knocks(admission, KEY, 10)
    clock.advance(20)
    assert await knocks(admission, KEY, 1) == 1


async def test_keys_have_limits_of_their_own(admission: Admission) -> None:
    other = replace(KEY, scopes=Scopes("org_1", "proj_1", "key_2"))
    assert await knocks(admission, KEY, 5) == 3
    assert await knocks(admission, other, 5) == 3


async def test_a_key_without_a_limit_is_never_refused(admission: Admission) -> None:
    """Its concurrency is bounded elsewhere, by the ledger (A3)."""
    assert await knocks(admission, replace(KEY, key_limits=RateLimits()), 1000) == 1000


async def test_a_key_with_limit_zero_is_refused_for_ever(admission: Admission) -> None:
    with pytest.raises(RateLimited) as refusal:
        await admission.knock(replace(KEY, key_limits=RateLimits(0)))
    assert refusal.value.retry_after_seconds is None


async def test_a_changed_limit_counts_from_the_next_call(
    admission: Admission, clock: FakeClock
) -> None:
    assert await knocks(admission, KEY, 5) == 3
    raised = replace(KEY, key_limits=RateLimits(60))
    clock.advance(1.0)
    assert await knocks(admission, raised, 5) == 1


async def test_l10_a_jump_of_the_wall_clock_changes_no_limit(
    admission: Admission, clock: FakeClock
) -> None:
    assert await knocks(admission, KEY, 5) == 3
    clock.jump_wall(86_400)
    assert await knocks(admission, KEY, 5) == 0
    clock.jump_wall(-2 * 86_400)
    clock.advance(20)
    assert await knocks(admission, KEY, 5) == 1


# -- ⑦ admit ------------------------------------------------------------------------------------------


async def test_nobody_is_turned_away_before_the_pace_is_known(
    admission: Admission, clock: FakeClock
) -> None:
    await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(10**9)})
    admission.served(POOL, 5, busy=True)
    await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(10**9)})


async def test_a_call_that_would_wait_past_its_lanes_deadline_is_turned_away(
    admission: Admission, clock: FakeClock
) -> None:
    saturate(admission, clock, cost_per_second=1000)
    await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(9_000)})
    with pytest.raises(Overloaded, match=r"about 40 s.*allows 10 s") as refusal:
        await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(40_000)})
    assert 32 <= refusal.value.retry_after_seconds <= 48


async def test_retry_times_are_spread(admission: Admission, clock: FakeClock) -> None:
    """±20 %, or all who were refused together would come back together."""
    saturate(admission, clock, cost_per_second=1000)
    times = set()
    for _ in range(50):
        with pytest.raises(Overloaded) as refusal:
            await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(100_000)})
        times.add(round(refusal.value.retry_after_seconds))
    assert min(times) >= 80
    assert max(times) <= 120
    assert len(times) > 10


async def test_each_lane_has_its_deadline_and_batch_has_none(
    admission: Admission, clock: FakeClock
) -> None:
    assert [
        admission.deadline_seconds(replace(FLOW, lane=lane))
        for lane in (Lane.PREMIUM, Lane.INTERACTIVE, Lane.BATCH)
    ] == [5.0, 10.0, None]
    saturate(admission, clock, cost_per_second=1000)
    premium, batch = replace(FLOW, lane=Lane.PREMIUM), replace(FLOW, lane=Lane.BATCH)
    with pytest.raises(Overloaded):
        await admission.admit(POOL, premium, 100, {premium: a_depth(7_000)})
    await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(7_000)})
    await admission.admit(POOL, batch, 100, {batch: a_depth(10**9)})


async def test_a_flow_that_floods_the_lane_keeps_only_itself_out(
    admission: Admission, clock: FakeClock
) -> None:
    saturate(admission, clock, cost_per_second=1000)
    depths = {OTHER: a_depth(10**6, 256)}
    await admission.admit(POOL, FLOW, 100, depths)
    with pytest.raises(Overloaded):
        await admission.admit(POOL, OTHER, 100, depths)


async def test_an_idle_pools_pace_is_not_taken_for_its_limit(
    admission: Admission, clock: FakeClock
) -> None:
    """One call a minute, each served at once by an engine with one slot that is busy meanwhile."""
    saturate(admission, clock, cost_per_second=1000)
    for _ in range(10):
        clock.advance(60)
        await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(0, 0)})
        admission.served(POOL, 100, busy=True)
    await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(9_000)})


async def test_pools_have_paces_of_their_own(admission: Admission, clock: FakeClock) -> None:
    saturate(admission, clock, cost_per_second=10)
    await admission.admit("pool_2", FLOW, 100, {FLOW: a_depth(10**6)})
    with pytest.raises(Overloaded):
        await admission.admit(POOL, FLOW, 100, {FLOW: a_depth(10**6)})
