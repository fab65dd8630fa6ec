"""Watching a batch: look again and again until it has ended, and reckon from that how it gets on.

    look ──it has ended──▶ done
    ▲ └── no answer, or "come back later": what was seen stays, for PATIENCE_SECONDS ──▶ Failure
    └──────────── pause

Whoever stops watching changes nothing: the server works on.

Not here: how it looks (`batch_view.py`), what is asked (`batching.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from forebay.cli.answering import Refused, Target
from forebay.cli.batching import Batch, find
from forebay.cli.failure import Failure
from forebay.core.clock import Clock

INTERVAL_SECONDS = 1.0
# What rates are of.
RECENT_SECONDS = 60.0
# A server that is started again loads its model first, and may be upgraded meanwhile.
PATIENCE_SECONDS = 300.0
# Too many calls, or a server (or what stands before it) that is just not there.
PASSING = (429, 500, 502, 503, 504)
WORKING = "in_progress"


@dataclass(frozen=True, slots=True)
class Look:
    """How it stands. Rates are of the last minute, None where nothing came of it.

    `trouble`: why this is not new.
    """

    batch: Batch
    output_tokens_per_second: float | None = None
    left_seconds: float | None = None
    trouble: str = ""


Show = Callable[[Look], None]
Pause = Callable[[float], Awaitable[None]]


class Pace:
    """What was seen in the last minute, as (when, lines done, output tokens)."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def look(self, batch: Batch, at: float) -> Look:
        """What is seen now, beside what was seen before."""
        if batch.status != WORKING:
            self._seen.clear()
            return Look(batch)
        self._seen.append((at, batch.done, batch.output_tokens))
        # The last one that is a minute old is kept: rates are of the whole minute.
        while len(self._seen) > 1 and self._seen[1][0] <= at - RECENT_SECONDS:
            self._seen.popleft()
        since, done, tokens = self._seen[0]
        lines_per_second = _rate(batch.done - done, at - since)
        left = None if lines_per_second is None else (batch.lines - batch.done) / lines_per_second
        return Look(batch, _rate(batch.output_tokens - tokens, at - since), left)


def _rate(more: int, seconds: float) -> float | None:
    return more / seconds if more > 0 and seconds > 0 else None


async def watch(
    target: Target, batch: Batch, show: Show, clock: Clock, pause: Pause = asyncio.sleep
) -> Batch:
    """Show how this batch gets on; how it has ended. Raises Failure if that cannot be seen."""
    pace = Pace()
    seen_at = clock.monotonic()
    look = pace.look(batch, seen_at)
    show(look)
    while not look.batch.has_ended:
        await pause(INTERVAL_SECONDS)
        try:
            batch = await find(target, batch.id)
        except Failure as failure:
            if not _passes(failure) or clock.monotonic() - seen_at > PATIENCE_SECONDS:
                raise
            look = replace(look, trouble=str(failure))
        else:
            seen_at = clock.monotonic()
            look = pace.look(batch, seen_at)
        show(look)
    return look.batch


def _passes(failure: Failure) -> bool:
    """Whether to look again: a server that says no says why, one that is not there may come."""
    return not isinstance(failure, Refused) or failure.status in PASSING
