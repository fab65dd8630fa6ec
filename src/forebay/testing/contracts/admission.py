"""The contract suite of `forebay.admission`.

Fixtures: `clock` (a FakeClock that the backend's time follows) and `admission` (an Admission on
that clock, made with `SETTINGS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission import (
    Admission,
    AdmissionSettings,
    Allowance,
    Need,
    Permit,
    Place,
    Standing,
)
from forebay.core.errors import Overloaded, RateLimited
from forebay.core.job import Ahead, Depth, Flow, Lane
from forebay.core.principal import Principal, RateLimits, Scopes
from forebay.queue.fairness import cost_ahead
from forebay.testing.clock import FakeClock

SETTINGS = AdmissionSettings(premium_deadline_seconds=5.0, interactive_deadline_seconds=10.0)
POOL = "pool"
KEY = Principal(Scopes("org_1", "proj_1", "key_1"), 1, frozenset(Lane), key_limits=RateLimits(3))
MODEL = "tiny-1"
FLOW = Flow(Lane.INTERACTIVE, "org_1", "proj_1")
BATCH = replace(FLOW, lane=Lane.BATCH)
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


def may(**limits: Any) -> Principal:
    """A key that may do this: `key_limits=`, `project_limits=`, …"""
    return replace(KEY, **{"key_limits": RateLimits(), **limits})


def place(cost: int, depths: Mapping[Flow, Depth], **changes: Any) -> Place:
    """At the end of the line of `FLOW`, or of the flow that is named."""
    flow = changes.get("flow", FLOW)
    waiting = {each: depth.waiting_cost for each, depth in depths.items()}
    lane = [each for other, each in waiting.items() if other.lane is flow.lane]
    higher = [each for other, each in waiting.items() if other.lane.rank < flow.lane.rank]
    jobs = sum(depth.waiting for depth in depths.values())
    ahead = Ahead(jobs, cost_ahead(waiting.get(flow, 0), cost, lane, higher))
    return replace(Place(POOL, FLOW, ahead), **changes)


async def admitted(
    admission: Admission, principal: Principal, tokens: int, flow: Flow = FLOW
) -> Permit:
    """A call of which a tenth of the tokens are its prompt."""
    need = Need(MODEL, tokens // 10, tokens - tokens // 10)
    return await admission.admit(principal, need, place(1, {}, flow=flow))


def standing_of(admission: Admission, principal: Principal) -> Allowance:
    """Of its calls."""
    found = admission.standing(principal).requests
    assert found is not None
    return found


def tokens_left(admission: Admission, principal: Principal, model: str | None = None) -> int:
    """Of the scope that has the least."""
    found = admission.standing(principal, model).tokens
    assert found is not None
    return found.remaining


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


# -- ② knock, of several scopes; weigh ---------------------------------------------------------------

LEVELS = ("key_limits", "project_limits", "organisation_limits")


@pytest.mark.parametrize("level", LEVELS)
async def test_a1_every_scope_of_a_key_has_its_limit_and_the_refusal_names_it(
    admission: Admission, level: str
) -> None:
    principal = may(**{level: RateLimits(2)})
    assert await knocks(admission, principal, 5) == 2
    with pytest.raises(RateLimited, match=f"This {level.split('_')[0]} may make 2 calls a minute"):
        await admission.knock(principal)


async def test_a1_a_knock_that_one_scope_refuses_takes_nothing_of_the_others(
    admission: Admission,
) -> None:
    """Nor does it matter which one: the one to wait longest for is named."""
    both = may(key_limits=RateLimits(10), project_limits=RateLimits(1))
    assert await knocks(admission, both, 5) == 1
    assert standing_of(admission, may(key_limits=RateLimits(10))).remaining == 9
    with pytest.raises(RateLimited, match="This project") as refusal:
        await admission.knock(both)
    assert refusal.value.retry_after_seconds == 60.0


async def test_keys_share_the_limits_of_their_project_and_organisation(
    admission: Admission,
) -> None:
    first = may(project_limits=RateLimits(4), organisation_limits=RateLimits(6))
    second = replace(first, scopes=Scopes("org_1", "proj_1", "key_2"))
    elsewhere = replace(first, scopes=Scopes("org_1", "proj_2", "key_3"))
    passed = [await knocks(admission, each, 3) for each in (first, second, elsewhere)]
    assert passed == [3, 1, 2]


async def test_a_body_that_no_tokens_are_left_for_is_refused_by_its_size(
    admission: Admission, clock: FakeClock
) -> None:
    principal = may(key_limits=RateLimits(tokens_per_minute=60))
    await admission.weigh(principal, 960)
    await admission.weigh(principal, 960)  # it takes nothing
    with pytest.raises(RateLimited, match="a body of 961 bytes needs at least 61") as refusal:
        await admission.weigh(principal, 961)
    assert refusal.value.retry_after_seconds is None
    await admitted(admission, principal, 50)
    await admission.weigh(principal, 160)
    with pytest.raises(RateLimited, match="10 are left now") as refusal:
        await admission.weigh(principal, 161)
    assert refusal.value.retry_after_seconds == 1.0
    clock.advance(1.0)
    await admission.weigh(principal, 161)
    await admission.weigh(may(), 10**9)


# -- ⑦ admit, ⑭ settle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
async def test_a2_a_minute_of_tokens_passes_at_once_and_then_at_the_limits_pace(
    admission: Admission, clock: FakeClock, level: str
) -> None:
    principal = may(**{level: RateLimits(tokens_per_minute=600)})
    await admitted(admission, principal, 400)
    says = (
        f"This {level.split('_')[0]} may use 600 tokens a minute; 200 are left now, and this call "
        r"needs 300: 30 for its prompt and up to 270 for its answer\. Possible in 10\.0 s"
    )
    with pytest.raises(RateLimited, match=says) as refusal:
        await admitted(admission, principal, 300)
    assert refusal.value.retry_after_seconds == 10.0
    clock.advance(10.0)
    await admitted(admission, principal, 300)
    assert tokens_left(admission, principal) == 0


async def test_a2_a_call_that_needs_more_than_a_minutes_tokens_is_never_possible(
    admission: Admission,
) -> None:
    principal = may(project_limits=RateLimits(tokens_per_minute=600))
    with pytest.raises(RateLimited, match=r"this call needs 601.*waiting does not help") as refusal:
        await admitted(admission, principal, 601)
    assert refusal.value.retry_after_seconds is None
    await admitted(admission, principal, 600)


async def test_a1_tokens_of_all_scopes_are_taken_or_none(admission: Admission) -> None:
    tokens = RateLimits(tokens_per_minute=1000)
    model = {MODEL: RateLimits(requests_per_minute=1, tokens_per_minute=1000)}
    principal = replace(
        may(key_limits=tokens, project_limits=tokens, organisation_limits=tokens),
        model_limits=model,
    )
    await admitted(admission, principal, 100)
    with pytest.raises(RateLimited, match="This project's use of tiny-1 may make 1 call a minute"):
        await admitted(admission, principal, 100)
    for one in (
        may(key_limits=tokens),
        may(project_limits=tokens),
        may(organisation_limits=tokens),
    ):
        assert tokens_left(admission, one) == 900
    assert tokens_left(admission, replace(may(), model_limits=model), MODEL) == 900


async def test_a_models_limits_are_its_projects_own(admission: Admission) -> None:
    """Neither another model's calls nor another project's count."""
    model_limits = {MODEL: RateLimits(tokens_per_minute=100), "other": RateLimits()}
    principal = replace(may(), model_limits=model_limits)
    await admitted(admission, principal, 100)
    await admission.admit(principal, Need("other", 1, 1000), place(1, {}))
    await admitted(admission, replace(principal, scopes=Scopes("org_1", "p2", "k2")), 100)
    with pytest.raises(RateLimited, match="This project's use of tiny-1 may use 100 tokens"):
        await admitted(admission, principal, 1)


async def test_a_days_batch_input_is_counted_in_the_batch_lane_alone(
    admission: Admission, clock: FakeClock
) -> None:
    principal = may(organisation_limits=RateLimits(batch_input_tokens_per_day=100))
    await admitted(admission, principal, 5000)
    used = await admitted(admission, principal, 600, BATCH)
    admission.settle(used, 60)  # its prompt alone
    unused = await admitted(admission, principal, 400, BATCH)
    with pytest.raises(RateLimited, match="100 input tokens a day in the batch lane") as refusal:
        await admitted(admission, principal, 100, BATCH)
    assert refusal.value.retry_after_seconds == 8640.0
    admission.settle(unused, 0)
    await admitted(admission, principal, 400, BATCH)
    clock.advance(8640.0)
    await admitted(admission, principal, 100, BATCH)


async def test_a4_what_a_call_did_not_use_comes_back_once(admission: Admission) -> None:
    tokens = RateLimits(tokens_per_minute=1000)
    principal = may(key_limits=tokens, organisation_limits=tokens)
    permit = await admitted(admission, principal, 1000)
    other = replace(principal, scopes=Scopes("org_1", "proj_1", "key_2"))
    with pytest.raises(RateLimited, match="This organisation"):
        await admitted(admission, other, 1)
    admission.settle(permit, 150)
    admission.settle(permit, 0)
    assert tokens_left(admission, principal) == tokens_left(admission, other) == 850


async def test_a4_all_of_them_if_it_never_ran(admission: Admission) -> None:
    principal = may(key_limits=RateLimits(tokens_per_minute=100))
    permits = [await admitted(admission, principal, 20) for _ in range(5)]
    for permit in permits[::2] + permits[1::2]:
        admission.settle(permit, 0)
    assert tokens_left(admission, principal) == 100


async def test_a4_what_time_has_given_back_is_not_given_twice(
    admission: Admission, clock: FakeClock
) -> None:
    principal = may(key_limits=RateLimits(tokens_per_minute=60))
    first = await admitted(admission, principal, 60)
    clock.advance(30.0)
    await admitted(admission, principal, 30)
    admission.settle(first, 0)
    assert tokens_left(admission, principal) == 30
    clock.advance(30.0)
    assert tokens_left(admission, principal) == 60


async def test_a4_an_old_permit_returns_nothing_to_a_bucket_that_was_forgotten_and_made_anew(
    admission: Admission, clock: FakeClock
) -> None:
    principal = may(key_limits=RateLimits(tokens_per_minute=60))
    old = await admitted(admission, principal, 60)
    clock.advance(61.0)
    other = replace(principal, scopes=Scopes("org_1", "proj_1", "key_2"))
    await admitted(admission, other, 60)
    await admitted(admission, principal, 60)
    admission.settle(old, 0)
    assert tokens_left(admission, principal) == 0


async def test_a_call_that_is_turned_away_by_the_queue_takes_no_permit(
    admission: Admission, clock: FakeClock
) -> None:
    principal = may(key_limits=RateLimits(tokens_per_minute=60))
    saturate(admission, clock, cost_per_second=1000)
    with pytest.raises(Overloaded):
        await admission.admit(principal, Need(MODEL, 30, 30), place(1, {FLOW: a_depth(10**6)}))
    assert tokens_left(admission, principal) == 60


async def test_a_key_without_limits_is_never_refused_and_has_no_standing(
    admission: Admission,
) -> None:
    for _ in range(100):
        admission.settle(await admitted(admission, may(), 10**9), 10**6)
    assert admission.standing(may(), MODEL) == Standing(None, None)


# -- standing ------------------------------------------------------------------------------------------


async def test_a_standing_is_that_of_the_scope_with_the_least_left(
    admission: Admission, clock: FakeClock
) -> None:
    principal = replace(
        may(key_limits=RateLimits(60, 1000), project_limits=RateLimits(20, 3000)),
        model_limits={MODEL: RateLimits(10, 500)},
    )
    full = Standing(Allowance(20, 20, 0.0), Allowance(1000, 1000, 0.0))
    assert admission.standing(principal) == full
    assert admission.standing(principal, "other") == full
    assert admission.standing(principal, MODEL) == Standing(
        Allowance(10, 10, 0.0), Allowance(500, 500, 0.0)
    )
    await admission.knock(principal)
    await admitted(admission, principal, 250)
    assert admission.standing(principal) == Standing(
        Allowance(20, 19, 3.0), Allowance(1000, 750, 15.0)
    )
    assert admission.standing(principal, MODEL) == Standing(
        Allowance(10, 9, 6.0), Allowance(500, 250, 30.0)
    )
    clock.advance(30.0)
    assert admission.standing(principal, MODEL) == Standing(
        Allowance(10, 10, 0.0), Allowance(500, 500, 0.0)
    )


# -- ⑦ foresee ------------------------------------------------------------------------------------------


async def test_nobody_is_turned_away_before_the_pace_is_known(
    admission: Admission, clock: FakeClock
) -> None:
    await admission.foresee(place(100, {FLOW: a_depth(10**9)}))
    admission.served(POOL, 5, busy=True)
    await admission.foresee(place(100, {FLOW: a_depth(10**9)}))


async def test_a_call_that_may_wait_past_its_lanes_deadline_is_turned_away(
    admission: Admission, clock: FakeClock
) -> None:
    """The prediction is not exact: a quarter of the deadline is left for what comes in between."""
    saturate(admission, clock, cost_per_second=1000)
    await admission.foresee(place(100, {FLOW: a_depth(7_000)}))
    with pytest.raises(Overloaded, match=r"about 8.0 s.* allows 10 s, and more than 7.5 s may"):
        await admission.foresee(place(100, {FLOW: a_depth(8_000)}))
    with pytest.raises(Overloaded, match=r"about 40.0 s") as refusal:
        await admission.foresee(place(100, {FLOW: a_depth(40_000)}))
    assert 32 <= refusal.value.retry_after_seconds * 4 <= 48


async def test_retry_times_are_spread(admission: Admission, clock: FakeClock) -> None:
    """A quarter of the wait, so that three tries lie within it, ±20 %, or all who were refused together
    would come back together."""
    saturate(admission, clock, cost_per_second=1000)
    times = set()
    for _ in range(50):
        with pytest.raises(Overloaded) as refusal:
            await admission.foresee(place(100, {FLOW: a_depth(40_000)}))
        times.add(round(refusal.value.retry_after_seconds, 1))
    assert min(times) >= 32 / 4
    assert max(times) <= 48 / 4
    assert len(times) > 10


async def test_nobody_is_told_to_come_back_later_than_clients_heed(
    admission: Admission, clock: FakeClock
) -> None:
    """OpenAI's SDKs take no more than 60 s, and would come back within 8 s instead."""
    saturate(admission, clock, cost_per_second=1000)
    for _ in range(50):
        with pytest.raises(Overloaded) as refusal:
            await admission.foresee(place(100, {FLOW: a_depth(400_000)}))
        assert 40 <= refusal.value.retry_after_seconds <= 60


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
        await admission.foresee(place(100, {premium: a_depth(7_000)}, flow=premium))
    await admission.foresee(place(100, {FLOW: a_depth(7_000)}))
    await admission.foresee(place(100, {batch: a_depth(10**9)}, flow=batch))


