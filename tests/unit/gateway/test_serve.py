from __future__ import annotations

import asyncio
import resource
import signal

import pytest

from forebay.gateway import GatewaySettings
from forebay.gateway.serve import SPARE_FILES, PortUnavailable, bind, room_for, with_address


def test_a_taken_port_is_said_with_its_number_and_flag():
    with bind("127.0.0.1", 0, flag="--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=rf"Port {port} on 127\.0\.0\.1 is taken.*--port"):
            bind("127.0.0.1", port, flag="--port")


@pytest.mark.parametrize("host", ["192.0.2.1", "::g", "nonsense.invalid", "a..b", "a\0b"])
def test_a_host_that_cannot_be_had_is_said_with_what_changes_it(host):
    with pytest.raises(PortUnavailable, match=r"Cannot listen on .*--host") as refused:
        bind(host, 0, flag="--port")
    assert "--port" not in str(refused.value)
    with pytest.raises(PortUnavailable, match="FOREBAY_ADMIN_HOST"):
        bind(host, 0, flag="--admin-port")


def test_a_port_that_is_none_is_said_with_its_flag():
    with pytest.raises(PortUnavailable, match=r"Cannot listen on port 70000 .*--admin-port"):
        bind("127.0.0.1", 70_000, flag="--admin-port")


async def test_port_0_is_a_free_one_and_the_listener_knows_it(listener):
    one, other = await listener(), await listener()
    assert one.port != other.port
    assert one.base_url == f"http://127.0.0.1:{one.port}"


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:{port}"), ("0.0.0.0", ""), ("::1", "http://[::1]:{port}")],
)
def test_a_server_on_one_address_knows_it_and_one_on_all_does_not(host, address):
    with bind(host, 0, flag="--port") as bound:
        known = with_address(GatewaySettings(), bound)
        assert known.public_url == address.format(port=bound.getsockname()[1])
        told = GatewaySettings(public_url="https://llm.example.org")
        assert with_address(told, bound) == told


@pytest.mark.parametrize(
    ("limits", "asked", "room"),
    [
        ((1024, 1_000_000), 1256, 1000),  # what is missing is asked for
        ((1024, 1024), None, 768),
        ((1024, 1100), 1100, 844),
        ((5000, 5000), None, 1000),
        ((100, 100), None, 1),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 1000),
    ],
)
def test_connections_are_no_more_than_the_system_gives_files_for(monkeypatch, limits, asked, room):
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair))
    assert SPARE_FILES == 256
    assert room_for(1000) == room
    assert set_to == ([(asked, limits[1])] if asked else [])


@pytest.fixture
async def running(gateway, events, connect):
    """A listener with one stream that waits for `gate` after its first chunk."""
    gate = asyncio.Event()
    gateway.script(*events.script("a")[:3], gate, *events.script("a", "b")[3:])
    client = await connect()
    await client.post({"stream": True})
    await client.until(b'"a"}')
    return connect.servers[0], client, gate


async def test_stopping_finishes_running_answers_and_accepts_no_more(running, gateway):
    server, client, gate = running
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.05)
    assert server.open_answers == 1
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", server.port)
    assert not stopping.done()
    gate.set()
    assert (await client.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    await asyncio.wait_for(stopping, 5)
    assert server.open_answers == 0
    assert gateway.pipeline.ending == "exhausted"


async def test_stopping_at_once_breaks_answers_off_and_closes_their_calls(running, gateway):
    server, client, _ = running
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.05)
    server.stop_now()
    await asyncio.wait_for(stopping, 5)
    assert b"[DONE]" not in await client.rest()
    await asyncio.wait_for(gateway.pipeline.left.wait(), 5)
    assert gateway.pipeline.ending == "CancelledError"


async def test_idle_connections_are_closed_when_stopping(connect):
    client = await connect()
    await client.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.until(b'{"status":"alive"}')
    await asyncio.wait_for(connect.servers[0].stop(), 5)
    assert await client.rest() == b""


async def test_signals_are_left_alone(listener):
    before = signal.getsignal(signal.SIGINT)
    await listener()
    assert signal.getsignal(signal.SIGINT) is before
