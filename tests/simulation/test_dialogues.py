"""Dialogues whose processes are killed and frozen, and whose clients speak all at once (C1-C5).

What a conversation holds at the end is compared with what was settled: a turn is there if, and only if,
its call was completed, in the order of settlements, question and answer together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forebay.core.call import Call, Message, Remembrance
from forebay.core.dialogue import Conversation, Item, Page, TurnState, answer_id
from forebay.core.errors import ContextLengthExceeded, ConversationLocked
from forebay.core.usage import Kind, Outcome
from forebay.testing.flaky import FlakyTurns
from forebay.testing.plans import NOTHING_SUMMARISED, Plan, Scenario, Seen
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Topology, World
from forebay.tokens import TokensSettings
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.scripted import scripted_tokens

CONVERSATIONS, CALLS = 4, 40
LARGE = replace(NOTHING_SUMMARISED, max_items=10_000)
EVERYTHING = Page(limit=1_000, newest_first=False)


class Talk(World):
    """Every call is a turn: of one of four conversations, or after the answer to an earlier call."""

    def __init__(self, seed: int, topology: Topology, scenario: Scenario) -> None:
        super().__init__(seed, topology, scenario)
        share = scenario.store_failures
        self.turns = FlakyTurns(self.conversations.turns, self.random, share=share)
        # Nothing here has a thread.
        inline = TokensSettings(inline_characters=1_000_000)
        self.tokens = HuggingFaceTokens({MODEL.id: scripted_tokens(self.ids)}, inline)
        for number in range(CONVERSATIONS):
            seconds = self.random.choice((15, *[30 * 86_400] * 3))
            conversation = Conversation(
                f"conv_{number}", f"org{number % 2}", self.clock.now(), seconds,
                self.clock.now() + seconds,
            )  # fmt: skip
            peek(self.conversations.create(conversation, [Item(f"msg_{number}", "system", ("S",))]))

    def _random_plans(self, calls: int) -> list[Plan]:
        return [self._turn(number) for number in range(CALLS)]

    def _turn(self, number: int) -> Plan:
        plan = replace(
            self._plan(number), at=self.random.uniform(0, 40), choices=1, json_schema="", seed=None
        )
        another = number % 11 == 10  # the other organisation, which finds nothing
        return replace(plan, tenant=(number + another) % 2)

    def goes_on(self, plan: Plan) -> tuple[str | None, str | None]:
        """The conversation, or the earlier turn; now and then one of the other organisation."""
        number = int(plan.id.removeprefix("req_"))
        if number % 7 == 6:
            return None, f"turn_req_{number // 14 * 2 + number % 2:03d}"
        return f"conv_{number % CONVERSATIONS}", None

    def _call(self, plan: Plan) -> Call:
        conversation_id, previous_id = self.goes_on(plan)
        wish = Remembrance(
            (asked(plan),), f"turn_{plan.id}", conversation_id, previous_id, record=b"{}"
        )
        return replace(super()._call(plan), messages=(), remembrance=wish)

    def _judge(self, seen: Seen) -> None:
        """C5: shown if settled as completed, and only then; with the text that the client saw."""
        plan = seen.plan
        row = self.ledger.rows.get(plan.id)
        conversation_id, _ = self.goes_on(plan)
        if conversation_id is not None and conversation_id in self.gone:
            return
        try:
            turn = peek(self.conversations.turns.find(f"org{plan.tenant}", f"turn_{plan.id}"))
        except KeyError:
            assert row is None or row.outcome is not Outcome.COMPLETED, "C5: a turn is lost"
            assert seen.finished is None
            return
        assert row is not None
        assert (turn.state, row.outcome) == (TurnState.SHOWN, Outcome.COMPLETED), "C5"
        assert turn.said is not None
        assert turn.said.usage == row.usage, "the turn says what was charged"
        if seen.finished is not None:
            assert turn.said.output.text == seen.text

    def _judge_quiet(self) -> None:
        super()._judge_quiet()
        assert peek(self.conversations.turns.sweep()) == [], (
            "S3: a turn is left that nobody was told of"
        )
        self.gone = {name for name in map("conv_{}".format, range(4)) if not self._items(name)}
        for number in range(CONVERSATIONS):
            if (name := f"conv_{number}") not in self.gone:
                self._judge_conversation(name)

    def _items(self, name: str) -> Sequence[Item]:
        try:
            return peek(self.conversations.items(f"org{int(name[-1]) % 2}", name, EVERYTHING))
        except KeyError:
            return ()

    def _judge_conversation(self, name: str) -> None:
        """C4: the settled turns, in order, each whole; C3: what each of them was made from."""
        seen = {each.plan.id: each for each in self.seen}
        settled = [
            row.call_id
            for row in sorted(self.ledger.rows.values(), key=lambda row: row.sequence)
            if row.kind is Kind.CALL
            and row.outcome is Outcome.COMPLETED
            and self.goes_on(seen[row.call_id].plan)[0] == name
        ]
        head, *said = self._items(name)
        expected = [id_ for call in settled for id_ in (f"msg_of_{call}", answer_id(call))]
        assert [item.id for item in said] == expected, "C4: lost, doubled or mixed"
        before: tuple[int, ...] = ()
        for number, call in enumerate(settled):
            prompt = self._judge_prompt(seen[call], head, said[: 2 * number])
            lost = "the prefix cache is lost though nothing is dropped"
            assert not prompt or prompt[: len(before)] == before, lost
            before = prompt

    def _judge_prompt(self, seen: Seen, head: Item, past: Sequence[Item]) -> tuple[int, ...]:
        """The prompt, if all of the past is in it; what is dropped ends the common prefix."""
        if seen.admitted is None or (window := seen.admitted.window) is None:
            return ()  # its gateway died before it could say
        turns = [past[place : place + 2] for place in range(0, len(past), 2)]
        assert window.kept + window.dropped == len(turns), "C4: made from another past"
        kept = [item for turn in turns[len(turns) - window.kept :] for item in turn]
        shown = [head, *kept, asked(seen.plan)]
        prompt = peek(self.tokens.render(MODEL.id, [Message(i.role, i.text) for i in shown])).ids
        assert len(prompt) == seen.admitted.input_tokens
        assert {made.prompt_ids[: len(prompt)] for made in self.requests(seen.plan.id)} == {prompt}
        return () if window.dropped else prompt


def asked(plan: Plan) -> Item:
    return Item(f"msg_of_{plan.id}", "user", (plan.prompt,))


def test_what_is_remembered_is_what_was_settled(seed: int) -> None:
    """One machine: kills between any two awaits, lost acknowledgements, expiry, all at once."""
    talk = Talk(seed, Topology.MACHINE, Scenario(store_failures=0.1 if seed % 2 else 0.0))
    assert talk.run().ledger.rows


def test_a_fleet_remembers_what_was_settled(seed: int) -> None:
    """Gateways, workers and keepers that die and freeze on their own."""
    assert Talk(seed, Topology.FLEET, Scenario()).run().ledger.rows


def test_the_talks_are_eventful_enough_to_mean_something() -> None:
    """Within thirty seeds conversations grow, are locked, expire, and drop what does not fit."""
    longest = locked = gone = dropped = chained = 0
    for seed in range(30):
        talk = Talk(seed, Topology.MACHINE, Scenario())
        talk.run()
        gone += len(talk.gone)
        longest = max(longest, *(len(talk._items(f"conv_{n}")) for n in range(CONVERSATIONS)))
        locked += sum(isinstance(seen.refused, ConversationLocked) for seen in talk.seen)
        for seen in talk.seen:
            window = seen.admitted.window if seen.admitted else None
            dropped += window is not None and window.dropped > 0
            chained += seen.finished is not None and talk.goes_on(seen.plan)[1] is not None
    assert longest >= 9
    assert min(locked, gone, dropped, chained) > 0


class Flood(Talk):
    """One call on a conversation of three thousand messages, with instructions of its own."""

    def _random_plans(self, calls: int) -> list[Plan]:
        return [Plan("req_000", 0, 1.0, "Hello [[script length=3]]", max_tokens=3)]

    def _call(self, plan: Plan) -> Call:
        call = super()._call(plan)
        assert call.remembrance is not None
        wish = replace(
            call.remembrance, conversation_id="conv_f", instructions="Be kind. " * 100, cut=self.cut
        )
        return replace(call, remembrance=wish)

    cut = True

    def said(self, text: str, messages: int) -> None:
        roles = ("user", "user", "assistant")
        items = [Item(f"msg_{n}", roles[n % 3], (text,)) for n in range(messages)]
        until = self.clock.now() + 86_400
        conversation = Conversation("conv_f", "org0", self.clock.now(), 86_400, until)
        peek(self.conversations.create(conversation, items))

    def _judge(self, seen: Seen) -> None:
        """The tests ask."""


@pytest.mark.parametrize(
    ("text", "messages"), [("a", 3_000), ("word " * 200, 300), ("é" * 9, 2_999)]
)
def test_a_past_too_large_even_to_be_counted_is_cut(text: str, messages: int) -> None:
    """C3: whether it has too many messages or too much text, beside whatever instructions."""
    flood = Flood(1, Topology.MACHINE, Scenario(fate=False, conversation=LARGE))
    flood.said(text, messages)
    (seen,) = flood.run().seen
    assert seen.finished is not None, seen.refused
    assert seen.admitted is not None
    assert seen.admitted.window is not None
    assert seen.admitted.window.dropped > 0
    assert seen.admitted.input_tokens > 700, "what fits is shown"


def test_a_past_that_is_not_to_be_cut_is_refused_if_it_does_not_fit() -> None:
    flood = Flood(1, Topology.MACHINE, Scenario(fate=False, conversation=LARGE))
    flood.cut = False
    flood.said("word " * 200, 300)
    (seen,) = flood.run().seen
    assert isinstance(seen.refused, ContextLengthExceeded)
