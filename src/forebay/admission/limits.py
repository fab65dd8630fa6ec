"""GCRA, the generic cell rate algorithm (ITU-T I.371), in integers and with a way back. Pure.

A bucket's state is what is *owed*: the permits taken that time has not given back yet. Time gives
back `limit` permits per period, and a call of cost c passes if then no more than `limit` are owed.
So a full bucket lets `limit` through at once, and in any t seconds at most limit·(1 + t/period)
pass (A2). A call dearer than the limit never does.

A refund makes the bucket what it would be if those permits had never been taken. That is less than
the refund if the bucket has been full, or nearly, since they were: what time has given back is not
given twice. The most that a take could return is its *room*, the least that was owed at any moment
since. Rooms grow from older takes to newer ones, so they are kept as the steps between them:

- a refund of r lowers the rooms of its take and of all newer ones by r, and those of older ones to
  its take's new room at most: r goes off its own step, then off the ones before, while there are any;
- time lowers rooms to what is owed, the newest first;
- takes without a step between them have the same room for good, and are one group.

Time is in whole microseconds and debts in 1/period of a permit, so nothing is ever rounded.

Not here: who has which limit (`scopes.py`), and where the buckets lie (`memory.py`).
"""

from __future__ import annotations

from bisect import bisect_right

MINUTE_MICROS = 60_000_000
DAY_MICROS = 86_400_000_000


class Bucket:
    """One limit of one scope. `now_micros` never decreases from call to call."""

    __slots__ = (
        "_at", "_members", "_open", "_owed", "_room", "_starts", "_steps", "limit", "period_micros",
    )  # fmt: skip

    def __init__(self, limit: int, period_micros: int = MINUTE_MICROS) -> None:
        if limit < 0:
            raise ValueError(f"limit {limit} must not be negative")
        self.limit = limit
        self.period_micros = period_micros
        self._owed = 0
        self._at = 0
        self._open: set[int] = set()  # takes that may return something
        # Of each group: its oldest take, the step up to its room, its open takes.
        self._starts: list[int] = []
        self._steps: list[int] = []
        self._members: list[int] = []
        self._room = 0  # the newest group's: the sum of the steps

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
        self._owed += cost * self.period_micros
        if serial is not None:
            self._open.add(serial)
            self._starts.append(serial)
            self._steps.append(self._owed - self._room)
            self._members.append(1)
            self._room = self._owed

    def give_back(self, now_micros: int, serial: int, permits: int) -> None:
        """Return so many of the permits of one take, once; for an unknown take do nothing."""
        if serial not in self._open:
            return
        self._open.remove(serial)
        self._pass_time(now_micros)
        self._owed -= self._lower(self._group(serial), permits * self.period_micros)
        group = self._group(serial)
        if group >= 0:
            self._members[group] -= 1
            if not self._members[group]:
                self._remove(group)

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
        self._steps = [step * limit // old for step in self._steps] if old else self._steps
        self._room = sum(self._steps)

    def _pass_time(self, now_micros: int) -> None:
        """Let time give back what it does."""
        if self._owed:
            self._owed = max(0, self._owed - (now_micros - self._at) * self.limit)
            if self._room > self._owed:
                self._lower(len(self._steps) - 1, self._room - self._owed)
            if not self._owed:
                self._open.clear()
        self._at = now_micros

    def _group(self, serial: int) -> int:
        """The group of an open take; -1 for none, because it has no room."""
        return bisect_right(self._starts, serial) - 1

    def _lower(self, group: int, amount: int) -> int:
        """Lower this group's room, and others' as the refund of a take does; by how much it was."""
        left = amount
        while left and group >= 0:
            part = min(self._steps[group], left)
            self._steps[group] -= part
            self._room -= part
            left -= part
            if not self._steps[group]:
                if group:
                    self._members[group - 1] += self._members[group]
                self._remove(group)
            group -= 1
        return amount - left

    def _remove(self, group: int) -> None:
        """Nobody is in it any more: the next one's step begins where its own did."""
        step = self._steps.pop(group)
        del self._starts[group], self._members[group]
        if group < len(self._steps):
            self._steps[group] += step
        else:
            self._room -= step
