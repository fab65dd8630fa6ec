"""The engine's child process: supervised, replaced, isolated, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forebay.core.delta import EngineLimits
from forebay.core.errors import EngineFault
from forebay.engine.child import EXIT_FAULT
from forebay.engine.frames import (
    Cancel,
    FrameBuffer,
    Ready,
    Start,
    Step,
    Submit,
    pack,
    parse_for_parent,
)
from forebay.engine.process import ChildEngine
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.system import SystemIds, Tasks
from forebay.testing.contracts.engine import ask, collect, first, ids_of

PROMPT = (256, *b"user\nhello", 257, 10, 256, *b"assistant\n")
SCRIPTED = ScriptedSettings(step_seconds=0.002)
Make = Callable[..., Awaitable[ChildEngine]]


def build(scripted: ScriptedSettings = SCRIPTED, **settings: Any) -> ChildEngine:
    sizes = EngineSettings(max_sequences=4, kv_tokens=4096, context_tokens=1024, **settings)
    return ChildEngine(sizes, scripted=scripted, ids=SystemIds(), spawn=Tasks())


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    engines: list[ChildEngine] = []

    async def make(scripted: ScriptedSettings = SCRIPTED, **settings: Any) -> ChildEngine:
        engine = build(scripted, **settings)
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.close()


async def ready(engine: ChildEngine) -> None:
    async with asyncio.timeout(20):
        while engine.state() != "ready":  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """A zombie is not: nobody may be there to reap the orphans of a killed process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def seconds_until_gone(pid: int) -> float:
    began = time.monotonic()
    while alive(pid):
        assert time.monotonic() - began < 10
        time.sleep(0.01)
    return time.monotonic() - began


async def kill(engine: ChildEngine) -> float:
    """Kill the child; how long until another serves."""
    assert engine.pid is not None
    began = time.monotonic()
    os.kill(engine.pid, signal.SIGKILL)
    while engine.state() == "ready":  # noqa: ASYNC110 (it has no event)
        await asyncio.sleep(0.001)
    await ready(engine)
    return time.monotonic() - began


async def test_a_killed_child_fails_its_calls_and_is_replaced(make: Make) -> None:
    engine = await make()
    generation = engine.generate(ask(PROMPT, 900))
    await first(generation)
    before = engine.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    with pytest.raises(EngineFault, match="died"):
        [delta async for delta in generation]
    await generation.aclose()
    assert (engine.state(), engine.pid, engine.restarts) == ("restarting", None, 1)
    assert len(ids_of(await collect(engine, ask(PROMPT, 5)))) == 5  # it waits for the new child
    assert engine.pid not in (None, before)
    assert engine.limits().max_sequences == 4


async def test_a_child_that_dies_without_having_served_is_replaced_later_and_later(
    make: Make,
) -> None:
    """0.1 s, doubling; a child that has served starts the count again."""
    engine = await make()
    for delay in (0.1, 0.2, 0.4, 0.8):
        assert await kill(engine) >= delay
    await collect(engine, ask(PROMPT, 1))
    assert 0.1 <= await kill(engine) < 1.6
    assert engine.restarts == 5


async def test_a_child_that_hangs_is_killed_and_replaced(make: Make) -> None:
    frozen = ScriptedSettings(step_seconds=0.002, freeze_after_steps=5)
    engine = await make(frozen, step_timeout_seconds=0.4)
    before = engine.pid
    with pytest.raises(EngineFault):
        await collect(engine, ask(PROMPT, 50))
    await ready(engine)
    assert engine.pid != before
    assert len(ids_of(await collect(engine, ask(PROMPT, 4)))) == 4


