"""Two thousand calls at once against a budget for exactly k: exactly k run (L2, L1, L15).

Real server, sockets and SQLite. Every call asks for a fixed number of tokens and the engine makes
exactly that many, so each costs its whole hold and a budget of k holds affords k calls: not one
more under any interleaving, and not one fewer.

The cap stands at the key, at the project (several keys share it) or at the organisation (several
projects with several keys share it).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.core.money import format_usd
from forebay.testing.rawhttp import Answer, RawClient
from tests.e2e import enginelog
from tests.e2e.running import Server

CALLS, OUTPUT = 2000, 4
LEVELS = ("key", "project", "organisation")


def ask(content: str) -> dict[str, Any]:
    return {
        "model": "scripted",
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": content}],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exactly")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """Nothing but money refuses: the queue takes all calls, and as long as they need."""
    wide = {"id": "scripted", "max_sequences": 512, "kv_tokens": 1 << 20}
    env = {
        "FOREBAY_MODELS": json.dumps([wide]),
        "FOREBAY_SCRIPTED__STEP_SECONDS": "0.005",
        "FOREBAY_SCRIPTED__LOG_PATH": str(folder / "engine.jsonl"),
        "FOREBAY_QUEUE__FLOW_JOBS": str(2 * CALLS),
        "FOREBAY_QUEUE__LANE_JOBS": str(2 * CALLS),
        "FOREBAY_ADMISSION__INTERACTIVE_DEADLINE_SECONDS": "3600",
        "FOREBAY_LOG_LEVEL": "warning",
    }
    with Server.start("--model", "scripted", data_dir=folder / "data", env=env) as server:
        yield server
        assert server.stop() == 0


async def burst(server: Server, secrets: list[str], content: str) -> list[Answer]:
    """All connections are open before the first call is sent."""
    keys = itertools.islice(itertools.cycle(secrets), CALLS)
    clients = [RawClient(server.host, server.port, key) for key in keys]
    for client in clients:
        await client.connect()
    answers = await asyncio.gather(*(client.post(ask(content)) for client in clients))
    await asyncio.gather(*(client.close() for client in clients))
    return answers


async def capped(server: Server, level: str, name: str, cap: str) -> list[str]:
    """Keys of a new organisation whose cap stands at this level alone."""
    projects = ["one", "two"] if level == "organisation" else ["one"]
    each = 1 if level == "key" else 2
    secrets = []
    for project, number in itertools.product(projects, range(each)):
        request = {"name": f"{name}-{number}", "organisation": name, "project": project}
        if level == "key":
            request["monthly_budget_usd"] = cap
        secrets.append((await server.ask("keys.create", request=request))["key"])
    if level != "key":
        scope = {"project": "one"} if level == "project" else {}
        await server.ask("budgets.set", organisation=name, budget_usd=cap, **scope)
    return secrets


async def standings(server: Server, name: str) -> list[dict[str, Any]]:
    """The organisation, its projects and its keys."""
    rows = [*await server.ask("budgets.list"), *await server.ask("keys.list")]
    return [row for row in rows if row["organisation"] == name]


def refusals_are_right(answers: list[Answer]) -> bool:
    return all(
        answer.json()["error"]["code"] == "insufficient_quota"
        and answer.headers["x-should-retry"] == "false"
        and "retry-after" not in answer.headers
        for answer in answers
    )


@pytest.mark.parametrize("affordable", [0, 1, 7, 500])
@pytest.mark.parametrize("level", LEVELS)
async def test_two_thousand_calls_at_once_run_exactly_as_often_as_the_budget_affords(
    server: Server, folder: Path, level: str, affordable: int
) -> None:
    """L2, L1, L15."""
    name = f"{level}-{affordable:03d}"
    async with RawClient(server.host, server.port, server.key) as client:
        first = await client.post(ask(f"{name}!"))  # as long as what is asked below
    [row] = await server.ask("usage", call_id=first.request_id)
    assert row["output_tokens"] == OUTPUT
    cap = format_usd(affordable * row["amount_nanos"])
    secrets = await capped(server, level, name, cap)
    answers = await burst(server, secrets, f"{name}?")
    statuses = Counter(answer.status for answer in answers)
    assert statuses == Counter({200: affordable, 429: CALLS - affordable})
    assert refusals_are_right([answer for answer in answers if answer.status == 429])
    log = enginelog.read(folder / "engine.jsonl")
    made = [each.made for each in log.work if f"{name}?" in each.prompt]
    assert made == [OUTPUT] * affordable
    rows = await standings(server, name)
    assert {(row["pending_usd"], row["open_calls"]) for row in rows} == {("0.00", 0)}
    assert [row["spent_usd"] for row in rows if row["budget_usd"] is not None] == [cap]
