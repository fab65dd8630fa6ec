"""The wire types of the Batch API, as OpenAI names them; encoded by msgspec.

Keys that strict clients look for are always there, null where there is nothing yet. `cost` is ours.

Not here: requests (`batch_request.py`), lines of files (`batch_lines.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forebay.core.batch import Batch, BatchState, LineError, Spent
from forebay.core.money import format_usd

MAX_LISTED = 100


class WireBatchError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a file or a line of it."""

    code: str
    line: int | None
    message: str
    param: str | None


class WireBatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch has failed."""

    object: Literal["list"] = "list"
    data: list[WireBatchError]


class WireCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchInputDetails(msgspec.Struct, frozen=True):
    """Breakdown of `input_tokens`."""

    cached_tokens: int


class BatchOutputDetails(msgspec.Struct, frozen=True):
    """Breakdown of `output_tokens`."""

    reasoning_tokens: int = 0


class WireBatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all answers, as they are billed."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails = BatchOutputDetails()
    total_tokens: int


class BatchCost(msgspec.Struct, frozen=True):
    """What was charged until now."""

    amount_usd: str


class WireBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it stands."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: WireBatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: WireCounts
    usage: WireBatchUsage
    metadata: dict[str, str] | None
    cost: BatchCost | msgspec.UnsetType = msgspec.UNSET


class BatchesQuery(msgspec.Struct, frozen=True):
    """Which part of the list is asked for; the newest come first."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20
    after: str | None = None


def wire_batch(batch: Batch) -> WireBatch:
    """As it is sent."""
    order, counts, spent = batch.order, batch.counts, batch.spent

    def entered(state: BatchState) -> int | None:
        at = batch.entered.get(state)
        return None if at is None else int(at)

    return WireBatch(
        id=batch.id,
        endpoint=order.endpoint,
        model=batch.model or None,
        errors=WireBatchErrors(data=list(map(_error, batch.errors))) if batch.errors else None,
        input_file_id=order.input_file_id,
        completion_window=order.window,
        status=batch.state.value,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=int(batch.created_at),
        in_progress_at=entered(BatchState.IN_PROGRESS),
        expires_at=int(batch.expires_at),
        finalizing_at=entered(BatchState.FINALIZING),
        completed_at=entered(BatchState.COMPLETED),
        failed_at=entered(BatchState.FAILED),
        expired_at=entered(BatchState.EXPIRED),
        cancelling_at=entered(BatchState.CANCELLING),
        cancelled_at=entered(BatchState.CANCELLED),
        request_counts=WireCounts(
            total=counts.total, completed=counts.completed, failed=counts.failed
        ),
        usage=_usage(spent),
        metadata=dict(order.metadata) or None,
        cost=BatchCost(format_usd(spent.amount_nanos)) if spent.amount_nanos else msgspec.UNSET,
    )


def _error(error: LineError) -> WireBatchError:
    return WireBatchError(
        code=error.code, line=error.line, message=error.message, param=error.param
    )


def _usage(spent: Spent) -> WireBatchUsage:
    return WireBatchUsage(
        input_tokens=spent.input_tokens,
        input_tokens_details=BatchInputDetails(spent.cached_input_tokens),
        output_tokens=spent.output_tokens,
        total_tokens=spent.input_tokens + spent.output_tokens,
    )
