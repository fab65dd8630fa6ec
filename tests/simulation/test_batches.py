"""Batches whose processes are killed and frozen, beside calls that preempt their lines.

Clients order batches, some cancel them, some give them little time; some lines crash or hang their
engine; one tenant is nearly out of money, and now and then a key is revoked. How a world is judged in
the end: `batchery.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from forebay.core.batch import Answered, BatchState, Place, Refused
from forebay.testing.plans import Scenario
from forebay.testing.world import MODEL
from tests.simulation.batchery import SETTINGS, Batchery, Patient, Quiet


def scenario(seed: int, store_failures: float) -> Scenario:
    settings = replace(SETTINGS, without_budget="wait" if seed % 2 else "fail")
    return Scenario(store_failures=store_failures, batch=settings)


def batchery(seed: int) -> Batchery:
    return Batchery(seed, scenario(seed, 0.1 if seed % 3 == 2 else 0.0))


def test_no_line_is_lost_or_doubled_whatever_dies(seed: int) -> None:
    """B11, B12, B14: cancel, expiry, preemption, crashes and kills at random moments."""
    assert batchery(seed).run().ledger.rows


@pytest.mark.parametrize("unlucky", range(8))
def test_no_line_is_lost_or_doubled_by_stores_that_hardly_work(unlucky: int) -> None:
    """B11: two of five verbs fail, half of those although they took effect."""
    assert Patient(unlucky, scenario(unlucky, 0.4)).run().ledger.rows


def test_the_batches_are_eventful_enough_to_mean_something() -> None:
    """Within forty seeds: every ending, lines that fail and that do not run, some that go on after a
    death, some that are preempted."""
    ended: Counter[BatchState] = Counter()
    lines: Counter[str] = Counter()
    repeated = preempted = 0
    for seed in range(40):
        world = batchery(seed)
        world.run()
        ended += world.ended
        lines += world.lines
        repeated += world.repeated
        preempted += int(world.reporter.metrics.preemptions.labels(MODEL.id)._value.get())
    assert all(ended[state] for state in (BatchState.COMPLETED, BatchState.EXPIRED)), ended
    assert ended[BatchState.CANCELLED], ended
    assert min(lines.values()) > 20, lines
    assert repeated > 20
    assert preempted > 20


def test_ten_lines_are_done_before_a_hundred_more_of_a_batch_that_came_before() -> None:
    """Q8 between the projects of a lane: by what they were served, not by who came first."""
    told: list[str] = []

    async def story(world: Quiet) -> None:
        tell = world.store_of_batches.tell

        async def watched(place: Place, outcome: Answered | Refused) -> bool:
            if new := await tell(place, outcome):
                told.append(place.batch_id)
            return new

        world.store_of_batches.tell = watched  # type: ignore[method-assign]
        await world.begin(0, 500)
        await asyncio.sleep(1.0)
        await world.begin(1, 10)

    Quiet(story, replace(SETTINGS, window_items=32)).run()
    small = [position for position, batch_id in enumerate(told) if batch_id == "batch_1"]
    assert len(told) == 510
    assert small[0] > 5  # the other one had begun
    assert small[-1] - small[0] < 110
