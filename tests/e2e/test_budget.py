"""A cap that cannot be overrun, over real sockets and SQLite (L2, L15, line by line with the bill)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forebay.core.money import format_usd
from forebay.testing.rawhttp import Answer, RawClient
from tests.e2e.running import Server

OUTPUT = 20


def ask(script: str) -> dict[str, Any]:
    return {
        "model": "scripted",
        "max_tokens": OUTPUT,
        "messages": [{"role": "user", "content": f"[[script {script}]]"}],
    }


async def parallel(server: Server, key: str, body: dict[str, Any], count: int) -> list[Answer]:
    clients = [RawClient(server.host, server.port, key) for _ in range(count)]
    answers = await asyncio.gather(*(client.post(body) for client in clients))
    for client in clients:
        await client.close()
    return answers


@pytest.fixture
def server(tmp_path: Path):
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.005"}
    with Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server:
        yield server


async def hold_of(server: Server, body: dict[str, Any]) -> int:
    """What one such call costs when all its output is made: equal to its hold."""
    [answer] = await parallel(server, server.key, body, 1)
    assert answer.status == 200
    row = next(r for r in server.usage() if r["call_id"] == answer.request_id)
    assert row["output_tokens"] == OUTPUT
    return int(row["amount_nanos"])


def key_with(server: Server, cap_nanos: int) -> dict[str, Any]:
    usd = format_usd(cap_nanos)
    made = server.command_json("keys", "create", "--name", usd, "--monthly-budget", usd)
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize("affordable", [7, 0, 1])
async def test_fifty_at_once_get_exactly_what_the_cap_affords(server, affordable):
    body = ask("length=1000")
    hold = await hold_of(server, body)
    key = key_with(server, affordable * hold + hold - 1)
    answers = await parallel(server, key["key"], body, 50)
    granted = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    assert (len(granted), len(refused)) == (affordable, 50 - affordable)
    for answer in refused:
        assert answer.json()["error"]["code"] == "insufficient_quota"
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
    [listed] = [k for k in server.command_json("keys", "list") if k["id"] == key["id"]]
    assert listed["spent_usd"] == format_usd(affordable * hold)
    assert listed["pending_usd"] == "0.00"
    assert listed["open_calls"] == 0


async def test_calls_that_stop_half_way_never_carry_the_sum_over_the_cap(server):
    """That each single refusal was right is asserted by the simulation at its very moment."""
    hold = await hold_of(server, ask("length=1000"))
    half = ask(f"length={OUTPUT // 2}")
    cap = 7 * hold + hold - 1
    key = key_with(server, cap)
    granted = 12
    while granted:
        answers = await parallel(server, key["key"], half, 12)
        assert {answer.status for answer in answers} <= {200, 429}
        granted = sum(answer.status == 200 for answer in answers)
        mine = [row["amount_nanos"] for row in server.usage() if row["key_id"] == key["id"]]
        assert sum(mine) <= cap
    # Nothing is pending now, so the last refusals came from what was really spent.
    assert sum(mine) + hold > cap
