"""Time and identifiers for tests: a clock that a test moves, and ids that count.

Both are what `forebay.core.clock` asks for, so whatever takes a Clock or an IdSource takes these.

Not here: an event loop in virtual time, and the real clock (`forebay.system`).
"""

from __future__ import annotations

from hashlib import sha256


class FakeClock:
    """A clock that stands still until a test moves it.

    `advance` moves both clocks as passing time does; `jump_wall` moves the wall clock alone, as
    an operator or a time server does (L10).
    """

    def __init__(self, monotonic: float = 0.0, now: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._now = now

    def monotonic(self) -> float:
        return self._monotonic

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let this much time pass. Raises ValueError if negative: no clock runs backwards."""
        if seconds < 0:
            raise ValueError(f"time cannot pass backwards: advance({seconds})")
        self._monotonic += seconds
        self._now += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forwards or back; the monotonic clock does not notice."""
        self._now += seconds


class CountingIds:
    """Identifiers 1, 2, 3, … and bytes that are the same in every run; of no use for secrets.

    An id is as long as the real one (32 hexadecimal digits after the prefix) and counts over all
    prefixes, so ids sort by creation.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._ids = 0
        self._draws = 0

    def new(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}_{self._ids:032x}"

    def random_bytes(self, count: int) -> bytes:
        out = bytearray()
        while len(out) < count:
            self._draws += 1
            out += sha256(f"{self._seed}:{self._draws}".encode()).digest()
        return bytes(out[:count])
