"""Who killed the engine? Jobs that one died of before they had a token meet the next one in a line.

When an engine dies, all that it ran is lost, and one job may be the reason. A job that had a token
from that engine is not suspected. The others are: they are run again, but not together. Each goes
on alone among its like until its first token, so the next death is counted against one of them.

    turn ──▶ IN LINE ──▶ FIRST ──(a token, or its end: cleared)──▶ the next one is FIRST
               │
               └─▶ interrupted: leaves the line

Not here: how often is too often (`worker.py`), what counts (`Run.resume`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from forebay.pipeline.run import Run


class Suspects:
    """Of one worker. `turn` before a run's generation begins, `cleared` when it is known."""

    def __init__(self) -> None:
        self._first: Run | None = None
        self._line: deque[asyncio.Future[None]] = deque()

    async def turn(self, run: Run) -> None:
        """Return when no other suspect is first, or when the run was interrupted."""
        while self._first is not None and run.interruption is None:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(place)
            run.on_interrupt = lambda place=place: place.done() or place.set_result(None)
            try:
                await place
            finally:
                run.on_interrupt = None
        if run.interruption is None:
            self._first = run
        else:
            self._next()

    def cleared(self, run: Run) -> None:
        """It has a token, or has ended. Idempotent; without effect for a run that is not first."""
        if self._first is run:
            self._first = None
            self._next()

    def _next(self) -> None:
        """Wake the first in line; one that leaves although it was woken wakes the next."""
        while self._first is None and self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
