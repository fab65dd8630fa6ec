from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import pytest

from forebay.gateway.connections import Connections


class Connection:
    def __init__(self):
        self.closed = False

    def make_room(self):
        self.closed = True


def entered(everyone, *addresses):
    found = [Connection() for _ in addresses]
    for connection, address in zip(found, addresses, strict=True):
        assert everyone.enter(connection, address) is None
    return found


def test_the_oldest_idle_one_makes_room():
    everyone = Connections(3, 3)
    first, second, third = entered(everyone, "a", "b", "c")
    everyone.busy(first)
    everyone.idle(first)  # it was used meanwhile: now the second waits the longest
    entered(everyone, "d")
    assert [c.closed for c in (first, second, third)] == [False, True, False]
    assert len(everyone) == 3


def test_who_is_busy_stays_and_the_newcomer_is_refused():
    everyone = Connections(2, 2)
    for connection in entered(everyone, "a", "b"):
        everyone.busy(connection)
    late = Connection()
    assert everyone.enter(late, "c") == "all"
    everyone.leave(late)
    assert len(everyone) == 2


def test_an_address_at_its_cap_takes_from_itself_alone():
    everyone = Connections(100, 2)
    other, mine, mine_too = entered(everyone, "b", "a", "a")
    entered(everyone, "a")
    assert [c.closed for c in (other, mine, mine_too)] == [False, True, False]
    everyone.busy(mine_too)
    [newest] = entered(everyone, "a")  # closes the idle one
    everyone.busy(newest)
    assert everyone.enter(Connection(), "a") == "address"
    assert not other.closed
    entered(everyone, "c")


def test_without_an_address_only_the_whole_is_bounded():
    everyone = Connections(5, 1)
    for connection in entered(everyone, *[""] * 5):
        everyone.busy(connection)
    assert everyone.enter(Connection(), "") == "all"


def test_whatever_happens_the_caps_hold_and_nothing_is_left_behind():
    rng, everyone = random.Random(5), Connections(20, 6)
    alive: dict[Connection, str] = {}
    for _ in range(20_000):
        if alive and rng.random() < 0.7:
            one = rng.choice(list(alive))
            rng.choice([everyone.busy, everyone.idle, everyone.leave])(one)
        else:
            address = rng.choice("abcdef")
            one = Connection()
            if everyone.enter(one, address) is None:
                alive[one] = address
        alive = {c: a for c, a in alive.items() if not c.closed and c in everyone._addresses}
        assert len(everyone) == len(alive) <= 20
        for address in "abcdef":
            count = list(alive.values()).count(address)
            assert count == everyone._per_address[address] <= 6
    for one in list(alive):
        everyone.leave(one)
        everyone.leave(one)
    assert not everyone._idle
    assert not everyone._idle_of
    assert not +everyone._per_address


# -- over real sockets --------------------------------------------------------------------------------

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
ALIVE = b'{"status":"alive"}'


@pytest.fixture
def streams(connect, gateway, events):
    """Opens connections with an answer that runs until the test ends."""
    gateway.script(*events.script("a")[:3], asyncio.Event())

    async def open_some(count):
        clients = []
        for _ in range(count):
            clients.append(await connect())
            await clients[-1].post({"stream": True})
            await clients[-1].until(b'"a"}')
        return clients

    return open_some


async def refusal(client):
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"retry-after: 1" in head
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


async def test_one_address_has_no_more_connections_than_it_may(connect, gateway, streams):
    gateway.settings = replace(gateway.settings, max_connections_per_ip=3)
    running = await streams(3)
    assert await refusal(await connect()) == (429, "rate_limit_exceeded")
    await running[0].close()
    while len(connect.servers[0]._server.server_state.connections) > 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    client = await connect()
    await client.send(GET)
    await client.until(ALIVE)


async def test_a_proxy_that_the_operator_named_may_have_more(connect, gateway, streams):
    gateway.settings = replace(
        gateway.settings, max_connections_per_ip=3, trusted_proxies=("127.0.0.0/8",)
    )
    assert len(await streams(6)) == 6


async def test_all_together_have_no_more_than_there_may_be(connect, gateway, streams):
    gateway.settings = replace(gateway.settings, max_connections=3)
    await streams(3)
    assert await refusal(await connect()) == (503, "server_is_overloaded")


@pytest.mark.parametrize("cap", ["max_connections", "max_connections_per_ip"])
async def test_idle_connections_make_room_the_oldest_first_and_answers_go_on(
    connect, gateway, streams, cap
):
    gateway.settings = replace(gateway.settings, **{cap: 5})
    await streams(1)
    idle = [await connect() for _ in range(4)]
    for client in (*idle[1:], idle[0]):  # so the second is the oldest now
        await client.send(GET)
        await client.until(ALIVE)
    for expected in (idle[1], idle[2]):
        client = await connect()
        await client.send(GET)
        await client.until(ALIVE)
        assert await expected.rest() == b""
    await idle[0].send(GET)
    await idle[0].until(ALIVE)
    assert gateway.pipeline.ending is None, "the stream runs on"


@pytest.mark.parametrize(
    "request_",
    [GET, b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n"],
    ids=["answered", "refused with its body under way"],
)
@pytest.mark.parametrize("drip", [b"", b"\r\n"], ids=["silence", "a drip"])
async def test_an_idle_connection_is_closed_in_time_whatever_it_sends(
    connect, gateway, request_, drip
):
    gateway.settings = replace(gateway.settings, idle_seconds=1)
    client = await connect()
    await client.send(request_)
    await client.until(b"}")
    ended = asyncio.ensure_future(client.rest())
    begun = asyncio.get_running_loop().time()
    while not ended.done() and asyncio.get_running_loop().time() < begun + 5:
        try:
            await client.send(drip)
        except ConnectionError:
            break
        await asyncio.sleep(0.1)
    assert ended.done()
    await asyncio.gather(ended, return_exceptions=True)


async def test_a_long_answer_is_not_ended_by_the_idle_time_of_the_one_before(
    connect, gateway, events
):
    """The next request's head was under way when the first answer ended."""
    gateway.settings = replace(gateway.settings, idle_seconds=1)
    gate = asyncio.Event()
    gateway.script(events.admitted(), gate, *events.script("a")[2:])
    client = await connect()
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer fbk_live_test\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    await client.send(GET + head[:40])
    await client.until(ALIVE)
    await client.send(head[40:] + body)
    await asyncio.sleep(1.5)
    gate.set()
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
