"""A virtual-time world: real pipeline, queue, ledger and scripted engines, with faults.

A world is a seed and a topology. Its clients call, read, leave and lose patience; its processes are
killed, frozen (SIGSTOP) and replaced between any two awaits; its engines crash. After each step the
money invariants are checked; when all is quiet every call is compared with what its client saw and
what the engines made. A broken invariant prints the command that replays the run:

    python -m forebay.testing.world TOPOLOGY SEED [STORE_FAILURES]

Topologies
- `machine`: gateway, worker, keeper and the queue in one process, as `forebay up` runs them. A kill
  takes everything but the ledger.
- `fleet`: two gateways, two workers and a keeper that share a queue and a stream; each dies alone.

Checked after each step: S2 money is conserved and capped (L1-L4, L7, L8, L11, L15: `watched.py`); S6 one
live lease per job, in order, and S7 the queue's bounds (Q1-Q3, Q5, Q6: `watched_queue.py`); limits
(A2: `watched_admission.py`); an engine is never given more than it can run (E9); every token that
it counts is accounted for. At the end: S1 each held
call has one outcome; S3 no hold outlives its dead owner; S4 completed calls are billed what was streamed,
all others by L8; S5 engines got each call's own prompt; S8 everything is empty, every permit settled (A4);
P3 who was told of a failure of ours pays nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum

from forebay.batch import Batches
from forebay.batch.memory import MemoryBatches, MemoryBlobs, MemoryFiles, MemoryState
from forebay.catalog.settings import SCRIPTED, LaneFactors, price_terms
from forebay.catalog.static import StaticCatalog
from forebay.conversation import Summaries, TurnLogs, Turns
from forebay.conversation.memory import MemoryConversations
from forebay.core.call import Call, Idempotency, Message, SamplingWish
from forebay.core.delta import EngineTally, FinishReason
from forebay.core.errors import ForebayError, StoreUnavailable
from forebay.core.event import Finished
from forebay.core.hold import Account
from forebay.core.job import Lane
from forebay.core.principal import OPERATOR, Principal, Scopes
from forebay.core.usage import Outcome, UsageRow
from forebay.engine.journal import Made
from forebay.engine.script import Performance
from forebay.engine.scripted import ScriptedEngine
from forebay.engine.settings import EngineSettings
from forebay.ledger import Ledger
from forebay.ledger.memory import MemoryLedger
from forebay.observe import Metrics
from forebay.pipeline.batch import BatchLane
from forebay.pipeline.interactive import InteractivePipeline
from forebay.pipeline.keeper import Keeper
from forebay.pipeline.kept import IdempotencySettings
from forebay.pipeline.report import Reporter
from forebay.pipeline.worker import Received, Worker
from forebay.scheduler import Policy
from forebay.testing.clock import CountingIds
from forebay.testing.fabric import Fabric
from forebay.testing.flaky import FlakyLedger
from forebay.testing.loop import LoopClock, VirtualLoop
from forebay.testing.plain_lines import PlainLines
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.tenants import KnownTenants
from forebay.testing.watched import WatchedLedger, check_audit, peek
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.scripted import scripted_tokens

MODEL = replace(SCRIPTED, context_tokens=1024, kv_tokens=1536, max_sequences=4)
ENGINE = EngineSettings(max_sequences=4, kv_tokens=1536, context_tokens=1024)
SCHEMA = '{"type":"object","properties":{"a":{"type":"string","minLength":40}},"required":["a"]}'
# Longer than a freeze, two engines that hang before a first token, and all their deadlines.
QUIET_SECONDS = 240.0


class Topology(StrEnum):
    """What runs where."""

    MACHINE = "machine"
    FLEET = "fleet"


class World:
    """One seeded run. `run` raises AssertionError on the first broken invariant."""

    quiet_seconds = QUIET_SECONDS

    def __init__(self, seed: int, topology: Topology, scenario: Scenario | None = None) -> None:
        self.seed, self.topology = seed, topology
        self.scenario = scenario or Scenario()
        self.loop = VirtualLoop(seed)
        self.random = self.loop.random
        self.clock = LoopClock(self.loop)
        self.ids = CountingIds()
        self.ledger = WatchedLedger(MemoryLedger(self.clock))
        self.store: Ledger = self.ledger
        share, stalls = self.scenario.store_failures, self.scenario.store_stalls
        if share or stalls:
            self.store = FlakyLedger(self.ledger, self.random, share=share, stalls=stalls)
        self.reporter = Reporter(Metrics())
        self.conversations = MemoryConversations(self.scenario.conversation, self.clock)
        self.turns: Turns = self.conversations.turns
        self.logs: TurnLogs = self.conversations.logs
        self.summaries: Summaries = self.conversations.summaries
        self.tokens = HuggingFaceTokens({MODEL.id: scripted_tokens(self.ids)})
        self.files_and_batches = MemoryState(self.scenario.batch, self.clock)
        self.files = MemoryFiles(self.files_and_batches)
        self.batches: Batches = MemoryBatches(self.files_and_batches)
        self.blobs = MemoryBlobs()
        self.tenancy = KnownTenants(self)
        terms = price_terms(MODEL, LaneFactors())
        self.prices = [peek(self.ledger.publish_price(each)) for each in terms]
        self.catalog = StaticCatalog([MODEL], self.prices)
        for scope in OPERATOR:
            peek(self.ledger.open_account(Account(scope)))
        self.seen: list[Seen] = []
        self.engines: dict[str, ScriptedEngine] = {}
        self.workers: dict[str, Worker] = {}
        self.gateways: dict[str, InteractivePipeline] = {}
        self.lanes: dict[str, BatchLane] = {}
        self.revoked: set[str] = set()
        self.alive: list[str] = []
        self.frozen: set[str] = set()
        self._serial = 0
        self._permits_lost = False
        self._rush = self.random.random() < 0.3
        self._plans = self.scenario.plans or self._random_plans(90 if self._rush else 30)
        self.principals = [self._principal(number) for number in range(3)]

    # -- what will happen ---------------------------------------------------------------------

    def _principal(self, number: int) -> Principal:
        """Three tenants; the last one is nearly out of money."""
        scopes = Scopes(f"org{number % 2}", f"proj{number}", f"key{number}")
        cap = 300_000 if number == 2 else None
        for scope in scopes[:2]:
            peek(self.ledger.open_account(Account(scope)))
        peek(
            self.ledger.open_account(
                Account(scopes.key_id, cap, max_open_holds=self.scenario.max_open_calls)
            )
        )
        limits = self.scenario.limits
        return Principal(scopes, weight=number + 1, lanes=frozenset(Lane), key_limits=limits)

    def _random_plans(self, calls: int) -> list[Plan]:
        """So many calls; one in six has an idempotency key and is sent twice or three times."""
        plans: list[Plan] = []
        for number in range(calls):
            plan = self._plan(number)
            if self.random.random() < 1 / 6:
                plan = replace(plan, key=f"key-{number}")
                for again in range(self.random.randint(1, 2)):
                    later = (
                        plan.at + self.random.choice((0.0, 0.5, 5.0, 40.0)) * self.random.random()
                    )
                    leaves = plan.leaves_after_tokens if self.random.random() < 0.5 else None
                    plans.append(
                        replace(plan, id=f"{plan.id}r{again}", at=later, leaves_after_tokens=leaves)
                    )
            plans.append(plan)
        return plans

    def _plan(self, number: int) -> Plan:
        chance = self.random.random
        length = self.random.choice((30, 60, 300) if self._rush else (1, 3, 10, 30, 60))
        fault = ""
        if chance() < 0.04:
            fault = f" crash_at={self.random.randint(0, length)}"
        elif chance() < 0.04:
            fault = f" hang_at={self.random.randint(0, length)}"
        return Plan(
            id=f"req_{number:03d}",
            tenant=self.random.randrange(3),
            at=self.random.uniform(0, 2 if self._rush else 12),
            lane=self.random.choice((Lane.PREMIUM, Lane.INTERACTIVE, Lane.INTERACTIVE, Lane.BATCH)),
            prompt=f"canary-{number} [[script length={length}{fault}]]",
            max_tokens=self.random.choice((None, 5, 40, 300)),
            streamed=chance() < 0.7,
            seed=7 if chance() < 0.3 else None,
            leaves_after_tokens=self.random.randint(0, length) if chance() < 0.2 else None,
            patience_seconds=self.random.uniform(0.1, 8) if chance() < 0.2 else 1e6,
            choices=self.random.choice((2, 3)) if chance() < 0.15 else 1,
            json_schema=SCHEMA if chance() < 0.15 else "",
            logprobs=chance() < 0.15,
        )

    # -- processes ----------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}{self._serial}"

    def _gateway(self, fabric: Fabric, process: str) -> InteractivePipeline:
        idempotency = IdempotencySettings(detach_seconds=10.0)
        return InteractivePipeline(fabric.rooms(self), process=process, idempotency=idempotency)

    def _start_gateway(self, process: str, pipeline: InteractivePipeline) -> None:
        self.gateways[process] = pipeline
        self.loop.start(process, pipeline.beat_forever())
        self.loop.start(process, pipeline.be_present_forever())

    def _lane(self, pipeline: InteractivePipeline) -> BatchLane:
        lines = PlainLines(MODEL.id)
        return BatchLane(pipeline.rooms, pipeline, pipeline.run, lines, self.scenario.batch)

    def _start_worker(self, fabric: Fabric, process: str) -> None:
        engine = ScriptedEngine(ENGINE, self.scenario.script, clock=self.clock)
        self.engines[process] = engine
        queue = self.scenario.queue
        policy = Policy(
            batch_reserve_percent=queue.batch_reserve_percent,
            batch_reserve_seconds=queue.batch_reserve_seconds,
            batch_starts=queue.batch_starts,
        )
        worker = Worker(fabric.rooms(self), engine, name=process, pool=MODEL.id, policy=policy)
        self.workers[process] = worker

        async def life() -> None:
            await engine.start()
            await worker.run()

        self.loop.start(process, life())

    def _start(self, kind: str) -> None:
        process = self._name(kind)
        self.alive.append(process)
        if kind == "machine":
            self.fabric = Fabric(self)
            keeper = Keeper(self.fabric.rooms(self))

            async def keep() -> None:
                """As wiring does: nothing is served before the past is resolved."""
                pipeline = self._gateway(self.fabric, process)
                lane = self._lane(pipeline)

                async def adopt() -> None:
                    await pipeline.background.adopt()
                    await lane.adopt()

                while True:
                    try:
                        await keeper.take_over(adopt)
                        break
                    except StoreUnavailable:  # a server would end here, and be started again
                        await asyncio.sleep(1.0)
                self._start_worker(self.fabric, process)
                self._start_gateway(process, pipeline)
                self.lanes[process] = lane
                self.loop.start(process, lane.run())
                await keeper.run()

            self.loop.start(process, keep())
        elif kind == "gateway":
            self._start_gateway(process, self._gateway(self.fabric, process))
        elif kind == "worker":
            self._start_worker(self.fabric, process)
        else:
            self.loop.start(process, Keeper(self.fabric.rooms(self)).run())

    def kill(self, process: str) -> None:
        """kill -9."""
        self.loop.kill(process)
        self.alive.remove(process)
        # Permits that a gateway takes with it return with time; a machine takes its limits, too.
        self._permits_lost |= process in self.gateways and self.topology is Topology.FLEET
        self.gateways.pop(process, None)
        self.lanes.pop(process, None)

    # -- what clients and fate do -------------------------------------------------------------

    def _call(self, plan: Plan) -> Call:
        return Call(
            id=plan.id,
            principal=self.principals[plan.tenant],
            model=MODEL.id,
            messages=(Message("user", plan.prompt),),
            lane=plan.lane,
            streamed=plan.streamed,
            max_output_tokens=plan.max_tokens,
            choices=plan.choices,
            sampling=SamplingWish(
                temperature=0.7,
                seed=plan.seed,
                ignore_eos=plan.ignore_eos,
                logprobs=plan.logprobs,
                json_schema=plan.json_schema,
            ),
            idempotency=Idempotency(plan.key, bytes(32)) if plan.key else None,
        )

    async def _client(self, seen: Seen, pipeline: InteractivePipeline) -> None:
        plan = seen.plan
        try:
            await pipeline.knock(self.principals[plan.tenant])
            async with (
                asyncio.timeout(plan.patience_seconds),
                aclosing(pipeline.run(self._call(plan))) as bunches,
            ):
                async for bunch in bunches:
                    for event in bunch:
                        seen.take(event)
                    limit = plan.leaves_after_tokens
                    if limit is not None and seen.tokens >= max(limit, 1):
                        seen.left = True
                        return
        except TimeoutError:
            seen.left = True
        except ForebayError as refusal:
            seen.refused = refusal

    async def _clients(self) -> None:
        for plan in sorted(self._plans, key=lambda plan: plan.at):
            await asyncio.sleep(plan.at - self.loop.time())
            while not self.gateways:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            gateway = self.random.choice(sorted(self.gateways))
            seen = Seen(plan, gateway)
            self.seen.append(seen)
            self.loop.start(gateway, self._client(seen, self.gateways[gateway]))

    async def _fate(self) -> None:
        """Kill, freeze and replace processes at random moments; make the wall clock jump (L10)."""
        for _ in range(self.random.randint(0, 4) if self.scenario.fate else 0):
            await asyncio.sleep(self.random.uniform(0.05, 6))
            await self._between_two_awaits()
            victim = self.random.choice(self.alive)
            if self.random.random() < 0.25:
                self.loop.freeze(victim, seconds=self.random.choice((1.0, 5.0, 25.0)))
                if self.topology is Topology.FLEET:
                    self.frozen.add(victim)
                continue
            self.kill(victim)
            self.clock.offset += self.random.choice((0.0, 0.0, 86_400.0, -86_400.0))
            self.ledger.a_day_passed |= self.clock.offset > 0
            await asyncio.sleep(self.random.uniform(0, 8))
            self._start(victim.rstrip("0123456789"))

    async def _between_two_awaits(self) -> None:
        """Strike while something is going on, not only when a timer fires."""
        for _ in range(self.random.randint(0, 40)):
            await asyncio.sleep(0)

    async def _history(self) -> None:
        if self.topology is Topology.MACHINE:
            self._start("machine")
        else:
            self.fabric = Fabric(self)
            for kind in ("keeper", "worker", "worker", "gateway", "gateway"):
                self._start(kind)
        fate = self.loop.start("fate", self._fate())
        await self._clients()
        await fate
        await asyncio.sleep(self.quiet_seconds)

    # -- the run and its judgement ------------------------------------------------------------

    def run(self) -> World:
        """Live through it and judge; the same world again, for questions."""
        self.loop.after_step = self._after_step
        try:
            self.loop.run_until_complete(self._history())
            self._judge_quiet()
            for seen in self.seen:
                self._judge(seen)
        except AssertionError as broken:
            broken.add_note(self._replay())
            raise
        finally:
            for process in list(self.alive):
                self.kill(process)
            self.loop.kill("")
            self.loop.kill("fate")
            self.loop.close()
        return self

    def _after_step(self) -> None:
        self.ledger.check_if_changed()
        for process in self.alive:
            if (engine := self.engines.get(process)) is not None:
                assert engine.signals().waiting == 0, "late binding: the engine's line is not empty"
                self._check_tokens(engine.tally(), self.workers[process].received())
        if self.scenario.watch is not None:
            self.scenario.watch(self)

    @staticmethod
    def _check_tokens(tally: EngineTally, received: Received) -> None:
        """By the engine's own count, every token is with a call, on its way or known to be lost."""
        found = received.tokens + received.ignored + tally.discarded + tally.queued
        assert tally.made == found, f"tokens: {tally.made} were made, {found} are accounted for"

    def _replay(self) -> str:
        """How to see it again; a run with plans of its own is its test's."""
        if self.scenario.plans:
            return f"replay: the same test (topology {self.topology}, seed {self.seed})"
        command = f"python -m forebay.testing.world {self.topology} {self.seed}"
        return f"replay: {command} {self.scenario.store_failures}"

    def _judge_quiet(self) -> None:
        """S3 and S8: nothing is held, queued, leased, streamed or generated any more."""
        check_audit(self.ledger.records)
        assert not self.ledger.unresolved, f"S3: unresolved holds {self.ledger.unresolved}"
        assert not peek(self.fabric.queue.depths(MODEL.id)), "S8: jobs are left in the queue"
        assert self._permits_lost or not self.fabric.admission.open, "A4: permits are left open"
        for process in self.alive:
            if process in self.gateways:
                assert self.gateways[process].open_calls == 0, "S8: calls are left open"
                assert not self.fabric.stream.open_streams(process), "S8: streams are left open"
            if process in self.engines:
                assert self.engines[process].signals().running == 0, "S8: the engine still works"
        made_for = {self._call_id(made.request_id) for made in self._made_by_engines()}
        assert made_for <= set(self.ledger.holds), "L6: the engine ran without a hold"

    @staticmethod
    def _call_id(request_id: str) -> str:
        return request_id.split(".")[0]

    def requests(self, call_id: str) -> list[Made]:
        """What engines were asked and made for this call, in order."""
        return [
            made for made in self._made_by_engines() if self._call_id(made.request_id) == call_id
        ]

    def _made(self, call_id: str) -> int:
        """Tokens that engines made for this call, over all attempts."""
        return sum(made.made for made in self.requests(call_id))

    def _made_by_engines(self) -> Iterator[Made]:
        return (
            made for engine in self.engines.values() for made in engine.journal.records.values()
        )

    def _judge(self, seen: Seen) -> None:
        """S1 and S4: what one client saw, what it was billed, what engines made."""
        row = self.ledger.rows.get(seen.call_id)
        assert seen.terminals <= 1, "T2"
        prompt = peek(self.tokens.render(MODEL.id, [Message("user", seen.plan.prompt)])).ids
        for made in self.requests(seen.call_id):
            assert made.prompt_ids[: len(prompt)] == prompt, "S5: another call's prompt"
        if row is None:
            nothing = seen.refused is not None or seen.left or self._gateway_died(seen)
            assert nothing, f"S1: {seen.plan.id} has no outcome"
            return
        billed = row.usage.output_tokens if row.amount_nanos else 0
        assert billed <= self._made(seen.call_id), "L8: billed more than was made"
        # A gateway that was stopped for seconds counts as dead: what it had read may be charged.
        if (seen.failed or seen.refused) and seen.gateway not in self.frozen:
            assert row.amount_nanos == 0, f"P3: {seen.plan.id} failed and was charged"
        if seen.finished is not None:
            self._judge_finished(seen, row, seen.finished)
        elif seen.left and row.reason in ("client_gone", "ended"):
            assert row.usage.output_tokens >= seen.tokens, "L8: billed less than was read"

    def _gateway_died(self, seen: Seen) -> bool:
        return seen.gateway not in self.gateways

    def _judge_finished(self, seen: Seen, row: UsageRow, finished: Finished) -> None:
        assert row.outcome is Outcome.COMPLETED, "S1"
        replayed = seen.admitted is not None and seen.admitted.replayed
        assert finished.amount_nanos == (0 if replayed else row.amount_nanos), "a replay is free"
        assert seen.tokens == row.usage.output_tokens == finished.usage.output_tokens, "S4"
        prompt = peek(self.tokens.render(MODEL.id, [Message("user", seen.plan.prompt)]))
        undisturbed = Performance(prompt.ids, json_schema=seen.plan.json_schema)
        for choice, reason in enumerate(finished.finish_reasons):
            ids = seen.ids.get(choice, [])
            expected = [undisturbed.token(position) for position in range(len(ids))]
            assert ids == expected, "T1: not the undisturbed text"
            if seen.plan.json_schema and reason is FinishReason.STOP:
                json.loads(seen.texts[choice])
        if seen.plan.logprobs:
            assert seen.logprobs == seen.tokens, "a log-probability is missing"


def main() -> None:
    """Replay one run and print what happened to each call."""
    topology, seed = Topology(sys.argv[1]), int(sys.argv[2])
    failures = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    world = World(seed, topology, Scenario(store_failures=failures))
    try:
        world.run()
    finally:
        for seen in world.seen:
            row = world.ledger.rows.get(seen.plan.id)
            ended = seen.finished or seen.failed or seen.refused or ("left" if seen.left else "-")
            bill = f"{row.outcome} {row.reason} {row.usage.output_tokens}" if row else "no row"
            print(f"{seen.plan.id} {seen.gateway} {seen.plan.lane} {seen.tokens} {bill} {ended}")


if __name__ == "__main__":
    main()
