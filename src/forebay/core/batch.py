"""Files, batches and their lines: what the batch lane works on, in plain values.

A batch is a file of calls. Line n of its input file (from 1) is its item n, which has one outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forebay.core.principal import Scopes
from forebay.core.usage import Usage


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is known of a file beside its bytes. `expires_at` None: it is kept until it is deleted."""

    id: str
    organisation_id: str
    purpose: str
    name: str
    size_bytes: int
    sha256: str
    created_at: float
    expires_at: float | None = None


class BatchState(StrEnum):
    """Where a batch stands (the table of ways is `forebay.batch.rules`)."""

    VALIDATING = "validating"
    FAILED = "failed"  # refused as a whole, before anything ran
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_ended(self) -> bool:
        """Nothing happens to it any more."""
        return self in _ENDED


_ENDED = (BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with a file, or with one line of it. `param` is a path in that line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Lines of a batch: in its file, with an answer, and with an error instead of one."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        """Without an outcome."""
        return self.total - self.completed - self.failed


@dataclass(frozen=True, slots=True)
class Spent:
    """What the answered lines of a batch used, and were charged."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    amount_nanos: int = 0


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """What a client asks for. `window_seconds` is how long it may take, `window` how that was written;
    `output_ttl_seconds` how long its output is kept (None: as long as any file). With a `key` it is
    asked for once, however often it is sent; `fingerprint` is the SHA-256 of what was asked."""

    input_file_id: str
    endpoint: str
    window: str
    window_seconds: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_ttl_seconds: int | None = None
    key: str = ""
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it stands. `entered`: when it came into each of its states, Unix seconds.

    `model` is known once its file is read, `output_file_id` and `error_file_id` once it has ended,
    None if there is nothing in them.
    """

    id: str
    scopes: Scopes
    order: BatchOrder
    state: BatchState
    created_at: float
    expires_at: float
    entered: Mapping[BatchState, float]
    model: str = ""
    counts: LineCounts = field(default_factory=LineCounts)
    spent: Spent = field(default_factory=Spent)
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None


class ItemState(StrEnum):
    """Where a line stands that was begun (`forebay.batch.contract`)."""

    OPEN = "open"
    KEPT = "kept"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def has_outcome(self) -> bool:
        return self in (ItemState.COMPLETED, ItemState.FAILED)


@dataclass(frozen=True, slots=True)
class Place:
    """Which line of which batch."""

    batch_id: str
    line: int

    @property
    def call_id(self) -> str:
        """The id of its call, hold, job and usage row: the same whoever runs it, and however often."""
        return f"batch_req_{self.batch_id.removeprefix('batch_')}_{self.line}"


@dataclass(frozen=True, slots=True)
class Item:
    """One line that was begun. `answer` is what was kept of a call, or how it failed; `head` what else
    is told of its answer. Both are bytes into which the room does not look."""

    place: Place
    state: ItemState
    attempt: int = 0
    answer: bytes = b""
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Answered:
    """A line's call was settled as completed, with this usage and charge."""

    usage: Usage
    amount_nanos: int
    head: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A line's call failed, or was never let in; `why` is what its line in the error file says."""

    why: bytes
