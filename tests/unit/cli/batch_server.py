"""A server with OpenAI's Files and Batches API whose batches stand as a test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from forebay.cli.answering import Target

KEY = "fbk_test"
NO_KEY = {"error": {"message": "Incorrect API key.", "code": "invalid_api_key"}}
NO_BATCH = {"error": {"message": "No such batch.", "code": "not_found"}}


def a_batch(status: str = "in_progress", done: int = 0, failed: int = 0, **more: Any) -> Any:
    """One of ten lines; each that is done has cost a micro-dollar and 100 tokens."""
    whole = {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "errors": None,
        "input_file_id": "file_in",
        "completion_window": "24h",
        "status": status,
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 1_800_000_000,
        "expires_at": 1_800_086_400,
        "request_counts": {"total": 10, "completed": done - failed, "failed": failed},
        "metadata": None,
    }
    if done:
        whole["usage"] = {
            "input_tokens": 10 * done,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 100 * done,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 110 * done,
        }
        whole["cost"] = {"amount_usd": f"0.{done:06}"}
    return whole | more


class BatchServer:
    """`looks` is what batch_1 is at each look: JSON, a status that refuses it, or None to hang up.

    The last one stays. `on_look` is called at each look with its number.
    """

    def __init__(self, *looks: Any) -> None:
        self.looks = list(looks)
        self.files = {"file_out": b'{"custom_id": "line-1"}\n', "file_err": b'{"error": 1}\n'}
        self.batches: list[Any] = []
        self.posted: list[tuple[str, Any]] = []
        self.uploads: list[tuple[str, str, bytes]] = []
        self.asked: list[str] = []
        self.keep_bytes = True
        self.uploaded_bytes = 0
        self.refuse_files = 0
        self.on_look: Callable[[int], object] | None = None
        self.seen = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/files", self._upload)
        app.router.add_get("/v1/files/{id}/content", self._content)
        app.router.add_get("/v1/batches", self._list)
        app.router.add_post("/v1/batches", self._create)
        app.router.add_get("/v1/batches/{id}", self._find)
        app.router.add_post("/v1/batches/{id}/cancel", self._cancel)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small"}, {"id": "large"}]})

    async def _upload(self, request: web.Request) -> web.Response:
        if request.headers["authorization"] != f"Bearer {KEY}":
            return web.json_response(NO_KEY, status=401)
        if self.refuse_files:
            error = {"message": "The file is too large.", "code": "request_too_large"}
            return web.json_response({"error": error}, status=self.refuse_files)
        form = await request.multipart()
        purpose = await form.next()
        assert purpose is not None
        assert purpose.name == "purpose"
        kind = (await purpose.read()).decode()
        file = await form.next()
        assert file is not None
        assert file.name == "file"
        kept = bytearray()
        while piece := await file.read_chunk():
            self.uploaded_bytes += len(piece)
            kept += piece if self.keep_bytes else b""
        self.uploads.append((kind, file.filename or "", bytes(kept)))
        return web.json_response({"id": "file_in", "object": "file", "purpose": kind})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.files[request.match_info["id"]])
        return response

    async def _list(self, request: web.Request) -> web.Response:
        self.asked.append(request.query_string)
        ids = [each["id"] for each in self.batches]
        start = ids.index(request.query["after"]) + 1 if "after" in request.query else 0
        end = start + int(request.query["limit"])
        data = self.batches[start:end]
        return web.json_response({"object": "list", "data": data, "has_more": end < len(ids)})

    async def _create(self, request: web.Request) -> web.Response:
        self.posted.append((request.path, await request.json()))
        return web.json_response(a_batch("validating", request_counts=None))

    async def _find(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["id"] != "batch_1":
            return web.json_response(NO_BATCH, status=404)
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        self.seen += 1
        if self.on_look is not None:
            self.on_look(self.seen)
        if look is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(look, int):
            return web.json_response({"error": {"message": "Not now."}}, status=look)
        return web.json_response(look)

    async def _cancel(self, request: web.Request) -> web.Response:
        if request.match_info["id"] != "batch_1":
            return web.json_response(NO_BATCH, status=404)
        self.posted.append((request.path, await request.read()))
        return web.json_response(a_batch("cancelling", 3))


@asynccontextmanager
async def serving(server: BatchServer) -> AsyncIterator[Target]:
    """On this event loop."""
    async with TestServer(server.app()) as running:
        yield Target(str(running.make_url("")), KEY)


@contextmanager
def beside(server: BatchServer) -> Iterator[str]:
    """In a thread, for commands that run an event loop of their own: its URL."""
    urls: list[str] = []
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()
    is_up = threading.Event()

    async def serve() -> None:
        async with serving(server) as target:
            urls.append(target.url)
            is_up.set()
            await is_over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_up.wait(10)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(10)
        loop.close()
