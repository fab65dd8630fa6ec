"""Limits over HTTP, through the real gateway, pipeline, queue and ledger, in virtual time.

`WatchedAdmission` asserts at each take that A2's bound holds, and at each answer that what its headers
say is left is what its own record says.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from forebay.core.call import Call, Message
from forebay.core.errors import Overloaded
from forebay.core.hold import Account
from forebay.core.job import Ahead, Flow, Lane
from forebay.core.principal import Principal, RateLimits, Scopes
from forebay.gateway import GatewaySettings, Readiness, Services
from forebay.gateway.app import build_public
from forebay.pipeline.administration import Administration
from forebay.pipeline.dialogues import Dialogues
from forebay.pipeline.interactive import InteractivePipeline
from forebay.pipeline.turns import ShownTurns
from forebay.testing.desk import memory_desk
from forebay.testing.loop import spawn
from forebay.testing.plans import Scenario
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Fabric, Topology, World

KEY = Principal(Scopes("org", "proj", "key"), 1, frozenset(Lane))
Headers = dict[str, str]


@dataclass
class Answer:
    status: int
    headers: Headers
    body: bytes

    @property
    def left(self) -> tuple[int, int]:
        """Calls and tokens."""
        requests = self.headers["x-ratelimit-remaining-requests"]
        return int(requests), int(self.headers["x-ratelimit-remaining-tokens"])

    @property
    def usage(self) -> int:
        return int(json.loads(self.body)["usage"]["total_tokens"])

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"]["message"])


class OneKey:
    """A tenancy whose every secret is `KEY` with these limits."""

    def __init__(self, limits: RateLimits) -> None:
        self.principal = replace(KEY, key_limits=limits)

    async def authenticate(self, secret: str) -> Principal:
        return self.principal


class Site:
    """A machine that serves, and what its clients do."""

    def __init__(self, world: World, limits: RateLimits, open_calls: int | None) -> None:
        self.world = world
        self.tenancy = OneKey(limits)
        for scope in KEY.scopes:
            most = open_calls if scope == "key" else None
            peek(world.ledger.open_account(Account(scope, max_open_holds=most)))

    async def start(self) -> None:
        world = self.world
        world._start("machine")
        while not world.gateways:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        (self.pipeline,) = world.gateways.values()
        services = Services(
            pipeline=self.pipeline,
            catalog=world.catalog,
            tenancy=self.tenancy,  # type: ignore[arg-type]
            metrics=world.reporter.metrics,
            ids=world.ids,
            clock=world.clock,
            spawn=spawn,
            health=Readiness,
            administration=Administration(memory_desk(world.clock)),
            dialogues=Dialogues(
                world.conversations, world.clock, world.ids, world.scenario.conversation
            ),
            turns=ShownTurns(world.turns, self.pipeline.rooms.remember),
            background=self.pipeline.background,
            files=None,  # type: ignore[arg-type]
            batches=None,  # type: ignore[arg-type]
        )
        self.app = build_public(services, GatewaySettings())

    async def get(self, path: str) -> Answer:
        return await self.request("GET", path, b"", {})

    async def chat(
        self, length: int = 10, max_tokens: int = 20, stream: bool = False, **headers: str
    ) -> Answer:
        script = f"[[script length={length}]]"
        body = {
            "model": MODEL.id,
            "messages": [{"role": "user", "content": script}],
            "max_tokens": max_tokens,
            "stream": stream,
        }
        return await self.request(
            "POST", "/v1/chat/completions", json.dumps(body).encode(), headers
        )

    async def request(self, method: str, path: str, body: bytes, headers: Headers) -> Answer:
        sent = {"authorization": "Bearer x"} | headers
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in sent.items()],
        }
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        answer = Answer(0, {}, b"")

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            return await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answer.body += message["body"]

        await self.app(scope, receive, send)
        return answer


Story = Callable[[Site], Coroutine[Any, Any, None]]
Play = Callable[..., Site]


@pytest.fixture
def play() -> Iterator[Play]:
    worlds: list[World] = []

    def live(
        story: Story, limits: RateLimits, *, open_calls: int | None = None, **more: Any
    ) -> Site:
        world = World(1, Topology.MACHINE, Scenario([], fate=False, **more))
        worlds.append(world)
        world.loop.after_step = world._after_step
        site = Site(world, limits, open_calls)

        async def whole() -> None:
            await site.start()
            await story(site)

        world.loop.run_until_complete(whole())
        return site

    yield live
    for world in worlds:
        for process in list(world.alive):
            world.kill(process)
        world.loop.kill("")
        world.loop.close()


def test_the_headers_count_down_with_calls_and_tokens_and_up_with_time(play: Play) -> None:
    async def story(site: Site) -> None:
        first = await site.chat(length=10, max_tokens=200)
        assert first.status == 200
        assert first.left[0] == 2
        kept = 1000 - first.left[1]
        assert first.usage - 20 < kept <= first.usage, "what it did not use is back in its answer"
        assert first.headers["x-ratelimit-limit-requests"] == "3"
        assert first.headers["x-ratelimit-limit-tokens"] == "1000"
        stream = await site.chat(length=10, max_tokens=200, stream=True)
        assert stream.left[0] == 1
        kept = first.left[1] - stream.left[1]
        most = first.usage - 10 + 200
        assert most - 20 < kept <= most, "its head has counted all it may use"
        models = await site.get("/v1/models")
        assert (models.status, models.left[0]) == (200, 0)
        assert models.left[1] > stream.left[1], "the rest came back at its end"
        refused = await site.get("/v1/models")
        assert (refused.status, refused.left[0]) == (429, 0)
        assert "This key may make 3 calls a minute" in refused.error
        milliseconds = int(refused.headers["retry-after-ms"])
        assert int(refused.headers["retry-after"]) == -(-milliseconds // 1000)
        await asyncio.sleep(milliseconds / 1000 - 0.002)
        assert (await site.get("/v1/models")).status == 429
        await asyncio.sleep(0.002)
        assert (await site.get("/v1/models")).status == 200, "as long as it said, and no longer"
        await asyncio.sleep(61.0)
        assert (await site.get("/v1/models")).left == (2, 1000)

    play(story, RateLimits(3, 1000))


def test_what_no_waiting_cures_says_so(play: Play) -> None:
    async def story(site: Site) -> None:
        answer = await site.chat(max_tokens=400)
        assert answer.status == 429
        assert "waiting does not help" in answer.error
        assert answer.headers["x-should-retry"] == "false"
        assert not {"retry-after", "retry-after-ms"} & answer.headers.keys()
        assert answer.left == (59, 400)

    play(story, RateLimits(60, 400))


def test_a_body_too_large_for_the_tokens_left_is_refused_before_it_is_looked_into(
    play: Play,
) -> None:
    async def story(site: Site) -> None:
        answer = await site.request("POST", "/v1/chat/completions", b"{" * 6401, {})
        assert answer.status == 429
        assert "a body of 6401 bytes needs at least 401" in answer.error
        answer = await site.request("POST", "/v1/chat/completions", b"{" * 6400, {})
        assert answer.status == 400
        assert answer.left == (58, 400)

    play(story, RateLimits(60, 400))


def test_a_call_that_is_refused_its_hold_has_its_tokens_back(play: Play) -> None:
    """A4: ⑧ refuses, here for a limit of calls at once; ② stays taken (A1)."""

    async def story(site: Site) -> None:
        answer = await site.chat()
        assert answer.status == 429
        assert answer.left == (59, 10_000)

    play(story, RateLimits(60, 10_000), open_calls=0)


def test_a_call_may_ask_not_to_wait_and_is_not_started_later(play: Play) -> None:
    """Four run for long; the fifth waits no longer than it wants and costs nothing."""

    async def story(site: Site) -> None:
        loop = asyncio.get_running_loop()
        running = [spawn(site.chat(300, 300), name="long") for _ in range(4)]
        await asyncio.sleep(0.2)
        began = loop.time()
        answer = await site.chat(x_forebay_queue_deadline="0.5")
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "queue_deadline")
        assert loop.time() - began == pytest.approx(0.5, abs=0.1)
        assert {(await each).status for each in running} == {200}
        used = sum([(await each).usage for each in running])
        assert sum(site.world.fabric.admission.used_tokens) == used

    play(story, RateLimits(60, 100_000))


def test_a_minutes_attack_of_five_hundred_calls_stays_within_every_limit(play: Play) -> None:
    """60 calls and 10,000 tokens a minute, three calls at once of the four that the engine could run:
    A2 at each take and what each answer says is left (`WatchedAdmission`), A3 at each step, A4 at the
    end."""
    most_at_once: Counter[str] = Counter()

    def watch(world: World) -> None:
        running = sum(engine.signals().running for engine in world.engines.values())
        most_at_once["running"] = max(most_at_once["running"], running)

    async def story(site: Site) -> None:
        async def attack(number: int) -> Answer:
            await asyncio.sleep(number * 60 / 500)
            return await site.chat(length=20 + number % 200, max_tokens=250, stream=number % 2 == 0)

        calls = [spawn(attack(number), name=f"attack {number}") for number in range(500)]
        answers = [await call for call in calls]
        statuses = Counter(answer.status for answer in answers)
        assert set(statuses) == {200, 429}
        assert 20 < statuses[200] <= 120
        for answer in answers:
            waits = "retry-after" in answer.headers
            assert waits == (answer.status == 429), "each of these is cured by waiting"
        await asyncio.sleep(61.0)
        assert (await site.get("/v1/models")).left == (59, 10_000)
        assert not site.world.fabric.admission.open

    play(story, RateLimits(60, 10_000), open_calls=3, watch=watch)
    assert most_at_once["running"] == 3


# -- the wait that is foreseen


class Untouchable:
    """A room that nobody may enter."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


