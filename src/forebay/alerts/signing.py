"""What a webhook says and how it is signed, pure: Standard Webhooks, as OpenAI's clients verify it.

    webhook-id         the event's id, the same on every attempt
    webhook-timestamp  seconds of the attempt; receivers refuse what is older than 5 minutes
    webhook-signature  v1, + base64(HMAC-SHA-256(secret, "{id}.{timestamp}.{body}"))

An alert's secret is derived from this installation's pepper and the alert's id. It is stored
nowhere, so reading the database forges no event.

Not here: when it is sent (`forebay.pipeline.alerting`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from forebay.alerts.contract import AlertEvent, SpendAlert
from forebay.core.money import format_usd

SECRET_PREFIX = "whsec_"


def secret_of(alert_id: str, key: bytes) -> str:
    """The alert's signing secret, as its receiver is given it."""
    return SECRET_PREFIX + base64.b64encode(_secret(alert_id, key)).decode()


def headers_of(event: AlertEvent, body: bytes, *, key: bytes, now: float) -> dict[str, str]:
    """The headers of an attempt at this time."""
    stamp = str(int(now))
    signed = f"{event.id}.{stamp}.".encode() + body
    signature = hmac.new(_secret(event.alert_id, key), signed, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": event.id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def compose(event: AlertEvent, alert: SpendAlert, *, verb: str = "triggered") -> bytes:
    """The body; the same bytes on every attempt, unless the alert was changed in between (its
    recipients, its interval). Amounts are exact decimals of USD."""
    whose = "project" if alert.project_id else "organization"
    message = {
        "id": event.id,
        "object": "event",
        "type": f"{whose}.spend_alert.{verb}",
        "created_at": int(event.created_at),
        "data": {
            "id": alert.id,
            "organization_id": alert.organisation_id,
            "project_id": alert.project_id,
            "interval": alert.interval.value,
            "period": event.period_id or None,
            "currency": "USD",
            "threshold": format_usd(event.threshold_nanos),
            "spent": format_usd(event.spent_nanos),
            "recipients": alert.recipients,
            "subject_prefix": alert.subject_prefix,
        },
    }
    return json.dumps(message, separators=(",", ":")).encode()


def _secret(alert_id: str, key: bytes) -> bytes:
    return hmac.new(key, alert_id.encode(), hashlib.sha256).digest()
