"""Idempotency-Key over real sockets: clients that lose their connection, and what they are billed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from forebay.testing.rawhttp import Answer, Leave, RawClient
from tests.e2e.running import Server, eventually

LENGTH = 24
SLOW = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.01"}


def ask(*, stream: bool = True, length: int = LENGTH, **fields: Any) -> dict[str, Any]:
    content = f"Tell me. [[script length={length}]]"
    messages = [{"role": "user", "content": content}]
    return {"model": "scripted", "stream": stream, "messages": messages, **fields}


async def post(
    server: Server, body: dict[str, Any], key: str, leave: Leave | None = None
) -> Answer:
    secret = server.key
    async with RawClient(server.host, server.port, secret) as client:
        answer = await client.post(body, leave, f"Idempotency-Key: {key}\r\n")
    await asyncio.sleep(0.01)  # a socket that was aborted is closed by the loop
    return answer


def text_of(answer: Answer) -> str:
    if b"data: " in answer.body:
        return answer.text()
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("keyed")
    with Server.start("--model", "scripted", data_dir=directory, env=SLOW) as server:
        yield server


def rows_since(server: Server, before: int) -> list[dict[str, Any]]:
    return server.usage()[: len(server.usage()) - before]


async def test_a_stream_that_is_dropped_at_every_event_is_billed_once_with_the_same_text(server):
    """The same key is sent until its stream is read to the end, one event further each time."""
    whole = await post(server, ask(), "undisturbed")
    before = len(server.usage())
    for events in range(1, LENGTH + 1):
        dropped = await post(server, ask(), "dropped", Leave(events=events))
        assert dropped.status == 200
        assert text_of(whole).startswith(dropped.text())
    again = await post(server, ask(), "dropped")
    assert text_of(again) == text_of(whole)
    assert again.headers["idempotency-hit"] == "true"
    [row] = rows_since(server, before)
    assert (row["outcome"], row["output_tokens"]) == ("completed", LENGTH)


async def test_every_event_is_a_place_to_lose_a_stream(server):
    """As many calls as there are events, each dropped at its own, then asked for again."""
    whole = await post(server, ask(), "whole")
    before = len(server.usage())
    for events in range(LENGTH):
        leave = Leave(events=events) if events else Leave(seconds=0.005)
        await post(server, ask(), f"lost-{events}", leave)
    answers = [await post(server, ask(), f"lost-{events}") for events in range(LENGTH)]
    assert {text_of(answer) for answer in answers} == {text_of(whole)}
    rows = rows_since(server, before)
    assert len(rows) == LENGTH
    assert {(row["outcome"], row["output_tokens"]) for row in rows} == {("completed", LENGTH)}


async def test_an_answer_that_was_not_streamed_comes_again_byte_for_byte(server):
    before = len(server.usage())
    first = await post(server, ask(stream=False, n=2, logprobs=True), "whole-body")
    again = await post(server, ask(stream=False, n=2, logprobs=True), "whole-body")
    assert again.body == first.body
    assert "idempotency-hit" not in first.headers
    assert again.headers["idempotency-hit"] == "true"
    assert (first.headers["x-forebay-cost-usd"], again.headers["x-forebay-cost-usd"]) == (
        rows_since(server, before)[0]["amount_usd"],
        "0.00",
    )
    assert len(rows_since(server, before)) == 1


async def test_a_hundred_at_once_are_one_call(server):
    before = len(server.usage())
    answers = await asyncio.gather(*(post(server, ask(), "crowd") for _ in range(100)))
    assert len({text_of(answer) for answer in answers}) == 1
    assert len([answer for answer in answers if "idempotency-hit" not in answer.headers]) == 1
    assert len(rows_since(server, before)) == 1


async def test_another_body_is_refused_and_another_organisation_has_its_own_keys(server):
    await post(server, ask(), "mine")
    refused = await post(server, ask(seed=1), "mine")
    assert refused.status == 422
    assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert refused.headers["x-should-retry"] == "false"
    other = server.command_json("keys", "create", "--name", "other", "--organisation", "other")
    async with RawClient(server.host, server.port, other["key"]) as client:
        answer = await client.post(ask(seed=1), None, "Idempotency-Key: mine\r\n")
    assert answer.status == 200
    assert "idempotency-hit" not in answer.headers


async def test_a_failure_is_free_and_not_remembered(server):
    body = ask(stream=False, n=2)  # several choices cannot be resumed
    body["messages"][0]["content"] = "[[script length=10 crash_at=2]]"
    for _ in range(2):
        failed = await post(server, body, "poison")
        assert failed.status >= 500
        assert "idempotency-hit" not in failed.headers


class FlakyProxy:
    """Forwards requests, and breaks off `failures` of them after so many bytes of the answer."""

    def __init__(self, port: int, failures: int, after_bytes: int) -> None:
        self.failures, self._port, self._after_bytes = failures, port, after_bytes
        self._serving: list[asyncio.Task[None]] = []

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def close(self) -> None:
        """When its clients have left."""
        await asyncio.wait_for(asyncio.gather(*self._serving), 10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
        breaks = self.failures > 0
        self.failures -= breaks
        ways = [
            asyncio.ensure_future(self._copy(reader, outer, None)),
            asyncio.ensure_future(self._copy(inner, writer, self._after_bytes if breaks else None)),
        ]
        _, going = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in going:
            way.cancel()
        for each in (writer, outer):
            each.transport.abort()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()

    @staticmethod
    async def _copy(
        source: asyncio.StreamReader, target: asyncio.StreamWriter, most_bytes: int | None
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(4096):
                if most_bytes is not None:
                    target.write(data[:most_bytes])
                    return
                target.write(data)
                await target.drain()


@pytest.mark.parametrize("after_bytes", [0, 300])
async def test_the_sdks_own_retries_are_one_call(server, after_bytes):
    """OpenAI's SDK sends the same headers with each of its retries after a broken connection."""
    before = len(server.usage())
    proxy = FlakyProxy(server.port, failures=2, after_bytes=after_bytes)
    listening = await asyncio.start_server(proxy, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    async with listening, AsyncOpenAI(base_url=url, api_key=server.key, max_retries=4) as client:
        answer = await client.chat.completions.with_raw_response.create(
            **ask(stream=False), extra_headers={"Idempotency-Key": f"sdk-{after_bytes}"}
        )
    await proxy.close()
    assert proxy.failures == 0
    assert answer.headers["idempotency-hit"] == "true"
    [row] = rows_since(server, before)
    assert row["output_tokens"] == answer.parse().usage.completion_tokens == LENGTH


async def test_a_call_to_which_nobody_comes_back_is_stopped_and_charged_as_left(tmp_path: Path):
    env = {**SLOW, "FOREBAY_IDEMPOTENCY__DETACH_SECONDS": "0.3"}
    with Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server:
        body = ask(length=5000, max_tokens=1500)
        await post(server, body, "gone", Leave(events=3))
        eventually(lambda: bool(server.usage()), what="the stopped call is charged")
        [row] = server.usage()
        assert (row["outcome"], row["reason"]) == ("cancelled", "client_gone")
        assert 3 <= row["output_tokens"] < 1500
        await post(server, body, "gone", Leave(events=1))
        eventually(lambda: len(server.usage()) == 2, what="the key is as new")


@pytest.mark.parametrize("killed", [False, True])
async def test_an_answer_outlives_the_server(tmp_path: Path, killed: bool):
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        first = await post(server, ask(), "kept")
        if killed:
            server.kill()
        else:
            assert server.stop() == 0
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        again = await post(server, ask(), "kept")
        assert again.headers["idempotency-hit"] == "true"
        assert text_of(again) == text_of(first)
        assert len(server.usage()) == 1


async def test_a_killed_server_forgets_the_keys_of_calls_that_had_not_ended(tmp_path: Path):
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        await post(server, ask(length=5000, max_tokens=1500), "cut", Leave(events=3))
        server.kill()
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        again = await post(server, ask(length=5000, max_tokens=1500), "cut", Leave(events=3))
        assert again.status == 200
        assert "idempotency-hit" not in again.headers
