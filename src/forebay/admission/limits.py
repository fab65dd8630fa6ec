"""GCRA, the generic cell rate algorithm (ITU-T I.371), in integers and with a way back. Pure.

A bucket's state is what is *owed*: the permits taken that time has not given back yet. Time gives
back `limit` permits per period, and a call of cost c passes if then no more than `limit` are owed.
So a full bucket lets `limit` through at once, and in any t seconds at most limit·(1 + t/period)
pass (A2). A call dearer than the limit never does.

A refund makes the bucket what it would be if those permits had never been taken. That is less than
the refund if the bucket has been full, or nearly, since they were: what time has given back is not
given twice. For every take that may still be refunded, `_lows` has the least that was owed between
it and the next such take; a refund lowers what is owed from its take on, never below nothing, and
so by no more than the smallest of these lows.

Time is in whole microseconds and debts in 1/period of a permit, so nothing is ever rounded.

Not here: who has which limit (`scopes.py`), and where the buckets lie (`memory.py`).
"""

from __future__ import annotations

from bisect import bisect_left

MINUTE_MICROS = 60_000_000
DAY_MICROS = 86_400_000_000


class Bucket:
    """One limit of one scope. `now_micros` never decreases from call to call."""

    __slots__ = ("_at", "_lows", "_owed", "_serials", "limit", "period_micros")

    def __init__(self, limit: int, period_micros: int = MINUTE_MICROS) -> None:
        if limit < 0:
            raise ValueError(f"limit {limit} must not be negative")
        self.limit = limit
        self.period_micros = period_micros
        self._owed = 0
        self._at = 0
        self._serials: list[int] = []
        self._lows: list[int] = []

    def wait_micros(self, now_micros: int, cost: int = 1) -> int | None:
        """How long until `cost` permits can be taken: 0 for now, None for never."""
        if cost < 0:
            raise ValueError(f"cost {cost} must not be negative")
        if cost > self.limit:
            return None
        self._pass_time(now_micros)
        excess = self._owed - (self.limit - cost) * self.period_micros
        return -(-excess // self.limit) if excess > 0 else 0

    def take(self, now_micros: int, cost: int = 1, serial: int | None = None) -> None:
        """Take permits; the wait is 0. With a serial, larger than all before, they may come back."""
        self._pass_time(now_micros)
        if not self._owed:
            self._serials.clear()
            self._lows.clear()
        elif self._lows:
            self._lows[-1] = min(self._lows[-1], self._owed)
        self._owed += cost * self.period_micros
        if serial is not None:
            self._serials.append(serial)
            self._lows.append(self._owed)

    def give_back(self, now_micros: int, serial: int, permits: int) -> None:
        """Return so many of the permits of one take, once; for an unknown take do nothing."""
        place = bisect_left(self._serials, serial)
        if self._serials[place : place + 1] != [serial]:
            return
        self._pass_time(now_micros)
        self._lows[-1] = min(self._lows[-1], self._owed)
        back = permits * self.period_micros
        for later in range(place, len(self._lows)):
            back = min(back, self._lows[later])
            if not back:
                break
            self._lows[later] -= back
        self._owed -= back
        del self._serials[place]
        low = self._lows.pop(place)
        if place:
            self._lows[place - 1] = min(self._lows[place - 1], low)

    def left(self, now_micros: int) -> int:
        """Permits that can be taken now."""
        self._pass_time(now_micros)
        return max(0, self.limit + -self._owed // self.period_micros)

    def full_in_micros(self, now_micros: int) -> int:
        """How long until it holds nothing that a fresh bucket would not: then it may be forgotten."""
        self._pass_time(now_micros)
        return -(-self._owed // self.limit) if self._owed else 0

    def set_limit(self, limit: int) -> None:
        """The same debt in time under another limit, for a scope whose limit was changed."""
        if limit == self.limit:
            return
        old, self.limit = self.limit, limit
        self._owed = -(-self._owed * limit // old) if old else 0
        self._lows = [low * limit // old for low in self._lows] if old else []
        if not old:
            self._serials = []

    def _pass_time(self, now_micros: int) -> None:
        """Let time give back what it does."""
        if self._owed:
            self._owed = max(0, self._owed - (now_micros - self._at) * self.limit)
        self._at = now_micros
