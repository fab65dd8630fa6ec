"""Conversations and responses against real processes: OpenAI's own client, kills, and long dialogues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from forebay.testing.rawhttp import Leave, RawClient
from tests.e2e.running import Server

CODEX = {
    "extra_body": {"client_metadata": {"session": "1"}},
    "include": ["reasoning.encrypted_content"],
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
    ],
    "instructions": "You are a coding agent.",
    "parallel_tool_calls": False,
    "prompt_cache_key": "session-1",
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": False,
    "stream": True,
    "tool_choice": "auto",
    "tools": [],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("dialogues")
    with Server.start("--model", "scripted", data_dir=data_dir) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.base_url, api_key=server.key, max_retries=0
    ) as async_client:
        yield async_client


def script(text: str, length: int = 4) -> str:
    return f"{text} [[script length={length}]]"


def roles(items: Any) -> list[str]:
    return [item.role for item in items]


def test_a_response_is_made_found_again_gone_on_from_and_deleted(client: OpenAI) -> None:
    first = client.responses.create(model="scripted", input=script("One."), instructions="Be kind.")
    assert (first.status, first.usage.output_tokens) == ("completed", 4)
    found = client.responses.retrieve(first.id)
    assert (found.output_text, found.usage) == (first.output_text, first.usage)
    assert found.created_at == first.created_at
    assert [item.content[0].text for item in client.responses.input_items.list(first.id)] == [
        script("One.")
    ]
    raw = client.responses.with_raw_response.create(
        model="scripted", input=script("Two."), previous_response_id=first.id
    )
    second = raw.parse()
    assert raw.headers["x-forebay-window"] == "kept=1,summarised=0,dropped=0"
    assert second.previous_response_id == first.id
    assert second.instructions is None, "instructions are of one response alone"
    counted = client.responses.input_tokens.count(
        model="scripted", input=script("Two."), previous_response_id=first.id
    )
    assert counted.input_tokens == second.usage.input_tokens > first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(model="scripted", input="x", previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"
    third = client.responses.create(
        model="scripted", input=script("Three."), previous_response_id=second.id
    )
    assert third.status == "completed", "what was deleted is only missing from the past"


def test_a_streamed_response_is_found_when_its_end_is_seen(client: OpenAI) -> None:
    with client.responses.stream(model="scripted", input=script("Hello.", 20)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_what_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    response = client.responses.create(model="scripted", input=script("Hello."), store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


async def test_a_conversation_grows_turn_by_turn(async_client: AsyncOpenAI) -> None:
    conversation = await async_client.conversations.create(
        items=[{"type": "message", "role": "system", "content": "Be kind."}], metadata={"a": "b"}
    )
    tokens = []
    for number in range(3):
        response = await async_client.responses.create(
            model="scripted", conversation=conversation.id, input=script(f"Turn {number}.")
        )
        assert response.conversation is not None
        assert response.conversation.id == conversation.id
        assert response.usage is not None
        tokens.append(response.usage.input_tokens)
    assert tokens == sorted(set(tokens)), "each turn is shown what was said before"
    items = await async_client.conversations.items.list(conversation.id, order="asc", limit=100)
    assert roles(items.data) == ["system", *["user", "assistant"] * 3]
    await async_client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError, match=conversation.id):
        await async_client.responses.create(
            model="scripted", conversation=conversation.id, input="x"
        )


def test_a_plain_chat_client_sends_only_what_is_new(client: OpenAI) -> None:
    conversation = client.conversations.create()
    for number in range(2):
        raw = client.chat.completions.with_raw_response.create(
            model="scripted",
            messages=[{"role": "user", "content": script(f"Turn {number}.")}],
            extra_body={"conversation": conversation.id},
        )
        assert raw.headers["x-forebay-window"] == f"kept={number},summarised=0,dropped=0"
        assert raw.parse().conversation == {"id": conversation.id}
    chunks = client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": script("Turn 2.")}],
        extra_body={"conversation": conversation.id},
        stream=True,
    )
    assert all(chunk.conversation == {"id": conversation.id} for chunk in chunks)
    items = client.conversations.items.list(conversation.id, order="asc")
    assert roles(items.data) == ["user", "assistant"] * 3


def test_a_conversation_that_has_expired_is_begun_anew_where_asked(client: OpenAI) -> None:
    lost = "conv_0000000000"
    raw = client.responses.with_raw_response.create(
        model="scripted",
        input=script("Hello."),
        extra_body={"conversation": {"id": lost, "on_expired": "new"}},
    )
    made = raw.parse().conversation
    assert made is not None
    assert made.id == raw.headers["x-forebay-conversation"] != lost
    assert raw.headers["x-forebay-conversation-renewed"] == "true"
    assert len(client.conversations.items.list(made.id).data) == 2


def test_what_codex_sends_is_served(client: OpenAI) -> None:
    events = list(client.responses.create(model="scripted", **CODEX))
    assert events[-1].type == "response.completed"


async def test_calls_that_meet_in_a_conversation_are_refused_or_in_order(
    async_client: AsyncOpenAI, server: Server
) -> None:
    """C4: one of two is told to come back; the SDK does, and nothing is mixed."""
    patient = async_client.with_options(max_retries=20)
    conversation = await async_client.conversations.create()
    calls = [
        patient.responses.create(
            model="scripted", conversation=conversation.id, input=script(f"Turn {number}.", 10)
        )
        for number in range(4)
    ]
    answers = {each.id: each.output_text for each in await asyncio.gather(*calls)}
    items = (
        await async_client.conversations.items.list(conversation.id, order="asc", limit=100)
    ).data
    assert roles(items) == ["user", "assistant"] * 4
    texts = sorted(item.content[0].text for item in items if item.role == "assistant")
    assert texts == sorted(answers.values())


async def test_a_client_that_leaves_takes_its_turn_with_it(
    async_client: AsyncOpenAI, server: Server
) -> None:
    """And the conversation is free at once for the next."""
    conversation = await async_client.conversations.create()
    body = {
        "model": "scripted",
        "stream": True,
        "messages": [{"role": "user", "content": script("Long.", 2000)}],
        "conversation": conversation.id,
        "max_tokens": 2000,
    }
    async with RawClient(server.host, server.port, server.key) as raw:
        answer = await raw.post(body, Leave(events=3))
    assert not answer.complete
    await async_client.with_options(max_retries=5).responses.create(
        model="scripted", conversation=conversation.id, input=script("Short.")
    )
    items = (await async_client.conversations.items.list(conversation.id, order="asc")).data
    assert next(item.content[0].text for item in items) == script("Short.")
    assert len(items) == 2


def test_a_server_that_is_killed_loses_no_settled_turn_and_keeps_no_other(tmp_path: Path) -> None:
    """`kill -9` in the middle of a turn: what was settled is there, the rest is not, and the next
    turn is not locked out."""
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        with OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client:
            conversation = client.conversations.create()
            first = client.responses.create(
                model="scripted", conversation=conversation.id, input=script("Kept.")
            )
            with client.responses.create(
                model="scripted",
                conversation=conversation.id,
                input=script("Lost.", 2000),
                max_output_tokens=2000,
                stream=True,
            ) as stream:
                for event in stream:
                    if event.type == "response.output_text.delta":
                        break
                server.kill()
        key = server.key
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
            assert client.responses.retrieve(first.id).output_text == first.output_text
            second = client.responses.create(
                model="scripted", conversation=conversation.id, input=script("New.")
            )
            items = client.conversations.items.list(conversation.id, order="asc").data
            assert [item.content[0].text for item in items] == [
                script("Kept."), first.output_text, script("New."), second.output_text,
            ]  # fmt: skip
        assert server.command("audit", "verify").returncode == 0
        assert server.command("reconcile").returncode == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("share", ["0", "0.6"])
def test_a_long_dialogue_never_exceeds_the_window(
    smollm2_gguf: Path,
    cache_dir: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    share: str,
) -> None:
    """C3 on the real model: every prompt fits; what is old is summarised, and without that every prompt
    is as long as whole turns can make it."""
    turns = request.config.getoption("--turns")
    models = [{"id": "smollm2-135m-instruct", "context_tokens": 1024}]
    env = {
        "FOREBAY_MODELS": json.dumps(models),
        "FOREBAY_CACHE_DIR": str(cache_dir),
        "FOREBAY_CONVERSATION__SUMMARY_SHARE": share,
    }
    with (
        Server.start(data_dir=tmp_path, env=env) as server,
        OpenAI(base_url=server.base_url, api_key=server.key, timeout=120) as client,
    ):
        conversation = client.conversations.create(
            items=[{"type": "message", "role": "system", "content": "Answer briefly."}]
        )
        windows = []
        for number in range(turns):
            raw = client.responses.with_raw_response.create(
                model="default",
                conversation=conversation.id,
                input=f"Say the number {number} and a word that begins with its first letter.",
                max_output_tokens=24,
                temperature=0,
            )
            usage = raw.parse().usage
            assert usage.input_tokens + 24 <= 1024
            shown = raw.headers["x-forebay-window"].split(",")
            window = {name: int(count) for name, count in (each.split("=") for each in shown)}
            assert sum(window.values()) == number
            windows.append((window, usage.input_tokens))
    if share != "0":
        assert windows[-1][0]["summarised"] > 0
        return
    full = [tokens for window, tokens in windows if window["dropped"]]
    assert full, "nothing had to be dropped"
    # The oldest turn of those that were dropped would not have fitted: it has some 50 tokens.
    assert min(full) > 1024 - 24 - 120
