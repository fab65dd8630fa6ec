from __future__ import annotations

import pytest
import typer

from forebay.cli.projects import cells, rate

ROW = {
    "organisation": "acme",
    "project": "web",
    "plan": "small",
    "model": None,
    "archived_at": None,
    "requests_per_minute": 60,
    "tokens_per_minute": None,
    "batch_input_tokens_per_day": None,
}


def test_a_row_says_what_is_limited_and_how():
    assert cells(ROW) == ["acme", "small", "web", "(all)", "active", 60, "none", "none"]
    gone = cells({**ROW, "model": "tiny", "archived_at": 1_800_000_000.0})
    assert gone[3] == "tiny"
    assert str(gone[4]).startswith("archived 2027-01-15")


def test_a_limit_is_a_number_or_none():
    assert (rate("60"), rate(" None ")) == (60, None)
    for text in ("", "-1", "1.5", "many"):
        with pytest.raises(typer.BadParameter, match="neither a number nor none"):
            rate(text)
