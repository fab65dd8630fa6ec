"""Calls in the background whose processes are killed and frozen: begun once, billed once, told once.

Whoever asks for them looks in again and again, at whatever process lives, and cancels some. What it has
been told of a call stays true for ever: every later reading begins with the same events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from forebay.catalog.static import StaticCatalog
from forebay.conversation.memory import MemoryTurnLogs
from forebay.core.call import Call
from forebay.core.dialogue import Turn, TurnState
from forebay.core.errors import ForebayError, StoreUnavailable
from forebay.core.event import CallEvent, Delta, Failed, Finished
from forebay.core.usage import Outcome, UsageRow
from forebay.pipeline.interactive import InteractivePipeline
from forebay.testing.flaky import FlakyTurnLogs
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Topology
from tests.simulation.test_dialogues import Talk

ENDINGS = {
    TurnState.SHOWN: {Outcome.COMPLETED},
    TurnState.CANCELLED: {Outcome.CANCELLED},
    TurnState.FAILED: {Outcome.FAILED, Outcome.EVICTED},
}


class Errands(Talk):
    """Every turn is made in the background, two of three with a log."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        super().__init__(seed, Topology.MACHINE, scenario)
        self.logs = FlakyTurnLogs(
            self.conversations.logs, self.random, share=scenario.store_failures
        )
        self.told: dict[str, list[Delta]] = {}
        self.ends: dict[str, set[str]] = {}
        self.resumed = 0

    def _call(self, plan: Plan) -> Call:
        return replace(super()._call(plan), background=True, streamed=False, logged=plan.streamed)

    def turn_of(self, seen: Seen) -> Turn | None:
        plan = seen.plan
        try:
            return peek(self.conversations.turns.find(f"org{plan.tenant}", f"turn_{plan.id}"))
        except KeyError:
            return None

    async def _client(self, seen: Seen, pipeline: InteractivePipeline) -> None:
        self.loop.start("patron", self._patron(seen))
        plan = seen.plan
        try:
            await pipeline.knock(self.principals[plan.tenant])
            call = self._call(plan)
            seen.admitted, _ = await pipeline.background.start(call)
        except ForebayError as refusal:
            seen.refused = refusal

    async def _patron(self, seen: Seen) -> None:
        """Looks in for two minutes, at whatever process lives by then."""
        until = self.loop.time() + 120.0
        impatient = seen.plan.patience_seconds < 1e5
        cancel_at = self.loop.time() + (self.random.uniform(0.1, 20) if impatient else 1e6)
        while self.loop.time() < until:
            await asyncio.sleep(self.random.choice((0.05, 0.3, 3.0)) * self.random.random())
            if self.gateways:
                gateway = self.random.choice(sorted(self.gateways))
                cancel = self.loop.time() >= cancel_at
                looking = self._look(seen, self.gateways[gateway], cancel=cancel)
                self.loop.start(gateway, looking)
            if seen.refused is not None:
                return
            await asyncio.sleep(self.random.uniform(0, 6))

    async def _look(self, seen: Seen, pipeline: InteractivePipeline, *, cancel: bool) -> None:
        plan, background = seen.plan, pipeline.background
        try:
            turn = await pipeline.rooms.remember.find(f"org{plan.tenant}", f"turn_{plan.id}")
            if cancel:
                turn = await background.cancel(turn)
            if plan.streamed and await background.is_logged(turn):
                await self._read(seen, background.read(turn))
        except (KeyError, ForebayError):
            return

    async def _read(self, seen: Seen, bunches: AsyncGenerator[list[CallEvent], None]) -> None:
        """T1, also over deaths: the same deltas in the same order, then one end."""
        told = self.told.setdefault(seen.plan.id, [])
        position = 0
        async with aclosing(bunches):
            async for bunch in bunches:
                for event in bunch:
                    if isinstance(event, Delta):
                        if position < len(told):
                            assert told[position] == event, "T1: told otherwise before"
                        else:
                            told.append(event)
                        position += 1
                    elif isinstance(event, Finished | Failed):
                        assert position == len(told), "T1: an end before what was told"
                        self.ends.setdefault(seen.plan.id, set()).add(type(event).__name__)

    def _judge(self, seen: Seen) -> None:
        """The turn says what the ledger says; who was told of an answer was told of this one."""
        row, turn = self.ledger.rows.get(seen.plan.id), self.turn_of(seen)
        conversation_id, _ = self.goes_on(seen.plan)
        if conversation_id is not None and conversation_id in self.gone:
            return
        if row is None:
            assert turn is None
            return
        if turn is None:  # nobody was told that it had begun
            assert seen.admitted is None, "lost"
            assert row.outcome in (Outcome.REJECTED, Outcome.FAILED)
            return
        assert row.outcome in ENDINGS[turn.state]
        if row.outcome is Outcome.FAILED:
            assert row.amount_nanos == 0
        ends = self.ends.get(seen.plan.id, set())
        assert ends <= {"Finished" if turn.state is TurnState.SHOWN else "Failed"}
        told = self.told.get(seen.plan.id, [])
        if turn.said is not None:
            text = "".join(delta.text for delta in told)
            assert turn.said.output.text.startswith(text), "told what is not the answer"
            assert not ends or text == turn.said.output.text
            assert turn.said.usage == row.usage
            self.resumed += bool(told) and row.attempt > 1


