"""States of engines and of the real queue as metrics, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from forebay.core.delta import EngineSignals
from forebay.core.job import Flow, Job, Lane, Sampling
from forebay.observe import Metrics
from forebay.pipeline.gauges import gauge_forever
from forebay.pipeline.report import Reporter
from forebay.queue import QueueSettings
from forebay.queue.memory import MemoryQueue
from forebay.testing.clock import FakeClock

MODEL = "small"


class Supervised:
    """An engine that was restarted."""

    restarts = 2

    def signals(self) -> EngineSignals:
        return EngineSignals(running=3, waiting=0, kv_use=0.25)


def job(name: str, lane: Lane) -> Job:
    return Job(
        id=name,
        attempt=1,
        owner="gw",
        pool=MODEL,
        model=MODEL,
        flow=Flow(lane, "org", "proj"),
        weight=1,
        prompt_ids=(1, 2),
        ceiling_tokens=8,
        sampling=Sampling(),
        streamed=True,
        resumable=True,
    )


async def test_engines_and_lanes_are_shown_and_a_lane_that_emptied_goes_back_to_nothing() -> None:
    clock, metrics = FakeClock(), Metrics()
    queue = MemoryQueue(QueueSettings(), clock)
    rooms: Any = SimpleNamespace(queue=queue, report=Reporter(metrics))

    async def shown() -> dict[str, float]:
        task = asyncio.ensure_future(gauge_forever(rooms, {MODEL: Supervised()}))
        await asyncio.sleep(0.01)  # it sleeps after its first round
        task.cancel()
        return {
            f"{sample.name.removeprefix('forebay_')} {sample.labels.get('lane', '')}".strip(): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
        }

    for name in ("a", "b"):
        await queue.enqueue(job(name, Lane.BATCH))
    clock.advance(5)
    seen = await shown()
    assert (seen["engine_running"], seen["engine_kv_use_ratio"]) == (3, 0.25)
    assert seen["engine_restarts_count"] == 2
    assert (seen["queue_waiting batch"], seen["queue_oldest_seconds batch"]) == (2, 5)
    assert (seen["queue_waiting premium"], seen["queue_oldest_seconds premium"]) == (0, 0)
    for name in ("a", "b"):
        await queue.remove(name)
    seen = await shown()
    assert (seen["queue_waiting batch"], seen["queue_oldest_seconds batch"]) == (0, 0)
