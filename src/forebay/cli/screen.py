"""What commands print: tables for people, JSON for programs, both on standard output.

Not here: what is in them (each command's file).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

# A pipe has no width, and a table that is cut or folded is of no use to grep.
PIPE_COLUMNS = 400


def print_json(value: Any) -> None:
    """One line, so that a program can read line by line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def say(text: str) -> None:
    """A short line for whoever is watching: standard error, so that output stays clean."""
    print(f"forebay: {text}", file=sys.stderr, flush=True)


def has_colours() -> bool:
    """Whether standard error is a terminal that takes colours (and NO_COLOR does not forbid them)."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal and not console.no_color


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; a heading that begins with `>` is a column of numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if right else "left")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    Console(markup=False, highlight=False, emoji=False, width=width).print(table)


def local_time(at: float | None) -> str:
    """Unix seconds as people of this place read them."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def milliseconds(value: int | None) -> str:
    """As seconds; empty for what never happened."""
    return "" if value is None else f"{value / 1000:.2f} s"


def printable(text: str) -> str:
    """Without the control characters that would let a model's text take over the terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
