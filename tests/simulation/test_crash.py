"""Random lives of whole installations: nothing a crash can do falsifies a bill or loses a call.

`World` checks the money (L1-L4, L7, L8, L11, L15) and the queue (Q1-Q3, Q5, Q6) after every step, and judges
each call at the end (see its docstring). A failure prints the command that replays it.
"""

from __future__ import annotations

from forebay.core.usage import Outcome
from forebay.testing.plans import Scenario
from forebay.testing.world import Topology, World


def test_one_machine_survives_kills_between_any_two_awaits(seed: int) -> None:
    """Goal: `kill -9` of the one process at any moment; the next start resolves what was open."""
    world = World(seed, Topology.MACHINE).run()
    assert world.ledger.rows


def test_a_fleet_survives_the_death_of_any_of_its_processes(seed: int) -> None:
    """Goal: the table "Who owns what": gateways, workers and keepers die and freeze on their own."""
    world = World(seed, Topology.FLEET).run()
    assert world.ledger.rows


def test_a_store_that_fails_now_and_then_falsifies_nothing(seed: int) -> None:
    """Goal: a tenth of all ledger operations fail, half of these after they took effect, beside
    everything else that can happen; every hold is resolved once and failures stay free."""
    topology = Topology.FLEET if seed % 2 else Topology.MACHINE
    world = World(seed, topology, Scenario(store_failures=0.1)).run()
    assert world.ledger.holds


def test_the_same_seed_is_the_same_history() -> None:
    first, second = World(11, Topology.FLEET).run(), World(11, Topology.FLEET).run()
    assert first.loop.steps == second.loop.steps
    assert first.ledger.rows == second.ledger.rows


def test_the_world_is_eventful_enough_to_mean_something() -> None:
    """Every way a call can end, resumed jobs and second attempts occur within forty seeds."""
    outcomes, resumed, attempts, finished = set(), 0, set(), 0
    for seed in range(40):
        world = World(seed, Topology.FLEET if seed % 2 else Topology.MACHINE).run()
        outcomes |= {(row.outcome, row.reason) for row in world.ledger.rows.values()}
        attempts |= {row.attempt for row in world.ledger.rows.values()}
        for seen in world.seen:
            resumed += len(world.requests(seen.plan.id)) > 1
            finished += seen.finished is not None
    assert {outcome for outcome, _ in outcomes} == set(Outcome)
    reasons = {"ended", "client_gone", "owner_gone", "owner_died", "worker_died", "engine_fault"}
    assert reasons <= {reason for _, reason in outcomes}
    assert attempts >= {1, 2}
    assert resumed > 10
    assert finished > 300
