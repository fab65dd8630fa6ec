from __future__ import annotations

import asyncio
import json
import tempfile
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

import pytest

from forebay.cli.answering import Refused, Target
from forebay.cli.batching import batch_of, cancel, download, find, newest, submit
from forebay.cli.failure import WRONG_USE, Failure
from tests.unit.cli.batch_server import KEY, BatchServer, a_batch, serving

TARGET = Target("http://host", KEY)
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def work_file() -> AsyncIterator[BinaryIO]:
    """A file to upload. The client closes it in a thread, and two at once must not."""
    with tempfile.TemporaryFile() as file:
        yield file
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_file_becomes_a_batch():
    server = BatchServer()
    async with serving(server) as target, work_file() as file:
        file.write(b'{"custom_id": "a"}\n')
        file.seek(0)
        batch = await submit(target, file, "work.jsonl", CHAT, {"team": "search"})
    assert server.uploads == [("batch", "work.jsonl", b'{"custom_id": "a"}\n')]
    wanted = {"input_file_id": "file_in", "endpoint": CHAT, "completion_window": "24h"}
    assert server.posted == [("/v1/batches", {**wanted, "metadata": {"team": "search"}})]
    assert (batch.id, batch.status, batch.lines, batch.cost_usd) == (
        "batch_1", "validating", 0, None,
    )  # fmt: skip


async def test_a_large_file_is_uploaded_without_being_held_in_memory():
    size_bytes = 64 * 1024 * 1024
    server = BatchServer()
    server.keep_bytes = False
    async with serving(server) as target, work_file() as file:
        file.truncate(size_bytes)
        tracemalloc.start()
        try:
            await submit(target, file, "x.jsonl", CHAT, {})
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert server.uploaded_bytes == size_bytes
    assert peak_bytes < size_bytes / 4


@pytest.mark.parametrize(
    ("status", "said"), [(413, "The file is too large."), (404, "takes no batches")]
)
async def test_a_refusal_is_heard_also_before_the_file_is_sent(status, said):
    server = BatchServer()
    server.refuse_files = status
    async with serving(server) as target, work_file() as file:
        file.truncate(64 * 1024 * 1024)
        with pytest.raises(Failure, match=said):
            await submit(target, file, "x.jsonl", CHAT, {})
    assert server.posted == []


async def test_a_wrong_key_is_told_in_the_servers_words():
    async with serving(BatchServer()) as target, work_file() as file:
        with pytest.raises(Refused, match="Incorrect API key"):
            await submit(Target(target.url, "other"), file, "x.jsonl", CHAT, {})


def test_what_a_server_says_of_a_batch():
    batch = batch_of(TARGET, a_batch("in_progress", 4, 1))
    assert (batch.lines, batch.completed, batch.failed, batch.done) == (10, 3, 1, 4)
    assert (batch.input_tokens, batch.output_tokens, batch.cost_usd) == (40, 400, "0.000004")
    assert not batch.has_ended
    assert batch_of(TARGET, a_batch("expired")).has_ended


def test_what_is_wrong_with_a_batch_is_told_with_its_line():
    errors = [
        {"code": "invalid_json_line", "message": "Not JSON.", "line": 3, "param": None},
        {"code": "empty_file", "message": None, "line": None},
        {},
    ]
    batch = batch_of(TARGET, a_batch("failed", errors={"object": "list", "data": errors}))
    assert batch.problems == ("line 3: Not JSON.", "empty_file", "it is not said what")


@pytest.mark.parametrize("body", [None, [], {}, {"object": "list"}])
def test_what_is_no_batch_is_a_failure(body):
    with pytest.raises(Failure, match="http://host answered with something that is no batch"):
        batch_of(TARGET, body)


async def test_a_batch_that_is_not_there_says_where_to_look():
    async with serving(BatchServer()) as target:
        for ask in (find, cancel):
            with pytest.raises(Failure, match=r"There is no batch 'batch/2'.*batch list"):
                await ask(target, "batch/2")
        with pytest.raises(Failure, match="id of the batch is empty") as refused:
            await find(target, " ")
        assert refused.value.exit_code == WRONG_USE


async def test_as_many_pages_are_asked_for_as_are_wanted():
    server = BatchServer()
    server.batches = [a_batch(id=f"batch_{number}") for number in range(250)]
    async with serving(server) as target:
        assert [each.id for each in await newest(target, 2)] == ["batch_0", "batch_1"]
        some = await newest(target, 120)
        everything = await newest(target, 1000)
    assert [each.id for each in some] == [f"batch_{number}" for number in range(120)]
    assert len({each.id for each in everything}) == len(everything) == 250
    assert server.asked == [
        "limit=2",
        "limit=100",
        "limit=20&after=batch_99",
        "limit=100",
        "limit=100&after=batch_99",
        "limit=100&after=batch_199",
    ]


async def test_a_file_is_written_piece_by_piece():
    server = BatchServer()
    server.files["file_out"] = b"".join(
        json.dumps({"custom_id": f"line-{number}"}).encode() + b"\n" for number in range(20_000)
    )
    pieces: list[bytes] = []
    async with serving(server) as target:
        await download(target, "file_out", pieces.append)
    assert b"".join(pieces) == server.files["file_out"]
    assert len(pieces) > 1