async def test_a_flow_that_floods_the_lane_keeps_only_itself_out(
    admission: Admission, clock: FakeClock
) -> None:
    saturate(admission, clock, cost_per_second=1000)
    depths = {OTHER: a_depth(10**6, 256)}
    await admission.foresee(place(100, depths))
    with pytest.raises(Overloaded):
        await admission.foresee(place(100, depths, flow=OTHER))


async def test_a_client_may_ask_for_an_earlier_deadline_and_never_for_a_later_one(
    admission: Admission, clock: FakeClock
) -> None:
    asked = [admission.deadline_seconds(FLOW, seconds) for seconds in (None, 2.5, 10.0, 60.0)]
    assert asked == [10.0, 2.5, 10.0, 10.0]
    assert admission.deadline_seconds(BATCH, 2.5) == 2.5
    saturate(admission, clock, cost_per_second=1000)
    depths = {FLOW: a_depth(5_000)}
    await admission.foresee(place(100, depths, deadline_seconds=8.0))
    with pytest.raises(Overloaded, match=r"about 5.* s.* The call itself allows 2 s"):
        await admission.foresee(place(100, depths, deadline_seconds=2.0))
    with pytest.raises(Overloaded, match=r"This lane allows 10 s"):
        await admission.foresee(place(100, {FLOW: a_depth(20_000)}, deadline_seconds=60.0))


async def test_an_idle_pools_pace_is_not_taken_for_its_limit(
    admission: Admission, clock: FakeClock
) -> None:
    """One call a minute, each served at once by an engine with one slot that is busy meanwhile."""
    saturate(admission, clock, cost_per_second=1000)
    for _ in range(10):
        clock.advance(60)
        await admission.foresee(place(100, {FLOW: a_depth(0, 0)}))
        admission.served(POOL, 100, busy=True)
    await admission.foresee(place(100, {FLOW: a_depth(5_000)}))


async def test_pools_have_paces_of_their_own(admission: Admission, clock: FakeClock) -> None:
    saturate(admission, clock, cost_per_second=10)
    await admission.foresee(place(100, {FLOW: a_depth(10**6)}, pool="pool_2"))
    with pytest.raises(Overloaded):
        await admission.foresee(place(100, {FLOW: a_depth(10**6)}))
