from __future__ import annotations

import asyncio
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forebay.core.errors import InternalError, InvalidRequest
from forebay.gateway import control
from forebay.gateway.control import ControlFailed, ControlServer, call


@dataclass(frozen=True, slots=True)
class KeyRequest:
    name: str = ""
    models: tuple[str, ...] | None = None


class Keys:
    """Annotated like the real ones, so that plain data can be converted."""

    async def create(self, request: KeyRequest) -> dict[str, Any]:
        return {"name": request.name, "models": request.models}

    async def revoke(self, key_id: str) -> dict[str, Any]:
        raise InvalidRequest(f"There is no key {key_id!r}.", param="key_id")

    async def list(self) -> list[dict[str, Any]]:
        return [{"name": "x" * 1000}] * 3000


class Reports:
    async def usage(self, limit: int = 100) -> list[int]:
        return [limit]

    async def usage_totals(self, by: str) -> list[str]:
        return [by]

    async def models(self) -> list[str]:
        raise ValueError("planted")

    async def status(self) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}


class FakeAdministration:
    """What is asked here; the rest is there and answers its arguments."""

    def __init__(self) -> None:
        self.keys = Others(Keys())
        self.reports = Others(Reports())
        self.budgets = self.projects = self.named_alerts = Others(object())
        self.bookkeeping = Others(object())


class Others:
    def __init__(self, section: object) -> None:
        self._section = section

    def __getattr__(self, name: str) -> Any:
        async def answer() -> str:
            return name

        return getattr(self._section, name, answer)


@pytest.fixture
async def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a Unix socket's path must be short
    server = ControlServer(Path("control.sock"), FakeAdministration())
    await server.start()
    yield Path("control.sock")
    await server.close()
    await server.close()
    assert os.listdir() == []


async def test_a_verb_is_asked_and_answered(path):
    asked = {"request": {"name": "ci", "models": ["tiny"]}}
    assert await call(path, "keys.create", asked) == {"name": "ci", "models": ["tiny"]}
    assert await call(path, "usage") == [100]
    assert await call(path, "usage", {"limit": 5}) == [5]


async def test_answers_may_be_large(path):
    assert len(await call(path, "keys.list")) == 3000


async def test_nobody_else_may_open_the_socket(path):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize(
    ("verb", "args", "says"),
    [
        ("keys.explode", {}, "There is no verb 'keys.explode'; there are keys.create,"),
        ("usage", {"limit": "many"}, "Expected `int`, got `str`"),
        ("usage", {"limits": 5}, "unknown field `limits`"),
        ("usage.totals", {}, "missing required field `by`"),
        ("keys.revoke", {"key_id": "key_9"}, "There is no key 'key_9'."),
    ],
)
async def test_what_is_wrong_is_said(path, verb, args, says):
    with pytest.raises(InvalidRequest) as caught:
        await call(path, verb, args)
    assert says in caught.value.message


async def test_an_unexpected_error_is_reported_and_not_shown(path, capsys):
    with pytest.raises(InternalError) as caught:
        await call(path, "models")
    assert "planted" not in caught.value.message
    written = capsys.readouterr()
    assert "unhandled_error" in written.out + written.err


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b'{"verb": 5}', b'{"x": 1}', b"[" * 5000])
async def test_a_line_that_is_no_request_is_refused_and_the_next_one_served(path, line):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line + b"\n" + b'{"verb": "usage"}\n')
    assert b"not understood" in await reader.readline()
    assert await reader.readline() == b'{"ok":[100]}\n'
    writer.close()
    await writer.wait_closed()


async def test_a_line_without_end_is_cut_off(path):
    _, writer = await asyncio.open_unix_connection(path)

    async def talk():
        while True:
            writer.write(b"x" * 100_000)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(talk(), 10)
    writer.close()
    with pytest.raises(ConnectionError):
        await writer.wait_closed()


async def test_connections_are_bounded(path, monkeypatch):
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 1)
    _, first = await asyncio.open_unix_connection(path)
    first.write(b'{"verb": "usage"}\n')
    await asyncio.sleep(0.02)
    with pytest.raises(ControlFailed, match="broke off"):
        await call(path, "usage")
    first.close()
    await first.wait_closed()


async def test_a_server_that_does_not_answer_is_said(path):
    with pytest.raises(ControlFailed, match=r"within 0\.05 s"):
        await call(path, "status", timeout_seconds=0.05)


async def test_no_server_is_said(tmp_path):
    with pytest.raises(ControlFailed, match="No server answers"):
        await call(tmp_path / "none.sock", "usage")


async def test_a_socket_left_by_a_crash_is_replaced_and_a_live_one_is_not(path):
    second = ControlServer(path, FakeAdministration())
    with pytest.raises(OSError, match="Another process answers"):
        await second.start()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("dead.sock")
    third = ControlServer(Path("dead.sock"), FakeAdministration())
    await third.start()
    assert await call(Path("dead.sock"), "usage") == [100]
    await third.close()
    assert "dead.sock" not in os.listdir()


async def test_a_path_too_long_for_a_socket_is_said(tmp_path):
    server = ControlServer(tmp_path / ("x" * 120), FakeAdministration())
    with pytest.raises(OSError, match="shorter path"):
        await server.start()
