"""Large files: streamed in, checked and run, without growing the server; too many lines are refused.

`--batch-megabytes` says how large the file is, with 250 lines of 4 KB in each (10; `make batch` does 200,
which are 50,000 lines).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.running import Server

LINES_PER_MEGABYTE, LINE_BYTES = 250, 4_000
CHAT = "/v1/chat/completions"
MIB = 1024 * 1024
FAST = {
    "FOREBAY_SCRIPTED__STEP_SECONDS": "0.001",
    "FOREBAY_SCRIPTED__DIRECTIVE": "length=2",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("size")
    with Server.start("--model", "scripted", data_dir=data_dir, env=FAST) as server:
        yield server


def line(number: int, text_bytes: int) -> bytes:
    said = f"{number} " + "word " * (text_bytes // 5)
    body = {"model": "scripted", "messages": [{"role": "user", "content": said}], "max_tokens": 2}
    asked = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
    return json.dumps(asked).encode() + b"\n"


def write(path: Path, count: int, text_bytes: int) -> None:
    with path.open("wb") as file:
        for number in range(count):
            file.write(line(number, text_bytes))


def resident_bytes(pid: int) -> int:
    for each in Path(f"/proc/{pid}/status").read_text().splitlines():
        if each.startswith("VmRSS:"):
            return int(each.split()[1]) * 1024
    raise AssertionError("no VmRSS")


async def ended(client: AsyncOpenAI, id: str, pid: int) -> tuple[Any, int]:
    """The batch once it has, and the most memory that the server had meanwhile."""
    most = 0
    while (batch := await client.batches.retrieve(id)).status not in ("completed", "failed"):
        most = max(most, resident_bytes(pid))
        await asyncio.sleep(0.1)
    return batch, max(most, resident_bytes(pid))


@pytest.mark.timeout(3600)
async def test_a_file_of_any_size_is_checked_and_run_in_little_memory(
    server: Server, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """B13."""
    megabytes = pytestconfig.getoption("--batch-megabytes")
    count = LINES_PER_MEGABYTE * megabytes
    path = tmp_path / "large.jsonl"
    write(path, count, LINE_BYTES)
    async with AsyncOpenAI(base_url=server.base_url, api_key=server.key, timeout=600) as client:
        small = await client.files.create(file=("a.jsonl", line(0, 100)), purpose="batch")
        warm = await client.batches.create(
            input_file_id=small.id, endpoint=CHAT, completion_window="24h"
        )
        await ended(client, warm.id, server.pid)
        before = resident_bytes(server.pid)
        file = await client.files.create(file=path, purpose="batch")
        assert file.bytes == path.stat().st_size
        after_upload = resident_bytes(server.pid)
        made = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        batch, most = await ended(client, made.id, server.pid)
        assert batch.status == "completed", batch.errors
        assert batch.request_counts.completed == count
        print(
            f"{count} lines, {file.bytes / MIB:.0f} MiB: {before / MIB:.0f} MiB of memory before, "
        )
        print(f"{after_upload / MIB:.0f} MiB after the upload, at most {most / MIB:.0f} MiB")
        assert most - before < 150 * MIB


async def test_one_line_more_than_fifty_thousand_is_refused(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    write(path, 50_001, 10)
    async with AsyncOpenAI(base_url=server.base_url, api_key=server.key, timeout=600) as client:
        file = await client.files.create(file=path, purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        batch, _ = await ended(client, made.id, server.pid)
        assert batch.status == "failed"
        (error,) = batch.errors.data
        assert (error.code, error.line) == ("too_many_lines", 50_001)
