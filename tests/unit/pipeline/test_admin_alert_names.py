"""Spend alerts by names, as the command line asks for them, on the rooms in memory."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from forebay.alerts import Posting
from forebay.core.errors import InvalidRequest
from forebay.pipeline.admin_alert_names import NamedAlerts
from forebay.pipeline.administration import Administration
from forebay.pipeline.desk import Desk
from forebay.testing.clock import FakeClock
from forebay.testing.desk import memory_desk
from forebay.testing.receivers import ScriptedReceivers

URL = "https://a.example/hook"


@pytest.fixture
async def desk() -> Desk:
    desk = memory_desk(FakeClock())
    await desk.tenancy.ensure("acme", "web", plan="standard")
    await desk.tenancy.ensure("acme", "batch", plan="standard")
    await desk.tenancy.ensure("other", "web", plan="standard")
    return desk


@pytest.fixture
def alerts(desk: Desk) -> NamedAlerts:
    return Administration(desk).named_alerts


async def test_an_alert_says_whose_it_is_and_its_secret_once(alerts: NamedAlerts) -> None:
    made = await alerts.add("acme", "50.00", URL, project="batch")
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert await alerts.list() == [made]
    assert (made["organisation"], made["project"]) == ("acme", "batch")
    assert (made["interval"], made["threshold_usd"], made["enabled"]) == ("month", "50.00", True)
    whole = await alerts.add("other", "0.000000001", URL, interval="total")
    assert (whole["organisation"], whole["project"]) == ("other", None)
    assert (whole["interval"], whole["threshold_usd"]) == ("total", "0.000000001")
    assert whole["secret"] != secret


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nobody", "5", URL), "no organisation 'nobody'; there are: acme, other"),
        (("acme", "5", URL, "nothing"), "no project 'nothing' in 'acme'"),
        (("other", "5", URL, "batch"), "no project 'batch' in 'other'"),
        (("acme", "5", URL, None, "year"), "no period 'year'"),
        (("acme", "much", URL), "threshold_usd: 'much' is not an amount"),
        (("acme", "0", URL), "must be above 0"),
        (("acme", "5", "http://a.example/"), "https://"),
    ],
)
async def test_what_could_never_work_is_refused(
    alerts: NamedAlerts, args: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await alerts.add(*args)
    assert await alerts.list() == []


async def test_the_newest_event_is_listed(alerts: NamedAlerts, desk: Desk) -> None:
    made = await alerts.add("acme", "0.0000001", URL)
    postings, now = [Posting(made["organisation_id"], "2027-01", 101)], desk.clock.now()
    (event,) = await desk.alerts.fold(postings, after=0, through=1, at=now)
    (row,) = await alerts.list()
    assert row["last_event"] == {
        "id": event.id,
        "period": "2027-01",
        "spent_usd": "0.000000101",
        "created_at": now,
        "state": "pending",
        "attempts": 0,
        "next_at": now,
    }


async def test_an_alert_is_removed_by_its_id_or_the_end_of_it(alerts: NamedAlerts) -> None:
    first = await alerts.add("acme", "5", URL)
    second = await alerts.add("acme", "6", URL)
    for wrong in ("", "alert_x", second["id"][-5:], second["id"][:-1]):
        with pytest.raises(InvalidRequest, match="forebay alerts list"):
            await alerts.remove(wrong)
    assert (await alerts.remove(first["id"]))["id"] == first["id"]
    await alerts.remove("…" + second["id"][-6:])
    assert await alerts.list() == []


async def test_a_sample_is_sent_once_and_changes_nothing(alerts: NamedAlerts, desk: Desk) -> None:
    receivers = desk.webhooks.courier
    assert isinstance(receivers, ScriptedReceivers)
    receivers.statuses[URL] = [503]
    made = await alerts.add("acme", "5", URL)
    sent = await alerts.test(made["id"])
    assert (sent["alert_id"], sent["status"]) == (made["id"], 503)
    (got,) = receivers.got
    assert got.event["type"] == "organization.spend_alert.test"
    assert got.event["id"] == sent["event_id"]
    client = OpenAI(api_key="unused", webhook_secret=made["secret"])
    # Its clock is the real one.
    client.webhooks.verify_signature(got.body, got.headers, tolerance=10**10)
    assert await desk.alerts.events(made["id"]) == []
