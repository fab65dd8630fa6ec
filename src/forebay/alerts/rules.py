"""What alerts decide, pure: what a reply means, when to try again, which sums fire, what is kept.

Retries. The wait before attempt n + 1 is 5 s · 3^(n-1), at most 10,000 s, times a factor drawn from
[0.8, 1.2): receivers that come back are not met by everyone at once. 16 attempts make 15 waits,
85,465 s without jitter: just under 24 h. Attempts are counted instead of time measured, so that a
clock that jumps gives nothing up early.

Not here: sending (`http`), storage (`memory`, `sql`).
"""

from __future__ import annotations

from datetime import date, timedelta
from enum import Enum, auto

from forebay.alerts.contract import SpendAlert

FIRST_WAIT_SECONDS = 5.0
GROWTH = 3
LONGEST_WAIT_SECONDS = 10_000.0
JITTER = 0.2
MOST_ATTEMPTS = 16
GONE = 410
# A call that began before midnight may be settled after it; a day's sum is kept for two more.
DAYS_KEPT = 2
_DAY_CHARACTERS = len("2026-11-30")


class Verdict(Enum):
    """What a reply means for the event."""

    DELIVERED = auto()
    GONE = auto()
    FAILED = auto()


def judge(status: int | None) -> Verdict:
    """Redirects have failed too: an address that moved must be named anew by its owner."""
    if status is not None and 200 <= status < 300:
        return Verdict.DELIVERED
    return Verdict.GONE if status == GONE else Verdict.FAILED


def retry_seconds(attempts: int, draw: float) -> float | None:
    """How long to wait after so many failed attempts; None: give up. `draw` is in [0, 1)."""
    if attempts >= MOST_ATTEMPTS:
        return None
    wait = min(FIRST_WAIT_SECONDS * GROWTH ** (attempts - 1), LONGEST_WAIT_SECONDS)
    return float(wait * (1 - JITTER + 2 * JITTER * draw))


def longest_wait_seconds() -> float:
    """No retry is further away than this, if the clock is right."""
    return LONGEST_WAIT_SECONDS * (1 + JITTER)


def fires(alert: SpendAlert, since: str, period_id: str, posted_nanos: int) -> bool:
    """Whether this sum makes an event of an alert put in the period `since`, if it has made none yet."""
    return (
        alert.enabled
        and len(period_id) == len(since)  # of the same interval
        and period_id >= since
        and posted_nanos >= alert.threshold_nanos
    )


def is_day(period_id: str) -> bool:
    """Months and totals are kept for ever: there are few of them."""
    return len(period_id) == _DAY_CHARACTERS


def oldest_day_kept(newest: str) -> str:
    """The oldest day whose sum is of use while this one is the newest."""
    return (date.fromisoformat(newest) - timedelta(days=DAYS_KEPT)).isoformat()
