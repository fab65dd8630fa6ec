"""Dialogues that outgrow their windows, in a world of kills, faults and deletions (C3, C8).

What a summary stands for is compared with what was said: every prompt is the one that its window
tells of, made from a summary that was stored of exactly these turns.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forebay.conversation import ConversationSettings, Dialogue
from forebay.core.call import Message
from forebay.core.dialogue import Conversation, Item
from forebay.core.errors import ConversationLocked
from forebay.core.principal import OPERATOR
from forebay.core.usage import Kind, Outcome
from forebay.testing.flaky import FlakySummaries
from forebay.testing.plans import Plan, Scenario, Seen
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Topology
from tests.simulation.test_dialogues import CONVERSATIONS, Talk, asked

# Small, so that conversations of some ten turns are summarised several times.
SHORT = ConversationSettings(summary_share=0.2)


class Noted(FlakySummaries):
    """Remembers what it was asked to store, whether it did or not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stored: list[tuple[tuple[str, ...], str]] = []

    async def store(
        self, organisation_id: str, text: str, covered: Sequence[str], **where: Any
    ) -> None:
        self.stored.append((tuple(covered), text))
        await super().store(organisation_id, text, covered, **where)


class Summed(Talk):
    """A talk whose conversations are summarised."""

    def __init__(self, seed: int, topology: Topology, scenario: Scenario) -> None:
        super().__init__(seed, topology, scenario)
        share = scenario.store_failures
        self.notes = Noted(self.conversations.summaries, self.random, share=share)
        self.summaries = self.notes

    def _turn(self, number: int) -> Plan:
        return replace(super()._turn(number), max_tokens=40)

    def _judge_quiet(self) -> None:
        super()._judge_quiet()
        for row in self.ledger.rows.values():
            if row.kind is Kind.SUMMARY:
                assert row.key_id == OPERATOR.key_id, "who pays"
                self._judge_summary(row.call_id)
            else:
                assert row.key_id != OPERATOR.key_id

    def _judge_summary(self, call_id: str) -> None:
        """S5: it was made from what one organisation said."""
        for made in self.requests(call_id):
            text = bytes(token for token in made.prompt_ids if token < 256).decode(errors="replace")
            canaries = {int(number) for number in re.findall(r"canary-(\d+)", text)}
            tenants = {seen.plan.tenant for seen in self.seen if _number(seen.plan) in canaries}
            assert len(tenants) <= 1, "S5: a summary of two organisations"

    def _judge_prompt(self, seen: Seen, head: Item, past: Sequence[Item]) -> tuple[int, ...]:
        """C3: the prompt has a summary of exactly the turns that it is said to cover."""
        if seen.admitted is None or (window := seen.admitted.window) is None:
            return ()
        turns = [past[place : place + 2] for place in range(0, len(past), 2)]
        assert window.kept + window.summarised + window.dropped == len(turns)
        kept = [item for turn in turns[len(turns) - window.kept :] for item in turn]
        covered = tuple(item.id for item in (head, *past[: 2 * window.summarised]))
        texts = [text for ids, text in self.notes.stored if ids == covered]
        blocks = [Dialogue((), (), summary=text).block for text in texts]
        systems = (
            [f"{head.text}\n\n{block}" for block in blocks] if window.summarised else [head.text]
        )
        prompts = {self._render(each, [*kept, asked(seen.plan)]): each for each in systems}
        made = {
            each.prompt_ids[: seen.admitted.input_tokens] for each in self.requests(seen.plan.id)
        }
        assert made <= prompts.keys(), "C3: another prompt than the window tells of"
        if window.dropped or not made:
            return ()
        (prompt,) = made
        before, self._system = self._system, prompts[prompt]
        return prompt if before == self._system else ()

    def _judge_conversation(self, name: str) -> None:
        """What stays the same between prompts is asked of those that have the same summary."""
        self._system = ""
        super()._judge_conversation(name)

    def _render(self, system: str, said: Sequence[Item]) -> tuple[int, ...]:
        messages = [Message("system", system), *(Message(i.role, i.text) for i in said)]
        return peek(self.tokens.render(MODEL.id, messages)).ids


def _number(plan: Plan) -> int:
    return int(plan.id.removeprefix("req_"))


def test_what_a_summary_stands_for_is_what_was_said(seed: int) -> None:
    """C3, C8: one machine, with kills between any two awaits, and stores that fail."""
    failures = 0.1 if seed % 2 else 0.0
    scenario = Scenario(store_failures=failures, conversation=SHORT)
    assert Summed(seed, Topology.MACHINE, scenario).run().ledger.rows


def test_a_fleet_summarises_what_was_said(seed: int) -> None:
    """Two gateways may summarise the same past at once."""
    assert Summed(seed, Topology.FLEET, Scenario(conversation=SHORT)).run().ledger.rows


