"""Ordered events from the worker of a job to its one reader (live streams).

      read (opens)      publish*           Finished | Failed
    ──────────────▶ OPEN ──────▶ OPEN ─────────────────────▶ ENDED ──▶ forgotten when read
                      │ reader closed, abandon, too slow, owner silent
                      └──────────▶ ABANDONED   publish raises ReaderGone

Invariants
- T1 Events arrive in order, each once. Readers drop events of older attempts and repeats; a gap in
  the sequence raises StreamGap, never silence.
- T2 Exactly one terminal event (Finished or Failed) ends a stream.
- T3 A reader too slow for the bound ends its job with `client_too_slow`; it never stalls the engine
  and never grows memory.
- T4 An abandon reaches the worker within 250 ms; an owner that is silent for 3 s counts as gone, and
  the abandonment says how many output tokens it had confirmed.

Not here: turning events into SSE (`forebay.gateway`). Kept streams (keyed and background calls).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from forebay.core.errors import ForebayError
from forebay.core.event import Abandonment, AbandonReason, LeaseExpired, StreamEvent
from forebay.core.job import Job


class Reader(Protocol):
    """An open stream. A cancelled `__anext__` loses nothing: the next one goes on."""

    def __aiter__(self) -> Reader: ...
    async def __anext__(self) -> StreamEvent: ...
    def ready(self) -> StreamEvent | None:
        """The next event if it is here already; never waits."""

    async def aclose(self) -> None: ...


class TokenStream(ABC):
    """Shared by gateways and workers; one reader and (per attempt) one publisher a job."""

    @abstractmethod
    def read(self, job: Job) -> Reader:
        """Open the job's stream for its owner and iterate it until its terminal event (T1, T2).

        Opening happens in this call, before the first `anext`, so a job may be enqueued right
        after. Closing the iterator before the terminal event abandons the job (CLIENT_GONE).
        """

    @abstractmethod
    async def publish(self, job: Job, attempt: int, events: Sequence[StreamEvent]) -> None:
        """Append events, in order. Never waits for the reader.

        Raises ReaderGone when the stream was abandoned, was never opened or has ended.
        """

    @abstractmethod
    async def fail(self, job_id: str, error: ForebayError) -> None:
        """End the stream with Failed(error), behind all that was published. For the owner, of a job
        that is not leased; no-op if the stream has ended or was never opened.
        """

    @abstractmethod
    async def notify(self, job: Job, event: LeaseExpired) -> bool:
        """Tell the owner that a lease of its job has expired; False if nobody reads the job."""

    @abstractmethod
    async def abandon(self, job_id: str, reason: AbandonReason) -> None:
        """Nobody will read this job's events any more; wakes its worker (T4). Idempotent."""

    @abstractmethod
    def abandoned(self, job: Job) -> asyncio.Future[Abandonment]:
        """Resolves once when the job is abandoned, also while the engine is silent."""

    @abstractmethod
    async def presence(self, process: str) -> None:
        """This process lives; called once a second by every gateway and worker (T4)."""
