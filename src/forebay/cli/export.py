"""`forebay usage export`: resolved calls in the order of their resolution, for other programs.

A row is never changed once it is there, and its event id (the call's id) never comes twice: whoever
reads again with the last sequence misses nothing and counts nothing twice.

Not here: where rows come from (`forebay.pipeline.bookkeeping`), archives (`ledger.py`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from forebay.cli import desk
from forebay.cli.options import Config, DataDir
from forebay.cli.output import opened
from forebay.cli.screen import counted, say

COLUMNS = (
    "event_id", "sequence", "created_at", "resolved_at", "organisation_id", "project_id", "key_id",
    "model", "lane", "outcome", "reason", "attempt", "input_tokens", "cached_input_tokens",
    "output_tokens", "finish_reasons", "counted", "queue_ms", "ttft_ms", "duration_ms",
    "price_version", "amount_nanos", "amount_usd", "kind",
)  # fmt: skip
# What spreadsheets take for a formula when a cell begins with it.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Write = Callable[[dict[str, Any]], object]


class Format(StrEnum):
    """How rows are written."""

    CSV = "csv"
    JSONL = "jsonl"


def export(
    format: Annotated[Format, typer.Option(help="How rows are written.")],
    after: Annotated[
        int, typer.Option(min=0, metavar="SEQUENCE", help="Only rows behind this one.")
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Here, once all of it is written; else to standard output.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Every call with its tokens and its charge.

    Oldest first. Says at the end where to go on; the event id tells a call that was read before.
    """
    settings = desk.load(config, data_dir=data_dir)
    rows, last = desk.run(settings, _export(settings, format, after, output))
    say(f"{counted(rows, 'call')}; go on with --after {last}")


async def _export(
    settings: Any, format: Format, after: int, output: Path | None
) -> tuple[int, int]:
    """How many rows were written, and the sequence of the last."""
    rows = 0
    async with desk.asking(settings) as ask:
        with opened(output) as file:
            write = _writer(file, format)
            async for row in _rows(ask, after):
                if rows == 0 and row["sequence"] > after + 1:
                    say(f"rows {after + 1} to {row['sequence'] - 1} were archived")
                write(row)
                rows, after = rows + 1, row["sequence"]
    return rows, after


async def _rows(ask: desk.Asking, after: int) -> AsyncIterator[dict[str, Any]]:
    while page := await ask("usage.outbox", after=after):
        for row in page:
            yield row
        after = page[-1]["sequence"]


def _writer(file: TextIO, format: Format) -> Write:
    if format is Format.JSONL:
        return lambda row: file.write(json.dumps(event(row), ensure_ascii=False) + "\n")
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    return lambda row: table.writerow(cells(row))


def event(row: dict[str, Any]) -> dict[str, Any]:
    """An archived row as others want it: times and money in words besides exact numbers."""
    from forebay.core.money import format_usd

    more = {
        "event_id": row["call_id"],
        "created_at": _iso(row["created_us"]),
        "resolved_at": _iso(row["resolved_us"]),
        "amount_usd": format_usd(row["amount_nanos"]),
        "kind": row.get("kind", "call"),
    }
    return {name: more[name] if name in more else row[name] for name in COLUMNS}


def cells(row: dict[str, Any]) -> list[object]:
    """The same for a table: no cell is a formula, and choices are in one cell."""
    values = event(row)
    values["finish_reasons"] = " ".join(reason or "none" for reason in row["finish_reasons"])
    return [_harmless(value) for value in values.values()]


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _iso(microseconds: int) -> str:
    at = _EPOCH + timedelta(microseconds=microseconds)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
