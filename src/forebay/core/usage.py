"""What a call consumed and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forebay.core.delta import FinishReason
from forebay.core.job import Lane


class Outcome(StrEnum):
    """How a call ended (DESIGN, vocabulary)."""

    COMPLETED = "completed"
    REJECTED = "rejected"  # never queued
    CANCELLED = "cancelled"  # by the client
    FAILED = "failed"  # by us; costs nothing
    EVICTED = "evicted"  # queued but never run


class Kind(StrEnum):
    """What a call was for."""

    CALL = "call"  # a client's
    SUMMARY = "summary"  # of the old turns of a dialogue


@dataclass(frozen=True, slots=True)
class Usage:
    """Billable tokens. `counted` says from what the output was counted: ids or text."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    finish_reasons: tuple[FinishReason | None, ...] = (None,)
    counted: str = "ids"


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds; None where the call never got that far."""

    queue_ms: int | None = None
    ttft_ms: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A resolved hold: usage event, outbox entry and audit link in one row (L5)."""

    sequence: int
    call_id: str
    organisation_id: str
    project_id: str
    key_id: str
    model: str
    lane: Lane
    outcome: Outcome
    reason: str
    attempt: int
    usage: Usage
    timings: Timings
    price_version: int
    amount_nanos: int
    created_at: float
    resolved_at: float
    previous_hash: str
    hash: str
    kind: Kind = Kind.CALL


@dataclass(frozen=True, slots=True)
class UsageSlice:
    """What one key used of one model in one lane, from `start` on for a width of time."""

    start: int
    project_id: str
    key_id: str
    model: str
    lane: Lane
    calls: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    amount_nanos: int


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Sums over a group of usage rows; `group` is a scope's id, a model or a UTC day."""

    group: str
    calls: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    amount_nanos: int
