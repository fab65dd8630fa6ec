"""How alerts are shown."""

from __future__ import annotations

from typing import Any

from forebay.cli.alerts import cells, state

ROW: dict[str, Any] = {
    "id": "alert_0123456789abcdef",
    "organisation": "acme",
    "project": None,
    "interval": "month",
    "threshold_usd": "50.00",
    "webhook_url": "https://a.example/",
    "enabled": True,
    "last_event": None,
}
EVENT = {"period": "2027-01", "state": "delivered", "attempts": 1, "next_at": None}


def test_a_row_names_the_end_of_the_id_unless_there_is_room() -> None:
    assert cells(ROW, wide=False) == [
        "…abcdef",
        "acme/(all)",
        "month",
        "50.00",
        "https://a.example/",
        "",
    ]
    assert cells({**ROW, "project": "web"}, wide=True)[:2] == ["alert_0123456789abcdef", "acme/web"]


def test_what_became_of_the_last_event_is_said() -> None:
    assert state({**ROW, "last_event": EVENT}) == "delivered (2027-01)"
    assert state({**ROW, "last_event": {**EVENT, "period": ""}}) == "delivered (total)"
    new = {**EVENT, "state": "pending", "attempts": 0, "next_at": 1_800_000_000.0}
    assert state({**ROW, "last_event": new}) == "pending (2027-01)"
    again = state({**ROW, "last_event": {**new, "attempts": 2}})
    assert again.startswith("pending (2027-01), attempt 3 at 2027-01-")
    assert state({**ROW, "last_event": EVENT, "enabled": False}) == (
        "disabled: its receiver is gone (410)"
    )
