from __future__ import annotations

import pytest

from forebay.core.errors import InvalidRequest
from forebay.gateway.admin_audit import AuditListing
from forebay.gateway.admin_read import read_object, read_query
from forebay.gateway.admin_schema import (
    AdminKeyBody,
    AlertBody,
    Listing,
    ProjectBody,
    SpendLimitBody,
)
from forebay.gateway.admin_usage import CostListing, UsageListing

LIMIT = {"threshold_amount": 5, "currency": "USD", "interval": "month"}
ALERT = {**LIMIT, "webhook_url": "https://hook.example"}
CHANNEL = "notification_channel"


@pytest.mark.parametrize(
    ("kind", "body", "code", "param", "words"),
    [
        (ProjectBody, {}, "missing_required_parameter", "name", "cannot do without"),
        (ProjectBody, {"name": 5}, "invalid_type", "name", "expected a string, but got an integer (5)"),
        (ProjectBody, {"name": None}, "invalid_type", "name", "but got null"),
        (ProjectBody, {"name": ""}, "string_below_min_length", "name", "is an empty string"),
        (ProjectBody, {"name": "x" * 101}, "string_above_max_length", "name", "the limit is 100"),
        (ProjectBody, {"name": "x", "geography": "eu"}, "unknown_parameter", "geography", "It takes: name"),
        (SpendLimitBody, LIMIT | {"currency": "EUR"}, "invalid_value", "currency", "must be one of: USD"),
        (SpendLimitBody, LIMIT | {"threshold_amount": -1},
         "integer_below_min_value", "threshold_amount", "is -1, but must be between 0 and"),
        (SpendLimitBody, LIMIT | {"threshold_amount": 2**70},
         "integer_above_max_value", "threshold_amount", "but must be between 0 and"),
        (SpendLimitBody, LIMIT | {"threshold_amount": True},
         "invalid_type", "threshold_amount", "expected an integer, but got a boolean"),
        (AlertBody, ALERT | {"webhook_url": "mailto:x"},
         "invalid_value", "webhook_url", "is \"mailto:x\", but must be an address that begins"),
        (AlertBody, ALERT | {CHANNEL: 3}, "invalid_type", CHANNEL, "expected an object"),
        (AlertBody, ALERT | {CHANNEL: {"colour": 1}}, "unknown_parameter", f"{CHANNEL}.colour", "colour"),
        (AlertBody, ALERT | {CHANNEL: {"type": "fax"}},
         "invalid_value", f"{CHANNEL}.type", "must be one of: email"),
        (AlertBody, ALERT | {CHANNEL: {"recipients": ["x"] * 101}},
         "array_above_max_length", f"{CHANNEL}.recipients", "has 101 elements; the limit is 100"),
        (AlertBody, ALERT | {CHANNEL: {"recipients": ["x", 5]}},
         "invalid_type", f"{CHANNEL}.recipients[1]", "expected a string"),
        (AdminKeyBody, {"name": "x", "expires_in_seconds": 0},
         "integer_below_min_value", "expires_in_seconds", "is 0, but must be between 1 and"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_explained(kind, body, code, param, words):
    with pytest.raises(InvalidRequest) as refused:
        read_object(body, kind)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert words in refused.value.message
    assert "`" not in refused.value.message, "the decoder's words"


@pytest.mark.parametrize(
    ("kind", "query", "param", "words"),
    [
        (Listing, "limit=0", "limit", "is 0, but must be between 1 and 100"),
        (Listing, "limit=101", "limit", "is 101, but must be between 1 and 100"),
        (Listing, "limit=many", "limit", "expected an integer"),
        (Listing, "limit=1&limit=2", "limit", "is there twice"),
        (Listing, "name=%ff", "query", "in UTF-8"),
        (UsageListing, "", "start_time", "Missing required parameter"),
        (UsageListing, "start_time=0&bucket_width=1w", "bucket_width", "must be one of: 1d, 1h, 1m"),
        (UsageListing, "start_time=0&group_by[]=user", "group_by[0]", "must be one of: api_key_id,"),
        (UsageListing, "start_time=0&batch=maybe", "batch", "expected true or false"),
        (CostListing, "start_time=0&bucket_width=1h", "bucket_width", "must be one of: 1d"),
        (AuditListing, "event_types=login.failed", "event_types[0]", "must be one of: api_key.created"),
        (AuditListing, "effective_at[gt]=-1", "effective_at[gt]", "is -1, but must be between 0"),
    ],
)  # fmt: skip
def test_a_wrong_query_is_explained(kind, query, param, words):
    with pytest.raises(InvalidRequest) as refused:
        read_query(query.encode(), kind)
    assert refused.value.param == param
    assert words in refused.value.message
