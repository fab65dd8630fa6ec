"""How `forebay top` looks: a line about the server, a table of lanes, a table of open calls.

Not here: where the numbers come from (`top.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from forebay.cli.screen import counted, milliseconds

# A call's id is told by its end, which is random; its beginning is the time.
SHOWN_OF_ID = 8
# Lines that are no calls: headings, rules, the gap between the tables, what was left out.
FRAME_LINES = 8

_LANES = (
    "model", "lane", ">waiting", ">running", ">oldest", ">first p50", ">p95", ">tokens/s", ">calls/min",
)  # fmt: skip
_CALLS = ("call", "project", "model", "lane", "state", ">age", ">tokens")


def console() -> Console:
    """Names are shown as they are: nothing in them is markup."""
    return Console(markup=False, highlight=False, emoji=False)


def show(look: dict[str, Any]) -> None:
    """Print it once, whole."""
    console().print(render(look, lines=None))


def render(look: dict[str, Any], *, lines: int | None) -> Group:
    """What fits into so many lines; all of it if None."""
    several = len(models(look)) > 1
    rows = [_lane_cells(row) for row in look["lanes"] if _is_shown(row)]
    lanes = _table(_LANES, rows, several)
    room = len(look["calls"])
    if lines is not None:
        room = max(0, lines - FRAME_LINES - lanes.row_count)
    calls = look["calls"][:room]
    parts: list[Any] = [Text(headline(look), style="bold"), *_troubles(look), Text(), lanes]
    if calls:
        parts += [Text(), _table(_CALLS, map(_call_cells, calls), several)]
    left_out = look["open_calls"] - len(calls)
    if left_out:
        parts.append(Text(f"and {counted(left_out, 'open call')} more", style="dim"))
    return Group(*parts)


def headline(look: dict[str, Any]) -> str:
    """The server and its money in one line."""
    return " · ".join(
        [
            f"forebay {look['version']}",
            *(models(look) if len(models(look)) == 1 else ()),
            *look["urls"][:1],
            counted(look["open_calls"], "open call"),
            f"today ${look['spent_today_usd']}",
            f"${look['usd_per_hour']} an hour",
        ]
    )


def models(look: dict[str, Any]) -> list[str]:
    """Every model once. Of a single one the tables need not speak, and fit 80 columns."""
    return list(dict.fromkeys(row["model"] for row in look["lanes"]))


def _troubles(look: dict[str, Any]) -> list[Text]:
    return [
        Text(f"The engine of {engine['model']} is {engine['state']}.", style="red")
        for engine in look["engines"]
        if engine["state"] != "ready"
    ]


def _is_shown(row: dict[str, Any]) -> bool:
    """The lane that most calls take, and others while they have something to say."""
    busy = row["waiting"] or row["running"] or row["calls_per_minute"]
    return row["lane"] == "interactive" or bool(busy)


def _lane_cells(row: dict[str, Any]) -> list[str]:
    return [
        row["model"],
        row["lane"],
        str(row["waiting"]),
        str(row["running"]),
        f"{row['oldest_wait_seconds']:.1f} s" if row["waiting"] else "",
        milliseconds(row["ttft_p50_ms"]),
        milliseconds(row["ttft_p95_ms"]),
        f"{row['output_tokens_per_second']:.0f}",
        f"{row['calls_per_minute']:.0f}",
    ]


def _call_cells(call: dict[str, Any]) -> list[str]:
    return [
        "…" + call["id"][-SHOWN_OF_ID:],
        call["project"],
        call["model"],
        call["lane"],
        call["state"],
        f"{call['age_seconds']:.1f} s",
        str(call["output_tokens"]),
    ]


def _table(headings: tuple[str, ...], rows: Iterable[list[str]], several: bool) -> Table:
    """`several` models: else their column is left out."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    kept = [i for i, heading in enumerate(headings) if several or heading != "model"]
    for heading in (headings[i] for i in kept):
        justify: Any = "right" if heading.startswith(">") else "left"
        table.add_column(heading.lstrip(">"), justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    return table
