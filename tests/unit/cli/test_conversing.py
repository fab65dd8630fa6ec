from __future__ import annotations

import json

import pytest

from forebay.cli.answering import Target
from forebay.cli.conversing import COMMANDS, command, word_of
from forebay.cli.dialogues import Unstored
from forebay.cli.failure import Failure
from forebay.cli.sitting import Sitting
from forebay.config import load


def sitting(*, as_json: bool = False) -> Sitting:
    dialogue = Unstored()
    dialogue.keep("One.", "1")
    target = Target("http://127.0.0.1:9", "key", here=False)
    return Sitting(load({}, {"HOME": "/nowhere"}), target, dialogue, model="m", as_json=as_json)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("/usage", "/usage"),
        ("/usage ", "/usage"),
        ("/what is it?", "/what"),
        ("/", "/"),
        (" /usage", None),
        ("/etc/passwd has what?", None),
        ("a /usage", None),
        ("1/2", None),
    ],
)
def test_a_line_that_begins_with_a_word_of_ours_is_not_sent(line, word):
    assert word_of(line) == word


async def test_a_word_that_there_is_not_says_what_there_is():
    with pytest.raises(Failure, match="no /exit") as refused:
        await command(sitting(), "/exit")
    assert all(word in str(refused.value) for word in COMMANDS)
    with pytest.raises(Failure, match="/new stands alone"):
        await command(sitting(), "/new topic")


async def test_history_and_a_new_conversation_for_people(capsys):
    sat = sitting()
    await command(sat, "/history")
    await command(sat, "/new")
    await command(sat, "/history ")
    seen = capsys.readouterr()
    assert seen.out == "user\n  One.\n\nassistant\n  1\nNothing was said yet.\n"
    assert seen.err == "forebay: new conversation: not stored\n"


async def test_history_and_a_new_conversation_for_programs(capsys):
    sat = sitting(as_json=True)
    for word in ("/history", "/new", "/help"):
        await command(sat, word)
    said, new, means = map(json.loads, capsys.readouterr().out.splitlines())
    assert said[0] == {"role": "user", "content": "One."}
    assert new == {"conversation_id": None}
    assert set(means) > set(COMMANDS)


async def test_help_lists_every_word(capsys):
    await command(sitting(), "/help")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("/")] == list(COMMANDS)