def test_an_overloaded_pool_refuses_before_anything_is_tokenised_or_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1, Topology.MACHINE, Scenario([], fate=False))
    world.fabric = Fabric(world)
    rooms = world.fabric.rooms(world)
    closed: Any = Untouchable()
    shut = replace(rooms, tokens=closed, ledger=closed, stream=closed, tenancy=closed)
    pipeline = InteractivePipeline(shut, process="gateway")
    principal = replace(KEY, key_limits=RateLimits(60, 1000))
    call = Call("req_1", principal, MODEL.id, Lane.INTERACTIVE, True, (Message("user", "hello"),))

    async def crowded(pool: str, flow: Flow, cost: int) -> Ahead:
        return Ahead(9, 30_000)

    async def story() -> None:
        for _ in range(11):
            rooms.admission.served(MODEL.id, 1000, busy=True)
            await asyncio.sleep(1.0)
        monkeypatch.setattr(world.fabric.queue, "ahead", crowded)
        with pytest.raises(Overloaded) as refusal:
            async with aclosing(pipeline.run(call)) as bunches:
                await anext(bunches)
        assert 20 < refusal.value.retry_after_seconds * 4 < 45
        left = pipeline.standing(principal).tokens
        assert left is not None
        assert left.remaining == 1000

    world.loop.run_until_complete(story())
    world.loop.close()
