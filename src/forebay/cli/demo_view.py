"""How `forebay demo fairness` looks: two panels while it runs, a table of both halves at its end.

Not here: what is measured (`demo_phase.py`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forebay.cli.demo_phase import Look, Seen
from forebay.cli.screen import counted, milliseconds

COLUMNS = 84
# A median of fewer says little.
FEW_ANSWERS = 3
ORDERS = {"arrival": "first come, first served", "fair": "fair queue"}


def console(file: Any = None) -> Console:
    """Nothing that is shown is markup."""
    return Console(file=file, markup=False, highlight=False, emoji=False)


def panels(look: Look) -> Group:
    """A half while it runs."""
    title = f"{ORDERS[look.order]} (queue.order: {look.order}), {look.seconds:.0f} s"
    boxes = [
        Panel(_facts(seen), title=name, box=box.ROUNDED, width=COLUMNS // 2)
        for name, seen in look.projects.items()
    ]
    return Group(Text(title, style="bold"), Columns(boxes, padding=0))


def _facts(seen: Seen) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right")
    for name, cell in _rows(seen).items():
        grid.add_row(name, cell)
    return grid


def _rows(seen: Seen) -> dict[str, str]:
    return {
        "waiting": str(seen.waiting),
        "running": str(seen.running),
        "finished": str(seen.finished),
        "first token p50": milliseconds(seen.ttft_p50_ms) or "none yet",
        "first token p95": milliseconds(seen.ttft_p95_ms) or "none yet",
        "tokens/s": f"{seen.output_tokens_per_second:.0f}",
        "refused": refusals(seen),
    }


def refusals(seen: Seen) -> str:
    """`0`, or how many of which kind."""
    return ", ".join(f"{count} × {kind}" for kind, count in seen.refused.items()) or "0"


def summary(looks: Sequence[Look], configured: str, ratio: float | None) -> Group:
    """Both halves side by side, and what the polite project's wait says."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("project", ""):
        table.add_column(name, no_wrap=True)
    for look in looks:
        table.add_column(ORDERS[look.order], justify="right", no_wrap=True)
    for project in reversed(looks[0].projects):
        by_half = [_rows(look.projects[project]) for look in looks]
        for index, name in enumerate(list(by_half[0])[2:]):
            shown = project if index == 0 else ""
            is_point = (project, name) == (next(reversed(looks[0].projects)), "first token p50")
            cells = [half[name] for half in by_half]
            table.add_row(shown, name, *cells, style="bold green" if is_point else "")
        table.add_section()
    polite = next(reversed(looks[0].projects))
    answered = min(look.projects[polite].finished for look in looks)
    return Group(
        Text(configured, style="dim"), Text(), table, Text(), Text(verdict(ratio, answered), "bold")
    )


def verdict(ratio: float | None, answered: int) -> str:
    """The one sentence; `answered` calls of the polite project in the half that had fewer."""
    if ratio is None:
        return "The polite project was not answered: there is nothing to compare."
    told = f"With the fair queue the polite project's first token came {ratio:.1f} times sooner."
    if answered < FEW_ANSWERS:
        told += f" (Of {counted(answered, 'answer')} in one half: --seconds 20 or more says more.)"
    return told


def save_svg(path: Path, frame: Group, command: str) -> None:
    """The last frame as a picture, without fonts from elsewhere."""
    recording = Console(
        file=io.StringIO(), record=True, width=COLUMNS, markup=False, highlight=False,
        force_terminal=True, color_system="truecolor",
    )  # fmt: skip
    recording.print(Text(f"$ {command}"))
    recording.print(frame)
    picture = recording.export_svg(title="forebay", unique_id="demo")
    path.write_text(re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL))