async def test_a_child_that_ignores_a_cancel_is_replaced_and_others_go_on(make: Make) -> None:
    """Its places would be lost one by one; the frames on their way at the cancel are no sign."""
    engine = await make(step_timeout_seconds=0.4)
    before = engine.pid
    deaf = engine.generate(ask((256, *b"user\n[[script deaf=1]]", *PROMPT[-12:]), 900))
    await first(deaf)
    await deaf.aclose()
    assert engine.signals().running == 0
    assert len(ids_of(await collect(engine, ask(PROMPT, 4)))) == 4
    assert (engine.pid, engine.restarts) == (before, 0)
    async with asyncio.timeout(10):
        while engine.restarts == 0:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.01)
    await ready(engine)
    assert len(ids_of(await collect(engine, ask(PROMPT, 4)))) == 4
    for _ in range(20):  # heeded cancels are never held against it
        heeded = engine.generate(ask(PROMPT, 900))
        await first(heeded)
        await heeded.aclose()
        await asyncio.sleep(0.05)
    assert engine.restarts == 1


async def test_a_step_that_was_under_way_at_a_cancel_is_no_sign_however_late_it_is_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process was stopped in between, or the machine slept."""
    engine = await make(step_timeout_seconds=0.4)
    loop, before = asyncio.get_running_loop(), engine.pid
    generation = engine.generate(ask(PROMPT, 900))
    await first(generation)
    now = loop.time
    await generation.aclose()
    monkeypatch.setattr(loop, "time", lambda: now() + 600)
    assert len(ids_of(await collect(engine, ask(PROMPT, 4)))) == 4
    assert (engine.pid, engine.restarts) == (before, 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02hi",
        b"<html><body>502 Bad Gateway</body></html>",
        pack(Cancel(1)),
        pack(Ready(EngineLimits(1, 1, 1, 1, False))),
    ],
    ids=["length", "no msgpack", "html", "a frame for a child", "a frame at the wrong time"],
)
async def test_a_child_that_talks_nonsense_is_a_dead_child(make: Make, garbage: bytes) -> None:
    engine = await make()
    before = engine.pid
    generation = engine.generate(ask(PROMPT, 900))
    await first(generation)
    assert engine._child is not None
    engine._child.channel.data_received(garbage)  # as if it had come out of the socket
    with pytest.raises(EngineFault, match="died"):
        [delta async for delta in generation]
    await generation.aclose()
    await ready(engine)
    assert engine.pid != before
    assert len(ids_of(await collect(engine, ask(PROMPT, 4)))) == 4


async def test_an_idle_child_is_left_alone_however_long_it_is_silent(make: Make) -> None:
    engine = await make(step_timeout_seconds=0.05)
    await asyncio.sleep(0.3)
    assert engine.restarts == 0
    assert len(ids_of(await collect(engine, ask(PROMPT, 4)))) == 4
    await asyncio.sleep(0.2)
    assert engine.restarts == 0


async def test_a_start_that_takes_too_long_fails_and_leaves_no_process() -> None:
    engine = build(ScriptedSettings(start_seconds=60), start_timeout_seconds=0.5)
    with pytest.raises(EngineFault, match="in time"):
        await engine.start()
    assert engine.state() == "stopped"
    with pytest.raises(EngineFault):
        await collect(engine, ask(PROMPT, 1))
    await engine.close()


async def test_calls_that_wait_for_a_restart_are_told_when_it_fails(
    make: Make, tmp_path: Path
) -> None:
    """Its log cannot be opened the second time, so the child cannot start."""
    folder = tmp_path / "logs"
    folder.mkdir()
    engine = await make(ScriptedSettings(step_seconds=0.002, log_path=str(folder / "log")))
    (folder / "log").unlink()
    folder.rmdir()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    while engine.state() == "ready":  # noqa: ASYNC110 (it has no event)
        await asyncio.sleep(0.001)
    with pytest.raises(EngineFault, match=r"cannot start: FileNotFoundError"):
        await collect(engine, ask(PROMPT, 1))
    folder.mkdir()
    await ready(engine)
    assert len(ids_of(await collect(engine, ask(PROMPT, 3)))) == 3


async def test_closing_while_it_starts_or_restarts_leaves_no_process() -> None:
    starting = build(ScriptedSettings(start_seconds=0.3))
    start = asyncio.ensure_future(starting.start())
    await asyncio.sleep(0.1)
    await starting.close()
    with pytest.raises(EngineFault, match="closed"):
        await start
    assert starting.state() == "stopped"
    for pause_seconds in (0.0, 0.05, 0.15, 0.25, 0.4):
        engine = build()
        await engine.start()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await asyncio.sleep(pause_seconds)
        await engine.close()
        assert (engine.state(), engine.pid) == ("stopped", None)


async def test_isolation_replaces_a_child_that_shares_prefixes_once_its_calls_have_ended(
    make: Make,
) -> None:
    """E6."""
    engine = await make()
    before = engine.pid
    running = engine.generate(ask(PROMPT, 30))
    await first(running)
    isolating = asyncio.ensure_future(engine.isolate())
    await asyncio.sleep(0.01)
    assert (engine.state(), engine.pid) == ("renewing", before)
    assert len(ids_of([delta async for delta in running])) == 29
    await isolating
    isolated = engine.pid
    assert (engine.state(), engine.restarts) == ("ready", 0)
    assert isolated not in (None, before)
    await engine.isolate()
    assert engine.pid == isolated


@pytest.mark.parametrize("setting", ["shared", "off"])
async def test_isolation_changes_nothing_where_the_operator_has_decided(
    make: Make, setting: str
) -> None:
    """E6: `shared` is the operator's declared choice, `off` shares nothing."""
    engine = await make(prefix_cache=setting)
    before = engine.pid
    await engine.isolate()
    assert engine.pid == before


