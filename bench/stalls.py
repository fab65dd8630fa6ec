"""`forebay` on asyncio's own loop, noting the CPU time of each callback: `stalls.py up …`.

uvloop's callbacks cannot be timed from Python, so this runs the same code on the standard loop and
writes the longest callbacks (CPU time of the thread, not wall time) to $FOREBAY_DATA_DIR/stalls.json
at exit. Callbacks before the server is ready do not count.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

LONGEST: list[tuple[float, str]] = []
READY = False


def main() -> None:
    import uvloop

    from forebay import wiring
    from forebay.cli import app

    run = asyncio.events.Handle._run

    def timed(self: asyncio.Handle) -> None:
        counts = READY  # the callback that makes it ready is still part of the start
        start = time.thread_time()
        name = repr(self._callback) if hasattr(self, "_callback") else "?"
        run(self)
        spent = time.thread_time() - start
        if counts and spent > 0.001:
            LONGEST.append((spent, name))

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    uvloop.run = asyncio.run  # type: ignore[assignment]
    told = wiring._run_until

    async def ready(*args: Any, **kwargs: Any) -> Any:
        global READY
        READY = True
        try:
            return await told(*args, **kwargs)
        finally:
            READY = False

    wiring._run_until = ready  # type: ignore[assignment]
    directory = sys.argv[sys.argv.index("--data-dir") + 1]
    try:
        app.main()
    finally:
        LONGEST.sort(reverse=True)
        Path(directory, "stalls.json").write_text(json.dumps(LONGEST[:20]))


if __name__ == "__main__":
    main()
