"""One half of `forebay demo fairness`: a private server, two projects, and what they saw.

    start the server ──▶ greedy clients ──LEAD_SECONDS──▶ the polite client ──seconds──▶ its last answer
                                                                                     └──▶ all hang up, stop

The server is the real one (`wiring.serve`), in this process on free ports, with its engine in a child
process; it ends with the `async with` block, whatever happens inside.

Not here: the clients (`demo_clients.py`), the settings (`demo.py`), how it looks (`demo_view.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from forebay.cli import desk
from forebay.cli.answering import Target
from forebay.cli.demo_clients import Habits, Project, Tally
from forebay.cli.progress import FetchProgress
from forebay.cli.screen import say
from forebay.config import Settings
from forebay.gateway.control import call
from forebay.pipeline.recent import percentile
from forebay.system import SystemClock, Tasks
from forebay.wiring import Ready, Stop, serve

# The backlog stands when the polite project begins.
LEAD_SECONDS = 2.0
# A polite call that waits when the time is over is waited for, so that its wait is measured.
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """A project's experience as plain data; a percentile is None where nothing was answered."""

    waiting: int
    running: int
    finished: int
    refused: dict[str, int]
    ttft_p50_ms: int | None
    ttft_p95_ms: int | None
    output_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Look:
    """A phase at a moment: its queue's order, seconds since its first call, its projects."""

    order: str
    seconds: float
    projects: dict[str, Seen]


Show = Callable[[Look], None]


async def phase(
    settings: Settings, habits: Sequence[Habits], *, seconds: float, show: Show
) -> Look:
    """Greedy habits first, polite ones last. Shows a look now and then; answers the last one."""
    clock, spawn, model = SystemClock(), Tasks(), settings.models[0].id
    async with private_server(settings, spawn) as url:
        projects = [
            Project(each, Target(url, await _key(settings, each.name)), model, clock)
            for each in habits
        ]
        *greedy, polite = projects
        began_at = clock.monotonic()

        def look() -> Look:
            elapsed = clock.monotonic() - began_at
            seen = {each.tally.habits.name: _seen(each.tally, elapsed) for each in projects}
            return Look(settings.queue.order, elapsed, seen)

        tasks = [spawn(_look_forever(look, show), name="look")]
        try:
            for project in greedy:
                tasks += _start(project, spawn)
            await asyncio.sleep(LEAD_SECONDS)
            calling = _start(polite, spawn)
            tasks += calling
            await asyncio.sleep(seconds)
            polite.finish()
            await asyncio.wait(calling, timeout=PATIENCE_SECONDS)
            last = look()
        finally:
            await _cancel(tasks)
    show(last)
    return last


def _start(project: Project, spawn: Tasks) -> list[asyncio.Task[None]]:
    name = project.tally.habits.name
    return [spawn(project.client(), name=name) for _ in range(project.tally.habits.clients)]


async def _look_forever(look: Callable[[], Look], show: Show) -> None:
    while True:
        show(look())
        await asyncio.sleep(LOOK_SECONDS)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _key(settings: Settings, project: str) -> str:
    request = {"name": project, "project": project}
    made = await call(settings.data_dir / desk.SOCKET, "keys.create", {"request": request})
    return str(made["key"])


def _seen(tally: Tally, elapsed_seconds: float) -> Seen:
    firsts = sorted(tally.first_token_ms)
    return Seen(
        waiting=tally.waiting,
        running=tally.running,
        finished=tally.finished,
        refused=dict(tally.refused),
        ttft_p50_ms=percentile(firsts, 50),
        ttft_p95_ms=percentile(firsts, 95),
        output_tokens_per_second=tally.output_tokens / max(elapsed_seconds, 0.001),
    )


class _Start:
    """Says how the start goes (`wiring.Watcher`)."""

    def __init__(self) -> None:
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fetching = FetchProgress()

    def starting(self, model: str) -> None:
        self.fetching.close()
        say(f"starting the engine of {model}")

    def ready(self, ready: Ready) -> None:
        self.url.set_result(ready.base_url)


@asynccontextmanager
async def private_server(settings: Settings, spawn: Tasks) -> AsyncIterator[str]:
    """A server for this block; its URL. Raises what keeps it from starting."""
    start, stop = _Start(), Stop(asyncio.Event(), asyncio.Event())
    serving = spawn(_serve(settings, start, stop), name="server")
    try:
        waited: list[asyncio.Future[Any]] = [serving, start.url]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        yield _require(start, serving)
    finally:
        if start.url.done():
            stop.graceful.set()
            stop.now.set()
        else:
            serving.cancel()
        await asyncio.wait([serving])


async def _serve(settings: Settings, start: _Start, stop: Stop) -> Exception | None:
    """What ended it, as an answer: a task that fails is reported, and this is told anyway."""
    try:
        await serve(settings, watcher=start, stop=stop)
    except Exception as fault:
        return fault
    return None


def _require(start: _Start, serving: asyncio.Task[Exception | None]) -> str:
    if not start.url.done():
        fault = serving.result()
        raise fault if fault is not None else RuntimeError("the server ended before it was ready")
    return start.url.result()
