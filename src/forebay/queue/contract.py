"""The queue decides which waiting job runs next, and who may run it.

        enqueue              lease                 ack
    ──────────▶ WAITING ─────────────▶ LEASED ──────────▶ gone
                  │   ▲                 │  │
           remove │   └─────────────────┘  └──▶ gone   the lease expires: reap() returns it to its owner
                  ▼      nack (preempted,
                gone     engine fault)

Invariants
- Q1 A job is waiting, leased or gone, never two of these.
- Q2 A job has at most one live lease; every new lease has a larger fence.
- Q3 Within a flow jobs leave in arrival order; a returned job goes back to the front.
- Q4 `enqueue` is idempotent by (id, attempt).
- Q5 Flows and lanes are bounded; a full one refuses and hurts no other.
- Q6 An operation with a stale fence changes nothing and raises LeaseLost.
- Q7 Lanes go in order premium, interactive, batch; but over a sliding 60 s of cost served,
  interactive is owed 20 % and batch 5 % while they wait. A lane below its share goes first, batch
  beyond its `batch_slots` (Q9), and the lease it gets so is protected from preemption for 10 s; a
  job preempted three times is protected from then on.
- Q8 Within a lane the flow with the smallest weighted virtual counter goes first (`fairness.py`);
  with `order: arrival`, a setting to compare with, the flow of the oldest waiting job does.
- Q9 No lease is refused while the fair choice among the asked lanes fits `kv_tokens` and, with a
  slot for each of its choices, `slots`; what does not fit now is not overtaken: slots drain until
  it fits. But of the batch lane, unless it is owed, none is leased once its jobs have taken
  `batch_slots`, and all other lanes go on; the last of them may take more, one for each choice.

Not here: what a worker does with its free slots, and preemption (`forebay.scheduler`). Events on
their way back (`forebay.stream`). Money (`forebay.ledger`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from forebay.core.job import Ahead, Ask, Depth, Flow, Job, Lease, Progress, Removal, Resume, Served


class JobQueue(ABC):
    """Shared by every gateway, worker and keeper; safe from any number of tasks."""

    @abstractmethod
    async def enqueue(self, job: Job) -> bool:
        """Add the job at the back of its flow; False if this attempt (or a newer one) is known (Q4).

        Raises FlowFull or LaneFull (Q5). Never blocks, never drops another job.
        """

    @abstractmethod
    async def lease(self, ask: Ask, *, worker: str, seconds: float) -> list[Lease]:
        """Hand over what the fair choice allows, at most `ask.slots` (Q7-Q9); may be empty."""

    @abstractmethod
    async def extend(
        self, worker: str, progress: Sequence[Progress], *, seconds: float
    ) -> list[str]:
        """Renew these leases for `seconds` from now and true up their charges (Q8).

        Answers the ids of jobs whose lease is lost (Q6); those are not renewed.
        """

    @abstractmethod
    async def ack(self, lease: Lease, *, served: Served) -> None:
        """The job is done: remove it and set its flow's charge to what was served. LeaseLost (Q6)."""

    @abstractmethod
    async def nack(self, lease: Lease, *, served: Served, resume: Resume) -> None:
        """Return the job to the front of its flow with this resume state. LeaseLost (Q6)."""

    @abstractmethod
    async def remove(self, job_id: str) -> Removal:
        """Take a waiting job out; a leased one is only reported (its worker must be told)."""

    @abstractmethod
    async def reap(self) -> list[Job]:
        """Take jobs whose lease has expired out of the queue, and answer them for their owners."""

    @abstractmethod
    async def depths(self, pool: str) -> dict[Flow, Depth]:
        """The flows that have waiting or leased jobs; asking never creates state."""

    @abstractmethod
    async def ahead(self, pool: str, flow: Flow, cost: int) -> Ahead:
        """What goes before a new job of this flow and cost. Asked with every call: it must cost
        little however many flows wait."""

    @abstractmethod
    async def changed(self, pool: str, seen: int, *, timeout_seconds: float) -> int:
        """Wait until the pool's arrival count differs from `seen` (or time out); answer the count.

        The count grows with every job enqueued or returned. A hint to lease again, never a promise:
        two workers may wake for one job.
        """

    @abstractmethod
    def cost(self, input_tokens: int, output_tokens: int) -> int:
        """What serving this costs in the unit of `Depth.waiting_cost` (Q8: w_in·P + w_out·output)."""
