"""Scripted faults, in process and behind the child's frames, compared with the engine's own log."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.core.delta import EngineRequest, EngineSignals, FinishReason
from forebay.core.errors import EngineFault
from forebay.core.job import Sampling
from forebay.engine import process
from forebay.engine.contract import Engine, Generation
from forebay.engine.process import ChildEngine
from forebay.engine.scripted import ScriptedEngine
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.ledger.memory import MemoryLedger
from forebay.observe import Metrics
from forebay.pipeline.meter import Meters
from forebay.pipeline.report import Reporter
from forebay.pipeline.worker import Received
from forebay.system import SystemClock, SystemIds, Tasks
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.engine import ask, collect, first, ids_of

SETTINGS = EngineSettings(max_sequences=4, kv_tokens=4096, context_tokens=1024)
Make = Callable[..., Awaitable[Engine]]


def chat(text: str) -> tuple[int, ...]:
    return (256, *b"user\n", *text.encode(), 257, *b"\n", 256, *b"assistant\n")


def text_of(ids: tuple[int, ...]) -> str:
    return bytes(ids).decode()


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture(params=["in_process", "child"])
async def make(request: pytest.FixtureRequest, journal_path: Path) -> AsyncIterator[Make]:
    engines: list[Engine] = []

    async def build(**scripted: Any) -> Engine:
        script = ScriptedSettings(
            **{"step_seconds": 0.002, "log_path": str(journal_path), **scripted}
        )
        engine: Engine
        if request.param == "child":
            engine = ChildEngine(SETTINGS, scripted=script, ids=SystemIds(), spawn=Tasks())
        else:
            engine = ScriptedEngine(SETTINGS, script, clock=SystemClock())
        engines.append(engine)
        await engine.start()
        return engine

    yield build
    for engine in engines:
        await engine.close()


async def until_fault(generation: Generation) -> tuple[tuple[int, ...], EngineFault]:
    """What came before the fault that this generation must end with."""
    deltas = []
    async with asyncio.timeout(10), aclosing(generation):
        try:
            async for delta in generation:
                assert delta.finish_reason is None
                deltas.append(delta)
        except EngineFault as fault:
            return ids_of(deltas), fault
    pytest.fail("the generation ended without a fault")


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def made(log: list[dict[str, Any]], sequence: int) -> list[int]:
    """How much the engine had made for a sequence, after each step."""
    steps = [event["made"] for event in log if event["event"] == "step"]
    return [count for step in steps for number, count in step if number == sequence]


async def test_the_same_prompt_gets_the_same_readable_text_and_ends_by_itself(make: Make) -> None:
    engine = await make()
    answers = [await collect(engine, ask(chat("hi"), 100, ignore_eos=False)) for _ in range(2)]
    text = text_of(ids_of(answers[0]))
    assert ids_of(answers[0]) == ids_of(answers[1])
    assert 8 <= len(text) <= 64
    assert all(c.islower() or c == " " for c in text)
    assert answers[0][-1].finish_reason is FinishReason.STOP
    assert answers[0][-1].reported_tokens == len(text)


async def test_a_test_chooses_text_and_length_in_the_prompt(make: Make) -> None:
    engine = await make()
    said = await collect(engine, ask(chat("[[script text=Paris, né]]"), 100, ignore_eos=False))
    assert text_of(ids_of(said)) == "Paris, né"
    cut = await collect(engine, ask(chat("[[script length=12 text=abcde]]"), 100, ignore_eos=False))
    assert text_of(ids_of(cut)) == "abcdeabcdeab"
    endless = await collect(engine, ask(chat("[[script length=3 text=ab]]"), 7))
    assert text_of(ids_of(endless)) == "abababa"
    assert endless[-1].finish_reason is FinishReason.LENGTH
    nothing = await collect(engine, ask(chat("[[script length=0]]"), 7, ignore_eos=False))
    assert [(d.token_ids, d.finish_reason) for d in nothing] == [((), FinishReason.STOP)]


async def test_a_job_that_goes_on_from_its_prefix_says_the_same(make: Make) -> None:
    """E8: prompt + published ids is continued as if nothing had happened."""
    engine = await make()
    prompt = chat("a longer story [[script length=50]]")
    whole = ids_of(await collect(engine, ask(prompt, 100, ignore_eos=False)))
    assert len(whole) == 50
    for published in (1, 17, 49, 50):
        rest = await collect(
            engine, ask((*prompt, *whole[:published]), 100 - published, ignore_eos=False)
        )
        assert whole[:published] + ids_of(rest) == whole
        assert rest[-1].finish_reason is FinishReason.STOP


async def test_a_character_may_be_split_over_tokens(make: Make) -> None:
    """E5 needs something to hold back."""
    engine = await make()
    deltas = await collect(
        engine, ask(chat("[[script split_utf8=1 length=300]]"), 300, ignore_eos=False)
    )
    assert {len(delta.token_ids) for delta in deltas[:-1]} == {1}
    text = bytes(ids_of(deltas)).decode(errors="ignore")
    assert not text.isascii()


async def test_a_crash_fails_every_running_call_and_the_engine_comes_back(make: Make) -> None:
    engine = await make()
    prompt = chat("[[script length=40 crash_at=5]]")
    bystander = asyncio.ensure_future(until_fault(engine.generate(ask(chat("other"), 500))))
    await asyncio.sleep(0.02)
    got, fault = await until_fault(engine.generate(ask(prompt, 60, ignore_eos=False)))
    assert len(got) == 5
    assert "died" in str(fault)
    assert "died" in str((await bystander)[1])
    assert engine.state() == "restarting"
    rest = await collect(engine, ask((*prompt, *got), 55, ignore_eos=False))
    assert engine.state() == "ready"
    assert len(got + ids_of(rest)) == 40
    assert engine.signals() == EngineSignals(0, 0, 0.0)


async def test_the_log_survives_a_crash_and_claims_no_less_than_was_received(
    make: Make, journal_path: Path
) -> None:
    """L8: what is billed is at most what the engine's own log says was made."""
    engine = await make()
    got, _ = await until_fault(engine.generate(ask(chat("[[script crash_at=9]]"), 60)))
    log = events(journal_path)
    assert log[0]["id"] == "req_1"
    assert tuple(log[0]["prompt_ids"]) == chat("[[script crash_at=9]]")
    assert made(log, 1)[-1] >= len(got) == 9


