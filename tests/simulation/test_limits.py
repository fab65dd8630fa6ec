"""Limits of a key, through the real pipeline: calls at once, calls a minute, and miscounting engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from forebay.core.call import Call, Message
from forebay.core.delta import EngineDelta, EngineRequest
from forebay.core.errors import (
    CallerError,
    ContextLengthExceeded,
    InsufficientQuota,
    ModelNotFound,
    RateLimited,
    TooManyOpenCalls,
)
from forebay.core.job import Lane
from forebay.core.principal import Principal
from forebay.engine.mailbox import Mail
from forebay.engine.scripted import ScriptedEngine
from forebay.pipeline.interactive import InteractivePipeline
from forebay.tenancy import STANDARD, make_key
from forebay.tenancy.contract import KeySpec
from forebay.testing import world as worlds
from forebay.testing.plans import Plan, Scenario
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Fabric, Topology, World

LIMIT = 2


# -- calls at once (A3)


class Observed:
    """The most calls of each key that engines ran, and the ledger held, at any step of the loop."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.held: Counter[str] = Counter()

    def __call__(self, world: World) -> None:
        now: Counter[str] = Counter()
        for engine in world.engines.values():
            for made in engine.journal.records.values():
                if made.finished is None and made.cancelled_at is None:
                    call_id = made.request_id.split(".")[0]
                    now[world.ledger.requests[call_id].scopes.key_id] += 1
        self.running |= now
        for name in ("key0", "key1"):
            self.held |= Counter({name: peek(world.ledger.balances(name)).open_holds})


def plan(number: int, tenant: int, at: float, length: int, **more: object) -> Plan:
    script = f"[[script length={length}]]"
    made = Plan(f"req_{tenant}{number:02d}", tenant, at, script, max_tokens=length)
    return replace(made, **{"streamed": number % 2 == 0, **more})  # type: ignore[arg-type]


def limited(plans: list[Plan], seed: int, topology: Topology) -> tuple[World, Observed]:
    observed = Observed()
    scenario = Scenario(plans, fate=False, max_open_calls=LIMIT, watch=observed)
    return World(seed, topology, scenario).run(), observed


@pytest.mark.parametrize("schedule", range(5))
@pytest.mark.parametrize("topology", Topology)
def test_of_twenty_parallel_calls_of_a_key_the_engines_never_run_more_than_it_may(
    schedule: int, topology: Topology
) -> None:
    """A3, L15: also over two gateways and two engines; each key has its own limit."""
    plans = [plan(n, tenant, 0.6, 60) for n in range(20) for tenant in (0, 1)]
    world, observed = limited(plans, schedule, topology)
    assert observed.running == observed.held == {"key0": LIMIT, "key1": LIMIT}
    for tenant in (0, 1):
        ends = [seen for seen in world.seen if seen.plan.tenant == tenant]
        assert sum(seen.finished is not None for seen in ends) == LIMIT
        assert sum(isinstance(seen.refused, TooManyOpenCalls) for seen in ends) == 20 - LIMIT
        assert peek(world.ledger.balances(f"key{tenant}")).open_holds == 0
    assert len(world.ledger.rows) == 2 * LIMIT, "a refused call is not held and not billed"


@pytest.mark.parametrize("schedule", range(5))
@pytest.mark.parametrize("topology", Topology)
def test_when_a_call_ends_another_one_may_start_and_only_one(
    schedule: int, topology: Topology
) -> None:
    """A3: an end, and a client that leaves, each make room for one."""
    plans = [
        plan(0, 0, 0.6, 10),
        plan(1, 0, 0.6, 300),
        plan(2, 0, 0.65, 10),  # refused: both run
        plan(3, 0, 1.6, 300, streamed=True, leaves_after_tokens=20),  # the first one ended
        plan(4, 0, 1.7, 10),  # refused
        plan(5, 0, 3.0, 300),  # the fourth one left
        plan(6, 0, 3.1, 10),  # refused
    ]
    world, observed = limited(plans, schedule, topology)
    refused = [s.plan.id for s in world.seen if isinstance(s.refused, TooManyOpenCalls)]
    assert refused == ["req_002", "req_004", "req_006"]
    served = [seen.plan.id for seen in world.seen if seen.finished or seen.left]
    assert served == ["req_000", "req_001", "req_003", "req_005"]
    assert observed.running == observed.held == {"key0": LIMIT}
    assert peek(world.ledger.balances("key0")).open_holds == 0


