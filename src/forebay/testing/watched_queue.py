"""A queue that checks its own invariants while the real pipeline uses it.

Wraps any queue: every verb goes through, and Q1-Q3, Q5 and Q6 are asserted against a record of where
each job is, and of Q9 that the batch lane leaves its reserve. The record is made from the verbs and
their answers alone.

Not here: which flow is served (Q7-Q9: the contract suite), money (`watched.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay.core.job import (
    Ahead,
    Ask,
    Depth,
    Flow,
    Job,
    Lane,
    Lease,
    Progress,
    Removal,
    Resume,
    Served,
)
from forebay.queue import JobQueue, QueueSettings


class WatchedQueue(JobQueue):
    """Answers are the wrapped queue's."""

    def __init__(self, inner: Any, settings: QueueSettings) -> None:
        self._inner = inner
        self._settings = settings
        self._waiting: dict[str, Job] = {}
        self._leased: dict[str, Lease] = {}
        self._arrivals: dict[str, int] = {}
        self._returned: set[str] = set()
        self._fence = 0

    async def enqueue(self, job: Job) -> bool:
        added: bool = await self._inner.enqueue(job)
        if added:
            self._leased.pop(job.id, None)  # a newer attempt replaces an older one
            self._waiting[job.id] = job
            self._arrivals.setdefault(job.id, len(self._arrivals))
            if job.attempt > 1:
                self._returned.add(job.id)
            self._check_bounds(job.flow)
        return added

    async def lease(self, ask: Ask, *, worker: str, seconds: float) -> list[Lease]:
        leases: list[Lease] = await self._inner.lease(ask, worker=worker, seconds=seconds)
        assert len(leases) <= ask.slots
        need = sum(lease.job.kv_tokens(ask.block_tokens) for lease in leases)
        assert ask.evicts or need <= ask.kv_tokens, "E9: more KV memory than was asked for"
        self._check_reserve(ask, leases)
        for lease in leases:
            assert lease.job.id in self._waiting, "Q1: leased, but not waiting"
            assert lease.job.id not in self._leased, "Q2: a second live lease"
            assert lease.fence > self._fence, "Q2: a fence that does not grow"
            self._check_order(lease.job)
            self._fence = lease.fence
            del self._waiting[lease.job.id]
            self._leased[lease.job.id] = lease
        return leases

    async def extend(
        self, worker: str, progress: Sequence[Progress], *, seconds: float
    ) -> list[str]:
        lost: list[str] = await self._inner.extend(worker, progress, seconds=seconds)
        for each in progress:
            live = self._is_live(each.lease)
            assert live is (each.lease.job.id not in lost), "Q6: extend"
        return lost

    async def ack(self, lease: Lease, *, served: Served) -> None:
        await self._inner.ack(lease, served=served)
        assert self._is_live(lease), "Q6: a stale acknowledgement was taken"
        del self._leased[lease.job.id]

    async def nack(self, lease: Lease, *, served: Served, resume: Resume) -> None:
        await self._inner.nack(lease, served=served, resume=resume)
        assert self._is_live(lease), "Q6: a stale return was taken"
        del self._leased[lease.job.id]
        self._waiting[lease.job.id] = lease.job
        self._returned.add(lease.job.id)

    async def remove(self, job_id: str) -> Removal:
        removal: Removal = await self._inner.remove(job_id)
        where = (job_id in self._waiting, job_id in self._leased)
        expected = {
            Removal.WAS_WAITING: (True, False),
            Removal.WAS_LEASED: (False, True),
            Removal.UNKNOWN: (False, False),
        }
        assert where == expected[removal], "Q1: remove"
        self._waiting.pop(job_id, None)
        return removal

    async def reap(self) -> list[Job]:
        jobs: list[Job] = await self._inner.reap()
        for job in jobs:
            assert job.id in self._leased, "Q1: reaped, but not leased"
            del self._leased[job.id]
        return jobs

    async def depths(self, pool: str) -> dict[Flow, Depth]:
        depths: dict[Flow, Depth] = await self._inner.depths(pool)
        return depths

    async def ahead(self, pool: str, flow: Flow, cost: int) -> Ahead:
        ahead: Ahead = await self._inner.ahead(pool, flow, cost)
        return ahead

    async def changed(self, pool: str, seen: int, *, timeout_seconds: float) -> int:
        count: int = await self._inner.changed(pool, seen, timeout_seconds=timeout_seconds)
        return count

    def cost(self, input_tokens: int, output_tokens: int) -> int:
        cost: int = self._inner.cost(input_tokens, output_tokens)
        return cost

    def _is_live(self, lease: Lease) -> bool:
        live = self._leased.get(lease.job.id)
        return live is not None and live.fence == lease.fence

    def _check_order(self, job: Job) -> None:
        """Q3: of those that never ran, the first to arrive goes first; returned ones before them."""
        others = [each for each in self._waiting.values() if each.flow == job.flow]
        if job.id in self._returned:
            return
        for other in others:
            assert other.id not in self._returned, "Q3: a returned job was overtaken"
            earlier = self._arrivals[other.id] < self._arrivals[job.id]
            assert not earlier, "Q3: an earlier job was overtaken"

    @staticmethod
    def _check_reserve(ask: Ask, leases: Sequence[Lease]) -> None:
        """Q9: batch jobs that were not owed (else they are protected) began within `batch_slots`."""
        left = ask.batch_slots
        for lease in leases:
            if lease.job.flow.lane is Lane.BATCH:
                assert left > 0 or lease.protected_seconds, "Q9: a batch job from the reserve"
                left -= lease.job.choices

    def _check_bounds(self, flow: Flow) -> None:
        """Q5, of jobs that never ran: returned ones have their places already."""
        fresh = [job for job in self._waiting.values() if job.id not in self._returned]
        assert sum(job.flow == flow for job in fresh) <= self._settings.flow_jobs, "Q5: flow"
        lane = sum(job.flow.lane is flow.lane for job in fresh)
        assert lane <= self._settings.lane_jobs, "Q5: lane"
