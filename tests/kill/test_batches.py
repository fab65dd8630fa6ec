"""A batch whose server is killed over and over, and whose engine crashes in one of twenty lines.

In the end every custom_id has exactly one outcome; what was billed is what was settled, and is the usage
that the output file tells; nothing else of the batch was charged, and no hold is left (B11, B12).

`--batch-kills` says how many (4; `make kill` does 200), and there are fifty lines for each.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from forebay.core.usage import Outcome, UsageRow
from tests.e2e import enginelog
from tests.e2e.running import Server
from tests.kill import books

LINES_PER_KILL = 50
# About a second for a line, so that most kills strike while some are running.
STEP_SECONDS, LENGTHS = 0.04, (10, 40)
MOST_SECONDS = 2.0
CRASHING = 0.05


def content(rng: random.Random, count: int) -> bytes:
    """So many lines; some of them crash the engine, once, in the middle of their output."""
    found = []
    for number in range(count):
        length = rng.randint(*LENGTHS)
        crash = f" crash_at={rng.randint(1, length - 1)}" if rng.random() < CRASHING else ""
        said = f"Go {number}. [[script length={length}{crash}]]"
        body = {"model": "scripted", "messages": [{"role": "user", "content": said}]}
        url, custom_id = "/v1/chat/completions", f"line-{number}"
        found.append({"custom_id": custom_id, "method": "POST", "url": url, "body": body})
    return b"\n".join(json.dumps(each).encode() for each in found)


class Siege:
    """One data directory, one batch."""

    def __init__(self, data_dir: Path, kills: int) -> None:
        self.data_dir = data_dir
        self.kills = kills
        self.rng = random.Random(29)
        self.lines = kills * LINES_PER_KILL
        self.id = ""
        self.made: Counter[str] = Counter()
        self.under_way = 0

    def start(self) -> Server:
        log = self.data_dir.parent / "engine.jsonl"
        env = {
            "FOREBAY_SCRIPTED__STEP_SECONDS": str(STEP_SECONDS),
            "FOREBAY_SCRIPTED__LOG_PATH": str(log),
        }
        return Server.start("--model", "scripted", data_dir=self.data_dir, env=env)

    async def order(self, server: Server) -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key=server.key) as client:
            name = ("lines.jsonl", content(self.rng, self.lines))
            file = await client.files.create(file=name, purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            self.id = batch.id

    async def batch(self, server: Server) -> Batch:
        async with AsyncOpenAI(base_url=server.base_url, api_key=server.key) as client:
            return await client.batches.retrieve(self.id)

    async def round(self) -> None:
        """Start it, let it run for a moment, kill it."""
        with self.start() as server:
            if not self.id:
                await self.order(server)
            await asyncio.sleep(self.rng.uniform(0.02, MOST_SECONDS))
            self.under_way += (await self.batch(server)).status == "in_progress"
            server.kill()
        log = self.data_dir.parent / "engine.jsonl"
        if log.exists():
            for work in enginelog.read(log).work:
                self.made[work.call_id] += work.made
            log.unlink()
        assert books.audit(self.data_dir).faults == []

    async def to_its_end(self) -> tuple[Batch, list[dict[str, Any]], list[dict[str, Any]]]:
        with self.start() as server:
            while not (batch := await self.batch(server)).completed_at:
                assert batch.status in ("in_progress", "finalizing", "completed"), batch
                await asyncio.sleep(0.5)
            async with AsyncOpenAI(base_url=server.base_url, api_key=server.key) as client:
                files = [batch.output_file_id, batch.error_file_id]
                told = [[] if id is None else lines(await client.files.content(id)) for id in files]
            for command in (("audit", "verify"), ("reconcile",)):
                done = server.command(*command)
                assert done.returncode == 0, done.stderr
            assert server.stop() == 0
        log = self.data_dir.parent / "engine.jsonl"
        for work in enginelog.read(log).work:
            self.made[work.call_id] += work.made
        return batch, told[0], told[1]


def lines(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.timeout(3600)
async def test_no_kill_and_no_crash_loses_or_doubles_a_line(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """B3, B4, B11, B12."""
    siege = Siege(tmp_path / "data", pytestconfig.getoption("--batch-kills"))
    for _ in range(siege.kills):
        await siege.round()
    batch, answers, errors = await siege.to_its_end()
    told = [each["custom_id"] for each in (*answers, *errors)]
    assert sorted(told) == sorted(f"line-{number}" for number in range(siege.lines))
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (
        siege.lines,
        len(answers),
        len(errors),
    )
    found = books.audit(siege.data_dir)
    assert (found.faults, found.holds) == ([], [])
    check_bills(siege, batch, answers, found.rows)
    reasons = Counter(row.reason for row in found.rows)
    print(f"{siege.kills} kills, {siege.under_way} of them while it ran: {dict(reasons)}")
    attempts = Counter(min(row.attempt, 5) for row in found.rows)
    print(f"{len(answers)} answers, {len(errors)} errors, attempts {dict(attempts)}")
    assert siege.under_way > siege.kills / 2
    assert attempts[1] < len(found.rows)  # some were gone on with
    assert len(errors) < siege.lines / 50


def check_bills(
    siege: Siege, batch: Batch, answers: list[dict[str, Any]], found: list[UsageRow]
) -> None:
    """Σ billed = Σ settled = Σ usage in the output file, line by line."""
    rows = {row.call_id: row for row in found}
    billed = told = 0
    for answer in answers:
        row, usage = rows.pop(answer["id"]), answer["response"]["body"]["usage"]
        assert row.outcome is Outcome.COMPLETED, row
        assert row.amount_nanos > 0, row
        assert row.usage.input_tokens == usage["prompt_tokens"]
        assert row.usage.output_tokens == usage["completion_tokens"]
        assert row.usage.output_tokens <= siege.made[row.call_id], "L8"
        billed += row.amount_nanos
        told += usage["total_tokens"]
    assert all(row.amount_nanos == 0 for row in rows.values()), "B11: charged without an answer"
    assert batch.usage is not None
    assert batch.usage.total_tokens == told
    amount = batch.model_extra["cost"]["amount_usd"] if batch.model_extra else "0"
    assert round(float(amount) * 1e9) == billed
