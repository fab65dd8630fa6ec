from __future__ import annotations

import pytest
import typer

from forebay.cli.usage import _day, usage


def test_a_day_begins_at_midnight_of_utc():
    assert _day("2027-01-15") == 1_799_971_200.0


@pytest.mark.parametrize("text", ["", "yesterday", "2027-13-01", "15.01.2027", "2027-01-15T08:00"])
def test_what_is_no_day_is_refused(text):
    with pytest.raises(typer.BadParameter, match="not a day"):
        _day(text)


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(typer.BadParameter, match="--since is after --until"):
        usage(since=_day("2027-01-16"), until=_day("2027-01-15"))
