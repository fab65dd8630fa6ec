"""Ctrl-C twice: answers are broken off, their clients are told, and nobody pays for it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from forebay.testing.rawhttp import Answer, RawClient
from tests.e2e.running import Server


async def ask(server: Server, *, stream: bool) -> Answer:
    body = {
        "model": "scripted",
        "stream": stream,
        "max_tokens": 2000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with RawClient(server.host, server.port, server.key) as client:
        return await client.post(body)


async def test_the_second_ctrl_c_is_told_to_clients_and_free(tmp_path: Path) -> None:
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        streamed = asyncio.create_task(ask(server, stream=True))
        whole = asyncio.create_task(ask(server, stream=False))
        await asyncio.sleep(1.0)
        server.signal(signal.SIGINT)
        await asyncio.sleep(0.5)
        server.signal(signal.SIGINT)
        assert await asyncio.to_thread(server.wait) == 0
        stream_end = (await streamed).body
        answer = await whole
        log = server.log_text()
    assert b'"code":"server_shutdown"' in stream_end
    assert b"data: [DONE]" in stream_end
    assert answer.status == 503
    assert answer.json()["error"]["code"] == "server_shutdown"
    assert answer.request_id
    assert "0 finished, 2 broken off, 0 holds open, bye" in log
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        rows = server.usage()
    assert {(row["outcome"], row["reason"], row["amount_nanos"]) for row in rows} == {
        ("failed", "server_shutdown", 0)
    }
