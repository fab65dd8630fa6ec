from __future__ import annotations

import dataclasses
from typing import Any

from forebay.cli.answering import Answer
from forebay.cli.chat_view import history, key_line, left_out, print_usage, summary, total

DONE = Answer("Paris", "m", "req_1", None, 0, "stop", 9, 42, 0.112, 71.4)
NONE = {"requests_per_minute": None, "tokens_per_minute": None}


def own(**changed: Any) -> dict[str, Any]:
    """What the server says of a key that nothing limits."""
    budget = {"period": "month", "left_usd": None}
    return {
        "current_period": {"calls": 1, "cost_usd": "0.01"},
        "limits": {"key": NONE, "project": NONE, "organization": NONE, "models": {}},
        "budget": {"key": budget, "project": budget, "organization": budget},
        **changed,
    }


def took(amount_usd: str | None) -> dict[str, Any]:
    return {
        "finish_reason": "stop",
        "input_tokens": 9,
        "output_tokens": 42,
        "amount_usd": amount_usd,
    }


def test_the_line_under_an_answer():
    assert summary(DONE, "0.000017") == "42 tok · 71 tok/s · first 0.11 s · $0.000017"


def test_the_line_leaves_out_what_is_not_known_and_says_when_the_limit_cut():
    cut = dataclasses.replace(
        DONE, finish_reason="length", tokens_per_second=None, first_token_seconds=None
    )
    assert summary(cut, None) == "42 tok · cut at the output limit"


def test_what_was_left_out_is_counted():
    assert "full: the oldest turn;" in left_out(1)
    assert "full: the 3 oldest turns;" in left_out(3)


def test_the_history_is_roles_and_text_without_control_characters():
    said = history(
        [{"role": "user", "content": "Hi.\nYou?"}, {"role": "assistant", "content": "A\x1b[2J"}]
    )
    assert said == "user\n  Hi.\n  You?\n\nassistant\n  A\N{REPLACEMENT CHARACTER}[2J"
    assert history([]) == "Nothing was said yet."


def test_a_total_is_exact_and_has_the_amounts_that_are_known():
    assert total([took("0.000000001"), took("0.2"), took(None)]) == {
        "answers": 3,
        "input_tokens": 27,
        "output_tokens": 126,
        "amount_usd": "0.200000001",
    }
    assert total([took(None)])["amount_usd"] is None
    assert total([])["amount_usd"] is None


def test_usage_is_a_table_with_a_total_and_the_key(capsys):
    answers = [took("0.01"), took("0.02")]
    print_usage({"answers": answers, "total": total(answers), "key": own()})
    *_, last, key = capsys.readouterr().out.splitlines()
    assert last.split() == ["total", "18", "84", "0.03"]
    assert key == "this key: 1 call, $0.01 this month"
    print_usage({"answers": [], "total": total([]), "key": None})
    assert capsys.readouterr().out == "Nothing was answered yet.\n"


def test_of_a_keys_limits_the_lowest_counts():
    limits = {
        "key": {"requests_per_minute": None, "tokens_per_minute": 900},
        "project": {"requests_per_minute": 60, "tokens_per_minute": 1000},
        "organization": {"requests_per_minute": 90, "tokens_per_minute": None},
        "models": {},
    }
    budget = {
        "key": {"period": "total", "left_usd": "10.00"},
        "project": {"period": "day", "left_usd": "9.50"},
        "organization": {"period": "day", "left_usd": None},
    }
    assert key_line(own(limits=limits, budget=budget)) == (
        "this key: 1 call, $0.01 in all; $9.50 left to spend; "
        "at most 60 requests and 900 tokens a minute"
    )
