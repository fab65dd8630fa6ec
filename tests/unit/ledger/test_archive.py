from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from forebay.core.delta import FinishReason
from forebay.core.job import Lane
from forebay.core.usage import Kind, Outcome, Timings, Usage, UsageRow
from forebay.ledger.archive import FIELDS, archived, follow
from forebay.ledger.audit import GENESIS, Link, seal


def rows() -> list[UsageRow]:
    """Three that follow each other, with what JSON has several ways to write."""
    found, before = [], GENESIS
    for number, model in enumerate(("small", 'größe "☃" \\ / \x1f\x7f', "=1+1"), start=1):
        row = UsageRow(
            sequence=number,
            call_id=f"req_{number}",
            organisation_id="org",
            project_id="proj",
            key_id="key",
            model=model,
            lane=Lane.INTERACTIVE,
            outcome=Outcome.COMPLETED,
            reason="ended",
            attempt=1,
            usage=Usage(10, 20, 3, (FinishReason.STOP, None)),
            timings=Timings(1, None, 300),
            price_version=1,
            amount_nanos=2**53 + number,
            created_at=1_800_000_000.123456,
            resolved_at=1_800_000_001.654321,
            previous_hash=before,
            hash="",
        )
        found.append(seal(row))
        before = found[-1].hash
    return found


def lines() -> list[bytes]:
    return [msgspec.json.encode(archived(row)) for row in rows()]


def test_a_row_is_archived_with_a_name_for_every_value_that_is_hashed() -> None:
    entry = archived(rows()[0])
    assert tuple(entry) == (*FIELDS, "previous_hash", "hash")
    assert (entry["format"], entry["sequence"], entry["call_id"]) == (
        "forebay-resolution-1",
        1,
        "req_1",
    )
    assert (entry["created_us"], entry["finish_reasons"]) == (1_800_000_000_123_456, ["stop", None])


def test_what_is_no_clients_call_is_archived_with_its_kind() -> None:
    row = seal(replace(rows()[0], kind=Kind.SUMMARY))
    entry = archived(row)
    assert tuple(entry) == (*FIELDS, "kind", "previous_hash", "hash")
    assert (entry["format"], entry["kind"]) == ("forebay-resolution-2", "summary")
    line = msgspec.json.encode(entry)
    assert follow(line, None) == Link(1, row.hash)
    *values, _, own = json.loads(line).values()
    body = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    assert own == hashlib.sha256(bytes(32) + body).hexdigest()


def test_archived_rows_follow_each_other_and_begin_anywhere() -> None:
    last = None
    for line, row in zip(lines(), rows(), strict=True):
        last = follow(line, last)
        assert last == Link(row.sequence, row.hash)
    assert follow(lines()[1], None) == Link(2, rows()[1].hash)


def test_whoever_has_python_alone_can_verify_them() -> None:
    before = GENESIS
    for line in lines():
        *values, previous, own = json.loads(line).values()
        body = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
        assert previous == before
        assert own == hashlib.sha256(bytes.fromhex(previous) + body).hexdigest()
        before = own


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"amount_nanos": 1}, "its hash is not that of its content"),
        ({"key_id": "other"}, "its hash is not that of its content"),
        ({"hash": "0" * 64}, "its hash is not that of its content"),
        ({"previous_hash": "0" * 64}, "link to the row before it"),
        ({"previous_hash": "no"}, "link to the row before it"),
        ({"sequence": 3}, "row 2 is missing"),
        ({"sequence": 4}, "rows 2 to 3 are missing"),
        ({"sequence": 1}, "out of order"),
        ({"sequence": "2"}, "other fields"),
        ({"more": 1}, "other fields"),
        ({"format": "forebay-resolution-2"}, "other fields"),
        ({"format": ["forebay-resolution-1"]}, "other fields"),
    ],
)
def test_a_row_that_was_changed_or_does_not_follow_says_what_is_wrong(
    change: dict[str, Any], problem: str
) -> None:
    first, second, _ = lines()
    changed = json.dumps({**json.loads(second), **change}).encode()
    with pytest.raises(ValueError, match=problem):
        follow(changed, follow(first, None))


@pytest.mark.parametrize("line", [b"", b"\n", b"[]", b"{", b"\xff", b"{}"])
def test_what_is_no_row_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"no line of an archive|other fields"):
        follow(line, None)


def test_the_first_row_of_all_follows_nothing() -> None:
    row = seal(replace(rows()[0], previous_hash="1" * 64))
    with pytest.raises(ValueError, match="link to the row before it"):
        follow(msgspec.json.encode(archived(row)), None)


def test_a_previous_hash_that_is_none_is_refused() -> None:
    changed = {**json.loads(lines()[1]), "previous_hash": "no"}
    with pytest.raises(ValueError, match="previous_hash"):
        follow(json.dumps(changed).encode(), None)
