"""Who is connected to one listener: caps in all and per address, and which connections are idle.

             enter            busy              idle
    (new) ─────────▶ IDLE ────────────▶ BUSY ─────────▶ IDLE       leave: gone, from either
              │
              └─▶ the oldest idle one makes room, or the newcomer is refused

- There are never more than `most`, nor more of one address than `most_per_address`.
- Idle connections are worth nothing to anybody but their owner: they make room, oldest first, those
  of the address that is at its own cap for that address only.
- Memory is that of the connections there are.

Not here: sockets (`protocol.py`), which address is counted (`peers.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Closable(Protocol):
    """A connection."""

    def make_room(self) -> None:
        """End now: it is idle and somebody else needs its place."""


class Connections:
    """Of one listener."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self.most = most
        self.most_per_address = most_per_address
        self._addresses: dict[Closable, str] = {}  # "" is counted in all only
        self._per_address: Counter[str] = Counter()
        # Dictionaries keep the order: first is oldest.
        self._idle: dict[Closable, None] = {}
        self._idle_of: dict[str, dict[Closable, None]] = {}

    def enter(self, connection: Closable, address: str) -> str | None:
        """Count it, as idle; or what is full: "address" or "all". An empty address has no cap."""
        if address and self._per_address[address] >= self.most_per_address:
            if not self._close_oldest(self._idle_of.get(address, {})):
                return "address"
        elif len(self._addresses) >= self.most and not self._close_oldest(self._idle):
            return "all"
        self._addresses[connection] = address
        self._per_address[address] += 1
        self.idle(connection)
        return None

    def leave(self, connection: Closable) -> None:
        """It has ended. Idempotent."""
        if connection not in self._addresses:
            return
        self.busy(connection)
        address = self._addresses.pop(connection)
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def idle(self, connection: Closable) -> None:
        """It waits for a request."""
        address = self._addresses.get(connection)
        if address is not None:
            self._idle[connection] = None
            self._idle_of.setdefault(address, {})[connection] = None

    def busy(self, connection: Closable) -> None:
        """It does not wait any more."""
        if self._idle.pop(connection, self) is self:
            return
        address = self._addresses[connection]
        same = self._idle_of[address]
        del same[connection]
        if not same:
            del self._idle_of[address]

    def __len__(self) -> int:
        return len(self._addresses)

    def _close_oldest(self, idle: dict[Closable, None]) -> bool:
        if not idle:
            return False
        oldest = next(iter(idle))
        self.leave(oldest)
        oldest.make_room()
        return True
