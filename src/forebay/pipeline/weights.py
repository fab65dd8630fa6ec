"""So much at once, of things of different size: a semaphore that counts by weight.

Not here: what is weighed.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Weights:
    """First come, first served; one that is heavier than all of it goes alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, weight: int) -> None:
        """Wait until there is room for it. Cancelled: nothing is taken."""
        if not self._line and self._fits(weight):
            self._taken += weight
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((weight, room))
        try:
            await room
        except asyncio.CancelledError:
            if not room.cancelled():  # it was given room just now
                self.give_back(weight)
            elif (weight, room) in self._line:
                self._line.remove((weight, room))
                self._let_in()
            raise

    def give_back(self, weight: int) -> None:
        """There is room again."""
        self._taken -= weight
        self._let_in()

    def _fits(self, weight: int) -> bool:
        return not self._taken or self._taken + weight <= self._most

    def _let_in(self) -> None:
        while self._line and self._fits(self._line[0][0]):
            weight, room = self._line.popleft()
            if not room.done():
                self._taken += weight
                room.set_result(None)