async def test_a_hanging_call_is_silent_until_it_is_stopped_and_hurts_no_other(make: Make) -> None:
    engine = await make()
    hanging = engine.generate(ask(chat("[[script hang_at=3]]"), 60))
    got = [await first(hanging) for _ in range(3)]
    assert len(ids_of(got)) == 3
    assert len(ids_of(await collect(engine, ask(chat("other"), 30)))) == 30
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(hanging)
    hanging.stop()
    assert await anext(hanging, None) is None
    await hanging.aclose()
    assert engine.signals().running == 0


async def test_a_missing_count_is_reported_as_none(make: Make) -> None:
    """E2: the engine says nothing, so nothing is claimed."""
    engine = await make(directive="drop_usage=1 length=6")
    for ignore_eos in (False, True):
        deltas = await collect(engine, ask(chat("hi"), 9, ignore_eos=ignore_eos))
        assert deltas[-1].finish_reason is not None
        assert deltas[-1].reported_tokens is None


async def test_a_repeated_chunk_is_a_fault_of_that_call_and_its_work_is_cancelled(
    make: Make, journal_path: Path
) -> None:
    engine = await make()
    other = asyncio.ensure_future(collect(engine, ask(chat("other"), 40)))
    got, fault = await until_fault(engine.generate(ask(chat("[[script duplicate_at=4]]"), 60)))
    assert len(got) == 4
    assert "sent token 3 where 4 was due" in str(fault)
    assert len(ids_of(await other)) == 40
    assert [event["sequence"] for event in events(journal_path) if event["event"] == "cancel"]


async def test_an_engine_that_says_too_much_is_cut_at_what_was_asked_for(
    make: Make, journal_path: Path
) -> None:
    """E3."""
    engine = await make()
    deltas = await collect(engine, ask(chat("[[script overlong=50]]"), 10, ignore_eos=False))
    assert len(ids_of(deltas)) == 10
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    await collect(engine, ask(chat("after"), 10))
    cancels = [event for event in events(journal_path) if event["event"] == "cancel"]
    assert [event["sequence"] for event in cancels] == [1]
    assert 10 <= cancels[0]["made"] < 60


async def test_memory_that_runs_out_is_a_fault_after_what_was_made(make: Make) -> None:
    """E9."""
    engine = await make()
    got, fault = await until_fault(engine.generate(ask(chat("[[script kv_exhausted_at=7]]"), 60)))
    assert len(got) == 7
    assert "KV memory" in str(fault)
    assert engine.state() == "ready"


async def test_calls_that_do_not_fit_the_pool_together_are_faults_at_once(make: Make) -> None:
    """E9: a worker that leases too much is found out."""
    engine = await make(block_tokens=2_048)
    holders = [engine.generate(ask(chat(f"{n}"), 64)) for n in range(2)]
    for holder in holders:
        await first(holder)
    got, fault = await until_fault(engine.generate(ask(chat("third"), 64)))
    assert (got, "out of KV memory" in str(fault)) == ((), True)
    for holder in holders:
        await holder.aclose()


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("[[script explode=1]]", "no 'explode'"),
        ("[[script length=many]]", "is not length=NUMBER"),
        ("[[script text=]]", "must say something"),
    ],
)
async def test_a_script_that_makes_no_sense_is_a_fault_that_names_it(
    make: Make, directive: str, message: str
) -> None:
    engine = await make()
    got, fault = await until_fault(engine.generate(ask(chat(directive), 8)))
    assert got == ()
    assert message in str(fault)
    assert len(ids_of(await collect(engine, ask(chat("fine"), 8)))) == 8


