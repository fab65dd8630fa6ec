"""The audit chain (L5)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from forebay.core.delta import FinishReason
from forebay.core.job import Lane
from forebay.core.usage import Kind, Outcome, Timings, Usage, UsageRow
from forebay.ledger.audit import GENESIS, Link, canonical, end_problem, first_break, link, seal

ROW = UsageRow(
    sequence=1,
    call_id="req_1",
    organisation_id="org_a",
    project_id="prj_a",
    key_id="key_a",
    model="small",
    lane=Lane.BATCH,
    outcome=Outcome.COMPLETED,
    reason='a "why" — und warum',
    attempt=1,
    usage=Usage(100, 5, 7, (FinishReason.STOP, None)),
    timings=Timings(queue_ms=1, ttft_ms=None, duration_ms=300),
    price_version=3,
    amount_nanos=2**63 - 1,
    created_at=1_800_000_000.25,
    resolved_at=1_800_000_001.000001,
    previous_hash=GENESIS,
    hash="",
)


def rows(count: int) -> list[UsageRow]:
    made: list[UsageRow] = []
    for sequence in range(1, count + 1):
        previous = made[-1].hash if made else GENESIS
        made.append(seal(replace(ROW, sequence=sequence, previous_hash=previous)))
    return made


def test_the_canonical_bytes_are_pinned_so_that_exports_verify_for_ever() -> None:
    expected = (
        '["forebay-resolution-1",1,"req_1","org_a","prj_a","key_a","small","batch","completed",'
        '"a \\"why\\" — und warum",1,100,7,5,["stop",null],"ids",1,null,300,3,'
        "9223372036854775807,1800000000250000,1800000001000001]"
    ).encode()
    assert canonical(ROW) == expected
    assert link(GENESIS, ROW) == hashlib.sha256(bytes(32) + expected).hexdigest()


def test_what_is_no_clients_call_says_so_in_a_format_of_its_own() -> None:
    """And is hashed: a summary cannot be made a call afterwards, nor the other way round."""
    summary = replace(ROW, kind=Kind.SUMMARY)
    plain = canonical(ROW).decode()
    assert canonical(summary).decode() == (
        plain.replace("resolution-1", "resolution-2")[:-1] + ',"summary"]'
    )
    assert first_break([replace(seal(summary), kind=Kind.CALL)]) is not None
    assert first_break([replace(seal(ROW), kind=Kind.SUMMARY)]) is not None


def test_l5_an_untouched_chain_has_no_break() -> None:
    assert first_break([]) is None
    assert first_break(rows(5)) is None
    assert first_break(rows(5)[2:], Link(2, rows(5)[1].hash)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"call_id": "req_2"},
        {"organisation_id": "org_b"},
        {"project_id": "prj_b"},
        {"key_id": "key_b"},
        {"model": "big"},
        {"lane": Lane.PREMIUM},
        {"outcome": Outcome.FAILED},
        {"reason": ""},
        {"attempt": 2},
        {"usage": Usage(100, 6, 7, (FinishReason.STOP, None))},
        {"usage": Usage(100, 5, 7, (FinishReason.LENGTH, None))},
        {"usage": Usage(100, 5, 7, (FinishReason.STOP, None), "text")},
        {"timings": Timings(1, 0, 300)},
        {"price_version": 4},
        {"amount_nanos": 0},
        {"created_at": 1_800_000_000.250001},
        {"resolved_at": 1_800_000_001.0},
        {"hash": "ab" * 32},
        {"previous_hash": "ab" * 32},
        {"sequence": 4},
    ],
)
def test_l5_any_altered_field_breaks_the_chain_at_its_row(change: dict[str, Any]) -> None:
    chain = rows(5)
    chain[2] = replace(chain[2], **change)
    found = first_break(chain)
    assert found is not None
    assert found.sequence == 3


@pytest.mark.parametrize(
    ("order", "sequence", "problem"),
    [
        ([1, 2, 4, 5], 3, "row 3 is missing"),
        ([1, 5], 2, "rows 2 to 4 are missing"),
        ([2, 3], 1, "row 1 is missing"),
        ([1, 3, 2], 2, "row 2 is missing"),
        ([1, 2, 2], 3, "out of order"),
    ],
)
def test_l12_a_removed_or_moved_row_is_named(order: list[int], sequence: int, problem: str) -> None:
    chain = rows(5)
    found = first_break(chain[number - 1] for number in order)
    assert found is not None
    assert found.sequence == sequence
    assert problem in found.problem


def test_l12_the_last_row_has_to_be_the_one_that_was_written_last() -> None:
    third = Link(3, "a")
    assert end_problem(third, third) is None
    for last, sequence, problem in (
        (Link(1, "b"), 2, "rows 2 to 3 are missing"),
        (Link(4, "a"), 4, "did not write it"),
        (Link(3, "b"), 3, "not the row that was written"),
    ):
        found = end_problem(last, third)
        assert found is not None
        assert found.sequence == sequence
        assert problem in found.problem
