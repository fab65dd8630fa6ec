"""A resolution outside the ledger: an object of plain values that carries its own link of the chain.

    {"format": "forebay-resolution-1", "sequence": 1, …, "previous_hash": "…", "hash": "…"}
    {"format": "forebay-resolution-2", "sequence": 2, …, "kind": "summary", "previous_hash": "…", "hash": "…"}

The values before the two hashes, in their order and as a JSON array without white space, are the
bytes that are hashed (`audit`): whoever has the lines of an archive can verify it without us. Times
are whole microseconds since 1970, UTC.

Not here: where lines are kept (`forebay ledger archive`), the chain inside the ledger (`audit`).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from forebay.core.usage import UsageRow
from forebay.ledger.audit import FORMAT, KIND_FORMAT, START, Link, canonical, missing

FIELDS = (
    "format",
    "sequence",
    "call_id",
    "organisation_id",
    "project_id",
    "key_id",
    "model",
    "lane",
    "outcome",
    "reason",
    "attempt",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "finish_reasons",
    "counted",
    "queue_ms",
    "ttft_ms",
    "duration_ms",
    "price_version",
    "amount_nanos",
    "created_us",
    "resolved_us",
)
_FORMATS = {FORMAT: FIELDS, KIND_FORMAT: (*FIELDS, "kind")}
_HASHES = ("previous_hash", "hash")


def archived(row: UsageRow) -> dict[str, Any]:
    """The row as it is archived and exported."""
    values = msgspec.json.decode(canonical(row))
    hashes = {"previous_hash": row.previous_hash, "hash": row.hash}
    return {**dict(zip(_FORMATS[values[0]], values, strict=True)), **hashes}


def follow(line: bytes, before: Link | None) -> Link:
    """The place of the archived row after `before`; None: wherever it says that it is.

    Raises ValueError with what is wrong with it, or with it as the next one.
    """
    entry = _decoded(line)
    sequence, previous_hash = entry["sequence"], entry["previous_hash"]
    if before is None and sequence == 1:
        before = START
    if before is not None and sequence != before.sequence + 1:
        raise ValueError(missing(before.sequence + 1, sequence - 1))
    if before is not None and previous_hash != before.hash:
        raise ValueError("its link to the row before it is broken: one of the two was changed")
    if entry["hash"] != _hash(previous_hash, list(entry.values())[:-2]):
        raise ValueError("it was changed: its hash is not that of its content")
    return Link(sequence, entry["hash"])


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        entry = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no line of an archive: {error}") from None
    names = (*_FORMATS.get(str(entry.get("format")), ()), *_HASHES)
    if tuple(entry) != names or type(entry["sequence"]) is not int:
        raise ValueError("it has other fields than a row of an archive")
    return entry


def _hash(previous_hash: object, values: list[Any]) -> str:
    try:
        before = bytes.fromhex(str(previous_hash))
    except ValueError:
        raise ValueError("its previous_hash is no hash") from None
    return hashlib.sha256(before + msgspec.json.encode(values)).hexdigest()
