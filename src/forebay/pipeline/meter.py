"""Engines' own token counters beside what their workers received: a window per engine and minute.

Windows of an engine follow each other without a gap from the server's start to its orderly stop, so
`forebay reconcile` can tell of every minute whether all that an engine made was received or is known
to have been discarded. A minute in which nothing happened leaves no window.

Invariants
- engine_tokens = received_tokens + discarded_tokens in every window, also while calls are stopped
  and cut: a token that is on its way at the end of a window counts in the next one, on both sides.
- A window in which its engine was started again is not complete: what the lost one had made and not
  said is in no window.
- A window is never replaced by one with less in it: what cannot be stored, and what a clock that
  was set back would put into an older minute, is part of the next one.

Not here: keeping and comparing windows (`forebay.ledger`), the counters (`forebay.engine`, `worker.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from forebay.core.clock import Clock
from forebay.core.delta import EngineTally
from forebay.core.errors import ForebayError
from forebay.core.records import EngineWindow
from forebay.pipeline.report import Reporter
from forebay.pipeline.worker import Received

MINUTE_SECONDS = 60


class Counting(Protocol):
    """An engine, as far as it is metered."""

    def tally(self) -> EngineTally: ...


class Receiving(Protocol):
    """Its worker, likewise."""

    def received(self) -> Received: ...


class Mark(NamedTuple):
    """All counters of one engine at one moment, and the minute in which that was."""

    minute_at: float
    tally: EngineTally
    received: Received

    @property
    def engine_tokens(self) -> int:
        """By the engine's own count, without those that nobody has had a look at yet."""
        return self.tally.made - self.tally.queued

    @property
    def discarded_tokens(self) -> int:
        """Of which no call has got anything."""
        return self.tally.discarded + self.received.ignored


@dataclass(slots=True)
class _Meter:
    engine: Counting
    worker: Receiving
    since: Mark


class Meters:
    """The meters of one process. `run` is a role; `close_windows` is called once more at the end."""

    def __init__(
        self,
        record: Callable[[EngineWindow], Awaitable[None]],
        *,
        process: str,
        clock: Clock,
        report: Reporter,
    ) -> None:
        self._record = record
        self._process = process
        self._clock = clock
        self._report = report
        self._meters: dict[str, _Meter] = {}
        self._closing = asyncio.Lock()

    def add(self, model: str, engine: Counting, worker: Receiving) -> None:
        """Meter this engine from now on; it has been started."""
        self._meters[model] = _Meter(engine, worker, self._mark(engine, worker))

    async def run(self) -> None:
        """Close all windows when a minute is over, for ever."""
        while True:
            await asyncio.sleep(MINUTE_SECONDS - self._clock.now() % MINUTE_SECONDS)
            await self.close_windows()

    async def close_windows(self) -> None:
        """Store what was counted since the last time; a failure is logged and made up for later."""
        async with self._closing:
            for model, meter in self._meters.items():
                await self._close(model, meter)

    async def _close(self, model: str, meter: _Meter) -> None:
        since, until = meter.since, self._mark(meter.engine, meter.worker)
        window = self._window(model, since, until)
        if until[1:] != since[1:]:
            try:
                await self._record(window)
            except ForebayError as fault:
                self._report.log.error("window_failed", model=model, error=str(fault))
                return
        if until.minute_at > since.minute_at:
            self._compare(window)
            meter.since = until

    def _mark(self, engine: Counting, worker: Receiving) -> Mark:
        now = self._clock.now()
        return Mark(now - now % MINUTE_SECONDS, engine.tally(), worker.received())

    def _window(self, model: str, since: Mark, until: Mark) -> EngineWindow:
        """What happened between two marks. A counter that ran backwards has counted nothing."""
        return EngineWindow(
            engine=model,
            boot=f"{self._process}.{until.tally.boot}",
            minute_at=since.minute_at,
            engine_tokens=max(0, until.engine_tokens - since.engine_tokens),
            received_tokens=until.received.tokens - since.received.tokens,
            discarded_tokens=until.discarded_tokens - since.discarded_tokens,
            complete=until.tally.boot == since.tally.boot,
        )

    def _compare(self, window: EngineWindow) -> None:
        counted = window.received_tokens + window.discarded_tokens
        if window.engine_tokens != counted:
            self._report.metrics.usage_mismatch.labels(window.engine).inc()
            self._report.log.warning(
                "usage_mismatch", model=window.engine, engine=window.engine_tokens, counted=counted
            )