async def test_an_engine_isolated_before_its_start_never_shares_prefixes() -> None:
    """E6: nothing is left to replace."""
    engine = build()
    await engine.isolate()
    await engine.start()
    before = engine.pid
    await engine.isolate()
    assert engine.pid == before
    await engine.close()


async def test_isolation_while_a_child_starts_is_heeded_by_it() -> None:
    """E6: the child that was loading when the second organisation came is not used."""
    engine = build(ScriptedSettings(step_seconds=0.002, start_seconds=0.3))
    start = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0.1)
    await engine.isolate()
    await start
    before = engine.pid
    await engine.isolate()
    assert engine.pid == before
    await engine.close()


async def test_isolation_survives_the_death_of_the_child_it_waits_for(make: Make) -> None:
    """E6."""
    engine = await make()
    running = engine.generate(ask(PROMPT, 900))
    await first(running)
    isolating = asyncio.ensure_future(engine.isolate())
    await asyncio.sleep(0.01)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineFault):
        [delta async for delta in running]
    await running.aclose()
    async with asyncio.timeout(10):
        await isolating
    after = engine.pid
    await engine.isolate()
    assert engine.pid == after
    assert len(ids_of(await collect(engine, ask(PROMPT, 3)))) == 3


async def test_a_child_ignores_the_signals_of_its_parents_group(make: Make) -> None:
    """Ctrl-C: running answers finish if the parent wants them to."""
    engine = await make()
    async with aclosing(engine.generate(ask(PROMPT, 40))) as generation:
        await first(generation)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGINT)
        os.kill(engine.pid, signal.SIGTERM)
        assert len(ids_of([delta async for delta in generation])) == 39
    assert os.getpgid(engine.pid) != os.getpgid(0)


async def test_each_step_is_timed(make: Make) -> None:
    times: list[float] = []
    engine = ChildEngine(
        EngineSettings(),
        scripted=ScriptedSettings(step_seconds=0.02),
        ids=SystemIds(),
        spawn=Tasks(),
        stepped=times.append,
    )
    await engine.start()
    await collect(engine, ask(PROMPT, 6))
    await asyncio.sleep(0.3)
    await collect(engine, ask(PROMPT, 6))
    await engine.close()
    assert len(times) == 12
    assert 0.01 < sorted(times)[6] < 0.2
    assert max(times) < 0.3


def test_it_works_on_uvloop_as_on_asyncio() -> None:
    async def serve() -> int:
        engine = build()
        await engine.start()
        try:
            answers = await asyncio.gather(*(collect(engine, ask(PROMPT, 20)) for _ in range(6)))
            assert await kill(engine) > 0
            answers.append(await collect(engine, ask(PROMPT, 20)))
            return sum(len(ids_of(answer)) for answer in answers)
        finally:
            await engine.close()

    assert uvloop.run(serve()) == 140


