"""What happens when a process dies: expired leases go back to their owners, orphaned holds end.

The keeper never enqueues: only the owner of record does. It tells each owner of an expired lease,
and resolves what has no owner any more.

Not here: the decision to run a job again (`interactive.py`, the owner).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forebay.core.errors import ForebayError
from forebay.core.event import LeaseExpired
from forebay.core.hold import Bill
from forebay.core.job import Job
from forebay.core.usage import Outcome, Usage, UsageRow
from forebay.ledger import DEAD_AFTER_SECONDS
from forebay.pipeline.rooms import Rooms

SWEEP_SECONDS = 1.0
PAUSED_SECONDS = 3 * SWEEP_SECONDS
# Turns of dialogues that nobody told how their call ended, and what has expired of them.
RECOVER_ROUNDS = 10

Adopt = Callable[[], Awaitable[None]]


class Keeper:
    """One per installation; running two does no harm, every step is idempotent."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self._awake_seconds = 0.0

    async def run(self) -> None:
        """Reap and sweep once a second, for ever; every ten seconds what is remembered, too.

        A keeper that was itself stopped (SIGSTOP, a sleeping laptop) has not watched the others
        meanwhile: its clock stands still for that while, and leases get a round to be renewed.
        """
        last, rounds = self.rooms.clock.monotonic(), 0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.rooms.clock.monotonic()
            elapsed, last = now - last, now
            self._awake_seconds += min(elapsed, SWEEP_SECONDS)
            try:
                if elapsed <= PAUSED_SECONDS:
                    await self.reap()
                await self.sweep()
                rounds += 1
                if rounds % RECOVER_ROUNDS == 0:
                    await self.rooms.remember.recover()
            except ForebayError as fault:
                self.rooms.report.log.error("sweep_failed", error=str(fault))

    async def take_over(self, adopt: Adopt) -> None:
        """At start on one machine: resolve at once what earlier processes left behind, but for what
        this one adopts.

        The data directory's lock is ours, so nobody else can beat: waiting ten seconds to see that
        would show nothing new. Who adopts has not been seen before the second sweep, so it lives.
        """
        await self.sweep()
        self._awake_seconds += DEAD_AFTER_SECONDS + SWEEP_SECONDS
        await adopt()
        await self.sweep()
        await self.rooms.remember.recover()

    async def reap(self) -> None:
        """Return jobs whose worker is gone to their owners; end those that have none any more."""
        for job in await self.rooms.queue.reap():
            self.rooms.report.log.warning("lease_expired", request_id=job.id, attempt=job.attempt)
            if not await self.rooms.stream.notify(job, LeaseExpired(job.attempt)):
                await self._release(job)

    async def sweep(self) -> None:
        """Resolve the holds of dead processes."""
        for row in await self.rooms.ledger.sweep(self._awake_seconds):
            self._swept(row)
            await self.rooms.remember.concluded(row)

    async def _release(self, job: Job) -> None:
        """Worker and reader are both gone. It was our worker that died: nothing is charged."""
        bill = Bill(Usage(0, 0), Outcome.FAILED, "worker_died")
        await self.rooms.resolve.release(job.id, job.attempt, bill)

    def _swept(self, row: UsageRow) -> None:
        self.rooms.report.metrics.swept_holds.inc()
        self.rooms.report.log.warning(
            "hold_swept", request_id=row.call_id, amount_nanos=row.amount_nanos
        )
        self.rooms.report.resolved(row)