class Forgetful(Summed):
    """And people who delete items and turns."""

    async def _history(self) -> None:
        self.removed: set[str] = set()
        self.looks = 0
        editor = self.loop.start("editor", self._edit())
        await super()._history()
        await editor

    async def _edit(self) -> None:
        for _ in range(30):
            await asyncio.sleep(self.random.uniform(0, 3))
            name = f"conv_{self.random.randrange(CONVERSATIONS)}"
            organisation = f"org{int(name[-1]) % 2}"
            items = self._items(name)
            if len(items) < 4 or self.random.random() < 0.5:
                continue
            item = self.random.choice(items[1:])
            try:
                await self.conversations.remove_item(organisation, name, item.id)
            except (KeyError, ConversationLocked):
                continue
            self.removed.add(item.id)
            self._look(name, organisation)

    def _look(self, name: str, organisation: str) -> None:
        """C8: what is left of summaries covers nothing that was deleted."""
        past = peek(
            self.conversations.turns.past(organisation, conversation_id=name, previous_id=None)
        )
        if past.summary is not None:
            first = tuple(item.id for item in past.items[: past.summary.items])
            assert (first, past.summary.text) in self.notes.stored, "C8"
            assert not self.removed.intersection(first), "C8: it covers what was deleted"
            self.looks += 1

    def _judge_quiet(self) -> None:
        self._judge_conversation = self._look_at  # type: ignore[method-assign]
        super()._judge_quiet()

    def _look_at(self, name: str) -> None:
        self._look(name, f"org{int(name[-1]) % 2}")

    def _judge(self, seen: Seen) -> None:
        """Turns lack what was removed; `Talk` asks for all of them."""


def test_no_summary_covers_what_was_deleted(seed: int) -> None:
    topology = Topology.FLEET if seed % 2 else Topology.MACHINE
    assert Forgetful(seed, topology, Scenario(conversation=SHORT)).run().ledger.rows


def test_the_talks_are_summarised_enough_to_mean_something() -> None:
    """Within twenty seeds: summaries are made, go wrong, are shown and go on from one another."""
    made = shown = again = looks = 0
    failed = 0.0
    for seed in range(20):
        talk = Summed(seed, Topology.MACHINE, Scenario(conversation=SHORT, store_failures=0.1))
        talk.run()
        rows = [row for row in talk.ledger.rows.values() if row.kind is Kind.SUMMARY]
        made += sum(row.outcome is Outcome.COMPLETED for row in rows)
        registry = talk.reporter.metrics.registry
        failed += registry.get_sample_value("forebay_summaries_total", {"result": "failed"}) or 0.0
        windows = [seen.admitted.window for seen in talk.seen if seen.admitted]
        shown += sum(window is not None and window.summarised > 0 for window in windows)
        again += len({covered[:2] for covered, _ in talk.notes.stored}) < len(talk.notes.stored)
        forgetful = Forgetful(seed, Topology.MACHINE, Scenario(conversation=SHORT))
        forgetful.run()
        looks += forgetful.looks
    assert min(made, failed, shown, again, looks) > 0, (made, failed, shown, again, looks)


class Stalled(FlakySummaries):
    """A store that never answers."""

    async def store(self, *_: Any, **__: Any) -> None:
        await asyncio.Event().wait()


class Long(Summed):
    """One conversation of many turns, one after the other."""

    def _random_plans(self, calls: int) -> list[Plan]:
        return [
            Plan(f"req_{n:03d}", 0, 1.0 + 3 * n, f"canary-{n} [[script length=20]]", max_tokens=40)
            for n in range(24)
        ]

    def goes_on(self, plan: Plan) -> tuple[str | None, str | None]:
        return "conv_long", None

    def _judge_quiet(self) -> None:
        self.gone: set[str] = set()

    def start(self) -> Long:
        until = self.clock.now() + 86_400
        conversation = Conversation("conv_long", "org0", self.clock.now(), 86_400, until)
        peek(self.conversations.create(conversation, [Item("msg_head", "system", ("S",))]))
        return self

    @property
    def windows(self) -> list[Any]:
        assert all(seen.finished is not None for seen in self.seen), "a turn failed"
        return [seen.admitted and seen.admitted.window for seen in self.seen]


def test_a_summary_that_never_comes_delays_and_fails_no_turn() -> None:
    quiet = Scenario(fate=False, conversation=SHORT)
    talk = Long(1, Topology.MACHINE, quiet).start()
    talk.summaries = Stalled(talk.conversations.summaries, talk.random, share=0.0)
    stalled = talk.run()
    off = replace(quiet, conversation=replace(SHORT, summary_share=0.0))
    plain = Long(1, Topology.MACHINE, off).start().run()
    assert stalled.windows == plain.windows
    assert any(window.dropped for window in plain.windows)


def test_a_long_talk_is_summarised_again_and_again_and_nothing_is_dropped() -> None:
    """With the same summary, consecutive prompts begin alike, id for id (the prefix cache holds)."""
    talk = Long(1, Topology.MACHINE, Scenario(fate=False, conversation=SHORT)).start()
    talk.run()
    windows = talk.windows
    assert {window.dropped for window in windows} == {0}
    assert len({window.summarised for window in windows}) > 3
    prompts = [talk.requests(seen.plan.id)[0].prompt_ids for seen in talk.seen]
    for before, after, first, second in zip(
        windows, windows[1:], prompts, prompts[1:], strict=False
    ):
        if before.summarised == after.summarised:
            assert second[: len(first)] == first
