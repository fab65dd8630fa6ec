from __future__ import annotations

import pytest

from forebay.cli.chat import chat
from forebay.cli.failure import WRONG_USE, Failure


def test_an_empty_conversation_is_a_slip_and_not_a_new_one(tmp_path):
    with pytest.raises(Failure, match="--conversation is empty") as refused:
        chat(url=None, key_file=None, data_dir=tmp_path, config=None, conversation=" ")
    assert refused.value.exit_code == WRONG_USE
