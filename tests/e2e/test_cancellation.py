"""Clients that hang up, streamed or not, waiting or running: the work stops, the bill is exact.

Three independent records are compared per call: the ledger's row, the engine's own log of what it
had made when the cancel reached it, and the engine adapter's count of tokens received in frames
when the generation was stopped (logged at debug level).
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from forebay.gateway import control
from forebay.testing.rawhttp import Answer, Leave, RawClient
from tests.e2e import enginelog
from tests.e2e.running import Server, eventually

COUNT, AT_A_TIME = 500, 60


def received(server: Server) -> dict[str, int]:
    """Tokens in the frames that the worker had received when it stopped each call."""
    counts: dict[str, int] = {}
    for line in server.log_text().splitlines():
        if '"generation_stopped"' in line:
            event = json.loads(line)
            call_id = event["request_id"].split(".")[0]
            counts[call_id] = counts.get(call_id, 0) + event["received"]
    return counts


async def hang_ups(
    server: Server, model: str, count: int, at_a_time: int, rng: random.Random
) -> list[tuple[str, Answer]]:
    """Calls that all leave early: after some events or some time, most while they run."""
    numbers = iter(range(count))
    seen: list[tuple[str, Answer]] = []

    async def lane() -> None:
        for number in numbers:
            client = RawClient(server.host, server.port, server.key)
            stream = rng.random() < 0.6
            canary = f"canary-{number:04d}"
            body: dict[str, Any] = {
                "model": model,
                "stream": stream,
                "max_tokens": 400,
                "ignore_eos": True,
                "messages": [{"role": "user", "content": f"{canary} [[script length=390]]"}],
            }
            if stream and rng.random() < 0.6:
                leave = Leave(events=rng.randint(1, 30))
            else:
                leave = Leave(seconds=rng.choice((0.0, 0.005, 0.05, 0.2, 0.5)) + rng.random() / 50)
            async with client:
                answer = await client.post(body, leave)
            assert not answer.complete
            seen.append((canary, answer))

    await asyncio.gather(*(lane() for _ in range(at_a_time)))
    return seen


def nothing_is_left(server: Server) -> None:
    """No call, hold, lease or engine work is left."""

    def quiet() -> bool:
        status = asyncio.run(control.call(server.data_dir / "control.sock", "status"))
        idle = all(engine["running"] == 0 for engine in status["engines"])
        return idle and status["open_calls"] == 0 and not any(status["waiting"].values())

    eventually(quiet, what="calls, leases or engine work are left")
    for key in server.command_json("keys", "list"):
        assert key["open_calls"] == 0
        assert key["pending_usd"] == "0.00"


async def test_five_hundred_disconnects_are_billed_to_the_token(tmp_path: Path) -> None:
    """L8, E1, A3: 500 hang-ups against 32 slots, so that many leave while they wait."""
    log = tmp_path / "engine.jsonl"
    env = {
        "FOREBAY_SCRIPTED__STEP_SECONDS": "0.01",
        "FOREBAY_SCRIPTED__LOG_PATH": str(log),
        "FOREBAY_LOG_LEVEL": "debug",
        "FOREBAY_LOG_FORMAT": "json",
    }
    with Server.start("--model", "scripted", data_dir=tmp_path / "data", env=env) as server:
        rng = random.Random(7)
        seen = await hang_ups(server, "scripted", COUNT, AT_A_TIME, rng)
        assert len(seen) == COUNT
        await asyncio.to_thread(nothing_is_left, server)
        rows = {row["call_id"]: row for row in server.usage()}
        stopped = received(server)
    made = enginelog.read(log)
    running = waiting = 0
    for call_id, row in rows.items():
        assert row["outcome"] in ("cancelled", "completed"), row
        work = made.of(call_id)
        if not work:
            waiting += 1
            assert (row["output_tokens"], row["amount_nanos"]) == (0, 0)
            continue
        if row["outcome"] == "completed":
            continue  # it left while its last tokens were on their way
        running += 1
        assert row["output_tokens"] == stopped[call_id]
        limit = sum(each.cancelled_at or 0 for each in work)
        assert row["output_tokens"] <= limit
        assert limit - row["output_tokens"] <= 2 * len(
            work
        )  # at most a step and what was on its way
    assert running > 200
    assert waiting > 20
    by_id = {answer.request_id: answer for _, answer in seen if answer.request_id}
    for call_id, answer in by_id.items():
        if call_id in rows and rows[call_id]["outcome"] == "cancelled":
            assert rows[call_id]["output_tokens"] >= answer.events


async def test_a_hundred_disconnects_leave_the_real_engine_idle(real: Server) -> None:
    before = len(real.usage())
    seen = await hang_ups(real, "small", 100, 40, random.Random(3))
    await asyncio.to_thread(nothing_is_left, real)
    rows = {row["call_id"]: row for row in real.usage()[: len(real.usage()) - before]}
    for _, answer in seen:
        row = rows.get(answer.request_id)
        if row is not None and row["outcome"] == "cancelled":
            assert row["output_tokens"] >= answer.events
    assert sum(row["outcome"] == "cancelled" for row in rows.values()) > 50
