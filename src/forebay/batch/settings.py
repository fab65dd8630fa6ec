"""Bounds and times of files and batches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Literal

_DAY_SECONDS = 24 * 60 * 60
_UNITS_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": _DAY_SECONDS}
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """`metadata["help"]` of each field is its documentation. Raises ValueError for what makes no sense."""

    max_lines: int = field(default=50_000, metadata={"help": "Most lines of a batch's file."})
    max_file_bytes: int = field(
        default=200 * 1024 * 1024, metadata={"help": "Largest file that may be uploaded."}
    )
    organisation_bytes: int = field(
        default=20 * 1024 * 1024 * 1024,
        metadata={"help": "Most bytes of files that are kept for one organisation."},
    )
    max_files: int = field(
        default=10_000, metadata={"help": "Most files that are kept for one organisation."}
    )
    file_ttl_seconds: int = field(
        default=30 * _DAY_SECONDS,
        metadata={"help": "How long a file is kept whose upload does not say `expires_after`."},
    )
    completion_windows: tuple[str, ...] = field(
        default=("24h",),
        metadata={
            "help": "What `completion_window` may be: numbers with s, m, h or d. A batch that takes "
            "longer expires with what is done."
        },
    )
    max_unfinished: int = field(
        default=100, metadata={"help": "Most batches of one project that have not ended."}
    )
    running_per_key: int = field(
        default=2,
        metadata={"help": "Batches of one API key that run at once; others wait for their turn."},
    )
    window_items: int = field(
        default=64,
        metadata={
            "help": "Lines of one batch that are in the queue or running at once. Of the calls that a "
            "key, project or organisation may have open, half is for lines of batches."
        },
    )
    without_budget: Literal["wait", "fail"] = field(
        default="wait",
        metadata={
            "help": "What a line does that no budget covers: `wait` for one until the batch expires, "
            "or `fail`, each for itself."
        },
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"batch.{each.name} is {value}; it must be 1 or more")
        if self.without_budget not in ("wait", "fail"):
            raise ValueError(
                f"batch.without_budget is {self.without_budget!r}; it must be wait or fail"
            )
        if not self.completion_windows:
            raise ValueError("batch.completion_windows is empty; name one at least, such as 24h")
        for window in self.completion_windows:
            window_seconds(window)


def window_seconds(window: str) -> int:
    """Of `24h`, `90m`. Raises ValueError."""
    found = _WINDOW.fullmatch(window)
    if found is None:
        raise ValueError(f"batch.completion_windows: {window!r} is not a time like 24h or 30m")
    return int(found[1]) * _UNITS_SECONDS[found[2]]
