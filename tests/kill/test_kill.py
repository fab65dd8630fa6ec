"""`kill -9` at random moments, under load and while it starts, over and over on one data directory.

After each kill both files are sound, and the books are audited from outside. After each restart no
hold of an earlier process is left, and the server's own `audit verify` and `reconcile` find nothing.
In the end, per call: who saw the end of an answer finds it
charged (L13); whoever was charged got it from the engine (L8, by the engine's own log); a call that
was not streamed and did not end is free; nothing is resolved twice or never (L4). A fourth of the calls are
turns of a few conversations, which hold what was settled and nothing else (`dialogues.py`). Responses in
the background go on after each kill, and whoever reads them is told the same (`errands.py`).

`--kills` says how many (20; `make kill` does 200).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from forebay.core.usage import Outcome, UsageRow
from forebay.testing.rawhttp import Answer, Leave, RawClient
from forebay.testing.wishes import wish
from tests.e2e import enginelog
from tests.e2e.running import Server, alive, eventually, spawn
from tests.kill import books, dialogues
from tests.kill.errands import Errands

LANES, STEP_SECONDS = 24, 0.01
# A start takes about a second, on a busy machine two.
START_SECONDS = 2.0
# Two beats: streams that were read for longer than one have a watermark.
MOST_SECONDS = 2.2
CONVERSATIONS = 3
ORGANISATIONS = ("default", "second", "poor")


@dataclass
class World:
    """All that is known of the calls from outside, over all rounds."""

    data_dir: Path
    rng: random.Random
    keys: list[str] = field(default_factory=list)
    conversations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    answers: list[Answer] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    kills: Counter[str] = field(default_factory=Counter)
    errands: Errands = field(default_factory=lambda: Errands(random.Random(24)))

    def environment(self) -> dict[str, str]:
        number = self.kills.total()
        return {
            "FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS),
            "FOREBAY_SCRIPTED__LOG_PATH": str(self.data_dir.parent / f"engine-{number}.jsonl"),
        }

    def killed(self, when: str) -> None:
        """Count what the engine of this round made, then forget its log; the next round begins."""
        path = Path(self.environment()["FOREBAY_SCRIPTED__LOG_PATH"])
        if path.exists():
            for work in enginelog.read(path).work:
                self.made[work.call_id] += work.made
            path.unlink()
        self.kills[when] += 1

    def start(self) -> Server:
        return Server.start("--model", "scripted", data_dir=self.data_dir, env=self.environment())

    def wish(self, key: str) -> tuple[dict[str, Any], Leave]:
        """One call; now and then a turn, or one that takes the whole engine down."""
        body, leave = wish(self.rng, "scripted")
        if self.rng.random() < 0.25:
            body |= {"conversation": self.rng.choice(self.conversations[key]), "n": 1}
        if self.rng.random() < 0.005:
            body["messages"][0]["content"] += " [[script crash_at=3]]"
        return body, leave


async def make_keys(world: World, server: Server) -> None:
    """Two organisations that may spend, and one that cannot afford much."""
    for name in ORGANISATIONS:
        made = await server.ask("keys.create", request={"organisation": name})
        key = made["key"]
        world.keys.append(key)
        async with AsyncOpenAI(base_url=server.base_url, api_key=key) as client:
            for _ in range(CONVERSATIONS):
                world.conversations[key].append((await client.conversations.create()).id)
    await server.ask("budgets.set", organisation="poor", budget_usd="0.0005")


async def nothing_is_left_of_the_dead(server: Server, adopted: int) -> None:
    """No hold is older than the sweep: at the start of a server all that are left are swept, but for
    those it goes on with. Its own audit finds what ours finds of the files: nothing."""
    keys = await server.ask("keys.list")
    assert sum(row["open_calls"] for row in keys) <= adopted, keys
    for row in keys:
        assert (row["open_calls"] == 0) == (row["pending_usd"] == "0.00"), row
    assert (await server.ask("audit.verify"))["first_break"] is None
    assert (await server.ask("reconcile"))["differences"] == []


async def load_until_killed(world: World, server: Server, seconds: float) -> None:
    async def lane(number: int) -> None:
        key = world.keys[number % len(world.keys)]
        async with RawClient(server.host, server.port, key) as client:
            while server.process.poll() is None:
                body, leave = world.wish(key)
                try:
                    answer = await client.post(body, leave)
                except OSError:
                    return
                world.answers.append(answer)
                if answer.status in (409, 429):
                    await asyncio.sleep(0.05)

    errands = (world.errands.run(server, key) for key in world.keys)
    lanes = asyncio.gather(*(lane(number) for number in range(LANES)), *errands)
    await asyncio.sleep(seconds)
    server.kill()
    await lanes


async def kill_under_load(world: World) -> None:
    adopted = world.errands.pending(world.data_dir) if world.keys else 0
    server = world.start()
    try:
        await nothing_is_left_of_the_dead(server, adopted)
        if not world.keys:
            await make_keys(world, server)
        engines = server.engines()
        await load_until_killed(world, server, world.rng.uniform(0.02, MOST_SECONDS))
        eventually(lambda: not any(map(alive, engines)), 5, "the engine outlived its parent")
    finally:
        server.close()
    world.killed("under load")


def kill_at_start(world: World) -> None:
    """Somewhere between the first line of Python and the first call."""
    log = world.data_dir / "server.log"
    process = spawn(
        "--json", "--model", "scripted", data_dir=world.data_dir, env=world.environment(), log=log
    )
    server = Server(process, world.data_dir, log)
    try:
        time.sleep(world.rng.uniform(0.0, START_SECONDS))
        assert process.poll() is None, server.log_text()
        server.kill()
    finally:
        server.close()
    world.killed("at the start")


def check_bills(world: World, rows: dict[str, UsageRow]) -> None:
    for row in rows.values():
        if row.amount_nanos:
            # An engine that was told of a cancel before it had looked at the call logs nothing: its
            # prompt is charged, and no token.
            assert row.usage.output_tokens <= world.made.get(row.call_id, 0), row
            assert row.outcome is not Outcome.FAILED, row
    for answer in world.answers:
        row = rows.get(answer.request_id)
        if answer.status != 200:
            assert row is None or row.amount_nanos == 0, row
        elif row is None:
            raise AssertionError(f"{answer.request_id} began and was never resolved")
        elif answer.complete and b'"error":' not in answer.body:
            assert row.outcome is Outcome.COMPLETED, row
            assert row.amount_nanos > 0, row


@pytest.mark.timeout(3600)
async def test_no_kill_at_any_moment_falsifies_the_books(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """L1, L3, L4, L5, L8, L11, L13, L15."""
    world = World(tmp_path / "data", random.Random(23))
    while world.kills.total() < pytestconfig.getoption("--kills"):
        if world.keys and world.rng.random() < 0.25:
            kill_at_start(world)
        else:
            await kill_under_load(world)
        found = books.audit(world.data_dir)
        assert found.faults == []
    adopted = world.errands.pending(world.data_dir)
    with world.start() as server:
        await nothing_is_left_of_the_dead(server, adopted)
        states = await world.errands.finish(server)
        for command in (("audit", "verify"), ("reconcile",)):
            done = server.command(*command)
            assert done.returncode == 0, done.stderr
        assert server.stop() == 0
    found = books.audit(world.data_dir)
    assert (found.faults, found.holds) == ([], [])
    rows = {row.call_id: row for row in found.rows}
    world.killed("at the end")
    check_bills(world, rows)
    world.errands.check(rows)
    turns = dialogues.check(world.data_dir, rows, world.answers)
    reasons = Counter(row.reason for row in found.rows)
    outcomes = Counter(row.outcome for row in found.rows)
    print(f"{dict(world.kills)}: {len(found.rows)} calls, {dict(outcomes)}, {dict(reasons)}")
    print(f"{dict(states)} in the background")
    print(f"{turns} turns of {sum(map(len, world.conversations.values()))} conversations")
    assert states["completed"] + states["incomplete"] > world.kills["under load"]
    assert turns > world.kills["under load"]
    assert reasons["owner_died"] > world.kills["under load"]
