"""How long a call would wait: the cost queued before it over the pace at which cost is served. Pure.

The pace is measured only while jobs wait: an idle engine says nothing about how fast it could be.

Not here: what is queued before it (`forebay.queue`), what to do about a long wait (`memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay.core.job import Lane

# Older observations count half as much after this many seconds of saturation: long enough for some
# long answers to end, short enough to notice that an engine has gone.
_HALF_LIFE_SECONDS = 30.0
# Less than this says more about which calls happened to end than about the pace.
_LEAST_SECONDS = 1.0


def _setting(default: float | None, help_sentence: str) -> Any:
    return field(default=default, metadata={"help": help_sentence})


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How long calls may wait before their first lease. Raises ValueError for one that is not
    above 0."""

    premium_deadline_seconds: float | None = _setting(
        5.0, "Longest wait of a call in the premium lane; none: no limit."
    )
    interactive_deadline_seconds: float | None = _setting(
        10.0, "Longest wait of a call in the interactive lane; none: no limit."
    )
    batch_deadline_seconds: float | None = _setting(
        None, "Longest wait of a call in the batch lane; none: no limit."
    )

    def __post_init__(self) -> None:
        for lane in Lane:
            seconds = self.deadline_seconds(lane)
            if seconds is not None and not seconds > 0:
                raise ValueError(
                    f"admission.{lane}_deadline_seconds is {seconds}; it must be above 0"
                )

    def deadline_seconds(self, lane: Lane) -> float | None:
        """The lane's deadline."""
        if lane is Lane.PREMIUM:
            return self.premium_deadline_seconds
        if lane is Lane.INTERACTIVE:
            return self.interactive_deadline_seconds
        return self.batch_deadline_seconds


def predicted_wait_seconds(ahead: int, cost_per_second: float | None) -> float:
    """0 while the pace is unknown: nobody is turned away on a guess."""
    return ahead / cost_per_second if cost_per_second else 0.0


class ServiceRate:
    """The cost that one pool serves a second while jobs wait; None until it is known.

    Observations are cost served at a moment. The time since the last one counts, with what was
    served in it, if jobs were waiting then and nobody saw the queue empty in between.
    """

    __slots__ = ("_cost", "_last_busy_at", "_seconds")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._last_busy_at: float | None = None

    def served(self, cost: int, now: float, *, busy: bool) -> None:
        """This much cost was served by now; `busy`: jobs are waiting."""
        since = self._last_busy_at
        self._last_busy_at = now if busy else None
        if since is None:
            return
        elapsed = max(0.0, now - since)
        kept = 0.5 ** (elapsed / _HALF_LIFE_SECONDS)
        self._cost = self._cost * kept + cost
        self._seconds = self._seconds * kept + elapsed

    def saw_empty_queue(self) -> None:
        """No job is waiting now: what is served next may have been less than could be."""
        self._last_busy_at = None

    @property
    def cost_per_second(self) -> float | None:
        """The pace, if it has been observed for long enough and anything was served."""
        if self._seconds < _LEAST_SECONDS or self._cost <= 0:
            return None
        return self._cost / self._seconds
