"""What batch jobs leave to calls of other lanes, through the real pipeline, on an engine of four slots."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forebay.core.job import Lane
from forebay.engine.journal import Made
from forebay.queue import QueueSettings
from forebay.testing.plans import Plan, Scenario
from forebay.testing.world import Topology, World


def batch_plans(calls: int, max_tokens: int) -> list[Plan]:
    return [
        Plan(f"req_b{n}", 0, 0.6, f"b{n}", lane=Lane.BATCH, max_tokens=max_tokens, ignore_eos=True)
        for n in range(calls)
    ]


def running_batch(world: World) -> list[Made]:
    """The batch jobs that the engine is working on."""
    return [
        made
        for engine in world.engines.values()
        for made in engine.journal.records.values()
        if made.request_id.startswith("req_b")
        and made.finished is None
        and made.cancelled_at is None
    ]


def live(plans: Sequence[Plan], seed: int, settings: QueueSettings) -> tuple[World, list[int]]:
    """The world, and how many batch jobs ran after each step of it."""
    counts: list[int] = []

    def watch(world: World) -> None:
        running = running_batch(world)
        counts.append(len(running))
        beginning = sum(not made.made for made in running)
        assert beginning <= settings.batch_starts, "more batch jobs begin than may"

    scenario = Scenario(plans, fate=False, max_open_calls=None, queue=settings, watch=watch)
    return World(seed, Topology.MACHINE, scenario).run(), counts


def ttft_ms(world: World, call_id: str) -> int:
    ttft = world.ledger.rows[call_id].timings.ttft_ms
    assert ttft is not None
    return ttft


@pytest.mark.parametrize("schedule", range(5))
def test_q9_arrivals_find_a_slot_and_no_batch_job_is_sent_back(schedule: int) -> None:
    """Half is reserved: of twelve batch jobs two run, and two calls at once have slots."""
    urgent = [Plan(f"req_u{n}", 1, 1.5, f"u{n}", max_tokens=8, ignore_eos=True) for n in range(2)]
    settings = QueueSettings(batch_reserve_percent=50)
    world, counts = live([*batch_plans(12, 60), *urgent], schedule, settings)
    assert max(counts) == 2
    assert max(ttft_ms(world, plan.id) for plan in urgent) <= 250
    for seen in world.seen:
        assert len(world.requests(seen.plan.id)) == 1, "it ran twice"


@pytest.mark.parametrize("starts", [1, 2])
def test_batch_jobs_begin_a_few_at_a_time_but_without_delay(starts: int) -> None:
    """The next one is leased with the first token of the last, not with the next beat."""
    settings = QueueSettings(batch_reserve_percent=0, batch_starts=starts)
    world, counts = live(batch_plans(4, 120), 1, settings)
    assert max(counts) == 4
    assert max(row.timings.queue_ms or 0 for row in world.ledger.rows.values()) <= 400


def test_q9_an_engine_with_one_slot_serves_batch_jobs_whatever_is_reserved() -> None:
    settings = QueueSettings(batch_reserve_percent=100)
    _, counts = live(batch_plans(3, 10), 1, settings)
    assert max(counts) == 1


def test_q9_a_call_of_more_choices_than_the_reserve_leaves_is_served() -> None:
    """Three choices where the batch lane has one of four slots."""
    wide = Plan("req_w", 0, 0.7, "w", lane=Lane.BATCH, max_tokens=20, choices=3, ignore_eos=True)
    settings = QueueSettings(batch_reserve_percent=75)
    world, _ = live([*batch_plans(6, 20), wide], 2, settings)
    assert all(seen.finished is not None for seen in world.seen)


def test_when_other_lanes_have_been_quiet_batch_jobs_take_everything_until_one_has_a_call() -> None:
    """Three of four slots are reserved, until ten seconds after the only call of another lane."""
    urgent = Plan("req_u", 1, 1.0, "u", max_tokens=8, ignore_eos=True)
    settings = QueueSettings(batch_reserve_percent=75, batch_reserve_seconds=10)
    seen: dict[bool, int] = {}

    def watch(world: World) -> None:
        early = world.loop.time() < 11
        seen[early] = max(seen.get(early, 0), len(running_batch(world)))

    plans = [*batch_plans(30, 100), urgent]
    scenario = Scenario(plans, fate=False, max_open_calls=None, queue=settings, watch=watch)
    World(1, Topology.MACHINE, scenario).run()
    assert seen == {True: 1, False: 4}


def test_what_the_reserve_holds_back_says_nothing_about_the_pace() -> None:
    """One slot of four served batch jobs while others waited. A burst that the engine serves in six
    seconds is not turned away because it would take that slot four times as long."""
    burst = [
        Plan(f"req_u{n:02d}", 1, 6.0, f"u{n}", max_tokens=60, ignore_eos=True) for n in range(16)
    ]
    settings = QueueSettings(batch_reserve_percent=75)
    world, _ = live([*batch_plans(12, 60), *burst], 1, settings)
    assert [seen.plan.id for seen in world.seen if seen.refused is not None] == []
