"""The engine contract against every engine: in process, behind the child's frames, and the real one."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from forebay.core.delta import EngineSignals, FinishReason
from forebay.engine.contract import Engine
from forebay.engine.process import ChildEngine
from forebay.engine.scripted import ScriptedEngine
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.system import SystemClock, SystemIds, Tasks
from forebay.testing.contracts.engine import *  # noqa: F403
from forebay.testing.contracts.engine import Prompter, TextOf, ask, collect, first, ids_of
from forebay.tokens.convert import convert
from forebay.tokens.model import ModelTokens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

SETTINGS = EngineSettings(max_sequences=4, kv_tokens=512, context_tokens=1024)
SCRIPTED = ScriptedSettings(step_seconds=0.002)
BACKENDS = ["scripted", "scripted_child", pytest.param("openvino", marks=pytest.mark.model)]
# "What is the capital of France?" in SmolLM2's template, and "Paris" in its vocabulary.
FRANCE = (1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198)
PARIS = 7042


def chat(text: str) -> tuple[int, ...]:
    """The scripted model's template."""
    return (256, *b"user\n", *text.encode(), 257, *b"\n", 256, *b"assistant\n")


def france(text: str) -> tuple[int, ...]:
    """Some prompt of the real model, another one for another text; its words do not matter."""
    return (*FRANCE[:4], *(1000 + byte for byte in text.encode()), *FRANCE[10:])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def weights(request: pytest.FixtureRequest, backend: str) -> str:
    return str(request.getfixturevalue("smollm2_gguf")) if backend == "openvino" else ""


@pytest.fixture
def prompt(backend: str) -> Prompter:
    return france if backend == "openvino" else chat


@pytest.fixture(scope="session")
def real_text(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> TextOf:
    directory = tmp_path_factory.mktemp("smollm2") / "tokens"
    assert convert(smollm2_gguf, directory)
    table = ModelTokens.load(directory, ids=SystemIds()).table
    return lambda ids: b"".join(table[i] for i in ids).decode()


@pytest.fixture
def text_of(request: pytest.FixtureRequest, backend: str) -> TextOf:
    if backend == "openvino":
        found: TextOf = request.getfixturevalue("real_text")
        return found
    return lambda ids: bytes(ids).decode()


def child(weights: str = "", scripted: ScriptedSettings | None = None) -> ChildEngine:
    return ChildEngine(SETTINGS, weights=weights, scripted=scripted, ids=SystemIds(), spawn=Tasks())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def kept() -> AsyncIterator[list[Engine]]:
    """The real engine takes seconds to load, so tests that leave it ready share it."""
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(backend: str, weights: str, kept: list[Engine]) -> AsyncIterator[Engine]:
    if kept and backend == "openvino":
        engine = kept.pop()
    elif backend == "scripted":
        engine = ScriptedEngine(SETTINGS, SCRIPTED, clock=SystemClock())
        await engine.start()
    else:
        engine = child(weights, None if weights else SCRIPTED)
        await engine.start()
    yield engine
    if backend == "openvino" and engine.state() == "ready":
        kept.append(engine)
    else:
        await engine.close()
    assert engine.state() == "stopped" or engine.signals() == EngineSignals(0, 0, 0.0)


@pytest.fixture
def real(smollm2_gguf: Path) -> Callable[[], ChildEngine]:
    return lambda: child(str(smollm2_gguf))


@pytest.mark.model
async def test_the_real_model_knows_the_capital_of_france_and_ends_by_itself(
    real: Callable[[], ChildEngine], kept: list[Engine]
) -> None:
    """E2: the end token is neither emitted nor counted."""
    engine = kept.pop() if kept else real()
    if engine.state() != "ready":
        await engine.start()
    try:
        deltas = await collect(engine, ask(FRANCE, 64, ignore_eos=False))
        ids = ids_of(deltas)
        assert PARIS in ids
        assert 2 not in ids
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].reported_tokens == len(ids)
    finally:
        kept.append(engine)


@pytest.mark.model
async def test_the_real_child_is_gone_a_second_after_it_was_closed_while_it_worked(
    real: Callable[[], ChildEngine],
) -> None:
    engine = real()
    await engine.start()
    pid = engine.pid
    assert pid is not None
    await first(engine.generate(ask((FRANCE * 30)[:400], 100)))
    began = time.monotonic()
    await engine.close()
    assert time.monotonic() - began < 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.model
async def test_a_real_engine_without_weights_says_so_and_is_stopped(tmp_path: Path) -> None:
    engine = child(str(tmp_path / "missing.gguf"))
    with pytest.raises(EngineFault, match="cannot start"):  # noqa: F405
        await engine.start()
    assert engine.state() == "stopped"
    with pytest.raises(EngineFault):  # noqa: F405
        await collect(engine, ask(FRANCE, 1))
    await engine.close()
