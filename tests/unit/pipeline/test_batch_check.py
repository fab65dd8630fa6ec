from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from forebay.batch import BatchSettings, Line
from forebay.catalog.settings import SCRIPTED, LaneFactors, price_terms
from forebay.catalog.static import StaticCatalog
from forebay.core.batch import Batch, BatchOrder, BatchState, LineError
from forebay.core.hold import Account, Balance, Period
from forebay.core.job import Lane
from forebay.core.money import Price
from forebay.core.principal import Principal, Scopes
from forebay.pipeline.batch_check import MOST_EXPLAINED, Check, Terms
from forebay.testing.plain_lines import Asked, PlainLines

SCOPES = Scopes("org", "proj", "key")
PRINCIPAL = Principal(SCOPES, weight=1, lanes=frozenset(Lane))
MODELS = (SCRIPTED, replace(SCRIPTED, id="other", aliases=("second",)))
ORDER = BatchOrder("file-1", "/plain", "24h", 86_400)
BATCH = Batch("batch_1", SCOPES, ORDER, BatchState.VALIDATING, 0.0, 86_400.0, {})


def terms(model: str = "scripted", **settings: Any) -> Terms:
    prices = [
        Price(number, each)
        for number, each in enumerate(
            (each for model in MODELS for each in price_terms(model, LaneFactors())), start=1
        )
    ]
    catalog = StaticCatalog(MODELS, prices)
    return Terms(BATCH, PRINCIPAL, PlainLines(model), catalog, BatchSettings(**settings))


def line(number: int, content: bytes | Asked) -> Line:
    raw = msgspec.json.encode(content) if isinstance(content, Asked) else content
    return Line(number, raw, len(raw))


def balance(cap: int | None, *, posted: int = 0, period: Period = Period.TOTAL) -> Balance:
    return Balance(Account("key", cap, period), "", posted, 0, cap, 0)


def errors(*contents: bytes | Asked, **settings: Any) -> list[LineError]:
    check = Check(terms(**settings))
    for number, content in enumerate(contents, start=1):
        if not check.line(line(number, content)):
            break
    return check.errors([])


def test_a_good_file_has_a_model_and_a_number_of_lines() -> None:
    check = Check(terms())
    for number in range(1, 4):
        assert check.line(line(number, Asked(f"id-{number}", "Hello")))
    assert check.errors([]) == []
    assert (check.model, check.total) == ("scripted", 3)


def test_each_bad_line_is_named_with_its_number() -> None:
    """B10."""
    found = errors(Asked("a", "x"), b"{not json", b"  ", Asked("b", "x"), b"[]")
    assert [(each.line, each.code) for each in found] == [
        (2, "invalid_json_line"),
        (5, "invalid_json_line"),
    ]


def test_a_custom_id_is_given_once() -> None:
    (found,) = errors(Asked("same", "x"), Asked("other", "x"), Asked("same", "y"))
    assert (found.line, found.code, found.param) == (3, "duplicate_custom_id", "custom_id")
    assert "'same'" in found.message


def test_a_file_without_lines_is_refused() -> None:
    assert [each.code for each in errors()] == ["empty_file"]
    assert [each.code for each in errors(b"", b"  ")] == ["empty_file"]


def test_one_line_too_many_is_refused_and_no_more_are_read() -> None:
    check = Check(terms(max_lines=2))
    seen = [check.line(line(number, Asked(f"id-{number}", "x"))) for number in range(1, 4)]
    assert seen == [True, True, False]
    (found,) = check.errors([])
    assert (found.code, found.line) == ("too_many_lines", 3)
    assert "more than 2 lines" in found.message


def test_a_line_that_is_too_long_is_refused_unread() -> None:
    check = Check(terms())
    check.line(Line(1, b"{", 5_000_000, too_long=True))
    (found,) = check.errors([])
    assert (found.code, found.line) == ("line_too_long", 1)
    assert "5000000" in found.message


def test_a_model_that_is_not_served_is_named() -> None:
    check = Check(terms(model="gpt-9"))
    check.line(line(1, Asked("a", "x")))
    (found,) = check.errors([])
    assert (found.code, found.param) == ("model_not_found", "body.model")
    assert "'gpt-9' is not supported by the Batch API" in found.message


def test_a_file_is_for_one_model_whatever_it_is_called() -> None:
    class Alternating(PlainLines):
        def read(self, *arguments: Any) -> Any:
            read = super().read(*arguments)
            name = {"a": "other", "b": "second"}.get(read.custom_id, "scripted")
            return replace(read, call=replace(read.call, model=name))

    check = Check(replace(terms(), format=Alternating("scripted")))
    for number, id_ in enumerate(("a", "b", "c"), start=1):
        check.line(line(number, Asked(id_, "x")))
    (found,) = check.errors([])
    assert (found.code, found.line) == ("mismatched_model", 3)


def test_of_very_many_bad_lines_the_rest_is_named_by_number_alone() -> None:
    count = MOST_EXPLAINED + 30
    found = errors(*[b"no"] * count)
    assert len(found) == MOST_EXPLAINED + 1
    assert found[-1].code == "more_errors"
    assert f"{MOST_EXPLAINED + 1}-{count}" in found[-1].message


@pytest.mark.parametrize(
    ("least", "is_refused"),
    [
        (balance(10_000), True),
        (balance(10_000_000), False),
        (balance(None), False),
        (balance(10_000_000, posted=9_990_000), True),
        (balance(10_000, period=Period.DAY), False),
    ],
)
def test_a_budget_that_cannot_even_pay_for_the_prompts_refuses_the_file(
    least: Balance, is_refused: bool
) -> None:
    """A thousand prompts of 1,600 characters are 100,000 tokens at least."""
    check = Check(terms())
    for number in range(1, 1001):
        check.line(line(number, Asked(f"id-{number}", "x" * 1600)))
    found = check.errors([balance(None), least])
    assert [each.code for each in found] == (["insufficient_quota"] if is_refused else [])


def test_where_lines_fail_without_a_budget_that_of_a_day_is_looked_at_too() -> None:
    check = Check(terms(without_budget="fail"))
    for number in range(1, 1001):
        check.line(line(number, Asked(f"id-{number}", "x" * 1600)))
    found = check.errors([balance(10_000, period=Period.DAY)])
    assert [each.code for each in found] == ["insufficient_quota"]
