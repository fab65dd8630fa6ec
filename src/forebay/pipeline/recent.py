"""The calls that ended lately, for whoever watches a running server: how fast, how many, how dear.

A bounded window, filled once a call where its end is reported. Times are the ledger's (wall time),
so a clock that jumps spoils the picture for a minute, and nothing else.

Not here: metrics and logs of the same ends (`report.py`), what is shown (`activity.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from forebay.core.job import Lane
from forebay.core.principal import OPERATOR
from forebay.core.usage import UsageRow

WINDOW_SECONDS = 60.0
# A minute of 68 calls a second; of a busier minute the newest part is looked at.
MOST_CALLS = 4096


class Ended(NamedTuple):
    """What is remembered of a call that ended. What the operator pays for earns nothing."""

    call_id: str
    at: float
    model: str
    lane: Lane
    ttft_ms: int | None
    amount_nanos: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the window says about some of its calls. None where there was nothing to measure."""

    calls_per_minute: float
    ttft_p50_ms: int | None
    ttft_p95_ms: int | None
    nanos_per_hour: int


class RecentCalls:
    """Of one process. `output_tokens` counts all that ended since its start, by model and lane."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        self.output_tokens: dict[tuple[str, Lane], int] = {}
        self._calls: deque[Ended] = deque(maxlen=most_calls)

    def add(self, row: UsageRow) -> None:
        """A call ended; told exactly once of each."""
        key = (row.model, row.lane)
        self.output_tokens[key] = self.output_tokens.get(key, 0) + row.usage.output_tokens
        ttft_ms = row.timings.ttft_ms
        earned = 0 if row.key_id == OPERATOR.key_id else row.amount_nanos
        ended = Ended(row.call_id, row.resolved_at, row.model, row.lane, ttft_ms, earned)
        self._calls.append(ended)

    def knows(self, call_ids: Iterable[str]) -> set[str]:
        """Which of these have ended within the window."""
        return {each.call_id for each in self._calls} & set(call_ids)

    def within(self, now: float) -> list[Ended]:
        """The calls that ended in the minute before now."""
        return [each for each in self._calls if now - WINDOW_SECONDS < each.at <= now]

    def covered_seconds(self, now: float) -> float:
        """How much of the minute the window remembers: less once it had to forget some of it."""
        if len(self._calls) < (self._calls.maxlen or 0):
            return WINDOW_SECONDS
        return min(WINDOW_SECONDS, max(1.0, now - self._calls[0].at))


def summarise(calls: Sequence[Ended], covered_seconds: float) -> Summary:
    """Rates over what the window covers, percentiles over the calls that had a first token."""
    firsts = sorted(each.ttft_ms for each in calls if each.ttft_ms is not None)
    per_minute = len(calls) * 60 / covered_seconds
    nanos_per_hour = round(sum(each.amount_nanos for each in calls) * 3600 / covered_seconds)
    return Summary(per_minute, percentile(firsts, 50), percentile(firsts, 95), nanos_per_hour)


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The nearest rank of an ordered sequence; None for an empty one."""
    if not ordered:
        return None
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]
