"""Spend alerts and their webhooks: see `contract.py`."""

from forebay.alerts.contract import (
    AlertEvent,
    Alerts,
    Courier,
    Delivery,
    EventState,
    Posting,
    Reply,
    SpendAlert,
)
from forebay.alerts.rules import MOST_ATTEMPTS, Verdict, judge, retry_seconds
from forebay.alerts.settings import AlertSettings, require_url
from forebay.alerts.signing import compose, headers_of, secret_of

__all__ = [
    "MOST_ATTEMPTS",
    "AlertEvent",
    "AlertSettings",
    "Alerts",
    "Courier",
    "Delivery",
    "EventState",
    "Posting",
    "Reply",
    "SpendAlert",
    "Verdict",
    "compose",
    "headers_of",
    "judge",
    "require_url",
    "retry_seconds",
    "secret_of",
]
