"""`kill -9` and SIGSTOP of a real server in the middle of its work."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from forebay.testing.rawhttp import Answer, RawClient
from tests.e2e import enginelog
from tests.e2e.running import Server, alive, eventually

ROUNDS, STREAMS = 10, 20
STEP_SECONDS = 0.02


def check_files(data_dir: Path) -> None:
    """Both stores are sound."""
    ledger = apsw.Connection(str(data_dir / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    ledger.close()
    rest = sqlite3.connect(data_dir / "forebay.db")
    assert rest.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    rest.close()


def all_gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def ask(content: str, max_tokens: int, *, stream: bool, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {
        "model": "scripted",
        "stream": stream,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": messages,
        **more,
    }


async def call(server: Server, body: dict[str, Any]) -> Answer:
    async with RawClient(server.host, server.port, server.key) as client:
        return await client.post(body)


async def under_load(server: Server, seconds: float) -> list[Answer]:
    """Twenty calls at a time, a third of them not streamed, until the server is killed."""
    rng = random.Random(seconds)

    async def lane(number: int) -> list[Answer]:
        answers: list[Answer] = []
        async with RawClient(server.host, server.port, server.key) as client:
            while not answers or answers[-1].complete:
                content = f"{rng.random()}"
                try:
                    answers.append(await client.post(ask(content, 200, stream=number % 3 > 0)))
                except OSError:
                    return answers
        return answers

    lanes = asyncio.gather(*(lane(number) for number in range(STREAMS)))
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.kill)
    return [answer for answers in await lanes for answer in answers]


async def test_ten_kills_under_twenty_streams_falsify_no_bill(tmp_path: Path) -> None:
    """L4, L8, L13: per call billed <= made; streamed >= read minus the beat; not streamed: free."""
    data, log = tmp_path / "data", tmp_path / "engine.jsonl"
    env = {
        "FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS),
        "FOREBAY_SCRIPTED__LOG_PATH": str(log),
    }
    moments = random.Random(11)
    answers: list[Answer] = []
    for _ in range(ROUNDS):
        server = Server.start("--model", "scripted", data_dir=data, env=env)
        try:
            engines = server.engines()
            assert engines
            answers += await under_load(server, moments.uniform(0.6, 2.6))
            killed_at = time.monotonic()
            eventually(partial(all_gone, engines), 5, "the engine outlived its parent")
            assert time.monotonic() - killed_at < 1.0
        finally:
            server.close()
        check_files(data)
    with Server.start("--model", "scripted", data_dir=data, env=env) as server:
        rows = {row["call_id"]: row for row in server.usage()}
        for key in server.command_json("keys", "list"):
            assert (key["open_calls"], key["pending_usd"]) == (0, "0.00")
        assert server.stop() == 0
    check_files(data)
    made = enginelog.read(log)
    for call_id, row in rows.items():
        assert row["output_tokens"] <= made.made(call_id) or row["amount_nanos"] == 0
    broken = [answer for answer in answers if answer.request_id and not answer.complete]
    streamed = [answer for answer in broken if answer.events]
    assert len(streamed) > ROUNDS * 3
    for answer in streamed:
        row = rows[answer.request_id]
        # The watermark is written once a second; a step makes one token of each call.
        assert row["output_tokens"] >= answer.events - 1.5 / STEP_SECONDS
    complete = [answer for answer in answers if answer.complete]
    for answer in complete:
        assert rows[answer.request_id]["outcome"] == "completed"
        assert rows[answer.request_id]["output_tokens"] == 200
    resolved_by_sweep = [row for row in rows.values() if row["reason"] == "owner_died"]
    assert resolved_by_sweep
    shown = {answer.request_id for answer in answers}
    for row in rows.values():
        if row["call_id"] not in shown and row["outcome"] != "completed":
            continue  # not streamed and killed, or killed before its head: the client knows no id
        assert row["outcome"] in ("completed", "cancelled", "failed")


async def test_calls_that_are_not_streamed_cost_nothing_when_the_server_dies(
    tmp_path: Path,
) -> None:
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS)}
    server = Server.start("--model", "scripted", data_dir=tmp_path, env=env)
    try:
        body = ask("hi", 400, stream=False)
        calls = asyncio.gather(*(call(server, body) for _ in range(8)))
        await asyncio.sleep(2.5)  # two beats and more
        await asyncio.to_thread(server.kill)
        await calls
    finally:
        server.close()
    with Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server:
        rows = server.usage()
        assert len(rows) == 8
        assert {(row["outcome"], row["amount_nanos"]) for row in rows} == {("failed", 0)}


async def test_a_server_that_was_stopped_for_a_while_goes_on_as_if_nothing_happened(
    tmp_path: Path,
) -> None:
    """SIGSTOP for longer than every deadline of liveness (10 s): nobody is declared dead."""
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.05"}
    with Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server:
        # A seed with a temperature cannot be resumed: any false alarm would end it with an error.
        bodies = [ask(f"{n}", 500, stream=n % 2 == 0, seed=7, temperature=1) for n in range(6)]
        calls = asyncio.gather(*(call(server, body) for body in bodies))
        await asyncio.sleep(1.5)
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(17)
        server.signal(signal.SIGCONT)
        answers = await calls
        assert all(answer.complete and answer.status == 200 for answer in answers)
        rows = server.usage()
        assert {(row["outcome"], row["output_tokens"]) for row in rows} == {("completed", 500)}
