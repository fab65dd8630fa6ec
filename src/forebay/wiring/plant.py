"""The roles of one process: engines, workers, the gateway's pipeline and the keeper, and their tasks.

Not here: what they are made of (`machine.py`, `models.py`).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from forebay import __version__
from forebay.catalog import ModelSettings
from forebay.config import Settings
from forebay.engine.process import ChildEngine
from forebay.gateway.batch_lines import BatchLines
from forebay.gateway.services import Readiness, Services
from forebay.pipeline.activity import Activity
from forebay.pipeline.administration import Administration
from forebay.pipeline.alerting import Alerting
from forebay.pipeline.batch import BatchLane
from forebay.pipeline.batches import BatchDesk, FileDesk
from forebay.pipeline.dialogues import Dialogues
from forebay.pipeline.gauges import gauge_forever
from forebay.pipeline.interactive import InteractivePipeline
from forebay.pipeline.keeper import Keeper
from forebay.pipeline.meter import Meters
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.turns import ShownTurns
from forebay.pipeline.worker import Worker
from forebay.scheduler import Policy
from forebay.wiring.ground import Ground


class Plant:
    """Engines, workers, gateway and keeper of one process, and the tasks that drive them."""

    def __init__(self, settings: Settings, ground: Ground, rooms: Rooms) -> None:
        self.rooms = rooms
        self.metrics = ground.metrics
        self.spawn = rooms.spawn
        self.pipeline = InteractivePipeline(
            rooms, process=ground.ids.new("gw"), idempotency=settings.idempotency
        )
        lines = BatchLines(rooms.catalog, rooms.clock, settings.gateway)
        self.lane = BatchLane(rooms, self.pipeline, self.pipeline.run, lines, settings.batch)
        self.keeper = Keeper(rooms)
        self.alerting = Alerting(
            ground.alerts,
            ground.ledger.records,
            ground.webhooks,
            ground.ids,
            rooms.spawn,
            rooms.report,
        )
        self.meters = Meters(
            ground.ledger.records.record_window,
            process=self.pipeline.process,
            clock=rooms.clock,
            report=rooms.report,
        )
        self.engines: list[ChildEngine] = []
        self.workers: list[Worker] = []
        self.roles: list[asyncio.Task[Any]] = []
        self.stopping = False
        self.urls: tuple[str, ...] = ()  # of the API and of metrics, once both listen
        self._models = [model.id for model in settings.models]
        self.activity = Activity(rooms, self.pipeline, self._models)
        self._ids = ground.ids
        self._batch = settings.batch
        self._policy = Policy(
            batch_reserve_percent=settings.queue.batch_reserve_percent,
            batch_reserve_seconds=settings.queue.batch_reserve_seconds,
            batch_starts=settings.queue.batch_starts,
        )

    def add(self, model: ModelSettings, engine: ChildEngine) -> None:
        """One pool: an engine and its worker."""
        name = self._ids.new("worker")
        worker = Worker(self.rooms, engine, name=name, pool=model.id, policy=self._policy)
        self.engines.append(engine)
        self.workers.append(worker)
        self.meters.add(model.id, engine, worker)

    def start(self) -> None:
        """Start every role; one that ends by itself ends the server."""
        roles = [
            *((worker.run(), "worker") for worker in self.workers),
            (self.pipeline.beat_forever(), "beat"),
            (self.pipeline.be_present_forever(), "presence"),
            (self.keeper.run(), "keeper"),
            (self.lane.run(), "batches"),
            (self.alerting.run(), "alerting"),
            (self.meters.run(), "meters"),
            (self.activity.sample_forever(), "activity"),
            (
                gauge_forever(self.rooms, dict(zip(self._models, self.engines, strict=True))),
                "gauges",
            ),
        ]
        self.roles = [self.spawn(coroutine, name=name) for coroutine, name in roles]

    async def adopt(self) -> None:
        """What earlier processes began and nobody waits for."""
        await self.pipeline.background.adopt()
        await self.lane.adopt()

    @property
    def open_calls(self) -> int:
        """Calls being answered now."""
        return self.pipeline.open_calls

    def services(self, administration: Administration) -> Services:
        """What the gateway needs."""
        rooms, batch = self.rooms, self._batch
        return Services(
            pipeline=self.pipeline,
            catalog=self.rooms.catalog,
            tenancy=self.rooms.tenancy,
            metrics=self.metrics,
            ids=self._ids,
            clock=self.rooms.clock,
            spawn=self.spawn,
            health=self.health,
            administration=administration,
            dialogues=Dialogues(
                rooms.conversations, rooms.clock, self._ids, rooms.remember.settings
            ),
            turns=ShownTurns(rooms.turns, rooms.remember),
            background=self.pipeline.background,
            files=FileDesk(rooms.files, rooms.blobs, batch, rooms.clock, self._ids),
            batches=BatchDesk(rooms.batches, self.lane, batch, rooms.clock, self._ids),
        )

    def health(self) -> Readiness:
        """Ready while every engine serves and nobody said stop."""
        reasons = [
            f"The engine of {model} is {engine.state()}."
            for model, engine in zip(self._models, self.engines, strict=True)
            if engine.state() != "ready"
        ]
        if self.stopping:
            reasons.append("The server is shutting down.")
        return Readiness(tuple(reasons))

    async def status(self) -> dict[str, Any]:
        """For `forebay doctor`."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "urls": self.urls,
            "open_calls": self.open_calls,
            "engines": [
                {
                    "model": model,
                    "state": engine.state(),
                    "pid": engine.pid,
                    "restarts": engine.restarts,
                    "running": engine.signals().running,
                }
                for model, engine in zip(self._models, self.engines, strict=True)
            ],
            "waiting": await self.activity.waiting(),
        }
