"""Several choices over HTTP: one prompt on the bill, each choice's tokens counted, one hang-up for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e import enginelog
from tests.e2e.running import Server, eventually

LENGTHS = {0: 10, 1: 40, 2: 45}  # the script makes 10, 40 and 70; the maximum is 45


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine") / "engine.jsonl"


@pytest.fixture(scope="module")
def server(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.01", "FOREBAY_SCRIPTED__LOG_PATH": str(log)}
    data_dir = tmp_path_factory.mktemp("data")
    with Server.start("--model", "scripted", data_dir=data_dir, env=env) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0, timeout=60) as client:
        yield client


def three(**more: Any) -> dict[str, Any]:
    prompt = "[[script length=10 choice_step=30]]"
    messages = [{"role": "user", "content": prompt}]
    return {"model": "scripted", "messages": messages, "n": 3, "max_tokens": 45, **more}


def row_of(server: Server, call_id: str) -> dict[str, Any]:
    return next(row for row in server.usage() if row["call_id"] == call_id)


def judge(server: Server, call_id: str, usage: Any, log: Path) -> None:
    row = row_of(server, call_id)
    [one, *others] = enginelog.read(log).of(call_id)
    assert len(others) == 2
    assert usage.completion_tokens == row["output_tokens"] == sum(LENGTHS.values())
    assert (
        usage.prompt_tokens == row["input_tokens"] == len(one.prompt.encode()) + 5
    )  # and control tokens
    # 0.10 and 0.40 USD per million tokens, in nano-USD.
    assert row["amount_nanos"] == row["input_tokens"] * 100 + row["output_tokens"] * 400


def test_a_whole_answer_has_every_choice_and_is_charged_one_prompt(client, server, log):
    raw = client.chat.completions.with_raw_response.create(**three())
    answer = raw.parse()
    assert [c.finish_reason for c in answer.choices] == ["stop", "stop", "length"]
    assert [len(c.message.content) for c in answer.choices] == list(LENGTHS.values())
    judge(server, raw.headers["x-request-id"], answer.usage, log)


def test_a_stream_has_every_choice_by_index_and_is_charged_one_prompt(client, server, log):
    texts, reasons, usage, call_id = dict.fromkeys(LENGTHS, ""), {}, None, ""
    asked = three(stream=True, stream_options={"include_usage": True})
    for chunk in client.chat.completions.create(**asked):
        call_id = chunk.id.replace("chatcmpl-", "req_")
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert {index: len(text) for index, text in texts.items()} == LENGTHS
    assert reasons == {0: "stop", 1: "stop", 2: "length"}
    judge(server, call_id, usage, log)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_all_choices(client, server, log, stream):
    before = {row["call_id"] for row in server.usage()}
    asked = three(max_tokens=2000, extra_body={"ignore_eos": True})
    if stream:
        answer = client.chat.completions.create(stream=True, **asked)
        for number, _ in enumerate(answer):
            if number == 20:
                break
        answer.close()
    else:
        with pytest.raises(Exception, match="timed out"):
            client.with_options(timeout=0.5).chat.completions.create(**asked)
    eventually(lambda: len(server.usage()) > len(before), what="the call is not settled")
    [row] = [row for row in server.usage() if row["call_id"] not in before]
    assert (row["outcome"], row["reason"]) == ("cancelled", "client_gone")
    work = enginelog.read(log).of(row["call_id"])
    assert len(work) == 3
    assert all(each.cancelled_at is not None for each in work)
    made = sum(each.cancelled_at for each in work)
    assert made - 2 * len(work) <= row["output_tokens"] <= made
    assert row["output_tokens"] >= (15 if stream else 1)
