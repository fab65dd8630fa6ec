"""Spend alerts and their webhooks: see `contract.py`."""

from forebay.alerts.contract import (
    Alert,
    AlertEvent,
    Alerts,
    Courier,
    Delivery,
    EventState,
    Posting,
    Reply,
)
from forebay.alerts.rules import MOST_ATTEMPTS, Verdict, judge, retry_seconds
from forebay.alerts.settings import AlertSettings, require_url
from forebay.alerts.signing import compose, headers_of, secret_of

__all__ = [
    "MOST_ATTEMPTS",
    "Alert",
    "AlertEvent",
    "AlertSettings",
    "Alerts",
    "Courier",
    "Delivery",
    "EventState",
    "Posting",
    "Reply",
    "Verdict",
    "compose",
    "headers_of",
    "judge",
    "require_url",
    "retry_seconds",
    "secret_of",
]
