"""What commands print: tables for people, JSON for programs, both on standard output.

Not here: what is in them (each command's file).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

# A pipe has no width: a table for it is as wide as people's terminals are today.
PIPE_COLUMNS = 120
GAP_COLUMNS = 2
LEAST_COLUMNS = 8  # a name that is cut shorter than this names nothing


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


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, wide: bool = False
) -> None:
    """A table, one line a row; a heading that begins with `>` is a column of numbers.

    Columns whose heading begins with `~` are names that are shortened where the terminal (or
    COLUMNS) is narrower than the table; `wide` shortens nothing. Nothing is ever folded.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    names = [heading.lstrip(">~") for heading in headings]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if not wide:
        columns = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
        _narrow(widths, [heading.startswith("~") for heading in headings], columns)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading, name, width in zip(headings, names, widths, strict=True):
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        table.add_column(name, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row)
    whole = sum(widths) + GAP_COLUMNS * len(widths)
    Console(markup=False, highlight=False, emoji=False, width=whole).print(table)


def _narrow(widths: list[int], shortened: Sequence[bool], columns: int) -> None:
    """Take what is too much from the widest of the columns that may be shortened."""
    mine = [index for index, may in enumerate(shortened) if may]
    excess = sum(widths) + GAP_COLUMNS * (len(widths) - 1) - columns
    while excess > 0 and mine:
        widest = max(mine, key=widths.__getitem__)
        if widths[widest] <= LEAST_COLUMNS:
            return
        widths[widest] -= 1
        excess -= 1


def counted(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
