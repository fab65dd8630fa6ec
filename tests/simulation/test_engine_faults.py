"""What an engine does wrong, looked at from a client and from the books: one bill or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.core.delta import FinishReason
from forebay.core.errors import EngineFailed, EngineTimeout
from forebay.core.usage import Outcome
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.world import Topology, World


def plan(number: int, script: str, *, at: float = 0.6, max_tokens: int = 300) -> Plan:
    return Plan(f"req_{number}", number % 2, at, f"[[script {script}]]", max_tokens=max_tokens)


def live(*plans: Plan, seed: int = 1, topology: Topology = Topology.MACHINE) -> World:
    return World(seed, topology, Scenario(plans, fate=False)).run()


def check_free(world: World, seen: Seen, error: type[Exception]) -> None:
    """It was told of our fault, and pays nothing."""
    assert seen.failed is not None
    assert type(seen.failed.error) is error
    row = world.ledger.rows[seen.plan.id]
    assert (row.outcome, row.amount_nanos) == (Outcome.FAILED, 0)


def check_once(world: World, seen: Seen, tokens: int) -> None:
    """It was answered as if nothing had happened (S4, T1: the world), and charged once."""
    assert seen.finished is not None
    assert seen.tokens == tokens
    row = world.ledger.rows[seen.plan.id]
    assert (row.outcome, row.usage.output_tokens) == (Outcome.COMPLETED, tokens)


@pytest.mark.parametrize("topology", Topology)
def test_a_call_of_which_no_token_comes_is_tried_once_more_and_then_told(
    topology: Topology,
) -> None:
    world = live(plan(0, "hang_at=0"), plan(1, "length=50"), topology=topology)
    hung, other = world.seen
    check_free(world, hung, EngineTimeout)
    assert len(world.requests("req_0")) == 2
    check_once(world, other, 50)


@pytest.mark.parametrize("fault", ["hang_at=20", "crash_at=20", "duplicate_at=20"])
@pytest.mark.parametrize("topology", Topology)
def test_a_call_that_loses_its_engine_half_way_goes_on_from_its_prefix(
    fault: str, topology: Topology
) -> None:
    world = live(plan(0, f"length=90 {fault}"), topology=topology)
    check_once(world, world.seen[0], 90)
    first, second = sorted(world.requests("req_0"), key=lambda made: len(made.prompt_ids))
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert len(second.prompt_ids) - len(first.prompt_ids) == 20


@pytest.mark.parametrize("fault", ["hang_at=20", "crash_at=20", "duplicate_at=20"])
@pytest.mark.parametrize("topology", Topology)
def test_a_call_that_cannot_go_on_ends_with_an_error_and_is_free(
    fault: str, topology: Topology
) -> None:
    """E8: it has a seed, so a prefix does not carry its state."""
    world = live(replace(plan(0, f"length=90 {fault}"), seed=7), topology=topology)
    check_free(world, world.seen[0], EngineTimeout if "hang" in fault else EngineFailed)
    assert world.seen[0].tokens == 20


@pytest.mark.parametrize("schedule", range(10))
@pytest.mark.parametrize("crash_at", [0, 1])
def test_a_call_that_kills_engines_gets_no_third_one_and_takes_nobody_along(
    schedule: int, crash_at: int
) -> None:
    """Three calls were running or began with it, one came later."""
    poison = plan(0, f"crash_at={crash_at} length=90", at=1.0)
    others = [plan(n, "length=120", at=at) for n, at in enumerate((0.6, 0.99, 1.0, 1.3), start=1)]
    # With a seed it starts from nothing again, so it strikes again.
    world = live(*others, replace(poison, seed=7, streamed=False), seed=schedule)
    for seen in world.seen:
        if seen.plan.id == "req_0":
            check_free(world, seen, EngineFailed)
        else:
            check_once(world, seen, 120)
    assert len(world.requests("req_0")) <= 2


@pytest.mark.parametrize("schedule", range(5))
def test_an_engine_that_ignores_a_hang_up_does_not_make_it_dearer(schedule: int) -> None:
    """Billed is what was received until the client was gone; the engine went on for nobody."""
    gone = replace(plan(0, "length=250 deaf=1"), leaves_after_tokens=10)
    world = live(gone, plan(1, "length=50"), seed=schedule)
    row = world.ledger.rows["req_0"]
    assert row.outcome is Outcome.CANCELLED
    assert 10 <= row.usage.output_tokens <= 15
    assert world.requests("req_0")[0].made > 100
    check_once(world, world.seen[1], 50)


@pytest.mark.parametrize("schedule", range(5))
def test_an_engine_that_says_more_than_it_was_asked_for_is_cut_there(schedule: int) -> None:
    """E3, L3: never more than the hold."""
    world = live(plan(0, "overlong=50", max_tokens=30), seed=schedule)
    check_once(world, world.seen[0], 30)
    assert world.seen[0].finished is not None
    assert world.seen[0].finished.finish_reasons == (FinishReason.LENGTH,)


def test_an_empty_answer_is_an_answer_and_costs_its_input() -> None:
    world = live(plan(0, "length=0"))
    check_once(world, world.seen[0], 0)
    assert world.seen[0].text == ""
    assert world.ledger.rows["req_0"].amount_nanos > 0
    assert len(world.requests("req_0")) == 1


@pytest.mark.parametrize("topology", Topology)
def test_kv_memory_that_runs_out_is_no_end(topology: Topology) -> None:
    """E9: it goes on elsewhere, and if it cannot, it is free."""
    script = "length=90 kv_exhausted_at=20"
    world = live(plan(0, script), replace(plan(1, script), seed=7), topology=topology)
    check_once(world, world.seen[0], 90)
    check_free(world, world.seen[1], EngineFailed)
