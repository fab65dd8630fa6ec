"""Responses in the background against real processes: OpenAI's own client, restarts and kills."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.running import Server, eventually

SLOW = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.02"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("background")
    with Server.start("--model", "scripted", data_dir=data_dir, env=SLOW) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with client_of(server) as client:
        yield client


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.base_url, api_key=server.key, max_retries=0
    ) as async_client:
        yield async_client


def client_of(server: Server) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0)


def begin(client: OpenAI, length: int, **more: Any) -> Any:
    """One in the background with so many tokens."""
    text = f"Go. [[script length={length}]]"
    return client.responses.create(model="scripted", input=text, background=True, **more)


def wait(client: OpenAI, id: str, status: str = "completed", seconds: float = 60.0) -> Any:
    """The response once it has this status."""
    deadline = time.monotonic() + seconds
    while (found := client.responses.retrieve(id)).status != status:
        assert found.status in ("queued", "in_progress"), found
        assert time.monotonic() < deadline, f"{found.status}, not {status}"
        time.sleep(0.05)
    return found


def rows_of(server: Server, id: str) -> list[dict[str, Any]]:
    return [row for row in server.usage() if row["call_id"] == id.replace("resp_", "req_")]


def test_it_is_begun_polled_and_gone_on_from(server: Server, client: OpenAI) -> None:
    begun = begin(client, 100, metadata={"a": "b"})
    assert (begun.background, begun.output, begun.usage) == (True, [], None)
    assert begun.status in ("queued", "in_progress")
    wait(client, begun.id, "in_progress")
    with pytest.raises(openai.BadRequestError) as early:
        client.responses.create(model="scripted", input="x", previous_response_id=begun.id)
    assert early.value.code == "previous_response_not_found"
    found = wait(client, begun.id)
    assert (found.usage.output_tokens, found.metadata) == (100, {"a": "b"})
    assert found.completed_at >= found.created_at
    (row,) = rows_of(server, begun.id)
    assert (row["outcome"], row["output_tokens"]) == ("completed", 100)
    items = client.responses.input_items.list(begun.id)
    assert [item.content[0].text for item in items] == ["Go. [[script length=100]]"]
    second = begin(client, 3, previous_response_id=begun.id)
    counted = wait(client, second.id).usage
    assert counted.input_tokens > found.usage.input_tokens + 100


async def test_both_clients_stream_it_and_read_it_again_from_any_number(
    async_client: AsyncOpenAI,
) -> None:
    text = "Go. [[script length=40]]"
    stream = await async_client.responses.create(
        model="scripted", input=text, background=True, stream=True
    )
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    id = events[0].response.id
    for after in (None, 0, 1, 2, 7, len(events) - 2, len(events) - 1):
        again = await async_client.responses.retrieve(
            id, stream=True, **({} if after is None else {"starting_after": after})
        )
        told = [event.to_dict() async for event in again]
        first = 0 if after is None else after + 1
        assert told == [event.to_dict() for event in events[first:]]


def test_who_leaves_the_stream_finds_the_rest(server: Server, client: OpenAI) -> None:
    seen: list[Any] = []
    with begin(client, 60, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta" and len(seen) > 10:
                break
    id = seen[0].response.id
    with client.responses.retrieve(
        id, stream=True, starting_after=seen[-1].sequence_number
    ) as stream:
        seen += list(stream)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert seen[-1].response.output_text == text == client.responses.retrieve(id).output_text
    assert seen[-1].response.usage.output_tokens == 60
    assert len(rows_of(server, id)) == 1


def test_it_is_cancelled_and_what_was_generated_is_charged(server: Server, client: OpenAI) -> None:
    for stream in (False, True):
        begun = begin(client, 2000, stream=stream)
        if stream:
            begun = next(event.response for event in begun if event.type == "response.in_progress")
        wait(client, begun.id, "in_progress")
        time.sleep(0.3)  # some steps of the engine
        cancelled = client.responses.cancel(begun.id)
        assert (cancelled.status, cancelled.output, cancelled.error) == ("cancelled", [], None)
        assert client.responses.cancel(begun.id).status == "cancelled"
        assert client.responses.retrieve(begun.id).status == "cancelled"
        (row,) = rows_of(server, begun.id)
        assert row["outcome"] == "cancelled"
        assert 0 < row["output_tokens"] < 2000
    with client.responses.retrieve(begun.id, stream=True) as again:
        *_, last = again
    assert (last.type, last.response.status) == ("response.failed", "cancelled")
    done = begin(client, 2)
    wait(client, done.id)
    assert client.responses.cancel(done.id).status == "completed"
    plain = client.responses.create(model="scripted", input="x")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(plain.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_unknown")


def test_one_that_began_its_conversation_anew_ends_with_that(
    server: Server, client: OpenAI
) -> None:
    gone: Any = {"id": "conv_gone", "on_expired": "new"}
    begun = begin(client, 2000, conversation=gone)
    wait(client, begun.id, "in_progress")
    client.conversations.delete(begun.conversation.id)
    (row,) = rows_of(server, begun.id)
    assert row["outcome"] == "cancelled"


def test_one_that_is_deleted_is_not_generated_any_more(server: Server, client: OpenAI) -> None:
    begun = begin(client, 2000)
    wait(client, begun.id, "in_progress")
    client.responses.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
    (row,) = rows_of(server, begun.id)
    assert row["outcome"] == "cancelled"


def test_bad_wishes_are_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="store is false") as refused:
        begin(client, 3, store=False)
    assert refused.value.param == "background"
    unlogged = begin(client, 3)
    with pytest.raises(openai.BadRequestError, match="no events to read"):
        client.responses.retrieve(unlogged.id, stream=True)
    with pytest.raises(openai.NotFoundError, match="model"):
        client.responses.create(model="unknown", input="x", background=True)
    with pytest.raises(openai.BadRequestError, match="starting_after"):
        client.responses.retrieve(unlogged.id, stream=True, starting_after=-1)


def test_the_same_idempotency_key_finds_the_same_response(server: Server, client: OpenAI) -> None:
    header = {"Idempotency-Key": "errand-1"}
    first = begin(client, 20, extra_headers=header)
    again = begin(client, 20, extra_headers=header)
    assert again.id == first.id
    wait(client, first.id)
    assert begin(client, 20, extra_headers=header).status == "completed"
    assert len(rows_of(server, first.id)) == 1
    with pytest.raises(openai.UnprocessableEntityError):
        begin(client, 21, extra_headers=header)
    with closing(sqlite3.connect(server.data_dir / "ledger.db")) as ledger:
        kept = ledger.execute("SELECT answer FROM claim").fetchall()
    assert kept == [(b"",)], "its text is its turn's alone, and goes with that"


def test_in_a_conversation_it_is_the_turn_that_others_wait_for(client: OpenAI) -> None:
    conversation = client.conversations.create()
    begun = begin(client, 150, conversation=conversation.id)
    with pytest.raises(openai.ConflictError):
        client.responses.create(model="scripted", input="x", conversation=conversation.id)
    assert not client.conversations.items.list(conversation.id).data
    wait(client, begun.id)
    assert len(client.conversations.items.list(conversation.id).data) == 2
    cancelled = begin(client, 2000, conversation=conversation.id)
    client.responses.cancel(cancelled.id)
    assert len(client.conversations.items.list(conversation.id).data) == 2
    client.responses.create(model="scripted", input="x", conversation=conversation.id)


class Reader:
    """Reads a stream of events until it breaks; what it has got so far stays."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.events: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        return "".join(event.get("delta", "") for event in self.events)

    def read(self, method: str, path: str, **more: Any) -> None:
        headers = {"authorization": f"Bearer {self._server.key}"}
        url = self._server.base_url + path
        try:
            with httpx.stream(method, url, headers=headers, timeout=60, **more) as answer:
                assert answer.status_code == 200
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
        except httpx.TransportError:
            pass  # the server was killed


