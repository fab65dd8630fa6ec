from __future__ import annotations

import pytest
from typer.testing import CliRunner

from forebay.cli.budgets import _cells, _sentence, build

ROW = {
    "organisation": "acme",
    "project": None,
    "id": "org_1",
    "key": None,
    "budget_usd": "50.00",
    "period": "month",
    "spent_usd": "1.25",
    "pending_usd": "0.00",
    "open_calls": 0,
}


def test_a_budget_is_said_with_whose_it_is_and_what_is_spent_of_it():
    assert _sentence(ROW) == ("acme may spend 50.00 USD a month; this month it has spent 1.25 USD")
    total = _sentence({**ROW, "key": "team", "period": "total"})
    assert total == "acme key team may spend 50.00 USD in all; so far it has spent 1.25 USD"
    lifted = _sentence({**ROW, "project": "web", "budget_usd": None})
    assert lifted.startswith("acme/web has no budget of its own;")


def test_the_row_of_an_organisation_is_that_of_all_its_projects():
    assert _cells(ROW)[:3] == ["acme", "(all)", "50.00"]
    assert _cells({**ROW, "project": "web", "budget_usd": None})[1:3] == ["web", "none"]


@pytest.mark.parametrize("words", [["set", "-5"], ["top-up", "acme", "-0.5", "--id", "x"]])
def test_an_amount_below_0_is_called_that(words):
    refused = CliRunner().invoke(build(), words)
    assert refused.exit_code == 2
    assert "is below 0" in refused.output
