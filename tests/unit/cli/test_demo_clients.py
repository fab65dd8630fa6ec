"""Clients against an HTTP server that answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from forebay.cli.answering import Target
from forebay.cli.demo_clients import BROKEN, Habits, Project
from forebay.system import SystemClock

ROLE = 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
TEXT = 'data: {"choices": [{"delta": {"content": "water"}}]}\n\n'
USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\n'
END = "data: [DONE]\n\n"
ERROR = 'data: {"error": {"message": "The engine failed."}}\n\n'
GREEDY = Habits("greedy", 3, 2, 4, pause_seconds=0)
POLITE = Habits("polite", 1, 2, 4, pause_seconds=60)


class Scene:
    """A server whose answers a test decides, and the bodies that came."""

    def __init__(self) -> None:
        self.status = 200
        self.before = [ROLE]  # sent at once
        self.after = [TEXT, USAGE, END]  # sent when `go` is set
        self.go = asyncio.Event()
        self.bodies: list[dict[str, object]] = []
        self.target = Target("", "key")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        for piece in self.before:
            await response.write(piece.encode())
        await self.go.wait()
        for piece in self.after:
            await response.write(piece.encode())
        return response


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene, app = Scene(), web.Application()
    app.router.add_post("/v1/chat/completions", scene.answer)
    async with TestServer(app) as server:
        scene.target = Target(str(server.make_url("")), "key")
        yield scene


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def one_call(scene: Scene) -> Project:
    """A polite project that has made its first call and pauses."""
    project = Project(POLITE, scene.target, "small", SystemClock())
    scene.go.set()
    client = asyncio.create_task(project.client())
    await until(lambda: project.tally.finished or project.tally.refused)
    project.finish()
    await client
    return project


async def test_a_call_waits_until_its_first_text_and_runs_until_its_end(scene: Scene) -> None:
    project = Project(POLITE, scene.target, "small", SystemClock())
    client = asyncio.create_task(project.client())
    await until(lambda: scene.bodies)
    assert (project.tally.waiting, project.tally.first_token_ms) == (1, [])
    project.finish()
    scene.go.set()
    await client
    tally = project.tally
    assert (tally.waiting, tally.running, tally.finished, tally.output_tokens) == (0, 0, 1, 5)
    assert len(tally.first_token_ms) == 1


async def test_a_client_that_is_stopped_waits_no_more(scene: Scene) -> None:
    project = Project(POLITE, scene.target, "small", SystemClock())
    client = asyncio.create_task(project.client())
    await until(lambda: scene.bodies)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    scene.go.set()
    assert (project.tally.waiting, project.tally.finished) == (0, 0)


async def test_a_refusal_is_counted_by_its_status_and_has_no_first_token(scene: Scene) -> None:
    scene.status = 503
    tally = (await one_call(scene)).tally
    assert (dict(tally.refused), tally.finished, tally.waiting) == ({"503": 1}, 0, 0)
    assert tally.first_token_ms == []


async def test_an_error_in_the_stream_is_no_answer(scene: Scene) -> None:
    scene.after = [TEXT, ERROR]
    tally = (await one_call(scene)).tally
    assert (dict(tally.refused), tally.finished, tally.running) == (
        {"error while streaming": 1},
        0,
        0,
    )


async def test_a_server_that_is_not_there_is_a_broken_connection() -> None:
    project = Project(POLITE, Target("http://127.0.0.1:9", "key"), "small", SystemClock())
    client = asyncio.create_task(project.client())
    await until(lambda: project.tally.refused)
    project.finish()
    await client
    assert project.tally.refused[BROKEN] >= 1


async def test_greedy_clients_call_again_at_once_and_ask_for_different_lengths(
    scene: Scene,
) -> None:
    project = Project(GREEDY, scene.target, "small", SystemClock())
    scene.go.set()
    clients = [asyncio.create_task(project.client()) for _ in range(GREEDY.clients)]
    await until(lambda: project.tally.finished >= 9)
    project.finish()
    await asyncio.gather(*clients)
    assert {body["max_tokens"] for body in scene.bodies} == {2, 3, 4}
    assert all(body["stream"] and body["model"] == "small" for body in scene.bodies)
