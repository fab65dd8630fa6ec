"""Single misfortunes, each looked at closely: what the client sees, what it costs, who goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.core.errors import EngineFailed, ShuttingDown
from forebay.core.usage import Outcome
from forebay.testing.plans import SCRIPT, Plan, Scenario
from forebay.testing.world import Topology, World


def calls(*scripts: str, at: float = 0.6) -> list[Plan]:
    return [
        Plan(f"req_{n}", n % 2, at + n / 100, f"[[script {script}]]", max_tokens=300)
        for n, script in enumerate(scripts)
    ]


def live(scenario: Scenario, seed: int = 1, topology: Topology = Topology.MACHINE) -> World:
    return World(seed, topology, replace(scenario, fate=False)).run()


@pytest.mark.parametrize("schedule", range(5))
def test_a_token_that_is_not_the_model_s_fails_its_call_for_free_and_no_other(
    schedule: int,
) -> None:
    """What came before it was shown; it is not tried again, and the worker serves on."""
    world = live(Scenario(calls("length=40 alien_at=7", "length=40", "length=90")), schedule)
    alien, *others = world.seen
    assert alien.failed is not None
    assert isinstance(alien.failed.error, EngineFailed)
    assert alien.tokens == 7
    assert len(world.requests("req_0")) == 1
    row = world.ledger.rows["req_0"]
    assert (row.outcome, row.reason, row.amount_nanos) == (Outcome.FAILED, "engine_fault", 0)
    assert all(seen.finished for seen in others)


@pytest.mark.parametrize("schedule", range(5))
@pytest.mark.parametrize("topology", Topology)
def test_a_ledger_that_does_not_answer_for_a_while_makes_nobody_look_dead(
    schedule: int, topology: Topology
) -> None:
    """Eight seconds without an answer: streams go on, ends wait, nothing is charged twice (L10)."""
    plans = calls("length=120", "length=250", "length=40", "length=200", at=0.9)
    world = live(Scenario(plans, store_stalls=(1.5, 9.5)), schedule, topology)
    assert all(seen.finished for seen in world.seen)
    assert {row.outcome for row in world.ledger.rows.values()} == {Outcome.COMPLETED}


def test_an_engine_that_stays_away_is_waited_for_a_minute_and_no_longer() -> None:
    """Q9's exception: who waits for an engine that is gone is told, and pays nothing."""
    script = replace(SCRIPT, start_seconds=200.0)
    plans = calls("length=40 crash_at=5", "length=100", at=320.0)  # ready for two minutes before
    world = live(Scenario(plans, script=script))
    for seen in world.seen:
        assert seen.failed is not None
        assert isinstance(seen.failed.error, EngineFailed)
    assert {row.amount_nanos for row in world.ledger.rows.values()} == {0}
    ended = max(row.resolved_at for row in world.ledger.rows.values()) - 1_800_000_000
    assert 375 < ended < 395


def test_a_stop_that_does_not_wait_is_free_for_all_it_breaks_off() -> None:
    """Running and waiting, streamed and not: each gets an error, none a bill."""
    plans = [
        replace(plan, streamed=number % 2 == 0)
        for number, plan in enumerate(calls(*["length=250"] * 9))
    ]
    stopped: list[float] = []

    def stop(world: World) -> None:
        if not stopped and world.loop.time() > 2.0:
            stopped.append(world.loop.time())
            [(process, gateway)] = world.gateways.items()
            world.loop.start(process, gateway.break_off(seconds=3.0))

    late = Plan("req_late", 0, 2.05, "[[script length=40]]")
    world = live(Scenario([*plans, late], watch=stop))
    [*early, after] = world.seen
    assert isinstance(after.refused, ShuttingDown)
    assert all(seen.failed is not None for seen in early)
    assert {seen.failed.error.message for seen in early if seen.failed} == {
        "The server is shutting down."
    }
    assert {row.amount_nanos for row in world.ledger.rows.values()} == {0}
    assert {row.reason for row in world.ledger.rows.values()} == {"server_shutdown"}


def test_times_count_from_the_first_enqueue_also_after_a_worker_died() -> None:
    """The usage row's times are the call's, not its last attempt's."""
    killed: list[float] = []

    def watch(world: World) -> None:
        if not killed and world.seen and world.seen[0].tokens >= 100:
            killed.append(world.loop.time())
            [busy] = [name for name, each in world.engines.items() if each.journal.records]
            world.kill(busy)

    world = live(Scenario(calls("length=300"), watch=watch), topology=Topology.FLEET)
    row = world.ledger.rows["req_0"]
    assert world.seen[0].finished
    assert row.attempt == 2
    assert row.timings.ttft_ms is not None
    assert row.timings.ttft_ms < 500
    assert row.timings.duration_ms is not None
    assert row.timings.duration_ms > (row.resolved_at - row.created_at) * 1000 - 100
