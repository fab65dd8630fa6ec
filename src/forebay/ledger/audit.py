"""The audit chain: each resolution row carries a SHA-256 over itself and the row before it (L5).

    hash(0) = 32 zero bytes
    hash(n) = SHA-256( hash(n-1) as 32 bytes ‖ canonical bytes of row n )

The canonical bytes are a JSON array of fixed order without white space, times as whole
microseconds, so that anyone can verify an export with a few lines in any language. Removing,
reordering or altering a row breaks every later link.

Not here: storing rows and giving them their sequence (the backends, in commit order).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from forebay.core.usage import UsageRow

GENESIS = "0" * 64
FORMAT = "forebay-resolution-1"  # changes when fields are added, so that old rows keep verifying

_encode = msgspec.json.Encoder().encode


def canonical(row: UsageRow) -> bytes:
    """The bytes that are hashed: every field but the two hashes."""
    usage, timings = row.usage, row.timings
    return _encode(
        (
            FORMAT,
            row.sequence,
            row.call_id,
            row.organisation_id,
            row.project_id,
            row.key_id,
            row.model,
            row.lane,
            row.outcome,
            row.reason,
            row.attempt,
            usage.input_tokens,
            usage.cached_input_tokens,
            usage.output_tokens,
            usage.finish_reasons,
            usage.counted,
            timings.queue_ms,
            timings.ttft_ms,
            timings.duration_ms,
            row.price_version,
            row.amount_nanos,
            round(row.created_at * 1_000_000),
            round(row.resolved_at * 1_000_000),
        )
    )


def link(previous_hash: str, row: UsageRow) -> str:
    """One step of the chain: the row's hash after the row with `previous_hash`."""
    return hashlib.sha256(bytes.fromhex(previous_hash) + canonical(row)).hexdigest()


def seal(row: UsageRow) -> UsageRow:
    """The row with its own hash, computed from its `previous_hash`."""
    return replace(row, hash=link(row.previous_hash, row))


def first_break(rows: Iterable[UsageRow], previous_hash: str = GENESIS) -> int | None:
    """The sequence of the first row that does not follow from the one before; None if all do.

    `rows` go from the oldest to the newest; `previous_hash` belongs to the row before the first.
    """
    expected = None
    for row in rows:
        follows = expected is None or row.sequence == expected
        if not follows or row.previous_hash != previous_hash:
            return row.sequence
        if row.hash != link(previous_hash, row):
            return row.sequence
        previous_hash, expected = row.hash, row.sequence + 1
    return None
