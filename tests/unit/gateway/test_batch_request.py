"""Bodies of POST /v1/batches."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core.errors import InvalidRequest
from forebay.gateway.batch_request import MAX_ID_CHARACTERS, BatchRequest, parse_batch

PATH = "/v1/batches"
BODY: dict[str, Any] = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}
WINDOWS = ("24h", "30m")


def parse(headers: dict[str, str] | None = None, **fields: Any) -> BatchRequest:
    sent = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return parse_batch({**BODY, **fields}, sent, PATH, WINDOWS)


def test_a_body_says_what_is_to_be_run_and_until_when() -> None:
    request = parse(
        completion_window="30m",
        metadata={"a": "b"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    order = request.order
    assert (order.input_file_id, order.endpoint) == ("file-1", "/v1/chat/completions")
    assert (order.window, order.window_seconds) == ("30m", 1800)
    assert (order.metadata, order.output_ttl_seconds, order.key) == ({"a": "b"}, 3600, "")
    assert (request.ignored, request.keyed_by) == ((), "")


def test_null_means_absent() -> None:
    order = parse(metadata=None, output_expires_after=None, idempotency_key=None).order
    assert (order.metadata, order.output_ttl_seconds, order.key) == ({}, None, "")


@pytest.mark.parametrize(
    ("fields", "param", "code", "says"),
    [
        ({"input_file_id": None}, "input_file_id", "missing_required_parameter", "POST /v1/files"),
        ({"input_file_id": 1}, "input_file_id", "invalid_type", "a string"),
        ({"input_file_id": ""}, "input_file_id", "string_below_min_length", "POST /v1/files"),
        ({"input_file_id": "x" * 129}, "input_file_id", "string_above_max_length", "129"),
        ({"endpoint": None}, "endpoint", "missing_required_parameter", "/v1/responses"),
        ({"endpoint": "/v1/x"}, "endpoint", "invalid_value", 'Invalid endpoint: "/v1/x". Supported values: /v1/chat/'),
        ({"endpoint": "/v1/embeddings"}, "endpoint", "invalid_value", "/v1/completions, /v1/responses"),
        ({"endpoint": []}, "endpoint", "invalid_type", "Supported values"),
        ({"completion_window": None}, "completion_window", "missing_required_parameter", "24h or 30m"),
        ({"completion_window": "48h"}, "completion_window", "invalid_value", '"48h". It may be 24h or 30m'),
        ({"completion_window": ""}, "completion_window", "invalid_value", "24h or 30m"),
        ({"completion_window": 24}, "completion_window", "invalid_type", "24h or 30m"),
        ({"metadata": []}, "metadata", "invalid_type", "an object"),
        ({"metadata": {"tags": ["a"]}}, "metadata.tags", "invalid_type", "metadata.tags: expected a string"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length", "512"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "array_above_max_length", "16"),
        ({"output_expires_after": 60}, "output_expires_after", "invalid_type", "an object"),
        ({"idempotency_key": 1}, "idempotency_key", "invalid_type", "a string"),
        ({"idempotency_key": ""}, "idempotency_key", "string_below_min_length", "empty"),
        ({"idempotency_key": "x" * 256}, "idempotency_key", "string_above_max_length", "255"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_may_be(
    fields: dict[str, Any], param: str, code: str, says: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert says in refused.value.message
    assert MAX_ID_CHARACTERS == 128


def test_names_that_mean_nothing_are_told() -> None:
    assert parse(priority=1, expires_after=2).ignored == ("priority", "expires_after")


def test_a_key_is_in_the_header_or_in_the_body() -> None:
    header = parse({"idempotency-key": "k"})
    field = parse(idempotency_key="k")
    both = parse({"idempotency-key": "k"}, idempotency_key="k")
    assert [each.order.key for each in (header, field, both)] == ["k"] * 3
    assert [e.keyed_by for e in (header, field)] == ["Idempotency-Key", "idempotency_key"]
    assert header.order == field.order == both.order, "however it is sent, it is the same order"


def test_two_keys_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="another one") as refused:
        parse({"idempotency-key": "k"}, idempotency_key="l")
    assert refused.value.code == "mutually_exclusive_parameters"


def test_b5_an_order_stands_for_what_is_asked_not_for_how_it_is_written() -> None:
    written = parse(metadata={"a": "1", "b": "2"}).order
    turned = parse(metadata={"b": "2", "a": "1"}, idempotency_key="k").order
    assert len(written.fingerprint) == 32
    assert written.fingerprint == turned.fingerprint
    for other in ({"metadata": {"a": "1"}}, {"input_file_id": "file-2"}):
        assert parse(**other).order.fingerprint != written.fingerprint
