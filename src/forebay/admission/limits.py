"""GCRA, the generic cell rate algorithm (ITU-T I.371): one integer per key, exact. Pure.

A bucket's whole state is its *theoretical arrival time*: the moment at which everything taken so
far has been paid for at the limit's pace. A call of cost c pushes it c·60 s/limit into the future,
and passes if it then lies no more than 60 s ahead of now. So a full bucket lets `limit` through at
once, and in any t seconds at most limit·(1 + t/60) pass. A call dearer than the limit never does.

Time is in whole microseconds; the state is in 1/limit of a microsecond, so that no limit is rounded
(60 s are not a multiple of most limits).

Not here: who has which limit, and where the state lies (`memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_MICROS = 60_000_000


@dataclass(frozen=True, slots=True)
class Bucket:
    """The state of one limit. `arrival` is in 1/limit of a microsecond."""

    limit: int
    arrival: int = 0

    def with_limit(self, limit: int) -> Bucket:
        """The same debt in time under another limit, for a key whose limit was changed."""
        if limit == self.limit:
            return self
        return Bucket(limit, self.arrival * limit // self.limit if self.limit else 0)

    def is_full(self, now_micros: int) -> bool:
        """Whether it holds nothing that a fresh bucket would not: it may be forgotten."""
        return self.arrival <= now_micros * self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """`bucket` is the state to keep. `wait_micros` is 0 for a pass, None for never."""

    allowed: bool
    bucket: Bucket
    wait_micros: int | None = 0


def take(bucket: Bucket, now_micros: int, *, cost: int = 1) -> Verdict:
    """Take `cost` permits now or none. Raises ValueError for a negative cost or limit."""
    if cost < 0 or bucket.limit < 0:
        raise ValueError(f"cost {cost} and limit {bucket.limit} must not be negative")
    if cost > bucket.limit:
        return Verdict(False, bucket, None)
    now = now_micros * bucket.limit
    arrival = max(bucket.arrival, now) + cost * MINUTE_MICROS
    excess = arrival - now - MINUTE_MICROS * bucket.limit
    if excess > 0:
        return Verdict(False, bucket, -(-excess // bucket.limit))
    return Verdict(True, Bucket(bucket.limit, arrival))