PARENT = """
import asyncio, sys, uvloop
from forebay.core.delta import EngineRequest
from forebay.core.job import Sampling
from forebay.engine.process import ChildEngine
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.system import SystemIds, Tasks

async def main():
    scripted = ScriptedSettings(step_seconds=0.002)
    engine = ChildEngine(EngineSettings(), scripted=scripted, ids=SystemIds(), spawn=Tasks())
    await engine.start()
    print(engine.pid, flush=True)
    asking = EngineRequest("req_1", (1, 2, 3), 8000, Sampling(ignore_eos=True))
    async for delta in engine.generate(asking):
        print("delta", flush=True)

(uvloop.run if sys.argv[1] == "uvloop" else asyncio.run)(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_child_is_gone_within_a_second_after_its_parent_was_killed(loop: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, loop], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        lines = (line for line in parent.stdout if line.strip().isdigit() or line == "delta\n")
        pid = int(next(lines))
        assert next(lines) == "delta\n"
        assert alive(pid)
        parent.kill()
        assert seconds_until_gone(pid) < 1


@contextmanager
def bare_child(start: Start) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A child of this process that is driven over its socket, frame by frame."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay.engine.child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
    try:
        with ours:
            ours.settimeout(60)
            ours.sendall(pack(start))
            yield process, ours
    finally:
        process.kill()
        process.wait()


def hear(end: socket.socket, buffer: FrameBuffer) -> list[Any]:
    while not (bodies := buffer.feed(end.recv(65_536))):
        pass
    return [parse_for_parent(body) for body in bodies]


def work(sequence: int, max_tokens: int, ids: tuple[int, ...] = PROMPT) -> bytes:
    return pack(Submit(sequence, "req_1", 0, ids, max_tokens, 0.0, 1.0, None, 0, True))


def test_a_child_ends_by_itself_when_its_socket_closes_while_it_works() -> None:
    """The end of the socket alone: its parent lives on."""
    with bare_child(Start("", EngineSettings(), SCRIPTED, False)) as (process, end):
        buffer = FrameBuffer()
        assert isinstance(hear(end, buffer)[0], Ready)
        end.sendall(work(1, 8_000))
        assert isinstance(hear(end, buffer)[0], Step)
        end.close()
        assert process.wait(30) == 0  # within a second on an idle machine


@pytest.mark.model
def test_a_real_child_ends_by_itself_when_its_socket_closes_while_it_works(
    smollm2_gguf: Path,
) -> None:
    start = Start(str(smollm2_gguf), EngineSettings(), None, True)
    with bare_child(start) as (process, end):
        buffer = FrameBuffer()
        assert isinstance(hear(end, buffer)[0], Ready)
        for sequence in range(1, 9):
            end.sendall(work(sequence, 1_000, tuple(range(100 * sequence, 100 * sequence + 900))))
        assert isinstance(hear(end, buffer)[0], Step)
        end.close()
        assert process.wait(30) == 0  # within a second on an idle machine


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02hi", pack(Start("", EngineSettings(), None, False))],
)
def test_a_child_that_is_told_nonsense_ends_and_says_so(garbage: bytes) -> None:
    with bare_child(Start("", EngineSettings(), SCRIPTED, False)) as (process, end):
        assert isinstance(hear(end, FrameBuffer())[0], Ready)
        end.sendall(garbage)
        assert process.wait(5) == EXIT_FAULT


def test_work_and_its_cancel_that_arrive_together_are_both_applied_before_a_step() -> None:
    """E1."""
    with bare_child(Start("", EngineSettings(), SCRIPTED, False)) as (_, end):
        buffer = FrameBuffer()
        assert isinstance(hear(end, buffer)[0], Ready)
        end.sendall(work(1, 100) + pack(Cancel(1)) + pack(Cancel(77)) + work(2, 3))
        outputs = []
        while len(outputs) < 3:
            outputs += [o for step in hear(end, buffer) for o in step.outputs]
        assert [output.sequence for output in outputs] == [2, 2, 2]
