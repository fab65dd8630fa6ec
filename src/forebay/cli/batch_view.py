"""How batches look: a row of a list, one of them, and one that is watched.

Not here: where it comes from (`batching.py`, `batch_watch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.cli.screen import counted, local_time, printable, say

if TYPE_CHECKING:
    from rich.console import Group

    from forebay.cli.batch_watch import Look, Show
    from forebay.cli.batching import Batch

HEADINGS = ("batch", "state", ">done", ">failed", ">cost $", "created")
SHOWN_PROBLEMS = 5
BAR_COLUMNS = 40


def cells(batch: Batch) -> list[object]:
    """A row of `batch list`."""
    return [
        batch.id,
        batch.status,
        f"{batch.done}/{batch.lines}",
        batch.failed,
        batch.cost_usd,
        local_time(batch.body.get("created_at")),
    ]


def details(batch: Batch) -> str:
    """All that there is to say of it, for people."""
    body = batch.body
    model, until = body.get("model"), local_time(body.get("expires_at"))
    tags = ", ".join(f"{name}={value}" for name, value in (body.get("metadata") or {}).items())
    files = {
        "input": body.get("input_file_id"),
        "results": batch.output_file,
        "errors": batch.error_file,
    }
    said = {
        "lines": batch.lines and f"{batch.done} of {batch.lines} done, {batch.failed} failed",
        "tokens": f"{batch.input_tokens} in, {batch.output_tokens} out",
        "cost": batch.cost_usd and f"${batch.cost_usd}",
        "endpoint": f"{body.get('endpoint')}" + (f", {model}" if model else ""),
        "created": local_time(body.get("created_at")) + (f", to end by {until}" if until else ""),
        "metadata": tags,
        "files": ", ".join(f"{name} {id}" for name, id in files.items() if id),
    }
    lines = [batch.stands]
    lines += [f"  {name:8}  {text}" for name, text in said.items() if text]
    lines += [f"  error     {problem}" for problem in problems(batch)]
    return printable("\n".join(lines))


def problems(batch: Batch) -> list[str]:
    """What is wrong with it, the first few."""
    shown = list(batch.problems[:SHOWN_PROBLEMS])
    more = len(batch.problems) - len(shown)
    return [*shown, f"and {counted(more, 'error')} more"] if more else shown


def outcomes(batch: Batch) -> str:
    """What has become of its lines, once it has ended."""
    parts = [f"{batch.completed} were answered", f"{batch.failed} failed"]
    if unrun := batch.lines - batch.done:
        parts.append(f"{unrun} were not run")
    *first, last = parts
    return f"of {counted(batch.lines, 'line')} {', '.join(first)} and {last}"


def facts(look: Look) -> str:
    """How it gets on, in a line."""
    batch = look.batch
    if not batch.lines:
        return "no line was run" if batch.has_ended else "the file is being checked"
    parts = [f"{batch.done} of {batch.lines} done", f"{batch.failed} failed"]
    if look.output_tokens_per_second is not None:
        parts.append(f"{look.output_tokens_per_second:.0f} tok/s")
    if batch.cost_usd is not None:
        parts.append(f"${batch.cost_usd}")
    if look.left_seconds is not None:
        parts.append(f"{lasting(look.left_seconds)} left")
    return " · ".join(parts)


def lasting(seconds: float) -> str:
    """About so long, in the two largest units: `45 s`, `12 min`, `2 h 5 min`, `3 d 4 h`."""
    minutes, hours = round(seconds / 60), round(seconds / 3_600)
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def is_live() -> bool:
    """Whether standard error is a terminal on which a bar can move."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def screen(*, live: bool) -> Iterator[Show]:
    """Where a batch is watched: a bar on a terminal, else a line per change."""
    if not live:
        yield Log()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False) as frame:
        yield lambda look: frame.update(panel(look), refresh=True)


def panel(look: Look) -> Group:
    """The bar, what it means, and what is wrong."""
    from rich.console import Group, RenderableType
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    batch = look.batch
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=max(batch.lines, 1), completed=batch.done, width=BAR_COLUMNS),
        f"{percent(batch)} %",
    )
    parts: list[RenderableType] = [
        Text(batch.stands, style="bold"),
        bar,
        Text(facts(look)),
    ]
    if look.trouble:
        parts.append(Text(_trouble(look), style="red"))
    return Group(*parts)


def _trouble(look: Look) -> str:
    return f"{printable(look.trouble).rstrip('.')}; looking again"


def percent(batch: Batch) -> int:
    """How much of it is done, rounded down: 100 is all of it."""
    return 100 * batch.done // batch.lines if batch.lines else 0


class Log:
    """A line for each state and each percent, for a file or a pipe."""

    def __init__(self) -> None:
        self._said: object = None

    def __call__(self, look: Look) -> None:
        """Say it, unless it was."""
        batch = look.batch
        news = (batch.status, percent(batch), bool(batch.failed), bool(look.trouble))
        if news == self._said:
            return
        self._said = news
        if look.trouble:
            say(_trouble(look))
        else:
            say(f"{batch.status}: {facts(look)}")
