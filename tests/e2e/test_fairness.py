"""Who goes first on the real engine with four sequences; tenants that share no prefix."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.testing.rawhttp import Answer, RawClient
from tests.e2e.conftest import REAL
from tests.e2e.running import Server, alive, eventually

WORDS = ("river", "stone", "morning", "window", "garden", "answer", "letter", "summer", "bread")


@pytest.fixture(scope="module")
def narrow(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four sequences at a time, none of them reserved, and nobody is turned away for waiting."""
    env = {
        "FOREBAY_MODELS": json.dumps([{"id": REAL, "max_sequences": 4}]),
        "FOREBAY_ADMISSION__INTERACTIVE_DEADLINE_SECONDS": "3600",
        "FOREBAY_QUEUE__BATCH_RESERVE_PERCENT": "0",
    }
    with Server.start(data_dir=tmp_path_factory.mktemp("narrow"), env=env) as server:
        yield server


def key_of(server: Server, project: str) -> str:
    made = server.command_json("keys", "create", "--project", project)
    return str(made["key"])


def ask(number: int, max_tokens: int, tier: str = "default") -> dict[str, Any]:
    content = f"{number} " + " ".join(WORDS[number % 9 :])
    return {
        "model": REAL,
        "stream": True,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "service_tier": tier,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": content}],
    }


async def post(server: Server, key: str, body: dict[str, Any]) -> Answer:
    async with RawClient(server.host, server.port, key) as client:
        return await client.post(body)


async def hang_up(calls: list[asyncio.Task[Answer]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def started_at(row: dict[str, Any]) -> float:
    """When the call was leased, in wall time."""
    return float(row["at"]) - (row["duration_ms"] - row["queue_ms"]) / 1000


def enqueued_at(row: dict[str, Any]) -> float:
    return float(row["at"]) - row["duration_ms"] / 1000


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def test_another_project_s_call_is_leased_at_the_next_release(narrow: Server) -> None:
    """Q8: four calls of project A run and 64 wait; B's call goes before all of the 64."""
    a, b = key_of(narrow, "a"), key_of(narrow, "b")
    greedy = [asyncio.create_task(post(narrow, a, ask(n, 512))) for n in range(68)]
    await asyncio.sleep(3)
    polite = await post(narrow, b, ask(1000, 16))
    assert polite.complete
    assert sum(call.done() for call in greedy) <= 4
    await hang_up(greedy)
    eventually(lambda: len(narrow.usage()) >= 69, what="all calls are resolved")
    rows = narrow.usage()
    [mine] = [row for row in rows if row["call_id"] == polite.request_id]
    others = [row for row in rows if row is not mine and row["queue_ms"] is not None]
    between = [r for r in others if enqueued_at(mine) < started_at(r) < started_at(mine) - 0.005]
    assert between == []
    assert mine["queue_ms"] > 100  # it did wait for a release


async def test_an_interactive_call_displaces_a_batch_call_which_goes_on_later(
    narrow: Server,
) -> None:
    """Q7, E8: four batch calls run, twenty wait; the first token comes within a second."""
    key, before = key_of(narrow, "c"), metric(narrow, "forebay_preemptions_total")
    batch = [asyncio.create_task(post(narrow, key, ask(n, 160, "flex"))) for n in range(24)]
    await asyncio.sleep(2)
    start = time.monotonic()
    urgent = await post(narrow, key_of(narrow, "d"), ask(2000, 8))
    assert urgent.first_at is not None
    assert urgent.first_at - urgent.started_at <= 1.0, time.monotonic() - start
    answers = await asyncio.gather(*batch)
    assert metric(narrow, "forebay_preemptions_total") - before >= 1
    rows = {row["call_id"]: row for row in narrow.usage()}
    for answer in answers:
        assert answer.complete
        last = json.loads(answer.body.split(b"data: ")[-2])  # the usage chunk, before [DONE]
        assert last["usage"]["completion_tokens"] == 160
        row = rows[answer.request_id]
        assert (row["outcome"], row["output_tokens"], row["lane"]) == ("completed", 160, "batch")
        assert row["amount_nanos"] == row["input_tokens"] * 50 + 160 * 200


async def test_a_second_organisation_ends_the_shared_prefix_cache_before_its_first_call(
    tmp_path: Path,
) -> None:
    """E6: the engine is drained and started again without it; the first key works on."""
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        [engine] = server.engines()
        assert "prefix_cache=True" in server.log_text()
        made = server.command_json("keys", "create", "--organisation", "other")
        assert not alive(engine)
        assert "prefix_cache=False" in server.log_text()
        for key in (server.key, made["key"]):
            body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
            assert (await post(server, key, body)).status == 200
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        assert "prefix_cache=False" in server.log_text().rsplit("engine_starting", 1)[1]
