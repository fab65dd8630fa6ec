"""Real sockets and raw bytes: what arrives is not always HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace

import pytest

from forebay.catalog.contract import ModelCard
from forebay.gateway import protocol

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
ALIVE = b'{"status":"alive"}'
CHUNKED = GET + b"Transfer-Encoding: chunked\r\n\r\n"
# As Java's HttpClient sends it by default.
H2C = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
)
WEBSOCKET = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer fbk_live_test\r\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello h2c"}]}'


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


async def test_what_is_refused_unread_links_to_its_explanation_where_the_address_is_known(
    connect, gateway
):
    gateway.settings = replace(gateway.settings, public_url="https://llm.example.org")
    client = await connect()
    await client.send(b"nonsense\r\n\r\n")
    _, _, body = split(await client.rest())
    assert body["error"]["doc_url"] == "https://llm.example.org/docs/errors/invalid_http"


async def test_options_of_the_server_itself_is_no_path(connect):
    client = await connect()
    await client.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    status, _, body = split(await client.rest())
    assert (status, body["error"]["code"]) == (404, "not_found")


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


def sized(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("framed", [sized, chunked])
@pytest.mark.parametrize("cut", ["whole", "after the head", "byte by byte"])
@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET])
async def test_an_upgrade_is_ignored_and_the_declared_body_is_the_body(
    connect, gateway, upgrade, cut, framed
):
    gateway.script("an answer")
    request = POST + upgrade + framed(BODY)
    at = request.index(b"\r\n\r\n") + 4
    ends = {"whole": [], "after the head": [at], "byte by byte": range(1, len(request))}[cut]
    client = await connect()
    begin = 0
    for end in [*ends, len(request)]:
        await client.send(request[begin:end])
        await asyncio.sleep(0.02 if cut == "after the head" else 0)
        begin = end
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"an answer" in await client.until(b"}}")
    assert gateway.call.messages[0].content == "hello h2c"
    await client.send(GET + b"\r\n")
    assert b" 200 " in await client.until(ALIVE)


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET])
async def test_the_body_of_an_upgrade_is_never_taken_for_a_request(connect, gateway, upgrade):
    inner = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
    client = await connect()
    head, _, _ = (POST + upgrade + sized(inner)).partition(inner)
    await client.send(head)
    await asyncio.sleep(0.05)
    await client.send(inner)
    await client.send(GET + b"Connection: close\r\n\r\n")
    answers = await client.rest()
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.endswith(ALIVE)
    assert b"not valid JSON" in answers


async def test_upgrades_without_a_body_are_answered_as_plain_requests_in_order(connect):
    client = await connect()
    nothing = b"GET /nothing HTTP/1.1\r\nHost: x\r\n"
    await client.send(
        GET + WEBSOCKET + b"\r\n" + nothing + H2C + b"\r\n" + GET + b"Connection: close\r\n\r\n"
    )
    answers = await client.rest()
    assert [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]
    assert answers.endswith(ALIVE)


async def test_an_upgrade_of_http_1_0_is_answered_and_the_connection_ends(connect):
    client = await connect()
    await client.send(GET.replace(b"1.1", b"1.0") + H2C + b"\r\n")
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_the_head_of_an_upgrade_has_the_limits_of_any_head(connect, gateway):
    gateway.settings = replace(gateway.settings, max_headers=5, max_header_bytes=1000)
    client = await connect()
    await client.send(GET + H2C + b"X: 1\r\n\r\n")
    await client.until(ALIVE)
    for more in (b"X: 1\r\nY: 1\r\n", b"X: " + b"a" * 1000 + b"\r\n"):
        client = await connect()
        await client.send(GET + H2C + more + b"\r\n")
        assert split(await client.rest())[0] == 431


@pytest.mark.parametrize("upgrade", [b"", H2C])
@pytest.mark.parametrize("target", [b"x:443", b"/v1/models"])
async def test_connect_is_refused_and_nothing_behind_it_is_read(connect, target, upgrade):
    client = await connect()
    head = b"CONNECT " + target + b" HTTP/1.1\r\nHost: x\r\n"
    await client.send(head + upgrade + b"\r\n" + GET + b"\r\n")
    status, head_, body = split(await client.rest())
    assert (status, body["error"]["code"]) == (400, "invalid_http")
    assert "connection: close" in head_


@pytest.mark.parametrize(
    "request_",
    [
        GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        GET + H2C + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        GET + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}",
        GET + H2C + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}",
        GET + b"Content-Length: 2, 2\r\n\r\n{}",
        GET + b"Content-Length: +2\r\n\r\n{}",
        GET + b"Content-Length:\r\n\r\n",
        GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: identity\r\n\r\n",
        GET + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"X: a\r\n b\r\n\r\n",
        GET + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        GET + b"Connection: upgrade\r\nUpgrade:\r\n h2c\r\n\r\n",
        GET + b"Content-Length : 2\r\n\r\n{}",
        b"GET /livez HTTP/1.1\nHost: x\n\n",
        b"GET /livez HTTP/1.1\r\nHost: x\n\r\n",
        GET + b"\n",
        GET + b"X: a\rb\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        GET + b"Host: y\r\n\r\n",
        *(
            GET.replace(b"x", host) + b"\r\n"
            for host in (b"x/livez", b"x?", b"a@x", b"x y", b"[::1")
        ),
        CHUNKED + b"2\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}\n0\r\n\r\n",
        CHUNKED + b"2;x=\n\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"0\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_what_two_readers_could_cut_apart_differently_is_refused_and_the_connection_ends(
    connect, request_
):
    client = await connect()
    await client.send(request_ + GET + b"\r\n")
    status, head, body = split(await client.rest())
    assert (status, body["error"]["code"]) == (400, "invalid_http")
    assert "connection: close" in head


async def test_a_body_that_breaks_off_into_garbage_is_refused_and_nothing_is_called(
    connect, gateway
):
    client = await connect()
    await client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n")
    await asyncio.sleep(0.05)
    await client.send(b'{"mod\n')
    status, _, body = split(await client.rest())
    assert (status, body["error"]["code"]) == (400, "invalid_http")
    assert gateway.pipeline.calls == []


async def test_garbage_in_a_body_that_was_refused_already_is_not_answered_again(connect):
    client = await connect()
    await client.send(POST.replace(b"fbk", b"xyz") + b"Transfer-Encoding: chunked\r\n\r\n5\r\n")
    assert b" 401 " in await client.until(b"}}")
    await client.send(b"hello\n")
    assert await client.rest() == b""


async def test_a_trailer_does_not_become_a_header(connect, gateway):
    client = await connect()
    head = POST.replace(b"Authorization: Bearer fbk_live_test\r\n", b"")
    body = chunked(BODY).removesuffix(b"\r\n")
    await client.send(head + body + b"Authorization: Bearer fbk_live_test\r\n\r\n")
    assert b" 401 " in await client.until(b"}}")


class Deaf:
    """A client that reads only when told to, over a connection that holds little."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def read(self) -> bytes:
        return await asyncio.wait_for(self._loop.sock_recv(self._socket, 2048), 10)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def deaf(listener, gateway):
    """Opens a deaf client of a server whose answer to MODELS is more than its connection holds,
    but less than what a transport buffers by default."""
    clients = []
    gateway.services.catalog.cards = [
        ModelCard(f"model-{i}", (), 1_700_000_000, "forebay", 100, 20) for i in range(300)
    ]

    async def connect():
        server = await listener()
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        clients.append(Deaf(server.port))
        return server, clients[-1]

    yield connect
    for client in clients:
        client.close()


