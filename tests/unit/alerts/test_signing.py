"""Webhooks as the official client verifies them."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from forebay.alerts import AlertEvent, SpendAlert, compose, headers_of, secret_of
from forebay.core.hold import Period

KEY = bytes(range(32))
CREATED_AT = 1_800_000_000.0
ALERT = SpendAlert(
    "alert_1", "org_1", None, 5 * 10**9, "https://a.example/", ("a@x.example",), "Spend", CREATED_AT
)
EVENT = AlertEvent("evt_1", "alert_1", "2027-01", 5 * 10**9, 5_000_000_171, 1_800_000_000.5)


@pytest.fixture
def client() -> OpenAI:
    return OpenAI(api_key="unused", webhook_secret=secret_of("alert_1", KEY))


def test_the_official_client_unwraps_it(client: OpenAI) -> None:
    body = compose(EVENT, ALERT)
    event = client.webhooks.unwrap(body, headers_of(EVENT, body, key=KEY, now=time.time()))
    assert (event.id, event.type) == ("evt_1", "organization.spend_alert.triggered")
    assert event.created_at == 1_800_000_000


def test_amounts_are_exact_and_it_says_whose_and_when() -> None:
    assert json.loads(compose(EVENT, ALERT)) == {
        "id": "evt_1",
        "object": "event",
        "type": "organization.spend_alert.triggered",
        "created_at": 1_800_000_000,
        "data": {
            "id": "alert_1",
            "organization_id": "org_1",
            "project_id": None,
            "interval": "month",
            "period": "2027-01",
            "currency": "USD",
            "threshold": "5.00",
            "spent": "5.000000171",
            "recipients": ["a@x.example"],
            "subject_prefix": "Spend",
        },
    }


def test_an_alert_of_a_project_and_a_test_say_so() -> None:
    of_project = replace(ALERT, project_id="proj_1", interval=Period.TOTAL)
    message = json.loads(compose(replace(EVENT, period_id=""), of_project, verb="test"))
    assert message["type"] == "project.spend_alert.test"
    assert (message["data"]["project_id"], message["data"]["period"]) == ("proj_1", None)


def test_later_attempts_differ_in_time_and_signature_only(client: OpenAI) -> None:
    body = compose(EVENT, ALERT)
    now = time.time()
    tried = replace(EVENT, attempts=3, next_at=now)
    assert compose(tried, ALERT) == body
    first, second = (
        headers_of(each, body, key=KEY, now=now - n) for n, each in enumerate((EVENT, tried))
    )
    assert first["webhook-id"] == second["webhook-id"] == "evt_1"
    assert first["webhook-signature"] != second["webhook-signature"]
    client.webhooks.verify_signature(body, second)


@pytest.mark.parametrize("change", ["body", "id", "time", "secret"])
def test_what_was_changed_on_the_way_is_refused(client: OpenAI, change: str) -> None:
    body = compose(EVENT, ALERT)
    now = (
        time.time()
    )  # the client takes nothing that is five minutes old, and tests are collected first
    headers = headers_of(EVENT, body, key=KEY, now=now)
    if change == "body":
        body = body.replace(b'"5.00"', b'"6.00"')
    elif change == "id":
        headers["webhook-id"] = "evt_2"
    elif change == "time":
        headers["webhook-timestamp"] = str(int(now) + 1)
    else:
        client = OpenAI(api_key="unused", webhook_secret=secret_of("alert_2", KEY))
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers)


def test_an_alerts_secret_is_its_own_and_depends_on_the_installations_key() -> None:
    secrets = {
        secret_of("alert_1", KEY),
        secret_of("alert_2", KEY),
        secret_of("alert_1", bytes(32)),
    }
    assert len(secrets) == 3
    assert all(each.startswith("whsec_") for each in secrets)
