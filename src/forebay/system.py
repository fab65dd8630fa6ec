"""The real clock, randomness, task creation and the interpreter's knobs: the only file that may."""

from __future__ import annotations

import asyncio
import gc
import secrets
import sys
import time
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.get_logger("forebay")


def spare_the_collector() -> None:
    """Tell the garbage collector that what exists now will stay: called once, when all is built.

    Libraries leave some 300,000 objects behind, which every full collection would walk through
    again: measured, a quarter of the gateway's CPU time. Young garbage is looked for after 10,000
    allocations instead of 700; calls leave hardly any cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def share_the_interpreter() -> None:
    """Have this process's threads hand the interpreter over within 50 µs instead of 5 ms.

    Below the length of a busy loop's iterations: else the ledger's writer thread can starve beside
    an event loop that is never idle (holds that took 25 s were measured).
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), 50e-6))


class SystemClock:
    """`core.clock.Clock` on this machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    now = staticmethod(time.time)


class SystemIds:
    """`core.clock.IdSource`: 48 bits of milliseconds (sortable), then 80 random bits, in hex."""

    def new(self, prefix: str) -> str:
        return f"{prefix}_{int(time.time() * 1000):012x}{secrets.token_hex(10)}"

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)


class Tasks:
    """`core.clock.Spawn` that keeps a reference to each task and reports one that fails.

    asyncio itself only keeps weak references: a task nobody holds can vanish half-way.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __call__(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("task_failed", task=task.get_name(), exc_info=fault)
