from __future__ import annotations

from forebay.cli.keys import cells, state, wide_cells

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
    "max_output_tokens": None,
    "monthly_budget_usd": "5.00",
    "spent_usd": "0.10",
    "open_calls": 2,
}


def test_a_key_is_live_until_it_expires_or_is_revoked():
    assert state(ROW, NOW) == "live"
    assert state({**ROW, "expires_at": NOW + 1}, NOW).startswith("until 2027-01-")
    assert state({**ROW, "expires_at": NOW}, NOW).startswith("expired 2027-01-")
    gone = {**ROW, "expires_at": NOW, "revoked_at": NOW - 5}
    assert state(gone, NOW).startswith("revoked 2027-01-")


def test_a_row_has_the_end_of_the_id_and_the_wide_one_all_that_is_known():
    assert cells(ROW, NOW)[0] == "…abcdef"
    wide = wide_cells(ROW, NOW)
    assert wide[0] == ROW["id"]
    assert wide[-4:] == [60, None, "all", "batch"]
