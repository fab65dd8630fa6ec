"""`forebay usage`: what was used and what it cost, to the nano-dollar.

Not here: how it is counted and charged (`forebay.ledger`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from forebay.cli import desk
from forebay.cli.options import AsJson, Config, DataDir
from forebay.cli.screen import local_time, milliseconds, print_json, print_table

_HEADINGS = (
    "call", "time", "key", "model", "lane", "outcome", ">in", ">cached", ">out", ">first token",
    ">waited", ">took", ">price", ">USD",
)  # fmt: skip
_TOTALS = (">calls", ">in", ">cached", ">out", ">USD")


class By(StrEnum):
    """What usage can be summed by."""

    KEY = "key"
    MODEL = "model"
    DAY = "day"


def usage(
    by: Annotated[
        By | None, typer.Option(help="Sums instead of single calls.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Newest calls to show.")] = 20,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What was used and what it cost.

    The newest calls, or sums by key, model or day (UTC).
    """
    settings = desk.load(config, data_dir=data_dir)
    if by is None:
        rows = desk.run(settings, desk.ask(settings, "usage", {"limit": limit}))
    else:
        rows = desk.run(settings, desk.ask(settings, "usage.totals", {"by": by.value}))
    if as_json:
        print_json(rows)
    elif by is None:
        print_table(_HEADINGS, map(_cells, rows))
    else:
        print_table((by.value, *_TOTALS), (list(row.values()) for row in rows))


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["call_id"],
        local_time(row["at"]),
        f"…{row['key_id'][-6:]}",
        row["model"],
        row["lane"],
        row["outcome"],
        row["input_tokens"],
        row["cached_input_tokens"],
        row["output_tokens"],
        milliseconds(row["ttft_ms"]),
        milliseconds(row["queue_ms"]),
        milliseconds(row["duration_ms"]),
        row["price_version"],
        row["amount_usd"],
    ]
