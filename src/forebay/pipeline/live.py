"""What the owner of record knows of a call it is answering: what was read, and where it stands.

Not here: any decision (`interactive.py`) or I/O.
"""

from __future__ import annotations

import asyncio

from forebay.admission import Permit
from forebay.core.clock import Clock
from forebay.core.errors import EngineFailed
from forebay.core.event import AbandonReason, Delta, Failed, Finished, Started
from forebay.core.job import Job
from forebay.core.usage import Outcome, Timings, UsageRow
from forebay.pipeline.summaries import Due
from forebay.stream import Reader


class LiveCall:
    """One call from its hold to its end. Used by the one task that iterates it, and its timer."""

    __slots__ = (
        "_accepted_at", "_clock", "_ids", "broken_off", "deadline", "dispatching", "due", "ended",
        "enqueued", "failed", "finished", "first_attempt", "job", "output_tokens", "permit",
        "queue_ms", "ran", "reader", "refused_for", "sequence", "settled", "suspended", "ttft_ms",
    )  # fmt: skip

    def __init__(
        self, job: Job, reader: Reader, clock: Clock, permit: Permit | None = None
    ) -> None:
        self.job = job
        self.first_attempt = job.attempt
        self.reader = reader
        self.permit = permit  # None once it was settled (A4)
        self.due: Due | None = None
        self.deadline: asyncio.TimerHandle | None = None
        # One that a batch owns is not refused any more: it waits for room in the queue.
        self.enqueued = bool(job.batch_id)
        self.failed = False
        self.broken_off = False
        self.refused_for = "conversation"
        self.finished = False
        self.ran = False
        self.settled = False
        self.suspended = False
        self.dispatching = False
        self.ended = False
        self.sequence = job.resume.sequence
        self.output_tokens = job.resume.output_tokens
        self.queue_ms: int | None = None
        self.ttft_ms: int | None = None
        self._clock = clock
        self._accepted_at = clock.monotonic()
        kept = job.resume.token_ids or ((),) * job.choices
        self._ids: list[list[int]] = [list(ids) for ids in kept]

    def took(self, event: object) -> None:
        """Account for an event that the reader has taken."""
        if isinstance(event, Delta):
            self.sequence = event.sequence
            self.output_tokens += len(event.token_ids)
            if self.ttft_ms is None and event.token_ids:
                self.ttft_ms = self.elapsed_ms()
            self._ids[event.choice].extend(event.token_ids)
        elif isinstance(event, Started):
            self.sequence = event.sequence
            self.ran = True
            if self.queue_ms is None:
                self.queue_ms = event.queue_ms
            if self.deadline is not None:
                self.deadline.cancel()
        elif isinstance(event, Finished | Failed):
            self.ended = True
            self.finished = isinstance(event, Finished)
            if isinstance(event, Finished):  # also if its worker died before we had read a word
                self.ran, self.output_tokens = True, event.usage.output_tokens

    @property
    def used_tokens(self) -> int:
        """P and what was read, of a call that an engine was given; else nothing."""
        return self.job.input_tokens + self.output_tokens if self.ran else 0

    def received(self) -> tuple[tuple[int, ...], ...]:
        """Token ids read so far, per choice: where another attempt resumes (E8)."""
        return tuple(map(tuple, self._ids)) if self.output_tokens else ()

    def ending(self) -> tuple[Outcome, str]:
        """How the call ends when its owner resolves it while leaving."""
        if self.broken_off:
            return Outcome.FAILED, "server_shutdown"
        if self.failed and self.enqueued:
            return Outcome.FAILED, "owner_failed"
        if self.job.batch_id:
            return Outcome.CANCELLED, AbandonReason.WITHDRAWN.value
        if self.enqueued:
            return Outcome.CANCELLED, "client_gone"
        return Outcome.REJECTED, self.refused_for

    def terminal(self, row: UsageRow | None) -> Finished | Failed:
        """The terminal event that a resolution stands for, after its worker could not send it."""
        sequence, attempt = self.sequence + 1, self.job.attempt
        if row is not None and row.outcome is Outcome.COMPLETED:
            reasons = row.usage.finish_reasons
            return Finished(sequence, attempt, row.usage, row.amount_nanos, reasons)
        return Failed(sequence, attempt, EngineFailed())

    def elapsed_ms(self) -> int:
        """Since the call was about to be enqueued."""
        return int((self._clock.monotonic() - self._accepted_at) * 1000)

    def timings(self) -> Timings:
        """For a call that its owner resolves."""
        return Timings(self.queue_ms, self.ttft_ms, self.elapsed_ms())
