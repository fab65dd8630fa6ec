"""Money under concurrency, in virtual time: who may spend the last cent, and what refusals mean.

`WatchedLedger` asserts at the moment of each refusal that posted + pending + h > cap (L2).
"""

from __future__ import annotations

import pytest

from forebay.core.errors import InsufficientQuota
from forebay.core.usage import Outcome
from forebay.testing.plans import Plan, Scenario
from forebay.testing.watched import peek
from forebay.testing.world import Topology, World

KEY = "key0"


def plans(count: int, script: str) -> list[Plan]:
    return [
        Plan(
            id=f"req_{n:03d}",
            tenant=0,
            at=0.6 + n / 1000,
            prompt=f"[[script {script}]]",
            max_tokens=20,
            streamed=n % 2 == 0,
        )
        for n in range(count)
    ]


def spend(cap: int | None, count: int, script: str, seed: int) -> World:
    scenario = Scenario(plans(count, script), fate=False, max_open_calls=None)
    world = World(seed, Topology.MACHINE, scenario)
    peek(world.ledger.set_cap(KEY, cap))
    return world.run()


@pytest.mark.parametrize("affordable", [0, 1, 7])
@pytest.mark.parametrize("schedule", range(10))
def test_fifty_calls_for_the_last_cent(affordable: int, schedule: int) -> None:
    """hold = settlement = h, cap = k·h + h - 1: exactly k are granted, under any schedule."""
    [row] = spend(None, 1, "length=100", 1).ledger.rows.values()
    h = row.amount_nanos
    world = spend(affordable * h + h - 1, 50, "length=100", schedule)
    refused = [seen for seen in world.seen if isinstance(seen.refused, InsufficientQuota)]
    assert len(refused) == 50 - affordable
    assert sum(row.amount_nanos for row in world.ledger.rows.values()) == affordable * h
    assert peek(world.ledger.balances(KEY)).pending_nanos == 0


@pytest.mark.parametrize("schedule", range(10))
def test_calls_that_stop_half_way_leave_room_for_others_but_never_overrun(schedule: int) -> None:
    [row] = spend(None, 1, "length=100", 1).ledger.rows.values()
    h = row.amount_nanos
    cap = 7 * h + h - 1
    world = spend(cap, 50, "length=10", schedule)
    completed = [row for row in world.ledger.rows.values() if row.outcome is Outcome.COMPLETED]
    assert len(completed) >= 7
    assert sum(row.amount_nanos for row in completed) <= cap
