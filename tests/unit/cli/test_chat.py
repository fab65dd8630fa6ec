from __future__ import annotations

import dataclasses

from forebay.cli.answering import Answer
from forebay.cli.chat import summary

DONE = Answer("Paris", "m", "req_1", "stop", 9, 42, 0.112, 71.4)


def test_the_line_under_an_answer():
    assert summary(DONE, "0.000017") == "42 tok · 71 tok/s · first 0.11 s · $0.000017"


def test_the_line_leaves_out_what_is_not_known_and_says_when_the_limit_cut():
    cut = dataclasses.replace(
        DONE, finish_reason="length", tokens_per_second=None, first_token_seconds=None
    )
    assert summary(cut, None) == "42 tok · cut at the output limit"
