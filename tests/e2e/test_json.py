"""JSON on the real engine: documents of random schemas, bombs, and a document that others press."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI

from forebay.gateway import control
from forebay.testing.schemas import random_schema
from tests.e2e.conftest import REAL
from tests.e2e.running import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
SCHEMAS = 200
AT_ONCE = 16
LONG = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 300, "maxLength": 360}},
    "required": ["story"],
}


@pytest.fixture
async def client(real: Server) -> AsyncIterator[AsyncOpenAI]:
    url, key = real.base_url, real.key
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
        yield client


def asking(schema: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": "small",
        "messages": [{"role": "user", "content": "Give me an example as JSON."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "example", "schema": schema, "strict": True},
        },
        "max_tokens": 2000,
        **more,
    }


async def answer(client: AsyncOpenAI, request: dict[str, Any], *, stream: bool) -> tuple[str, str]:
    """Text and finish reason."""
    if not stream:
        [choice] = (await client.chat.completions.create(**request)).choices
        return choice.message.content, choice.finish_reason
    text, reason = "", ""
    async for chunk in await client.chat.completions.create(stream=True, **request):
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


@pytest.mark.parametrize("stream", [False, True])
async def test_random_schemas_give_valid_documents(client: AsyncOpenAI, stream: bool) -> None:
    """Half of them greedy, half at temperature 1."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        schema = random_schema(Random(number), endless=False)
        async with gate:
            request = asking(schema, temperature=number % 2, seed=number)
            text, reason = await answer(client, request, stream=stream)
        assert reason == "stop", f"schema {number}: {text[-80:]}"
        jsonschema.validate(json.loads(text), schema)

    await asyncio.gather(*map(one, range(SCHEMAS)))


async def engine(server: Server) -> dict[str, Any]:
    """What the server knows of its only engine."""
    status = await control.call(server.data_dir / "control.sock", "status")
    found: dict[str, Any] = status["engines"][0]
    return found


def deep(levels: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(levels - 1)} if levels else {}


BOMBS: dict[str, Any] = {
    "pattern": {"type": "string", "pattern": "(a+)+b"},
    "deep": deep(17),
    "large": {"enum": ["x" * 20_000]},
    "many": {"type": "object", "properties": {f"p{i}": {} for i in range(300)}},
    "recursive": {"$ref": "#"},
    "endless": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "repeated": {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
    "long": {"type": "string", "maxLength": 10**9},
    "digits": {
        "properties": {
            f"p{i}": {"type": "number", "minimum": -(10**14) - i, "maximum": 10**14 + 7 * i}
            for i in range(105)
        }
    },
    "wide": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 190}}, "$ref": "#/$defs/a"},
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_schema_bomb_is_refused_at_once_and_hurts_nobody(
    client: AsyncOpenAI, name: str
) -> None:
    """Under 50 ms at the client, the best of five tries: this machine may be busy elsewhere."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**asking(BOMBS[name]))
        seconds.append(time.perf_counter() - began)
        assert caught.value.code == "invalid_schema"
        assert caught.value.param.startswith("response_format.json_schema.schema")
    assert min(seconds) < 0.05


async def test_many_schemas_of_the_largest_size_leave_the_engine_working(
    client: AsyncOpenAI, real: Server
) -> None:
    """Grammars of hundreds of optional and bounded properties, all at once, with a plain call."""
    properties = {f"p{i}": {"type": "string", "maxLength": 3_000 + i} for i in range(100)}
    large = {"type": "object", "properties": properties}
    calls = [answer(client, asking(large, max_tokens=8), stream=False) for _ in range(4)]
    await asyncio.gather(*calls)
    plain = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    assert (await answer(client, plain, stream=False))[1] in ("stop", "length")
    assert (await engine(real))["restarts"] == 0


async def until_killed(client: AsyncOpenAI, server: Server) -> tuple[str, openai.APIError]:
    """Kill the engine once something of a document was shown; what was shown, and the error."""
    shown = ""
    try:
        async for chunk in await client.chat.completions.create(stream=True, **asking(LONG)):
            shown += chunk.choices[0].delta.content or ""
            if len(shown) > 50 and (pid := (await engine(server))["pid"]):
                os.kill(pid, signal.SIGKILL)
    except openai.APIError as error:
        return shown, error
    pytest.fail("the stream ended as if nothing had happened")


@pytest.fixture
def crowded(smollm2_gguf: Path, cache_dir: Path, tmp_path: Path) -> Iterator[Server]:
    """A server of its own, whose engine runs two calls at once, also of the batch lane."""
    config = tmp_path / "forebay.yaml"
    config.write_text(f"models:\n  - {{id: {REAL}, aliases: [small], max_sequences: 2}}\n")
    # A slow machine takes longer for two documents than interactive calls would wait.
    waiting = {"FOREBAY_ADMISSION__INTERACTIVE_DEADLINE_SECONDS": "120"}
    env = {
        "FOREBAY_CACHE_DIR": str(cache_dir),
        "FOREBAY_QUEUE__BATCH_RESERVE_PERCENT": "0",
        **waiting,
    }
    with Server.start("--config", config, data_dir=tmp_path / "data", env=env) as server:
        yield server


async def test_a_document_is_not_corrupted_by_preemption_or_a_dying_engine(
    crowded: Server,
) -> None:
    """E8, in the batch lane while interactive calls wait, and with `kill -9` of the engine."""
    async with AsyncOpenAI(
        base_url=crowded.base_url, api_key=crowded.key, max_retries=0, timeout=120
    ) as client:
        batch = asking(LONG, service_tier="flex")
        documents = [asyncio.ensure_future(answer(client, batch, stream=True)) for _ in range(2)]
        await asyncio.sleep(1.0)
        pressing = [
            answer(
                client,
                {
                    "model": "small",
                    "messages": [{"role": "user", "content": f"Hello {n}"}],
                    "max_tokens": 8,
                },
                stream=False,
            )
            for n in range(6)
        ]
        await asyncio.gather(*pressing)
        for text, reason in await asyncio.gather(*documents):
            assert reason == "stop"
            jsonschema.validate(json.loads(text), LONG)

        shown, error = await until_killed(client, crowded)
        assert error.code == "engine_error"
        assert shown.lstrip("{ \n").startswith('"story":')
        assert shown.count('"story":') == 1
        failed = next(r for r in crowded.usage() if r["outcome"] == "failed")
        assert failed["amount_nanos"] == 0
        text, reason = await answer(client, asking(LONG), stream=False)  # a new engine serves
        assert reason == "stop"
        jsonschema.validate(json.loads(text), LONG)
