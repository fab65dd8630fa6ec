"""The two projects of `forebay demo fairness`: streaming clients, and what each project experiences.

Everything is measured where it matters, at the client: a call waits until the first chunk with text
has come. The greedy project's clients call again as soon as they are answered, so its backlog never
shrinks; the polite one has one call at a time and pauses.

Not here: the server that they call (`demo_phase.py`), how it looks (`demo_view.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from forebay.cli.answering import Reading, Target, chunks, take
from forebay.cli.failure import Failure
from forebay.core.clock import Clock

# After a refusal a client tries again, but not at once.
RETRY_SECONDS = 0.5
# A project's calls differ in length, so that the engine's slots come free one by one.
LENGTH_STEP = 7
TOPICS = ("rivers", "bridges", "lanterns", "gardens", "winter", "copper", "letters", "harbours")
BROKEN = "connection broken"


@dataclass(frozen=True, slots=True)
class Habits:
    """How a project calls. Its calls have from `least_tokens` to `most_tokens` of output."""

    name: str
    clients: int
    least_tokens: int
    most_tokens: int
    pause_seconds: float


@dataclass(slots=True)
class Tally:
    """What a project has seen so far; `refused` counts by status, or by what else went wrong."""

    habits: Habits
    waiting: int = 0
    running: int = 0
    finished: int = 0
    output_tokens: int = 0
    first_token_ms: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


class Project:
    """Its clients, as tasks of whoever runs them."""

    def __init__(self, habits: Habits, target: Target, model: str, clock: Clock) -> None:
        self.tally = Tally(habits)
        self._target = target
        self._model = model
        self._clock = clock
        self._calls = 0
        self._over = asyncio.Event()

    def finish(self) -> None:
        """Every client ends after the call that it waits for."""
        self._over.set()

    async def client(self) -> None:
        """Call, pause, call again, until `finish`."""
        habits = self.tally.habits
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._over.is_set():
                answered = await self._call(session)
                pause_seconds = habits.pause_seconds if answered else RETRY_SECONDS
                if pause_seconds:
                    await self._pause(pause_seconds)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    async def _call(self, session: aiohttp.ClientSession) -> bool:
        """One call, noted. False if it was refused or broke off."""
        tally = self.tally
        reading = Reading(self._clock.monotonic())
        tally.waiting += 1
        try:
            refused = await self._read(session, reading)
        except (Failure, aiohttp.ClientError) as fault:
            refused = BROKEN if isinstance(fault, aiohttp.ClientError) else "error while streaming"
        finally:
            if reading.first_at is None:
                tally.waiting -= 1
            else:
                tally.running -= 1
        if refused:
            tally.refused[refused] += 1
            return False
        tally.finished += 1
        tally.output_tokens += int(reading.usage.get("completion_tokens", 0))
        return True

    async def _read(self, session: aiohttp.ClientSession, reading: Reading) -> str:
        """Read the answer to its end; the status of a refusal, empty if there was none."""
        async with session.post(
            self._target.at("/chat/completions"), json=self._body(), headers=self._target.headers
        ) as response:
            if response.status != 200:
                return str(response.status)
            async for chunk in chunks(response):
                is_first = reading.first_at is None
                if take(reading, chunk, self._clock.monotonic()) and is_first:
                    self._begins(reading)
        return ""

    def _begins(self, reading: Reading) -> None:
        assert reading.first_at is not None
        self.tally.waiting -= 1
        self.tally.running += 1
        self.tally.first_token_ms.append(round((reading.first_at - reading.started_at) * 1000))

    def _body(self) -> dict[str, Any]:
        number, habits = self._calls, self.tally.habits
        self._calls += 1
        spread = habits.most_tokens - habits.least_tokens + 1
        content = f"Call {number}: tell me about {TOPICS[number % len(TOPICS)]}."
        return {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": habits.least_tokens + number * LENGTH_STEP % spread,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": content}],
        }
