"""What the batch lane promises, on a real server: fair between projects, stopped and gone on with, cut
off by a budget, a cancel or the end of its time, and never in the way of anybody else's files.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types import Batch

from tests.e2e.running import Server
from tests.kill import books

SLOW = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.02"}
CHAT = "/v1/chat/completions"


def content(count: int, said: str = "Go {}. [[script length=20]]") -> bytes:
    """So many lines; `{}` is the number."""
    bodies = (
        {"model": "scripted", "messages": [{"role": "user", "content": said.format(number)}]}
        for number in range(count)
    )
    lines = (
        {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
        for number, body in enumerate(bodies)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class Patron:
    """One key's view of the API."""

    def __init__(self, server: Server, key: str) -> None:
        self.client = AsyncOpenAI(base_url=server.base_url, api_key=key)

    async def __aenter__(self) -> Patron:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def order(self, lines: bytes, window: Any = "24h") -> Batch:
        file = await self.client.files.create(file=("in.jsonl", lines), purpose="batch")
        return await self.client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window=window
        )

    async def until(self, batch: Batch, *states: str, done: int = 0) -> Batch:
        """It is in one of these states, or so many lines are done."""
        deadline = time.monotonic() + 120
        while True:
            found = await self.client.batches.retrieve(batch.id)
            assert time.monotonic() < deadline, found
            assert found.request_counts is not None
            if found.status in states or (done and found.request_counts.completed >= done):
                return found
            assert found.status != "failed", found.errors
            await asyncio.sleep(0.05)

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        answer = await self.client.files.content(file_id)
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server.start("--model", "scripted", data_dir=tmp_path / "data", env=SLOW) as server:
        yield server


async def key_of(server: Server, project: str, organisation: str = "default") -> str:
    request = {"organisation": organisation, "project": project}
    return str((await server.ask("keys.create", request=request))["key"])


async def test_ten_lines_are_done_before_a_hundred_more_of_five_thousand(server: Server) -> None:
    """Q8: two projects, submitted in that order."""
    keys = [await key_of(server, name) for name in ("large", "small")]
    async with Patron(server, keys[0]) as large, Patron(server, keys[1]) as small:
        many = await large.order(content(5_000))
        await large.until(many, done=40)
        few = await small.until(await small.order(content(10)), "completed")
        assert few.request_counts is not None
        assert few.request_counts.completed == 10
        await large.client.batches.cancel(many.id)
        await large.until(many, "cancelled")
    assert server.stop() == 0
    rows = books.audit(server.data_dir).rows
    theirs = [row for row in rows if few.id.removeprefix("batch_") in row.call_id]
    others = [row for row in rows if many.id.removeprefix("batch_") in row.call_id]
    ended_at = max(row.resolved_at for row in theirs)
    meanwhile = [r for r in others if few.created_at + 1 < r.resolved_at <= ended_at]
    assert len(theirs) == 10
    assert len(meanwhile) < 100


async def test_a_cancel_stops_it_and_keeps_what_is_done(server: Server) -> None:
    """B14."""
    async with Patron(server, server.key) as patron:
        batch = await patron.order(content(500))
        await patron.until(batch, done=30)
        assert (await patron.client.batches.cancel(batch.id)).status == "cancelling"
        ended = await patron.until(batch, "cancelled")
        answers = await patron.lines(ended.output_file_id)
        errors = await patron.lines(ended.error_file_id)
        assert ended.cancelled_at is not None
        assert ended.cancelling_at is not None
        assert 30 <= len(answers) < 500
        assert len(answers) + len(errors) == 500
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        rows = {row["call_id"]: row for row in server.usage()}
        paid = {id_ for id_, row in rows.items() if row["amount_usd"] != "0.00"}
        assert paid == {each["id"] for each in answers}


async def test_a_batch_that_has_no_more_time_expires_with_what_is_done(tmp_path: Path) -> None:
    """B14."""
    env = {**SLOW, "FOREBAY_BATCH__COMPLETION_WINDOWS": "24h,3s"}
    with Server.start("--model", "scripted", data_dir=tmp_path / "data", env=env) as server:
        async with Patron(server, server.key) as patron:
            ended = await patron.until(await patron.order(content(2_000), "3s"), "expired")
            answers = await patron.lines(ended.output_file_id)
            errors = await patron.lines(ended.error_file_id)
            assert answers
            assert len(answers) + len(errors) == 2_000
            assert {each["error"]["code"] for each in errors} == {"batch_expired"}
            assert ended.expired_at is not None


