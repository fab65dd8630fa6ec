"""Metrics that are states, read once a second: what the engines and the queue hold now.

Not here: metrics of what happened (`report.py`, the worker), the collectors (`forebay.observe`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from forebay.core.delta import EngineSignals
from forebay.core.job import Lane
from forebay.pipeline.rooms import Rooms


class Supervised(Protocol):
    """An engine that counts how often it was restarted."""

    @property
    def restarts(self) -> int: ...
    def signals(self) -> EngineSignals: ...


async def gauge_forever(rooms: Rooms, engines: Mapping[str, Supervised]) -> None:
    """`engines` by model, which is also the name of its pool."""
    metrics = rooms.report.metrics
    while True:
        for model, engine in engines.items():
            signals = engine.signals()
            metrics.engine_running.labels(model).set(signals.running)
            metrics.engine_kv_use.labels(model).set(signals.kv_use)
            metrics.engine_restarts.labels(model).set(engine.restarts)
            await _gauge_queue(rooms, model)
        await asyncio.sleep(1.0)


async def _gauge_queue(rooms: Rooms, model: str) -> None:
    waiting = dict.fromkeys(Lane, 0)
    oldest = dict.fromkeys(Lane, 0.0)
    for flow, depth in (await rooms.queue.depths(model)).items():
        waiting[flow.lane] += depth.waiting
        oldest[flow.lane] = max(oldest[flow.lane], depth.oldest_wait_seconds)
    for lane in Lane:
        rooms.report.metrics.queue_waiting.labels(model, lane.value).set(waiting[lane])
        rooms.report.metrics.queue_oldest.labels(model, lane.value).set(oldest[lane])