# -- calls a minute (A1)


@pytest.fixture
def world() -> Iterator[World]:
    """Rooms to walk through; nothing runs in it by itself."""
    world = World(1, Topology.MACHINE, Scenario([], fate=False))
    yield world
    world.loop.close()


async def key(world: World, name: str) -> str:
    """The secret of a new key that may make one call a minute."""
    secret = make_key(world.ids)
    await world.tenancy.ensure("acme", "main", plan=STANDARD.name)
    spec = KeySpec(world.ids.new("key"), name, "acme", "main", world.clock.now())
    await world.tenancy.create_key(replace(spec, requests_per_minute=1), secret)
    return secret


def call(world: World, principal: Principal, **changes: object) -> Call:
    asked = Call(
        id=world.ids.new("req"),
        principal=principal,
        model=MODEL.id,
        messages=(Message("user", "hello"),),
        lane=Lane.INTERACTIVE,
        streamed=True,
    )
    return replace(asked, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"model": "no-such-model"}, ModelNotFound),
        ({"messages": (Message("user", "long " * 1000),)}, ContextLengthExceeded),
        ({}, InsufficientQuota),  # nobody opened an account for this key
    ],
)
def test_a_call_that_is_refused_further_on_has_used_its_permit(
    world: World, changes: dict[str, object], refusal: type[CallerError]
) -> None:
    """A1: the attempt was made. A knock that is refused takes nothing, and no other key's permit."""
    pipeline = InteractivePipeline(Fabric(world).rooms(world), process="gateway")

    async def enter(secret: str) -> Principal:
        principal = await world.tenancy.authenticate(secret)
        await pipeline.knock(principal)
        return principal

    async def story() -> None:
        secret, other = await key(world, "one"), await key(world, "other")
        principal = await enter(secret)
        assert principal.key_limits.requests_per_minute == 1
        with pytest.raises(refusal):
            async with aclosing(pipeline.run(call(world, principal, **changes))) as bunches:
                await anext(bunches)
        for _ in range(3):
            with pytest.raises(RateLimited) as refused:
                await enter(secret)
            assert refused.value.retry_after_seconds == 60.0
        assert await enter(other) != principal
        await asyncio.sleep(59.0)
        with pytest.raises(RateLimited) as refused:
            await enter(secret)
        assert refused.value.retry_after_seconds == pytest.approx(1.0)
        await asyncio.sleep(1.0)
        assert await enter(secret) == principal

    world.loop.run_until_complete(story())
    assert world.ledger.holds == {}
    assert pipeline.open_calls == 0


# -- an engine that miscounts (E2)


class MiscountedMail(Mail):
    """Says one token more than it made."""

    async def __anext__(self) -> EngineDelta:
        delta = await super().__anext__()
        if delta.reported_tokens is None:
            return delta
        return replace(delta, reported_tokens=delta.reported_tokens + 1)


class MiscountingEngine(ScriptedEngine):
    """Right in everything but its own count."""

    def generate(self, request: EngineRequest) -> Mail:
        return MiscountedMail(self._intake, self._gate, request)


@pytest.mark.parametrize(
    ("engine", "directive", "mismatches"),
    [
        (MiscountingEngine, "", 4),
        (MiscountingEngine, " drop_usage=1", 0),  # an engine need not count (E2)
        (ScriptedEngine, "", 0),
    ],
)
def test_an_engine_that_miscounts_is_noticed_and_what_was_received_is_billed(
    monkeypatch: pytest.MonkeyPatch,
    engine: type[ScriptedEngine],
    directive: str,
    mismatches: int,
) -> None:
    """E2. That the bills are what was streamed is checked by the world itself (S4, L11)."""
    monkeypatch.setattr(worlds, "ScriptedEngine", engine)
    plans = [
        replace(plan(n, 0, 0.6, 10 * (n + 1)), prompt=f"[[script length={9 * (n + 1)}{directive}]]")
        for n in range(4)
    ]
    world = World(1, Topology.MACHINE, Scenario(plans, fate=False)).run()
    assert [seen.tokens for seen in world.seen if seen.finished] == [9, 18, 27, 36]
    billed = {row.call_id: row.usage.output_tokens for row in world.ledger.rows.values()}
    assert billed == {seen.plan.id: seen.tokens for seen in world.seen}
    noticed = world.reporter.metrics.usage_mismatch.labels(MODEL.id)
    assert noticed._value.get() == mismatches
