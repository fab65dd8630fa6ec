"""What `forebay batch` asks a server: OpenAI's Files and Batches API, and our `cost` of a batch.

Not here: how it is asked and what failures say (`answering.py`), what is uploaded (`batch_lines.py`),
asking again and again (`batch_watch.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import quote

import aiohttp

from forebay.cli.answering import Refused, Target, answered, ask
from forebay.cli.failure import WRONG_USE, Failure

WINDOW = "24h"  # the only one that the API has
PAGE_BATCHES = 100  # the most that the API lists at once
# 200 MB at 0.5 Mbit/s.
UPLOAD_SECONDS = 3_600.0
CHUNK_BYTES = 64 * 1024
ENDED = ("completed", "failed", "expired", "cancelled")
NO_ENDPOINT = (404, 405)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a server says of a batch; `body` is all of it. What it does not say is 0, None or empty."""

    body: dict[str, Any] = field(repr=False)
    id: str
    status: str
    lines: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: str | None = None
    output_file: str | None = None
    error_file: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        """Lines that are answered or have failed."""
        return self.completed + self.failed

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def unanswered(self) -> int:
        """Lines that failed or were not run, once it has ended."""
        return self.lines - self.completed

    @property
    def stands(self) -> str:
        """Its id and how it stands, as the beginning of a sentence."""
        verb = "has" if self.status in ("failed", "expired") else "is"
        return f"{self.id} {verb} {self.status}"


async def submit(
    target: Target, file: BinaryIO, name: str, endpoint: str, metadata: Mapping[str, str]
) -> Batch:
    """Upload the file and make a batch of it. Raises Failure."""
    uploaded = await _upload(target, file, name)
    wanted = {
        "input_file_id": uploaded,
        "endpoint": endpoint,
        "completion_window": WINDOW,
        **({"metadata": dict(metadata)} if metadata else {}),
    }
    return batch_of(target, await ask(target, "POST", "/batches", wanted))


async def find(target: Target, id: str) -> Batch:
    """How it stands. Raises Failure."""
    return batch_of(target, await _ask_of_one(target, "GET", id))


async def cancel(target: Target, id: str) -> Batch:
    """Have it end early. Raises Failure."""
    return batch_of(target, await _ask_of_one(target, "POST", id, "/cancel"))


async def newest(target: Target, limit: int) -> list[Batch]:
    """So many of the key's, the newest first. Raises Failure."""
    found: list[Batch] = []
    after = ""
    while len(found) < limit:
        query = f"?limit={min(limit - len(found), PAGE_BATCHES)}{after}"
        page = await ask(target, "GET", f"/batches{query}")
        if not isinstance(page, dict) or not isinstance(page.get("data"), list):
            raise Failure(f"{target.url} answered with something that is no list of batches.")
        found += [batch_of(target, each) for each in page["data"]]
        if not page["data"] or not page.get("has_more"):
            break
        after = f"&after={quote(found[-1].id, safe='')}"
    return found


async def download(target: Target, file_id: str, write: Callable[[bytes], object]) -> None:
    """Write what is in a file, piece by piece. Raises Failure; then some may be written."""
    path = f"/files/{quote(file_id, safe='')}/content"
    async with answered(target, "GET", path) as response:
        async for piece in response.content.iter_chunked(CHUNK_BYTES):
            write(piece)


def batch_of(target: Target, body: Any) -> Batch:
    """The batch that a server's JSON is. Raises Failure if it is none."""
    if not isinstance(body, dict) or body.get("object") != "batch":
        raise Failure(f"{target.url} answered with something that is no batch.")
    counts, usage = body.get("request_counts") or {}, body.get("usage") or {}
    return Batch(
        body=body,
        id=str(body["id"]),
        status=str(body["status"]),
        lines=counts.get("total") or 0,
        completed=counts.get("completed") or 0,
        failed=counts.get("failed") or 0,
        input_tokens=usage.get("input_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        cost_usd=(body.get("cost") or {}).get("amount_usd"),
        output_file=body.get("output_file_id"),
        error_file=body.get("error_file_id"),
        problems=tuple(map(_problem, (body.get("errors") or {}).get("data") or ())),
    )


def _problem(error: dict[str, Any]) -> str:
    """An error of a batch, as people read it."""
    line = error.get("line")
    where = "" if line is None else f"line {line}: "
    return f"{where}{error.get('message') or error.get('code') or 'it is not said what'}"


async def _upload(target: Target, file: BinaryIO, name: str) -> str:
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", file, filename=name, content_type="application/jsonl")
    try:
        async with (
            asyncio.timeout(UPLOAD_SECONDS),
            answered(target, "POST", "/files", form=form) as response,
        ):
            body = await response.json(content_type=None)
    except Refused as refused:
        if refused.status not in NO_ENDPOINT:
            raise
        raise Failure(f"{target.url} takes no batches: it has no /v1/files.") from None
    except TimeoutError:
        raise Failure(f"{target.url} did not take the file in {UPLOAD_SECONDS:.0f} s.") from None
    if not isinstance(body, dict) or body.get("object") != "file":
        raise Failure(f"{target.url} answered with something that is no file.")
    return str(body["id"])


async def _ask_of_one(target: Target, method: str, id: str, verb: str = "") -> Any:
    if not id.strip():
        raise Failure("The id of the batch is empty; `forebay batch list` has them.", WRONG_USE)
    try:
        return await ask(target, method, f"/batches/{quote(id, safe='')}{verb}")
    except Refused as refused:
        if refused.status not in NO_ENDPOINT:
            raise
        message = (
            f"There is no batch {id!r:.100}: it never was, or is not of this key's organisation. "
            "`forebay batch list` has those that there are."
        )
        raise Refused(message, refused.status, refused.code) from None
