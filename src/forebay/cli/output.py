"""Where a command writes what may be much: standard output, or a file that appears when it is whole.

Not here: tables and lines (`screen.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

PRIVATE = 0o600  # what was asked, and who used what, is nobody else's business


@contextmanager
def opened(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or this file once all is written. Bytes go to its `buffer`. What is there and is no
    file, a pipe or a device, is written to as it is."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    if output.exists() and not output.is_file():
        with output.open("w", encoding="utf-8", newline="") as device:
            yield device
        return
    partial = output.with_name(f"{output.name}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(partial, flags, PRIVATE), "w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(output)
