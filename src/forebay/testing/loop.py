"""A seeded asyncio loop with virtual time, whose processes can be killed between any two awaits.

When nothing is ready, time jumps to the next timer, so an hour takes as long as its events. Ready
callbacks run in an order shuffled by the seed, so a seed is a schedule: the same seed replays the
same run. Every callback belongs to the *process* (a context variable) in which it was scheduled;
`kill` makes a process's callbacks disappear, so its coroutines never resume, not even their
`finally` blocks: that is what kill -9 looks like from inside.

Not here: sockets and threads. `run_in_executor` runs the function at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")


class Stuck(RuntimeError):
    """Nothing is ready and no timer is set, but the main task has not ended."""


class VirtualLoop(asyncio.BaseEventLoop):
    """One world's loop. Not thread-safe, never blocks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.steps = 0
        self.after_step: Callable[[], None] = lambda: None
        self._virtual_now = 0.0
        self._dead: set[str] = set()
        self._frozen: dict[str, list[Any]] = {}
        self._spawned: dict[str, list[asyncio.Task[Any]]] = {}

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def start(self, process: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that belongs to `process`; tasks it starts belong there as well."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coroutine, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        context = options.get("context")
        process = context.get(PROCESS, "") if context is not None else PROCESS.get()
        self._spawned.setdefault(process, []).append(task)
        return task

    def kill(self, process: str) -> None:
        """From now on nothing of this process runs."""
        self._dead.add(process)
        for task in self._spawned.pop(process, []):
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # Closing the coroutine would run its `finally`, so it must never be collected, not
                # even when the interpreter ends: it keeps one reference for ever.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(task.get_coro()))

    def freeze(self, process: str, *, seconds: float) -> None:
        """SIGSTOP now, SIGCONT after so many seconds: what came due meanwhile runs then."""
        self._frozen.setdefault(process, [])
        self.call_later(seconds, self._thaw, process, context=contextvars.Context())

    def _thaw(self, process: str) -> None:
        self._ready.extend(self._frozen.pop(process, []))  # type: ignore[attr-defined]

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run it at once: threads would make runs irreproducible."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as fault:
            future.set_exception(fault)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception nobody handles ends the run; what is left over after it is nobody's."""
        if not self.is_running():
            return
        raise context.get("exception") or RuntimeError(context["message"])

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                self._pop_timer()
            if not scheduled:
                raise Stuck(f"nothing left to do at {self._virtual_now:.3f} s")
            self._virtual_now = max(self._virtual_now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._virtual_now:
            handle = self._pop_timer()
            if not handle._cancelled:
                ready.append(handle)
        batch = list(ready)
        ready.clear()
        self.random.shuffle(batch)
        for handle in batch:
            process = handle._context.get(PROCESS, "")
            if handle._cancelled or process in self._dead:
                continue
            if process in self._frozen:
                self._frozen[process].append(handle)
                continue
            self.steps += 1
            handle._run()
            self.after_step()

    def _pop_timer(self) -> Any:
        handle = heapq.heappop(self._scheduled)  # type: ignore[attr-defined]
        handle._scheduled = False
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        pass  # cancelled timers are skipped when their time comes

    def _write_to_self(self) -> None:
        pass  # no selector to wake

    def _process_events(self, _event_list: Any) -> None:
        pass  # no selector


class LoopClock:
    """`core.clock.Clock` on virtual time; the wall clock may be made to jump (L10)."""

    def __init__(self, loop: VirtualLoop, *, start: float = 1_800_000_000.0) -> None:
        self._loop = loop
        self.offset = start

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def now(self) -> float:
        """Virtual wall time."""
        return self._loop.time() + self.offset


def spawn(coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """`core.clock.Spawn` for simulation: an unhandled error ends the run."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        raise fault