MODELS = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer fbk_live_test\r\n"


@pytest.mark.parametrize("requests", [1, 400])
@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_a_client_that_reads_no_plain_answer_does_not_keep_a_stop_from_ending(
    deaf, gateway, requests, more
):
    gateway.settings = replace(gateway.settings, slow_client_seconds=0.2)
    server, client = await deaf()
    await client.send((MODELS + more + b"\r\n") * requests)
    await asyncio.sleep(0.05)
    await asyncio.wait_for(server.stop(), 5)
    assert server.open_answers == 0


async def test_a_client_that_reads_no_refusal_is_cut_off(deaf, gateway):
    gateway.settings = replace(gateway.settings, slow_client_seconds=0.2)
    server, client = await deaf()
    await client.send(MODELS + b"\r\n")
    await asyncio.sleep(0.05)
    await client.send(b"nonsense\r\n\r\n")
    await asyncio.sleep(0.05)
    await asyncio.wait_for(server.stop(), 5)
    assert server.open_answers == 0


async def test_a_client_that_reads_no_whole_answer_is_cut_off_and_its_call_is_complete(
    deaf, gateway
):
    gateway.settings = replace(gateway.settings, slow_client_seconds=0.2)
    gateway.script("x" * 40_000)
    server, client = await deaf()
    await client.send((POST + sized(BODY)) * 2)
    await asyncio.wait_for(gateway.pipeline.left.wait(), 5)
    await asyncio.wait_for(server.stop(), 5)
    assert gateway.pipeline.ending == "exhausted"


