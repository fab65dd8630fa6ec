"""Events on their way from the worker to the reader of a call.

Every event of a job carries its attempt and a sequence number that counts from 1 over the job's
whole life, so a reader can tell a repeat from a gap (T1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forebay.core.delta import FinishReason, TokenLogprob
from forebay.core.dialogue import Window
from forebay.core.errors import ForebayError
from forebay.core.job import Lane
from forebay.core.usage import Usage


@dataclass(frozen=True, slots=True)
class Started:
    """A worker has begun. `sequence` and `attempt` as for all."""

    sequence: int
    attempt: int
    queue_ms: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one choice; `text` may be empty while a character or a stop string is held back.

    `logprobs`, if asked for, are of the tokens whose text may be shown by now.
    """

    sequence: int
    attempt: int
    choice: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Terminal: the settlement of this call is durable (L13). `completed_at`: when, if it is told of
    later."""

    sequence: int
    attempt: int
    usage: Usage
    amount_nanos: int
    finish_reasons: tuple[FinishReason | None, ...]
    completed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: the call ended by our fault or was evicted; it costs nothing."""

    sequence: int
    attempt: int
    error: ForebayError


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """For the owner, never for clients: the worker of this attempt is gone. Not numbered."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """For the gateway, from the pipeline itself: the call holds money and a place in the queue.

    `call_id` and `created_at` (Unix seconds) are those of the call whose events follow: of an
    earlier one if this is `replayed`, because its idempotency key was sent again. `window`: of a call
    that goes on from something.
    """

    call_id: str
    created_at: float
    model: str
    lane: Lane
    fingerprint: str
    input_tokens: int
    replayed: bool = False
    window: Window | None = None


StreamEvent = Started | Delta | Finished | Failed | LeaseExpired
CallEvent = Admitted | Started | Delta | Finished | Failed


class AbandonReason(StrEnum):
    """Why nobody reads a job's events any more."""

    CLIENT_GONE = "client_gone"
    CLIENT_TOO_SLOW = "client_too_slow"
    OWNER_GONE = "owner_gone"
    OWNER_FAILED = "owner_failed"  # an error of ours on the reading side; costs nothing
    SHUTDOWN = "server_shutdown"  # broken off by a stop that does not wait; costs nothing
    WITHDRAWN = "withdrawn"  # by the batch whose line it is; costs nothing


@dataclass(frozen=True, slots=True)
class Abandonment:
    """`confirmed_tokens`: output tokens that the reader had taken when it was last heard of (T4)."""

    reason: AbandonReason
    confirmed_tokens: int