def test_nobody_waits_and_nothing_is_lost(seed: int) -> None:
    """Kills between any two awaits, frozen machines, stores that fail and lose answers."""
    share = 0.1 if seed % 2 else 0.0
    assert Errands(seed, Scenario(store_failures=share)).run().ledger.rows


def test_the_errands_are_eventful_enough_to_mean_something() -> None:
    """Within thirty seeds: calls that go on after a death, also in the middle of their text; some
    that fail and some that are cancelled."""
    outcomes: dict[tuple[Outcome, bool], int] = {}
    resumed = 0
    for seed in range(30):
        world = Errands(seed, Scenario())
        world.run()
        resumed += world.resumed
        for row in world.ledger.rows.values():
            key = row.outcome, row.attempt > 1
            outcomes[key] = outcomes.get(key, 0) + 1
    assert resumed > 10
    assert outcomes[Outcome.COMPLETED, True] > 20
    assert min(outcomes.get((kind, False), 0) for kind in Outcome if kind is not Outcome.EVICTED)


class Errand(Errands):
    """One call with a log, of six hundred tokens, and what befalls it."""

    def __init__(self, befalls: Callable[[Errand], Awaitable[None]]) -> None:
        plans = [Plan("req_000", 1, 0.5, "Go [[script length=600]]", max_tokens=700)]
        super().__init__(1, Scenario(plans=plans, fate=False))
        self.befalls = befalls

    def goes_on(self, plan: Plan) -> tuple[str | None, str | None]:
        return "conv_1", None

    async def _client(self, seen: Seen, pipeline: InteractivePipeline) -> None:
        self.loop.start("fate", self._befall())
        await super()._client(seen, pipeline)

    async def _befall(self) -> None:
        await asyncio.sleep(2.0)
        await self.befalls(self)

    def judged(self) -> tuple[UsageRow, Turn | None]:
        (seen,) = self.run().seen
        return self.ledger.rows["req_000"], self.turn_of(seen)


def test_what_our_own_store_cannot_keep_up_with_is_free() -> None:
    class Broken(MemoryTurnLogs):
        async def append(self, turn_id: str, position: int, events: bytes) -> None:
            raise StoreUnavailable

    async def breaks(errand: Errand) -> None:
        (pipeline,) = errand.gateways.values()
        broken = Broken(errand.conversations.logs._state)
        pipeline.background._rooms = replace(pipeline.rooms, logs=broken)

    row, turn = Errand(breaks).judged()
    assert (row.outcome, row.reason, row.amount_nanos) == (Outcome.FAILED, "owner_failed", 0)
    assert turn is not None
    assert (turn.state, turn.reason) == (TurnState.FAILED, "owner_failed")


def test_a_job_that_fits_no_engine_any_more_fails_at_the_restart() -> None:
    """It would stand at the head of the line for ever."""

    async def shrinks(errand: Errand) -> None:
        errand.kill(errand.alive[0])
        small = replace(MODEL, kv_tokens=128, context_tokens=128)
        errand.catalog = StaticCatalog([small], errand.prices)
        errand._start("machine")

    row, turn = Errand(shrinks).judged()
    assert (row.outcome, row.reason, row.amount_nanos) == (Outcome.FAILED, "model_too_small", 0)
    assert turn is not None
    assert turn.state is TurnState.FAILED


def test_what_is_made_in_a_conversation_ends_with_it() -> None:
    async def deletes(errand: Errand) -> None:
        (pipeline,) = errand.gateways.values()
        await errand.conversations.delete("org1", "conv_1")
        await pipeline.background.forget("conv_1")

    row, turn = Errand(deletes).judged()
    assert (row.outcome, turn) == (Outcome.CANCELLED, None)
    assert 0 < row.usage.output_tokens < 600


def test_the_streams_of_what_a_stop_leaves_break_off_without_an_end() -> None:
    async def stops(errand: Errand) -> None:
        (pipeline,) = errand.gateways.values()
        turn = errand.turn_of(errand.seen[0])
        assert turn is not None
        await pipeline.break_off(seconds=1.0)
        events = [event async for bunch in pipeline.background.read(turn) for event in bunch]
        assert any(isinstance(event, Delta) for event in events)
        assert not any(isinstance(event, Finished | Failed) for event in events)
        errand.kill(errand.alive[0])
        errand._start("machine")

    row, turn = Errand(stops).judged()
    assert row.outcome is Outcome.COMPLETED
    assert turn is not None
    assert turn.state is TurnState.SHOWN
