"""An engine in a child process, supervised: started, watched, replaced when it dies.

    start ─▶ starting ─▶ ready ─▶ (child lost: every running generation is an EngineFault)
                           ▲        │
                           └─ restarting ◀┘   again after 0.1 s, doubling to 10 s; 0.1 s once it served

While it restarts, new generations wait; when a start fails, those that wait are EngineFaults too.

Invariants
- E1 Stopping a generation writes its cancel to the socket at once; the child applies it before its
  next step.
- E6 `isolate` under `prefix_cache: auto` lets what runs finish, then replaces the child by one
  without a prefix cache; every later child is without one as well.
- A child that JSON schemas have made grow by `max_growth_bytes` is replaced when it is idle, and
  when it has grown twice as much, in the same way: it never forgets a grammar.
- A child with work that sends no frame for `step_timeout_seconds` is killed and replaced; so is one
  that still works on a call as long after its cancel: nobody reads it, and others need its place.
- The child never outlives this process (see `child.py`), nor `close`.

The hot path is one callback per frame; there is no task and no lock per token.

Not here: checks of what the engine says (`mailbox.py`), whether a failed job may run again (E8: the
worker).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from forebay.core.clock import IdSource, Spawn
from forebay.core.delta import EngineLimits, EngineRequest, EngineSignals, EngineTally
from forebay.core.errors import EngineFault
from forebay.engine.contract import Engine
from forebay.engine.frames import (
    Cancel,
    Fault,
    FrameError,
    ParentChannel,
    Ready,
    Start,
    Step,
    Submit,
    ToParent,
)
from forebay.engine.mailbox import Gate, Intake, Mail
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.observe.log import get_logger

_FIRST_DELAY_SECONDS = 0.1
_LAST_DELAY_SECONDS = 10.0
_STDERR = 2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENDED_EARLY = "the engine ended before it was ready; standard error has its messages"

_log = get_logger("forebay")


@dataclass(slots=True)
class _Child:
    """One process and its socket."""

    process: Process
    channel: ParentChannel
    prefix_cache: bool
    schemas: set[int] = field(default_factory=set)  # hashes of those that it was given
    size_bytes: int = 0  # of its memory when it was new
    renewing: bool = False
    steps: int = 0  # that were heard of
    # By sequence: when, in the loop's time, and at which step.
    cancelled: dict[int, tuple[float, int]] = field(default_factory=dict)

    async def end(self) -> int:
        """Kill it and wait for it: nothing of it is left afterwards. The exit status."""
        self.channel.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        return await self.process.wait()


class ChildEngine(Engine):
    """The embedded engine as the worker sees it. `restarts` counts lost children.

    `stepped` is called with the seconds that each engine step took, as seen from here.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        weights: str = "",
        scripted: ScriptedSettings | None = None,
        ids: IdSource,
        spawn: Spawn,
        stepped: Callable[[float], None] | None = None,
    ) -> None:
        self.restarts = 0
        self._settings = settings
        self._weights = weights
        self._scripted = scripted
        self._spawn = spawn
        self._on_step = stepped
        self._gate = Gate()
        self._intake = Intake(self, lambda: int.from_bytes(ids.random_bytes(8), "big"))
        self._child: _Child | None = None
        self._dead: _Child | None = None  # lost, and not yet waited for
        self._state = "stopped"
        self._isolated = False
        self._isolating = asyncio.Lock()
        self._restart: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._delay_seconds = _FIRST_DELAY_SECONDS
        self._kv_use = 0.0
        self._heard_at = 0.0  # in the loop's time

    @property
    def pid(self) -> int | None:
        """The child's process id while there is a child that serves."""
        return self._child.process.pid if self._child is not None else None

    async def start(self) -> None:
        self._state = "starting"
        self._gate.shut()
        try:
            await self._launch()
        except BaseException:
            self._state = "stopped"
            self._gate.stop("the engine could not be started")
            raise

    def generate(self, request: EngineRequest) -> Mail:
        return Mail(self._intake, self._gate, request)

    def signals(self) -> EngineSignals:
        return self._intake.signals(self._kv_use)

    def tally(self) -> EngineTally:
        return self._intake.tally()

    def limits(self) -> EngineLimits:
        return self._intake.limits

    def state(self) -> str:
        return self._state

    async def isolate(self) -> None:
        self._isolated = True
        async with self._isolating:
            child = self._child
            if child is not None and child.prefix_cache and not self._shares_prefixes():
                await self._exchange(child)
            with suppress(EngineFault):  # nothing is shared any more, even if the start fails
                await self._gate.wait()

    async def _renew(self, child: _Child) -> None:
        """Wait for a moment without calls, unless it grows on and on; then exchange it."""
        idle = self._spawn(self._intake.drained(), name="engine-idle")
        most_bytes = 2 * self._settings.max_growth_bytes
        while self._child is child and not idle.done() and self._growth_bytes(child) < most_bytes:
            await asyncio.wait([idle], timeout=1.0)
        async with self._isolating:
            _log.info("engine_renewed", pid=child.process.pid, schemas=len(child.schemas))
            await self._exchange(child)

    async def _exchange(self, child: _Child) -> None:
        """Let what runs finish, then start a new child in this one's place."""
        if self._child is not child:
            return  # it has died meanwhile, or been closed
        self._state = "renewing"
        self._gate.shut()
        await self._intake.drained()
        if self._child is child:
            self._child = None
            self._pause()
            await child.end()
            if self._state != "stopped":
                self._restart = self._spawn(self._relaunch(0.0), name="engine-exchange")

    async def close(self) -> None:
        self._state = "stopped"
        child, self._child = self._child, None
        self._gate.stop("the engine was closed")
        self._intake.fail_all("the engine was closed")
        if self._watch is not None:
            self._watch.cancel()
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        for ended in (child, self._dead):
            if ended is not None:
                await ended.end()

    def submit(self, work: Submit) -> None:
        """For the intake."""
        if self._child is not None:
            if self._intake.open == 1:  # until now it had nothing to say
                self._heard_at = asyncio.get_running_loop().time()
            self._child.channel.send(work)
            if work.json_schema:
                self._wear(self._child, work.json_schema)

    def cancel(self, sequence: int) -> None:
        """For the intake."""
        child = self._child
        if child is not None:
            child.channel.send(Cancel(sequence))
            now = asyncio.get_running_loop().time()
            child.cancelled[sequence] = now, child.steps
            forget = now - 2 * self._settings.step_timeout_seconds
            while (oldest := next(iter(child.cancelled))) and child.cancelled[oldest][0] < forget:
                del child.cancelled[oldest]

    def _wear(self, child: _Child, json_schema: str) -> None:
        """Look at what the schemas before this one have made of it."""
        new = hash(json_schema) not in child.schemas
        child.schemas.add(hash(json_schema))
        if new and not child.renewing:
            child.renewing = self._growth_bytes(child) > self._settings.max_growth_bytes
            if child.renewing:
                self._spawn(self._renew(child), name="engine-renew")

    def _growth_bytes(self, child: _Child) -> int:
        return memory_bytes(child.process.pid) - child.size_bytes

    def _shares_prefixes(self) -> bool:
        setting = self._settings.prefix_cache
        return setting == "shared" or (setting == "auto" and not self._isolated)

    def _pause(self) -> None:
        self._state = "restarting"
        self._gate.shut()

    # -- one child --------------------------------------------------------------------------------

    async def _launch(self) -> None:
        """Start a child and open the gate. Raises EngineFault."""
        _log.info(
            "engine_starting", weights="scripted" if self._scripted is not None else self._weights
        )
        while True:
            child, limits = await self._start_child(self._shares_prefixes())
            if self._state == "stopped":
                await child.end()
                raise EngineFault("the engine was closed while it started")
            if child.prefix_cache == self._shares_prefixes():
                break
            await child.end()  # a second organisation came while it loaded (E6)
        self._child = child
        child.size_bytes = memory_bytes(child.process.pid)
        self._intake.limits = limits
        self._intake.renew()
        self._state = "ready"
        self._heard_at = asyncio.get_running_loop().time()
        self._watch_soon()
        self._gate.open()
        _log.info("engine_ready", pid=child.process.pid, prefix_cache=child.prefix_cache)

    async def _start_child(self, prefix_cache: bool) -> tuple[_Child, EngineLimits]:
        ready: asyncio.Future[EngineLimits] = asyncio.get_running_loop().create_future()

        def heard(frame: ToParent) -> None:
            match frame:
                case Step() if ready.done():
                    self._stepped(frame)
                case Ready() if not ready.done():
                    ready.set_result(frame.limits)
                case Fault() if not ready.done():
                    ready.set_exception(EngineFault(f"the engine cannot start: {frame.reason}"))
                case _:
                    raise FrameError("a frame at the wrong time")

        def closed() -> None:
            if not ready.done():
                ready.set_exception(EngineFault(_ENDED_EARLY))
            self._lost(channel)

        channel = ParentChannel(heard, closed)
        child = _Child(await _spawn_child(channel), channel, prefix_cache)
        try:
            channel.send(Start(self._weights, self._settings, self._scripted, prefix_cache))
            async with asyncio.timeout(self._settings.start_timeout_seconds):
                limits = await ready
            if not channel.is_open:  # it died between its ready and now
                raise EngineFault(_ENDED_EARLY)
        except TimeoutError:
            await child.end()
            raise EngineFault("the engine did not become ready in time") from None
        except BaseException:
            await child.end()
            raise
        return child, limits

    def _stepped(self, step: Step) -> None:
        now = asyncio.get_running_loop().time()
        if self._on_step is not None:
            self._on_step(now - self._heard_at)
        self._kv_use = step.kv_use
        self._heard_at = now
        if step.outputs:
            self._delay_seconds = _FIRST_DELAY_SECONDS  # it has served
        self._intake.deliver(step.outputs, step.made)
        if self._child is not None:
            self._child.steps += 1
            if self._child.cancelled:
                self._check_cancelled(self._child, step, now)

    def _check_cancelled(self, child: _Child, step: Step, now: float) -> None:
        """Kill a child that does not heed cancels. What was on its way to us then is no sign,
        however late it is read: the second step after a cancel has heard of it."""
        overdue = now - self._settings.step_timeout_seconds
        for output in step.outputs:
            at, heard = child.cancelled.get(output.sequence, (now, child.steps))
            if at < overdue and child.steps > heard + 2:
                _log.error("engine_died", pid=child.process.pid, reason="ignores a cancelled call")
                with suppress(ProcessLookupError):
                    child.process.kill()
                return

    # -- supervision ------------------------------------------------------------------------------

    def _lost(self, channel: ParentChannel) -> None:
        child = self._child
        if child is None or child.channel is not channel:
            return  # it was ended by us, or never served
        self._child, self._dead = None, child
        self.restarts += 1
        self._pause()
        self._intake.fail_all("the engine died while it served this call")
        self._restart = self._spawn(self._replace(child), name="engine-restart")

    async def _replace(self, dead: _Child) -> None:
        status = await dead.end()
        self._dead = None
        _log.error("engine_died", pid=dead.process.pid, exit_status=status, restarts=self.restarts)
        await self._relaunch(self._delay_seconds)

    async def _relaunch(self, delay_seconds: float) -> None:
        """Start a child, however often it takes."""
        while self._state != "stopped":
            await asyncio.sleep(delay_seconds)
            self._delay_seconds = min(self._delay_seconds * 2, _LAST_DELAY_SECONDS)
            delay_seconds = self._delay_seconds
            try:
                await self._launch()
                return
            except (EngineFault, OSError) as fault:
                _log.error("engine_died", reason=str(fault), retry_seconds=delay_seconds)
                self._gate.fail(str(fault))

    def _watch_soon(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        loop, interval = asyncio.get_running_loop(), self._settings.step_timeout_seconds / 4
        self._watch = loop.call_later(interval, self._watch_child, loop.time() + interval)

    def _watch_child(self, due: float) -> None:
        """Kill a child that hangs in a step; its closed socket does the rest."""
        self._watch_soon()
        now = asyncio.get_running_loop().time()
        if now - due > self._settings.step_timeout_seconds / 4:
            # It was this process that stood still (SIGSTOP, a sleeping laptop): what the child has
            # sent meanwhile is read after this timer.
            self._heard_at = now
        silent = now - self._heard_at
        child = self._child
        if child and self._intake.open and silent > self._settings.step_timeout_seconds:
            _log.error("engine_died", pid=child.process.pid, reason="hangs", silent_seconds=silent)
            with suppress(ProcessLookupError):
                child.process.kill()


async def _spawn_child(channel: ParentChannel) -> Process:
    """Start the child process and connect the channel to it.

    Its end of the socket pair is inherited by it alone, so its end closes with this process. It gets
    a session of its own (Ctrl-C is not for it), and its output goes to our standard error.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: nothing is imported from the directory that the server happens to run in.
                *(sys.executable, "-P", "-m", "forebay.engine.child", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=_STDERR,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    try:
        ours.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
    except BaseException:
        ours.close()
        process.kill()
        await process.wait()
        raise
    return process


def memory_bytes(pid: int) -> int:
    """What a process has in memory; 0 where that cannot be asked (it is gone, or this is no Linux)."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
