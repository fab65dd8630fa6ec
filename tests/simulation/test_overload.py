"""Ten times more calls than fit, from clients that come back: it passes by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from forebay.core.errors import OverloadError, QueueDeadline, RateLimited
from forebay.core.job import Lane
from forebay.pipeline.interactive import InteractivePipeline
from forebay.queue import QueueSettings
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.world import Topology, World

# Four sequences, twenty tokens a call, a step every 20 ms: about nine calls a second.
CAPACITY = 9
STORM_SECONDS = 10
# All tries of the storm's clients lie within a drain of the line, so it is over soon.
QUIET_AT = STORM_SECONDS + 40


def arrivals(kind: str, *, start: float, seconds: float, per_second: float) -> list[Plan]:
    return [
        Plan(
            id=f"{kind}_{number:04d}",
            tenant=number % 2,
            at=start + number / per_second,
            prompt=f"call {number} [[script length=20]]",
            lane=Lane.INTERACTIVE,
            max_tokens=20,
        )
        for number in range(int(seconds * per_second))
    ]


def waited_for_nothing(seen: Seen) -> bool:
    """It waited its whole deadline and was not started."""
    return seen.failed is not None and isinstance(seen.failed.error, QueueDeadline)


class Storm(World):
    """Its clients try again when they are told to, twice, as OpenAI's SDKs do."""

    tries = 3

    async def _client(self, seen: Seen, pipeline: InteractivePipeline) -> None:
        name = seen.plan.id
        for number in range(self.tries):
            seen.refused = None
            seen.plan = replace(seen.plan, id=f"{name}t{number}")
            await super()._client(seen, pipeline)
            refusal = seen.refused
            if not isinstance(refusal, OverloadError | RateLimited):
                return
            assert refusal.retry_after_seconds, "a refusal that passes says when"
            await asyncio.sleep(refusal.retry_after_seconds)


@pytest.mark.parametrize("number", range(3))
def test_a_storm_of_retries_drains_by_itself(number: int) -> None:
    """Soon afterwards all is served at the first try, as if there had been no storm."""
    storm = arrivals("storm", start=0, seconds=STORM_SECONDS, per_second=10 * CAPACITY)
    after = arrivals("after", start=STORM_SECONDS, seconds=70, per_second=0.8 * CAPACITY)
    queue = QueueSettings(flow_jobs=200, lane_jobs=400)
    scenario = Scenario(plans=[*storm, *after], fate=False, queue=queue, max_open_calls=None)
    world = Storm(number, Topology.MACHINE, scenario).run()
    stormed = [seen for seen in world.seen if seen.plan.id.startswith("storm")]
    assert any(isinstance(seen.refused, OverloadError) for seen in stormed), "it was no storm"
    served_meanwhile = [seen for seen in stormed if seen.finished is not None]
    assert len(served_meanwhile) >= CAPACITY * STORM_SECONDS * 0.8
    # Before the pace is known nobody is turned away.
    evicted = sum(waited_for_nothing(seen) and seen.plan.at > 3 for seen in world.seen)
    assert evicted <= len(served_meanwhile) * 0.15, "let in to wait for nothing"
    late = [
        seen for seen in world.seen if seen.plan.id.startswith("after") and seen.plan.at >= QUIET_AT
    ]
    assert late
    assert all(seen.finished is not None and seen.plan.id.endswith("t0") for seen in late)
