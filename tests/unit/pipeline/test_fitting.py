"""What of a past is shown beside the new input, counted with the model's own tokens (C3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from forebay.conversation import Dialogue
from forebay.core.call import Call, Message, Prompt, Remembrance
from forebay.core.dialogue import Conversation, Item, Window
from forebay.core.errors import ContextLengthExceeded
from forebay.core.job import Lane
from forebay.pipeline.fitting import Fitting
from forebay.testing.fabric import Fabric
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Topology, World

OUTPUT_TOKENS = 24
HEAD = Item("msg_0", "system", ("Be kind.",))
TURNS = [
    (Item(f"msg_{n}u", "user", (f"Ask {n}",)), Item(f"msg_{n}a", "assistant", (f"Say {n}",)))
    for n in range(4)
]


@pytest.fixture
def world() -> Iterator[World]:
    """With conv_1: a system message and four turns."""
    world = World(1, Topology.MACHINE)
    now = world.clock.now()
    conversation = Conversation("conv_1", "org0", now, 3_600, now + 3_600)
    items = [HEAD, *(item for turn in TURNS for item in turn)]
    peek(world.conversations.create(conversation, items))
    yield world
    world.loop.close()


def summarise(world: World, text: str, turns: int = 2) -> None:
    covered = [HEAD.id, *(item.id for turn in TURNS[:turns] for item in turn)]
    where = {"conversation_id": "conv_1", "previous_id": None}
    peek(world.conversations.summaries.store("org0", text, covered, **where))


def fit(world: World, said: str = "Hi", **wishes: Any) -> tuple[Prompt, Window]:
    """As the walk has it for one more turn of conv_1."""
    wish = replace(Remembrance((Item("msg_in", "user", (said,)),), "turn_1", "conv_1"), **wishes)
    principal = world.principals[0]
    call = Call("req_1", principal, MODEL.id, Lane.INTERACTIVE, True, remembrance=wish)
    call = replace(call, max_output_tokens=OUTPUT_TOKENS)
    rooms = Fabric(world).rooms(world)
    route = rooms.catalog.choose(principal, MODEL.id, call.lane, OUTPUT_TOKENS)
    run = world.loop.run_until_complete
    recalled = run(rooms.remember.recall(call, wish))
    prompt, window = run(Fitting(rooms).count(call, route, recalled))
    assert window is not None
    return prompt, window


def rendered(world: World, system: str, *said: Item, new: str = "Hi") -> Prompt:
    messages = [Message("system", system), *(Message(item.role, item.text) for item in said)]
    asked = [*messages, Message("user", new)]
    return world.loop.run_until_complete(world.tokens.render(MODEL.id, asked))


def test_what_a_summary_covers_is_shown_by_it_alone(world: World) -> None:
    summarise(world, "They spoke.")
    prompt, window = fit(world, instructions="Be brief.")
    assert window == Window(kept=2, summarised=2, conversation_id="conv_1")
    block = Dialogue((), (), summary="They spoke.").block
    said = [item for turn in TURNS[2:] for item in turn]
    assert prompt == rendered(world, f"Be brief.\n\nBe kind.\n\n{block}", *said)


def test_what_is_not_to_be_cut_is_shown_as_it_was_said(world: World) -> None:
    summarise(world, "They spoke.")
    prompt, window = fit(world, cut=False)
    assert window == Window(kept=4, conversation_id="conv_1")
    assert prompt == rendered(world, "Be kind.", *(item for turn in TURNS for item in turn))


def test_a_summary_that_does_not_fit_is_left_out(world: World) -> None:
    """C3: and nobody is told that it was shown."""
    summarise(world, "They spoke. " * 60)
    new = "x" * 500
    prompt, window = fit(world, new)
    assert (window.summarised, window.kept, window.dropped) == (0, 4, 0)
    said = [item for turn in TURNS for item in turn]
    assert prompt == rendered(world, "Be kind.", *said, new=new)


@pytest.mark.parametrize("summary_characters", [1, 300, 700, 2_000, 20_000])
def test_no_prompt_exceeds_the_context_without_the_answer(
    world: World, summary_characters: int
) -> None:
    """C3: the bound, and no turn is both shown and summarised."""
    summarise(world, "x" * summary_characters)
    limit = 1_024 - OUTPUT_TOKENS
    for characters in range(1, 960, 97):
        prompt, window = fit(world, "x" * characters)
        assert len(prompt.ids) <= limit or window.kept == window.summarised == 0
        assert window.kept + window.summarised + window.dropped == 4
        assert window.summarised in (0, 2)


def test_what_is_too_large_even_to_be_counted_is_refused(world: World) -> None:
    summarise(world, "They spoke.")
    with pytest.raises(ContextLengthExceeded, match="far more"):
        fit(world, "x" * 1_000_000)


def test_a_summary_of_the_oldest_is_never_in_the_way_of_the_newest_turn(world: World) -> None:
    """C3: as many of the last turns as fit come first."""
    summarise(world, "x" * 700)
    seen = set()
    for characters in range(1, 860, 9):
        _, window = fit(world, "x" * characters)
        seen.add(window.summarised)
        assert window.kept > 0
    assert seen == {0, 2}