async def test_a_stopped_call_makes_nothing_after_its_cancel_has_arrived(
    make: Make, journal_path: Path
) -> None:
    """E1, from the engine's own log: received <= made at the cancel, and no step after it."""
    engine = await make()
    generations = [engine.generate(ask(chat(f"call {n}"), 300)) for n in range(4)]
    received = {}
    for sequence, generation in enumerate(generations, start=1):
        received[sequence] = len((await first(generation)).token_ids)
    for sequence, generation in enumerate(generations, start=1):
        await asyncio.sleep(0.01)
        generation.stop()
        received[sequence] += len(ids_of([delta async for delta in generation]))
        await generation.aclose()
    assert len(ids_of(await collect(engine, ask(chat("last"), 10)))) == 10
    log = events(journal_path)
    for sequence, count in received.items():
        at = next(
            i for i, e in enumerate(log) if (e["event"], e.get("sequence")) == ("cancel", sequence)
        )
        assert count <= log[at]["made"] <= count + 3
        assert made(log[at:], sequence) == []


async def test_a_waiting_call_that_is_stopped_was_never_worked_on(
    make: Make, journal_path: Path
) -> None:
    """E1."""
    engine = await make()
    holders = [engine.generate(ask(chat(f"hold {n}"), 300)) for n in range(4)]
    for holder in holders:
        await first(holder)
    waiting = engine.generate(ask(chat("waiting"), 8))
    reader = asyncio.ensure_future(anext(waiting, None))
    await asyncio.sleep(0.02)
    assert engine.signals().waiting == 1
    await waiting.aclose()
    assert await reader is None
    for holder in holders:
        await holder.aclose()
    await collect(engine, ask(chat("last"), 4))
    log = events(journal_path)
    cancel = next(e for e in log if (e["event"], e.get("sequence")) == ("cancel", 5))
    assert cancel["made"] == 0
    assert made(log, 5) == []


@pytest.mark.parametrize("fault", ["", "miscount=1", "duplicate_at=4", "overlong=9", "crash_at=4"])
async def test_an_engine_that_counts_otherwise_than_it_makes_is_found_by_its_window(
    make: Make, fault: str
) -> None:
    """Whatever else goes wrong, its count and ours agree."""
    engine, clock, got = await make(), FakeClock(), 0
    records = MemoryLedger(clock).records
    meters = Meters(records.record_window, process="gw_1", clock=clock, report=Reporter(Metrics()))
    worker: Any = SimpleNamespace(received=lambda: Received(got, 0))
    meters.add("scripted", engine, worker)
    async with aclosing(engine.generate(ask(chat(f"[[script {fault}]]"), 10))) as generation:
        with suppress(EngineFault):
            async for delta in generation:
                got += len(delta.token_ids)
    await meters.close_windows()
    [window] = await records.windows(0)
    found = await records.reconcile()
    assert len(found.differences) == (fault == "miscount=1")
    assert window.complete
    assert window.received_tokens == got == (4 if "_at" in fault else 10)
    assert window.engine_tokens >= got


@pytest.mark.parametrize("growth_bytes", [-1, 0], ids=["at once", "when idle"])
async def test_a_child_that_schemas_made_grow_is_renewed_and_no_call_fails(
    growth_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs goes on to its end, what comes later waits for the new child."""
    grown = iter(range(1, 10_000))
    monkeypatch.setattr(process, "memory_bytes", lambda _: next(grown))
    engine = ChildEngine(
        replace(SETTINGS, max_growth_bytes=growth_bytes),
        scripted=ScriptedSettings(step_seconds=0.002),
        ids=SystemIds(),
        spawn=Tasks(),
    )
    await engine.start()
    first_pid = engine.pid
    schemas = [json.dumps({"const": "x" * length}) for length in (80, 70, 70, 60, 3, 2)]
    requests = [
        EngineRequest(f"req_{n}", chat(f"json {n}"), 100, Sampling(json_schema=schema))
        for n, schema in enumerate(schemas)
    ]
    answers = await asyncio.gather(*(collect(engine, request) for request in requests[:4]))
    answers += [await collect(engine, request) for request in requests[4:]]
    texts = [text_of(ids_of(deltas)) for deltas in answers]
    assert texts == [json.dumps(json.loads(schema)["const"]) for schema in schemas]
    async with asyncio.timeout(10):
        while engine.pid in (first_pid, None):  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.01)
    assert engine.restarts == 0
    await engine.close()


async def test_a_childs_memory_is_what_the_system_says() -> None:
    assert process.memory_bytes(os.getpid()) > 10_000_000
    assert process.memory_bytes(2**22 + 1) == 0
