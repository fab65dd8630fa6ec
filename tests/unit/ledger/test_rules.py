"""The ledger's pure decisions: periods, refusals, liveness (L2, L10)."""

from __future__ import annotations

import pytest

from forebay.core.errors import InsufficientQuota
from forebay.core.hold import Account, Period
from forebay.core.job import Lane
from forebay.core.money import Price, PriceTerms
from forebay.core.usage import Usage
from forebay.ledger.rules import Standing, View, charge, day_id, grant, judge, period_id
from forebay.testing.contracts.ledger import PLAIN

FREE = Standing(Account("free"))


def price(output_nanos: int = 10) -> Price:
    return Price(1, PriceTerms("small", Lane.INTERACTIVE, 2, 1, output_nanos))


def test_a_period_is_a_day_or_a_month_of_utc_or_everything() -> None:
    assert day_id(0.0) == "1970-01-01"
    assert day_id(1_796_083_199.0) == "2026-11-30"
    assert day_id(1_796_083_200.0) == "2026-12-01"
    assert day_id(-1.0) == "1969-12-31"
    assert [period_id(period, "2026-11-30") for period in Period] == ["", "2026-11", "2026-11-30"]
    with pytest.raises(ValueError, match="not a time"):
        day_id(float("inf"))


def test_the_refusal_names_the_tightest_scope_and_of_equals_the_outermost() -> None:
    tight = Standing(Account("tight", 1_500), posted_nanos=500, pending_nanos=1)
    tighter = Standing(Account("tighter", 998, Period.DAY))
    with pytest.raises(InsufficientQuota, match="the budget of its project"):
        grant(PLAIN, price(), [FREE, tight, tight])
    with pytest.raises(InsufficientQuota, match=r"daily budget of its key has 0\.000000998 USD"):
        grant(PLAIN, price(), [tight, tight, tighter])


def test_free_output_needs_room_for_the_prompt_only() -> None:
    exact = Standing(Account("exact", 200))
    held = grant(PLAIN, price(output_nanos=0), [FREE, FREE, exact])
    assert (held.amount_nanos, held.ceiling_tokens) == (200, 80)


def test_l8_a_hold_charges_its_own_input_and_at_most_its_ceiling() -> None:
    held = grant(PLAIN, price(), [FREE, FREE, FREE])
    assert charge(held, Usage(1, 10**9)) == (Usage(100, 80), held.amount_nanos, True)


def test_l10_a_process_is_dead_when_its_counter_stood_still_for_ten_seconds() -> None:
    view: View = {}
    dead, view = judge(view, {"a": 1, "b": None}, 100.0)
    assert dead == []
    dead, view = judge(view, {"a": 2, "b": None}, 109.0)
    assert dead == []
    dead, view = judge(view, {"a": 2, "b": None, "c": 1}, 110.0)
    assert (dead, view) == (["b"], {"a": (2, 109.0), "c": (1, 110.0)})
    dead, view = judge(view, {"c": 1, "a": 2}, 120.0)
    assert (dead, view) == (["a", "c"], {})


def test_l10_who_neither_beats_nor_owns_anything_is_forgotten() -> None:
    _, view = judge({"a": (1, 0.0)}, {}, 5.0)
    assert view == {}
    assert judge(view, {"a": 1}, 20.0) == ([], {"a": (1, 20.0)})
