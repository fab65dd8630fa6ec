from __future__ import annotations

import pytest
import typer

from forebay.cli.keys import (
    _seconds_of_days,
    cells,
    create,
    duration_seconds,
    rotate,
    state,
    wide_cells,
)

NOW = 1_800_000_000.0
ROW = {
    "id": "key_0123456789abcdef",
    "name": "team",
    "redacted": "fbk_live_ab…wxyz",
    "organisation": "acme",
    "project": "web",
    "created_at": NOW,
    "expires_at": None,
    "revoked_at": None,
    "models": None,
    "lanes": ["batch"],
    "requests_per_minute": 60,
    "tokens_per_minute": 9,
    "batch_input_tokens_per_day": None,
    "max_output_tokens": None,
    "budget_usd": "5.00",
    "period": "month",
    "spent_usd": "0.10",
    "open_calls": 2,
}


def test_a_key_is_live_until_it_expires_or_is_revoked():
    assert state(ROW, NOW) == "live"
    assert state({**ROW, "expires_at": NOW + 1}, NOW).startswith("until 2027-01-")
    assert state({**ROW, "expires_at": NOW}, NOW).startswith("expired 2027-01-")
    assert state({**ROW, "project_archived_at": NOW}, NOW).startswith("archived 2027-01-")
    gone = {**ROW, "expires_at": NOW, "revoked_at": NOW - 5}
    assert state(gone, NOW).startswith("revoked 2027-01-")


def test_a_row_has_the_end_of_the_id_and_the_wide_one_all_that_is_known():
    assert cells(ROW, NOW)[0] == "…abcdef"
    wide = wide_cells(ROW, NOW)
    assert wide[0] == ROW["id"]
    assert wide[-6:] == [60, 9, None, None, "all", "batch"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), ("1.5m", 90), ("24h", 86_400), ("7d", 604_800)],
)
def test_a_length_of_time_is_read(text, seconds):
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1 week", "1e3"])
def test_what_is_no_length_of_time_is_said_so(text):
    with pytest.raises(typer.BadParameter, match="write 90s"):
        duration_seconds(text)


def test_what_is_out_of_range_is_said_in_the_unit_that_was_typed():
    with pytest.raises(typer.BadParameter, match="an overlap of 31d is not between 0 and 30d"):
        rotate("team", overlap="31d")
    for days in (0, -1, 36_501, float("nan"), float("inf")):
        with pytest.raises(typer.BadParameter, match="days are not above 0 and at most 36500 days"):
            _seconds_of_days(days)
    assert (_seconds_of_days(1.5), _seconds_of_days(1e-9)) == (129_600, 1)


def test_a_name_that_is_given_is_not_empty():
    with pytest.raises(typer.BadParameter, match="it is empty; leave out --name"):
        create(name=" ")