async def test_a_slow_client_that_goes_on_reading_gets_all_of_its_answer(deaf, gateway):
    gateway.settings = replace(gateway.settings, slow_client_seconds=0.2)
    _, client = await deaf()
    await client.send(MODELS + b"Connection: close\r\n\r\n")
    read, begun = [], asyncio.get_running_loop().time()
    while part := await client.read():
        read.append(part)
        await asyncio.sleep(0.03)
    assert asyncio.get_running_loop().time() - begun > 2 * 0.2
    assert len(split(b"".join(read))[2]["data"]) == 300


async def test_a_client_that_takes_no_signs_of_life_is_cut_off(deaf, gateway, events):
    gateway.settings = replace(
        gateway.settings, slow_client_seconds=0.2, keep_alive_seconds=0.001, first_byte_seconds=0.01
    )
    gateway.script(events.admitted(), asyncio.Event())
    _, client = await deaf()
    body = BODY.replace(b"{", b'{"stream":true,', 1)
    await client.send(POST + sized(body))
    await asyncio.wait_for(gateway.pipeline.left.wait(), 10)
    assert gateway.pipeline.ending in ("CancelledError", "GeneratorExit")


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("streamed", [b"true", b"false"])
async def test_a_client_that_goes_is_noticed_although_another_request_waits_behind(
    deaf, gateway, events, streamed, reads
):
    gateway.settings = replace(gateway.settings, slow_client_seconds=0.2)
    flood = [] if reads else [events.delta(2, "x" * 100_000), 0.0, events.delta(3, "x"), 0.0]
    gateway.script(events.admitted(), *flood, asyncio.Event())
    _, client = await deaf()
    body = BODY.replace(b"{", b'{"stream":' + streamed + b",", 1)
    await client.send(POST + sized(body) + GET + b"\r\n")
    await asyncio.sleep(0.05)
    assert gateway.pipeline.calls
    if reads or streamed == b"false":
        client.close()
    await asyncio.wait_for(gateway.pipeline.left.wait(), 5)
    assert gateway.pipeline.ending in ("CancelledError", "GeneratorExit")


async def test_a_stop_finishes_the_running_answer_and_begins_none_of_those_behind(
    connect, gateway, events
):
    gate = asyncio.Event()
    gateway.script(events.admitted(), gate, *events.script("a")[2:])
    client = await connect()
    await client.send(POST + sized(BODY) + (GET + b"\r\n") * 3)
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(connect.servers[0].stop())
    await asyncio.sleep(0.05)
    assert gateway.pipeline.calls
    gate.set()
    answers = await client.rest()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answers
    await asyncio.wait_for(stopping, 5)