async def test_a_stop_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    """B11, B12: Ctrl-C in the middle."""
    data_dir = tmp_path / "data"
    with Server.start("--model", "scripted", data_dir=data_dir, env=SLOW) as server:
        async with Patron(server, server.key) as patron:
            batch = await patron.order(content(300))
            await patron.until(batch, done=20)
        assert await asyncio.to_thread(server.stop) == 0
    assert books.audit(data_dir).faults == []
    with Server.start("--model", "scripted", data_dir=data_dir, env=SLOW) as server:
        async with Patron(server, server.key) as patron:
            ended = await patron.until(batch, "completed")
            answers = await patron.lines(ended.output_file_id)
            assert [each["custom_id"] for each in answers] == [f"line-{n}" for n in range(300)]
        assert await asyncio.to_thread(server.stop) == 0
    found = books.audit(data_dir)
    assert (found.faults, found.holds) == ([], [])
    assert sorted(row.call_id for row in found.rows) == sorted(each["id"] for each in answers)


async def test_lines_wait_for_a_budget(server: Server) -> None:
    key = await key_of(server, "poor")
    await server.ask("budgets.set", project="poor", organisation="default", budget_usd="0.00005")
    async with Patron(server, key) as patron:
        batch = await patron.order(content(60))
        await patron.until(batch, done=1)
        await asyncio.sleep(1.0)
        found = await patron.until(batch, "in_progress", "completed")
        assert found.status == "in_progress"
        await server.ask("budgets.set", project="poor", organisation="default", budget_usd="1.00")
        ended = await patron.until(batch, "completed")
        assert ended.request_counts is not None
        assert ended.request_counts.completed == 60


async def test_lines_fail_without_a_budget_if_so_decided(tmp_path: Path) -> None:
    env = {**SLOW, "FOREBAY_BATCH__WITHOUT_BUDGET": "fail"}
    with Server.start("--model", "scripted", data_dir=tmp_path / "data", env=env) as server:
        key = await key_of(server, "poor")
        await server.ask(
            "budgets.set", project="poor", organisation="default", budget_usd="0.00005"
        )
        async with Patron(server, key) as patron:
            ended = await patron.until(await patron.order(content(60)), "completed")
            errors = await patron.lines(ended.error_file_id)
            assert {each["response"]["body"]["error"]["code"] for each in errors} == {
                "insufficient_quota"
            }
            assert ended.request_counts is not None
            assert ended.request_counts.failed == len(errors) > 0
            assert ended.request_counts.completed > 0


async def test_a_revoked_key_runs_no_more_lines(server: Server) -> None:
    made = await server.ask("keys.create", request={"project": "leaver"})
    async with Patron(server, made["key"]) as leaver, Patron(server, server.key) as patron:
        batch = await leaver.order(content(3_000))
        await leaver.until(batch, done=5)
        await server.ask("keys.revoke", key_id=made["id"])
        ended = await patron.until(batch, "completed")
        errors = await patron.lines(ended.error_file_id)
        codes = {each["response"]["body"]["error"]["code"] for each in errors}
        assert codes == {"invalid_api_key"}
        assert len(errors) > 1_000


async def test_files_and_batches_are_of_one_organisation(server: Server) -> None:
    """B1: another's ids are those of nothing."""
    stranger = await key_of(server, "theirs", "second")
    async with Patron(server, server.key) as mine, Patron(server, stranger) as other:
        batch = await mine.until(await mine.order(content(3)), "completed")
        asked = [
            lambda: other.client.files.retrieve(batch.input_file_id),
            lambda: other.client.files.content(batch.input_file_id),
            lambda: other.client.files.delete(batch.input_file_id),
            lambda: other.client.files.content(str(batch.output_file_id)),
            lambda: other.client.batches.retrieve(batch.id),
            lambda: other.client.batches.cancel(batch.id),
        ]
        for each in asked:
            with pytest.raises(NotFoundError):
                await each()
        assert (await other.client.files.list()).data == []
        assert (await other.client.batches.list()).data == []
        stolen = await other.client.batches.create(
            input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
        )
        while stolen.status != "failed":
            stolen = await other.client.batches.retrieve(stolen.id)
        assert stolen.errors is not None
        assert stolen.errors.data is not None
        assert "Cannot find file" in str(stolen.errors.data[0].message)
