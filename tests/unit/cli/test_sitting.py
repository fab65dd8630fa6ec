from __future__ import annotations

import pytest

from forebay.cli.answering import Refused, Target
from forebay.cli.dialogues import Stored
from forebay.cli.failure import Failure
from forebay.cli.sitting import advice

DIALOGUE = Stored(Target("http://127.0.0.1:9", "key"), "conv_1", None)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Refused("Gone.", 404, "not_found"), "Gone. /new begins a new conversation."),
        (Refused("Busy.", 409, "conversation_locked"), "Busy."),
        (Failure("Silent."), "Silent."),
    ],
)
def test_a_failure_says_how_to_begin_anew_where_that_helps(failure, said):
    assert advice(failure, DIALOGUE, "/new") == said
