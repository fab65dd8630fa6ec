"""The real clock, randomness and task creation: the only file that may touch them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.get_logger("forebay")


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
