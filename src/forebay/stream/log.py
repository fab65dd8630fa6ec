"""A kept stream inside one process: a log of a call's events with any number of readers.

A live stream (`memory.py`) has one reader and forgets what was delivered. This one keeps everything
until it is dropped, so that a client whose connection broke can read again from the first event.

       append*            end
    ──────────▶ OPEN ──────────▶ ENDED    readers get the rest, then the end

Invariants (those of the room, for many readers)
- T1 Every reader gets every event, in order, each once, whenever it began.
- T2 Exactly one end: after it nothing is appended.
- T3 A slow reader stalls nobody and costs nothing but its place: what it has not read is in the log,
  whose size is that of one answer.

Not here: who appends and how long a log without readers lives (`forebay.pipeline.kept`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from forebay.core.event import CallEvent


class EventLog:
    """Owned by one event loop. One writer; readers come and go."""

    def __init__(self) -> None:
        self._events: list[CallEvent] = []
        self._news = asyncio.Event()
        self._fault: Exception | None = None
        self.ended = False
        self.readers = 0

    def append(self, events: Sequence[CallEvent]) -> None:
        """Add events behind the others. Raises RuntimeError after the end (T2)."""
        if self.ended:
            raise RuntimeError("a stream that has ended takes no more events")
        self._events.extend(events)
        self._wake()

    def end(self, fault: Exception | None = None) -> None:
        """Nothing more will come; `fault` is raised to every reader that has read all."""
        self.ended, self._fault = True, fault
        self._wake()

    async def read(self) -> AsyncGenerator[list[CallEvent], None]:
        """All events from the first on, in bunches of what is there, as they come."""
        position = 0
        self.readers += 1
        try:
            while True:
                news = self._news
                if position < len(self._events):
                    bunch = self._events[position:]
                    position = len(self._events)
                    yield bunch
                elif self.ended:
                    break
                else:
                    await news.wait()
        finally:
            self.readers -= 1
        if self._fault is not None:
            raise self._fault

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
