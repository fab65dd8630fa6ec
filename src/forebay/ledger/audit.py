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
from typing import NamedTuple

import msgspec

from forebay.core.records import Break
from forebay.core.usage import Kind, UsageRow

GENESIS = "0" * 64


class Link(NamedTuple):
    """A place in the chain: a row's sequence and hash."""

    sequence: int
    hash: str


START = Link(0, GENESIS)
# Another one where fields are added, so that old rows keep verifying.
FORMAT = "forebay-resolution-1"
KIND_FORMAT = "forebay-resolution-2"  # of whatever is no client's call: its kind comes last

_encode = msgspec.json.Encoder().encode


def canonical(row: UsageRow) -> bytes:
    """The bytes that are hashed: every field but the two hashes."""
    usage, timings = row.usage, row.timings
    kind = () if row.kind is Kind.CALL else (row.kind,)
    return _encode(
        (
            KIND_FORMAT if kind else FORMAT,
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
            *kind,
        )
    )


def link(previous_hash: str, row: UsageRow) -> str:
    """One step of the chain: the row's hash after the row with `previous_hash`."""
    return hashlib.sha256(bytes.fromhex(previous_hash) + canonical(row)).hexdigest()


def seal(row: UsageRow) -> UsageRow:
    """The row with its own hash, computed from its `previous_hash`."""
    return replace(row, hash=link(row.previous_hash, row))


def problem(row: UsageRow, before: Link) -> str | None:
    """What is wrong with a row as the one after `before`; None: it follows."""
    if row.sequence != before.sequence + 1:
        return missing(before.sequence + 1, row.sequence - 1)
    if row.previous_hash != before.hash:
        return "its link to the row before it is broken: one of the two was changed or moved"
    if row.hash != link(before.hash, row):
        return "it was changed: its hash is not that of its content"
    return None


def missing(first: int, last: int) -> str:
    """The sentence for rows that are not there."""
    if first == last:
        return f"row {first} is missing"
    return f"rows {first} to {last} are missing" if first < last else "rows are out of order"


def first_break(rows: Iterable[UsageRow], before: Link = START) -> Break | None:
    """Where rows, from the oldest to the newest, do not follow from `before` and from each other."""
    for row in rows:
        if (wrong := problem(row, before)) is not None:
            return Break(before.sequence + 1, wrong)
        before = Link(row.sequence, row.hash)
    return None


def end_problem(last: Link, head: Link) -> Break | None:
    """What is wrong with the newest row as the one that was written last; None: it is that one."""
    if last == head:
        return None
    if last.sequence < head.sequence:
        return Break(last.sequence + 1, missing(last.sequence + 1, head.sequence))
    if last.sequence > head.sequence:
        return Break(head.sequence + 1, "the ledger did not write it: it is newer than the newest")
    return Break(last.sequence, "it is not the row that was written: its hash is not the head's")
