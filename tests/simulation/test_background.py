"""Calls in the background whose processes are killed and frozen: begun once, billed once, told once.

Whoever asks for them looks in again and again, at whatever process lives, and cancels some. What it has
been told of a call stays true for ever: every later reading begins with the same events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from forebay.core.call import Call
from forebay.core.dialogue import Turn, TurnState
from forebay.core.errors import ForebayError
from forebay.core.event import CallEvent, Delta, Failed, Finished
from forebay.core.usage import Outcome
from forebay.pipeline.interactive import InteractivePipeline
from forebay.testing.flaky import FlakyTurnLogs
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.watched import peek
from forebay.testing.world import Topology
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
        return replace(super()._call(plan), background=True, streamed=False)

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
            await pipeline.knock(self._principals[plan.tenant])
            call = self._call(plan)
            seen.admitted = await pipeline.background.start(call, logged=plan.streamed)
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