@pytest.mark.parametrize("streamed", [False, True])
async def test_after_a_kill_it_goes_on_and_is_billed_once(tmp_path: Path, streamed: bool) -> None:
    """The events that were read are told once, and the rest of them; the text is one text."""
    body = {"model": "scripted", "input": "Go. [[script length=250]]", "background": True}
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        reader = Reader(server)
        if streamed:
            reading = asyncio.to_thread(
                reader.read, "POST", "/responses", json=body | {"stream": True}
            )
            task = asyncio.create_task(reading)
            await asyncio.to_thread(eventually, lambda: len(reader.events) > 20)
            id = reader.events[0]["response"]["id"]
        else:
            with client_of(server) as client:
                id = begin(client, 250).id
                wait(client, id, "in_progress")
        await asyncio.to_thread(server.kill)
        if streamed:
            await task
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        with client_of(server) as client:
            if streamed:
                reader._server = server
                seen = reader.events[-1]["sequence_number"]
                path = f"/responses/{id}?stream=true&starting_after={seen}"
                await asyncio.to_thread(reader.read, "GET", path)
                numbers = [event["sequence_number"] for event in reader.events]
                assert numbers == list(range(len(numbers)))
                assert reader.events[-1]["type"] == "response.completed"
            found = await asyncio.to_thread(wait, client, id)
        assert found.usage.output_tokens == 250
        assert not streamed or reader.text == found.output_text
        (row,) = rows_of(server, id)
        assert (row["outcome"], row["output_tokens"], row["attempt"]) == ("completed", 250, 2)
        assert server.command("audit", "verify").returncode == 0
        assert server.command("reconcile").returncode == 0
        assert server.stop() == 0


