"""Summaries of old turns against real processes: who sees them, who pays, and what is left of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.running import Server, forebay

WAIT_SECONDS = 60.0


def turn(client: OpenAI, model: str, conversation: str, text: str) -> tuple[dict[str, int], int]:
    """One more turn: its window, and the tokens of its prompt."""
    raw = client.responses.with_raw_response.create(
        model=model, conversation=conversation, input=text, max_output_tokens=24, temperature=0
    )
    usage = raw.parse().usage
    assert usage is not None
    shown = (each.split("=") for each in raw.headers["x-forebay-window"].split(","))
    return {name: int(count) for name, count in shown}, usage.input_tokens


def rows_of(server: Server) -> list[dict[str, Any]]:
    """The usage rows of summaries, once there is one."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        if rows := [row for row in server.usage() if row["kind"] == "summary"]:
            return rows
        time.sleep(0.2)
    raise AssertionError("no summary was made")


def test_a_conversation_that_outgrows_its_window_goes_on_with_a_summary(
    smollm2_gguf: Path, cache_dir: Path, tmp_path: Path
) -> None:
    """C3 with the real model: made in the background, shown from a later turn on, and paid for by the
    operator."""
    env = {
        "FOREBAY_MODELS": json.dumps([{"id": "smollm2-135m-instruct", "context_tokens": 1024}]),
        "FOREBAY_CACHE_DIR": str(cache_dir),
        "FOREBAY_CONVERSATION__SUMMARY_SHARE": "0.4",
    }
    with (
        Server.start(data_dir=tmp_path, env=env) as server,
        OpenAI(base_url=server.base_url, api_key=server.key, timeout=120) as client,
    ):
        system = {"type": "message", "role": "system", "content": "Answer briefly."}
        conversation = client.conversations.create(items=[system]).id  # type: ignore[list-item]
        said, windows = 0, []
        while said < 60 and sum(window["summarised"] > 0 for window, _ in windows) < 3:
            text = f"Say the number {said} and a word that begins with its first letter."
            window, tokens = turn(client, "default", conversation, text)
            assert sum(window.values()) == said
            assert tokens + 24 <= 1024
            windows.append((window, tokens))
            said += 1
        (_, first), (window, second), (after, third) = windows[-3:]
        assert window["summarised"] > 0
        assert window["dropped"] == after["dropped"] == 0
        if after["summarised"] == window["summarised"]:
            assert third > second
        assert first < max(tokens for _, tokens in windows)
        rows = rows_of(server)
        assert {row["key_name"] for row in rows} == {"(summaries)"}
        assert {(row["lane"], row["outcome"]) for row in rows} == {("batch", "completed")}
        assert len([row for row in server.usage() if row["kind"] == "call"]) == said
        names = {row["name"] for row in server.command_json("usage", "--by", "organisation")}
        assert "operator" in names
        items = client.conversations.items.list(conversation, limit=100).data
        assert len(items) == min(100, 1 + 2 * said), "what was said stays"
        assert server.command("reconcile").returncode == 0
        assert server.command("audit", "verify").returncode == 0
        assert server.stop() == 0


@pytest.mark.parametrize("payer", ["operator", "project"])
def test_who_pays_is_a_setting(tmp_path: Path, payer: str) -> None:
    env = {
        "FOREBAY_CONVERSATION__SUMMARY_SHARE": "0.1",
        "FOREBAY_CONVERSATION__SUMMARY_PAYER": payer,
    }
    with (
        Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server,
        OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client,
    ):
        conversation = client.conversations.create().id
        for number in range(3):
            turn(client, "scripted", conversation, f"Turn {number}. " + "More words. " * 40)
        keys = {row["key_id"] for row in server.usage() if row["kind"] == "call"}
        theirs = {row["key_id"] for row in rows_of(server)}
        assert (theirs == keys) == (payer == "project")
        assert len(theirs) == 1


def test_a_server_that_stops_or_is_killed_while_it_summarises_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    env = {
        "FOREBAY_CONVERSATION__SUMMARY_SHARE": "0.1",
        "FOREBAY_SCRIPTED__STEP_SECONDS": "0.2",
    }
    for end in ("stop", "kill"):
        with (
            Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server,
            OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client,
        ):
            conversation = client.conversations.create().id
            for number in range(3):
                text = f"Turn {number} [[script length=60]] " + "More words. " * 40
                client.responses.create(
                    model="scripted", conversation=conversation, input=text, max_output_tokens=2
                )
            if end == "stop":
                assert server.stop() == 0
            else:
                server.kill()
    with Server.start("--model", "scripted", data_dir=tmp_path) as server:
        rows = [row for row in server.usage() if row["kind"] == "summary"]
        assert all(row["outcome"] != "completed" for row in rows)
        assert len(rows) == 2, "each has one row"
        assert server.command("reconcile").returncode == 0


def test_a_model_that_is_not_served_cannot_summarise(tmp_path: Path) -> None:
    env = {"FOREBAY_CONVERSATION__SUMMARY_MODEL": "big"}
    done = forebay("up", "--model", "scripted", "--data-dir", tmp_path, env=env)
    assert done.returncode == 2
    assert "conversation.summary_model: 'big' is not served; these are: scripted" in done.stderr
