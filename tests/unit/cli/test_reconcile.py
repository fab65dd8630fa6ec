from __future__ import annotations

from forebay.cli.reconcile import _restart, _summary

FOUND = {
    "differences": [],
    "rows": 12,
    "holds": 1,
    "balances": 6,
    "windows": 3,
    "flagged_windows": 0,
}


def test_the_summary_says_what_was_compared_and_how_much_differs() -> None:
    assert _summary(FOUND) == "12 rows, 1 open hold, 6 balances, 3 engine minutes: 0 differences"
    worse = {**FOUND, "differences": ["one"], "flagged_windows": 2}
    assert _summary(worse).endswith(
        "3 engine minutes (2 with a restart, not compared): 1 difference"
    )


def test_a_restart_is_information() -> None:
    window = {
        "engine": "small",
        "minute_at": 1_800_000_000.0,
        "engine_tokens": 10,
        "received_tokens": 7,
        "discarded_tokens": 2,
    }
    assert _restart(window) == (
        "Engine small was started again in the minute at 2027-01-15 08:00 UTC: it counted 10 "
        "tokens, of which 9 came."
    )
