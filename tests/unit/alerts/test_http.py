"""The courier against receivers that do as they like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from forebay.alerts import Reply, http
from forebay.alerts.http import HttpCourier

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def courier() -> AsyncIterator[HttpCourier]:
    courier = HttpCourier()
    yield courier
    await courier.close()


@asynccontextmanager
async def receiver(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Its URL, and the requests that it got."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        got.append(head + await reader.readexactly(2))
        try:
            await answer(writer)
        except OSError:
            pass  # it was cut off
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/hook", got


def says(text: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(text.encode())
        await writer.drain()

    return answer


async def test_it_posts_the_body_and_headers_and_tells_the_status(courier: HttpCourier) -> None:
    async with receiver(says("HTTP/1.1 204 No Content\r\n\r\n")) as (url, got):
        assert await courier.post(url, {"webhook-id": "evt_1"}, b"{}") == Reply(204)
    (request,) = got
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook HTTP/1.1\r\n")
    assert b"webhook-id: evt_1" in head
    assert body == b"{}"


async def test_no_redirect_is_followed(courier: HttpCourier) -> None:
    async with receiver(says("HTTP/1.1 200 OK\r\n\r\n")) as (elsewhere, never):
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\n\r\n"
        async with receiver(says(moved)) as (url, _):
            assert await courier.post(url, {}, b"{}") == Reply(307)
    assert never == []


async def test_the_body_of_an_answer_is_not_read(courier: HttpCourier) -> None:
    cut_off = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        finally:
            cut_off.set()

    async with receiver(endless) as (url, _):
        assert await courier.post(url, {}, b"{}") == Reply(200)
        await asyncio.wait_for(cut_off.wait(), 20)


async def test_a_receiver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.2)
    courier, left = HttpCourier(), asyncio.Event()

    async def hangs(_: asyncio.StreamWriter) -> None:
        await left.wait()

    async with receiver(hangs) as (url, _):
        assert await courier.post(url, {}, b"{}") == Reply(None, "no answer within 0.2 s")
        left.set()
    await courier.close()


@pytest.mark.parametrize("text", ["", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\n" + "x" * 20_000])
async def test_what_is_no_answer_is_told_without_the_address(
    courier: HttpCourier, text: str
) -> None:
    async with receiver(says(text)) as (url, _):
        reply = await courier.post(url, {}, b"{}")
    assert reply.status is None
    assert reply.reason
    assert "127.0.0.1" not in reply.reason


async def test_nobody_listens_there(courier: HttpCourier) -> None:
    async with receiver(says("")) as (url, _):
        pass
    reply = await courier.post(url, {}, b"{}")
    assert (reply.status, bool(reply.reason)) == (None, True)
    assert (await courier.post("https://nowhere.invalid/", {}, b"{}")).status is None
