from __future__ import annotations

import csv
import io
import json
from typing import Any

from forebay.cli import desk
from forebay.cli.export import COLUMNS, Format, _rows, _writer, cells, event

ROW: dict[str, Any] = {
    "format": "forebay-resolution-1",
    "sequence": 7,
    "call_id": "req_7",
    "organisation_id": "org",
    "project_id": "proj",
    "key_id": "key",
    "model": "=HYPERLINK(1)",
    "lane": "batch",
    "outcome": "completed",
    "reason": "ended",
    "attempt": 1,
    "input_tokens": 10,
    "cached_input_tokens": 0,
    "output_tokens": 5,
    "finish_reasons": ["stop", None],
    "counted": "ids",
    "queue_ms": 1,
    "ttft_ms": None,
    "duration_ms": 300,
    "price_version": 1,
    "amount_nanos": 9_007_199_254_740_993,
    "created_us": 1_800_000_000_123_456,
    "resolved_us": 1_800_000_001_000_000,
    "previous_hash": "0",
    "hash": "1",
}


def test_an_event_has_exact_times_and_money_and_the_call_as_its_id() -> None:
    found = event(ROW)
    assert tuple(found) == COLUMNS
    assert found["event_id"] == "req_7"
    assert found["created_at"] == "2027-01-15T08:00:00.123456Z"
    assert found["resolved_at"] == "2027-01-15T08:00:01.000000Z"
    assert (found["amount_nanos"], found["amount_usd"]) == (
        9_007_199_254_740_993,
        "9007199.254740993",
    )
    assert found["finish_reasons"] == ["stop", None]
    assert (found["kind"], event({**ROW, "kind": "summary"})["kind"]) == ("call", "summary")


def test_no_cell_of_a_table_is_a_formula_and_nothing_else_is_changed() -> None:
    found = dict(zip(COLUMNS, cells(ROW), strict=True))
    assert found["model"] == "'=HYPERLINK(1)"
    assert found["finish_reasons"] == "stop none"
    same = set(COLUMNS) - {"model", "finish_reasons"}
    assert {name: found[name] for name in same} == {name: event(ROW)[name] for name in same}


def test_both_formats_say_the_same() -> None:
    as_csv, as_jsonl = io.StringIO(), io.StringIO()
    for file, format in ((as_csv, Format.CSV), (as_jsonl, Format.JSONL)):
        write = _writer(file, format)
        write({**ROW, "model": 'a,"b"\nc'})
    [read] = csv.DictReader(io.StringIO(as_csv.getvalue()))
    told = json.loads(as_jsonl.getvalue())
    assert (read["model"], told["model"]) == ('a,"b"\nc', 'a,"b"\nc')
    assert int(read["amount_nanos"]) == told["amount_nanos"]
    assert (read["ttft_ms"], told["ttft_ms"]) == ("", None)


async def test_pages_are_asked_for_until_there_is_none() -> None:
    asked: list[int] = []

    async def ask(_verb: str, *, after: int) -> list[dict[str, Any]]:
        asked.append(after)
        return [{"sequence": after + 1}, {"sequence": after + 2}] if after < 4 else []

    asking: desk.Asking = ask
    assert [row["sequence"] async for row in _rows(asking, 0)] == [1, 2, 3, 4]
    assert asked == [0, 2, 4]
