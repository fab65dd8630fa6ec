from __future__ import annotations

import asyncio
import json
import shlex
import sys

import pytest

from forebay.cli.up import Presses, Terminal, announcement
from forebay.config import load
from forebay.wiring import Ready, Stop

KEY = "fbk_live_" + "x" * 38


def settings(*serve: str):
    return load({"serve": serve or None}, {"HOME": "/home/a"})


def ready(key: str | None, *models: str) -> Ready:
    return Ready("http://127.0.0.1:8080", "http://127.0.0.1:8081", key, models)


def curl(text: str) -> list[str]:
    """The printed command, as a shell takes it apart."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("curl "))
    command = lines[start : start + 3]
    assert command[0].endswith("\\")
    assert command[1].endswith("\\")
    assert not command[2].endswith("\\")
    return shlex.split("\n".join(command))


def test_the_first_start_shows_the_key_alone_on_its_line_and_a_curl_with_it():
    text = announcement(ready(KEY, "smollm2-135m-instruct"), settings())
    lines = text.splitlines()
    assert "shown once" in lines[lines.index(KEY) - 1]
    assert "Base URL: http://127.0.0.1:8080/v1" in lines
    words = curl(text)
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    assert f"Authorization: Bearer {KEY}" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body["stream"] is True
    assert body["model"] == "default"


def test_later_starts_name_the_variable_and_how_to_make_another_key(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["forebay"])
    text = announcement(ready(None, "smollm2-135m-instruct"), settings())
    assert "fbk_live_" not in text
    assert "the key from the first start (shown once), or make one: forebay keys create\n" in text
    assert "export FOREBAY_API_KEY=" in text
    assert "Authorization: Bearer $FOREBAY_API_KEY" in curl(text)


def test_the_curl_names_a_served_model_when_default_is_none_of_them():
    body = curl(announcement(ready(KEY, "scripted"), settings("scripted")))
    assert json.loads(body[-1])["model"] == "scripted"


async def test_before_ready_a_signal_gives_the_start_up():
    started = asyncio.Event()

    async def start() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(start())
    await started.wait()
    stop = Stop(asyncio.Event(), asyncio.Event())
    Presses(task, Terminal(settings(), as_json=True), stop)()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not stop.graceful.is_set()


async def test_after_ready_the_first_signal_is_graceful_and_the_second_is_not(capsys):
    terminal = Terminal(settings(), as_json=True)
    terminal.ready(ready(None, "small"))
    stop = Stop(asyncio.Event(), asyncio.Event())
    task = asyncio.current_task()
    assert task is not None
    presses = Presses(task, terminal, stop)
    presses()
    assert (stop.graceful.is_set(), stop.now.is_set()) == (True, False)
    presses()
    assert stop.now.is_set()
    assert json.loads(capsys.readouterr().out) == {
        "base_url": "http://127.0.0.1:8080/v1",
        "admin_url": "http://127.0.0.1:8081",
        "api_key": None,
        "models": ["small"],
    }
