from __future__ import annotations

import pytest

from forebay.cli.answering import Target
from forebay.cli.dialogues import Stored, Unstored, open_dialogue

TARGET = Target("http://127.0.0.1:9", "key")


async def test_one_that_is_not_stored_sends_all_that_was_said():
    dialogue = await open_dialogue(TARGET, None)
    dialogue.keep("One.", "1")
    said = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "1"}]
    assert dialogue.request("Two.") == {"messages": [*said, {"role": "user", "content": "Two."}]}
    assert await dialogue.history() == said
    assert await (await dialogue.anew()).history() == []
    assert dialogue.id is None


def test_a_stored_one_sends_only_what_is_new():
    dialogue = Stored(TARGET, "conv_1", None)
    dialogue.keep("One.", "1")
    assert dialogue.request("Two.") == {
        "messages": [{"role": "user", "content": "Two."}],
        "conversation": "conv_1",
    }


def test_a_stored_one_says_until_when_it_is_kept():
    assert str(Stored(TARGET, "conv_1", None)) == "conv_1"
    assert "conv_1, kept until 2027-01-" in str(Stored(TARGET, "conv_1", 1_799_971_200.0))


@pytest.mark.parametrize(
    ("code", "stored", "unstored"),
    [
        ("not_found", True, False),
        ("conversation_full", True, False),
        ("context_length_exceeded", False, True),
        ("conversation_locked", False, False),
        ("", False, False),
    ],
)
def test_errors_after_which_only_a_new_one_helps(code, stored, unstored):
    said = Unstored()
    assert not said.over(code), "a first message that fails would fail in a new one, too"
    said.keep("One.", "1")
    assert said.over(code) is unstored
    assert Stored(TARGET, "conv_1", None).over(code) is stored
