"""Notices that a client has left, and does what is due by the clock, for one request.

The relay is the request's own task; beside it there is one watcher, which waits in `receive()` and
so costs nothing per chunk. When the client is gone it cancels the relay, whose `finally` closes the
pipeline: that is how abandoned work stops, streamed or not, waiting or running.

Not here: what the relay does (`chat.py`); reading the body (`body.py`), which comes before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Receive

from forebay.core.clock import Spawn

# Does what is due now; answers the loop time of the next duty, or None for never.
Duty = Callable[[], Awaitable[float | None]]


class ClientWatch:
    """`async with` it around the relay, in the task to be cancelled.

    Set `finished` before the last bytes are sent: from then on a client that leaves is no news
    (servers report every finished request as a disconnect).
    """

    def __init__(
        self,
        receive: Receive,
        spawn: Spawn,
        *,
        duty: Duty | None = None,
        first_due: float | None = None,
    ) -> None:
        self.gone = False
        self.finished = False
        self._receive = receive
        self._spawn = spawn
        self._duty = duty
        self._due = first_due

    async def __aenter__(self) -> ClientWatch:
        task = asyncio.current_task()
        assert task is not None
        self._relay = task
        self._watcher = self._spawn(self._watch(), name="client watch")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Swallows exactly the cancellation that this watch itself asked for."""
        self.finished = True
        self._watcher.cancel()
        if self.gone and kind is not None and issubclass(kind, asyncio.CancelledError):
            return self._relay.uncancel() == 0
        return False

    def cut_off(self) -> None:
        """Treat the client as gone."""
        if not self.finished:
            self.finished = self.gone = True
            self._relay.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout_at(self._due):
                    message = await self._receive()
            except TimeoutError:
                assert self._duty is not None
                self._due = await self._duty()
                continue
            if message["type"] == "http.disconnect":
                self.cut_off()
                return
