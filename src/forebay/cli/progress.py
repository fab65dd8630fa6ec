"""How fetching weights looks: a bar on a terminal, a line per quarter in a log.

Not here: fetching (`forebay.catalog.fetch`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from forebay.cli.screen import say

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from forebay.catalog.download import Progress


class FetchProgress:
    """Told of every step of every model, from one thread; `close` before anything else is said."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._said = ("", "", -1)

    def __call__(self, model: str, progress: Progress) -> None:
        """Show this."""
        if sys.stderr.isatty():
            self._draw(model, progress)
        else:
            self._say(model, progress)

    def close(self) -> None:
        """Leave the bar as it is. Idempotent."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, model: str, progress: Progress) -> None:
        stage = f"{progress.stage} {model}"
        if self._bar is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TransferSpeedColumn,
            )

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            console = Console(file=sys.stderr, markup=False, highlight=False)
            self._bar = Progress(*columns, TransferSpeedColumn(), console=console)
            self._bar.start()
        if self._said[:2] != (model, progress.stage):
            self._said = (model, progress.stage, 0)
            self._task = self._bar.add_task(stage, total=progress.total_bytes)
        if self._task is not None:
            self._bar.update(self._task, completed=progress.done_bytes, total=progress.total_bytes)

    def _say(self, model: str, progress: Progress) -> None:
        total = progress.total_bytes
        quarter = 4 * progress.done_bytes // total if total else 0
        said = (model, str(progress.stage), quarter)
        if said == self._said:
            return
        self._said = said
        percent = f" {25 * quarter} % of {total / 1e6:.0f} MB" if total else ""
        say(f"{progress.stage} {model}{percent}")
