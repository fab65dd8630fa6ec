"""Real sockets and raw bytes: what arrives is not always HTTP."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from forebay.gateway import protocol

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


def split(response: bytes):
    head, _, body = response.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    return status, head.decode(), json.loads(body)


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Content-Length: -1\r\n\r\n",
        GET + b"Bad Header: x\r\n\r\n",
        GET + b"X: a\x00b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_400_in_our_shape_and_the_connection_ends(connect, request_):
    client = await connect()
    await client.send(request_)
    status, head, body = split(await client.rest())
    assert status in (400, 404)
    assert set(body) == {"error"}
    assert "x-request-id: req_" in head


@pytest.mark.parametrize(
    "request_",
    [
        GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        GET + b"".join(b"X-%d: 1\r\n" % i for i in range(101)) + b"\r\n",
    ],
)
async def test_a_head_that_is_too_large_gets_431(connect, request_):
    client = await connect()
    await client.send(request_)
    status, head, body = split(await client.rest())
    assert status == 431
    assert body["error"]["code"] == "request_head_too_large"
    assert "connection: close" in head


async def test_a_head_that_does_not_arrive_gets_408(connect, gateway):
    gateway.settings = replace(gateway.settings, header_seconds=0.05)
    client = await connect()
    await client.send(GET)
    status, _, body = split(await client.rest())
    assert (status, body["error"]["code"]) == (408, "request_timeout")


async def test_a_connection_that_never_says_anything_is_closed(connect, gateway):
    gateway.settings = replace(gateway.settings, header_seconds=0.05)
    client = await connect()
    assert await client.rest() == b""


async def test_the_next_request_on_a_connection_has_its_own_time(connect, gateway):
    gateway.settings = replace(gateway.settings, header_seconds=0.1)
    client = await connect()
    for _ in range(2):
        await client.send(GET + b"\r\n")
        await client.until(b'{"status":"alive"}')
    await asyncio.sleep(0.15)
    await client.send(GET + b"\r\n")
    await client.until(b'{"status":"alive"}')
    await client.send(b"GET /livez")
    status, _, _ = split(await client.rest())
    assert status == 408


async def test_a_refused_body_is_swallowed_so_that_the_client_reads_why(connect, gateway):
    gateway.settings = replace(gateway.settings, max_body_bytes=1000)
    client = await connect()
    size = 2_000_000
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
    await client.send((head + "Authorization: Bearer fbk_live_test\r\n\r\n").encode())
    await client.send(b"x" * size)
    assert b" 413 " in await client.until(b'request_too_large"}}')
    await client.send(GET + b"\r\n")
    assert b" 200 " in await client.until(b'{"status":"alive"}')


async def test_a_refused_body_is_not_swallowed_for_ever(connect, gateway, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_UNREAD_BYTES", 100_000)
    client = await connect()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n"
    await client.send(head.encode())
    assert b" 401 " in await client.until(b'invalid_api_key"}}')
    with pytest.raises(ConnectionError):
        await client.send(b"x" * 50_000_000)


async def test_garbage_behind_a_running_answer_does_not_get_into_it(connect, gateway, events):
    gate = asyncio.Event()
    gateway.script(*events.script("a")[:3], gate, events.finished(3, 1))
    client = await connect()
    await client.post({"stream": True})
    await client.until(b'"a"}')
    await client.send(b"\x00\x01 garbage\r\n\r\n")
    assert b"400" not in await client.rest()
    await asyncio.wait_for(gateway.pipeline.left.wait(), 5)


async def test_pipelined_requests_are_answered_in_order(connect):
    client = await connect()
    await client.send(GET + b"\r\n" + b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    first = await client.until(b'{"status":"alive"}')
    assert b" 200 " in first
    assert b" 404 " in await client.until(b"not_found")


async def test_expect_continue_is_answered_only_if_the_body_is_wanted(connect, gateway):
    gateway.script("a")
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        "Expect: 100-continue\r\n"
    )
    client = await connect()
    await client.send(head.encode() + b"\r\n")
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
    client = await connect()
    await client.send(head.encode() + b"Authorization: Bearer fbk_live_test\r\n\r\n")
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    await client.send(body)
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
