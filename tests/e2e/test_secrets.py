"""An API key is nowhere but where it was made and in the requests that carry it.

The canary (`tests/canary.py`) searches the output of every test; here a key is put wherever one may
slip, at the most talkative level, and everything that can be asked of the server is read.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.canary import KEY, Canary
from tests.e2e.running import Server

BODY = {"model": "scripted", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}


async def raw(server: Server, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


def slips(key: str) -> list[bytes]:
    """Requests with a key where it does not belong, good and bad ones, and broken HTTP."""
    plain = json.dumps(BODY).encode()
    named = json.dumps({**BODY, key: 1, "user": key, "metadata": {"key": key}}).encode()
    mistyped = key[:-1] + ("a" if key[-1] != "a" else "b")

    def post(body: bytes, *headers: str, path: str = "/v1/chat/completions") -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    right, wrong = f"Authorization: Bearer {key}", f"Authorization: Bearer {mistyped}"
    return [
        post(plain, right),
        post(named, right),
        post(named, right, "x-forebay-strict: true"),
        post(plain, wrong),
        post(plain, f"Authorization: {key}"),
        post(plain, f"Authorization: Basic {key}"),
        post(plain, f"X-Api-Key: {key}"),
        post(plain, right, right),
        post(plain, path=f"/v1/chat/completions?key={key}"),
        post(plain, right, path=f"/v1/{key}"),
        post(key.encode(), right),
        post(plain.replace(b"scripted", key.encode()), right),
        f"GET /v1/models/{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{right}\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: {key}\r\nConnection: close\r\n\r\n".encode(),
        f"{key} nonsense\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: x\r\n{key}\r\n\r\n".encode(),
    ]


@pytest.mark.parametrize("form", ["json", "text"])
async def test_a_key_is_in_nothing_that_the_server_says(tmp_path: Path, form: str) -> None:
    env = {"FOREBAY_LOG_LEVEL": "debug", "FOREBAY_LOG_FORMAT": form}
    canary = Canary()
    with Server.start("--model", "scripted", data_dir=tmp_path, env=env) as server:
        key = server.key
        assert KEY.fullmatch(key)
        canary.learn(key)
        answers = [await raw(server, request) for request in slips(key)]
        assert sum(answer.startswith(b"HTTP/1.1 200") for answer in answers) == 3
        for asked in (("usage",), ("keys", "list"), ("budgets", "list"), ("doctor",), ("top",)):
            said = await asyncio.to_thread(server.command, *asked, "--json")
            canary.search(" ".join(asked), said.stdout + said.stderr)
        admin = urlsplit(server.admin_url)
        connection = http.client.HTTPConnection(str(admin.hostname), admin.port, timeout=30)
        for path in ("/metrics", "/readyz", "/openapi.json"):
            connection.request("GET", path)
            canary.search(path, connection.getresponse().read().decode())
        connection.close()
        assert server.stop() == 0
        canary.search("the log", server.log_text())
    for name in ("ledger.db", "forebay.db", "ledger.db-wal", "lock"):
        file = tmp_path / name
        if file.exists():
            canary.search(name, file.read_bytes().decode("latin-1"))
    assert canary.found == []
    refusals = [answer for answer in answers if answer.startswith(b"HTTP/1.1 401")]
    assert len(refusals) >= 6
    assert not any(KEY.search(answer.decode()) for answer in refusals)
