"""`forebay top` beside a server that is answering: real processes, the scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.testing.rawhttp import RawClient
from tests.e2e.running import PROGRAM, Server, environment, eventually, forebay

SECRET = "a word that nobody else may read"
SLOW = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.02"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("top")
    with Server.start("--model", "scripted", data_dir=data_dir, env=SLOW) as server:
        yield server


def ask(max_tokens: int) -> dict[str, Any]:
    return {
        "model": "scripted",
        "stream": True,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": SECRET}],
    }


async def test_a_running_stream_is_seen_and_neither_its_prompt_nor_its_key(server: Server) -> None:
    made = server.command_json("keys", "create", "--project", "search")
    async with RawClient(server.host, server.port, made["key"]) as client:
        await client.post(ask(3))
    async with RawClient(server.host, server.port, made["key"]) as client:
        stream = asyncio.create_task(client.post(ask(2000)))
        await asyncio.sleep(2.5)  # the rate of tokens is that between two looks, a second apart
        done = server.command("top", "--once", "--json")
        text = server.command("top", "--once")
        stream.cancel()
    seen = json.loads(done.stdout)
    [call] = seen["calls"]
    assert (call["project"], call["lane"], call["state"]) == (
        "default/search",
        "interactive",
        "running",
    )
    assert call["output_tokens"] > 0
    assert seen["open_calls"] == 1
    [lane] = [row for row in seen["lanes"] if row["lane"] == "interactive"]
    assert (lane["model"], lane["waiting"], lane["running"]) == ("scripted", 0, 1)
    assert lane["output_tokens_per_second"] > 0
    assert lane["calls_per_minute"] == 1
    assert lane["ttft_p50_ms"] is not None
    assert float(seen["spent_today_usd"]) > 0
    assert "1 open call" in text.stdout
    assert "default/search" in text.stdout
    for output in (done.stdout, text.stdout):
        assert SECRET not in output
        assert made["key"] not in output
        assert server.key not in output


def test_on_a_terminal_it_watches_until_ctrl_c_and_that_is_no_failure(server: Server) -> None:
    own, its = pty.openpty()
    command = [PROGRAM, "top", "--data-dir", str(server.data_dir), "--interval", "0.2"]
    process = subprocess.Popen(
        command, env={**environment(), "TERM": "xterm"}, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    seen = b""
    try:

        def looked_at_twice() -> bool:
            nonlocal seen
            if select.select([own], [], [], 0)[0]:
                seen += os.read(own, 65_536)
            return seen.count(b"open call") >= 2

        eventually(looked_at_twice, what="two looks")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(own)


def test_without_a_server_it_says_so_and_how_to_start_one(tmp_path: Path) -> None:
    done = forebay("top", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert f"No server runs on {tmp_path}." in done.stderr
    assert "forebay up" in done.stderr
    assert done.stdout == ""