def test_a_stop_that_waits_leaves_what_has_not_begun_to_the_next_start(tmp_path: Path) -> None:
    env = SLOW | {"FOREBAY_MODELS": json.dumps([{"id": "scripted", "max_sequences": 1}])}
    with Server.start(data_dir=tmp_path, env=env) as server:
        with client_of(server) as client:
            first, second = begin(client, 200), begin(client, 5)
            wait(client, first.id, "in_progress")
            assert client.responses.retrieve(second.id).status == "queued"
        assert server.stop() == 0
        assert "1 left to the next start, 0 holds open" in server.log_text()
    with Server.start(data_dir=tmp_path, env=env) as server:
        with client_of(server) as client:
            assert client.responses.retrieve(first.id).status == "completed"
            wait(client, second.id)
        (row,) = rows_of(server, second.id)
        assert (row["outcome"], row["attempt"]) == ("completed", 2)


def test_what_cannot_go_on_after_a_kill_fails_for_free(tmp_path: Path) -> None:
    """A streamed answer whose decoding state is lost (E8)."""
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        with client_of(server) as client:
            with begin(client, 300, stream=True, extra_body={"seed": 7}) as stream:
                for event in stream:
                    if event.type == "response.output_text.delta":
                        break
            id = client.responses.retrieve(event.item_id.replace("msg_", "resp_")).id
        server.kill()
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        with client_of(server) as client:
            found = wait(client, id, "failed")
            assert found.error.code == "server_error"
            with client.responses.retrieve(id, stream=True) as again:
                *_, last = again
            assert (last.type, last.response.status) == ("response.failed", "failed")
            assert last.response.error == found.error
        (row,) = rows_of(server, id)
        assert (row["outcome"], row["amount_usd"]) == ("failed", "0.00")


def test_a_stop_that_does_not_wait_leaves_what_runs_to_the_next_start(tmp_path: Path) -> None:
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        with client_of(server) as client:
            begun = begin(client, 200)
            wait(client, begun.id, "in_progress")
        server.signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.stop() == 0
        assert "1 left to the next start" in server.log_text()
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        with client_of(server) as client:
            assert wait(client, begun.id).usage.output_tokens == 200
        (row,) = rows_of(server, begun.id)
        assert (row["outcome"], row["output_tokens"], row["attempt"]) == ("completed", 200, 2)


def test_a_model_that_is_gone_after_a_kill_fails_what_waited_for_it(tmp_path: Path) -> None:
    models = [{"id": "scripted"}, {"id": "other", "engine": "scripted"}]
    env = SLOW | {"FOREBAY_MODELS": json.dumps(models)}
    with Server.start(data_dir=tmp_path, env=env) as server:
        with client_of(server) as client:
            text = "Go. [[script length=400]]"
            begun = client.responses.create(model="other", input=text, background=True)
        server.kill()
    with Server.start("--model", "scripted", data_dir=tmp_path, env=SLOW) as server:
        with client_of(server) as client:
            wait(client, begun.id, "failed")
        (row,) = rows_of(server, begun.id)
        assert (row["outcome"], row["reason"]) == ("failed", "model_gone")
        assert server.command("reconcile").returncode == 0
