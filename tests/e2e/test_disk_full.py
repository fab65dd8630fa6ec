"""A disk without room, made by a limit on the server's files, and room again."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

from forebay.testing.rawhttp import Answer, Leave, RawClient
from tests.e2e.running import Server, eventually
from tests.e2e.test_kill import check_files

ENV = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.02"}


def room(server: Server, is_there: bool) -> None:
    """Whether a write to any file of the server succeeds, its log included."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    soft = resource.RLIM_INFINITY if is_there else 0
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))


async def call(server: Server, max_tokens: int, leave: Leave | None = None, **more: Any) -> Answer:
    body = {
        "model": "scripted",
        "stream": True,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "hi"}],
        **more,
    }
    async with RawClient(server.host, server.port, server.key) as client:
        return await client.post(body, leave)


async def test_a_full_disk_refuses_calls_and_loses_no_bill(tmp_path: Path) -> None:
    """L4, L13: what cannot be stored before its client is told is free; who left pays later, once."""
    with Server.start("--model", "scripted", data_dir=tmp_path, env=ENV) as server:
        warm = await call(server, 3)
        ends = asyncio.create_task(call(server, 60))
        leaves = asyncio.create_task(call(server, 2000, Leave(seconds=1.5)))
        await asyncio.sleep(0.8)
        room(server, False)
        refused = await call(server, 10, stream=False)
        assert refused.status == 503
        assert refused.json()["error"]["code"] == "store_unavailable"
        assert "retry-after" in refused.headers
        ended, left = await ends, await leaves
        assert b'"code":"store_unavailable"' in ended.body
        assert b"data: [DONE]" in ended.body
        assert left.events > 10
        # Reading goes on: who may call what, and what was charged until now.
        assert [row["call_id"] for row in server.usage()] == [warm.request_id]
        await asyncio.sleep(1.0)
        room(server, True)
        eventually(lambda: len(server.usage()) == 3, what="the bills are stored")
        rows = {row["call_id"]: row for row in server.usage()}
        free, paid = rows[ended.request_id], rows[left.request_id]
        assert (free["outcome"], free["amount_nanos"]) == ("failed", 0)
        assert paid["outcome"] == "cancelled"
        assert paid["output_tokens"] >= left.events
        assert paid["amount_nanos"] > 0
        assert (await call(server, 5)).complete
        for key in server.command_json("keys", "list"):
            assert (key["open_calls"], key["pending_usd"]) == (0, "0.00")
        assert server.stop() == 0
    check_files(tmp_path)


def test_a_server_cannot_start_on_a_full_disk_and_starts_when_there_is_room(tmp_path: Path) -> None:
    with Server.start("--model", "scripted", data_dir=tmp_path, env=ENV) as server:
        assert server.stop() == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        refused = server.command("keys", "create")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    with Server.start("--model", "scripted", data_dir=tmp_path, env=ENV) as server:
        assert server.stop() == 0
    check_files(tmp_path)
