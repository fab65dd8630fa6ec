"""Bodies of the Batch API: the batch that they ask for, or an error that says what is wrong with them.

A batch may be asked for under a key, so that asking twice makes one: the header `Idempotency-Key` as
everywhere, or the field `idempotency_key`, which some servers have.

Not here: whether the file is there and good (`forebay.pipeline`), lines (`batch_lines.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forebay.batch import window_seconds
from forebay.core.batch import BatchOrder
from forebay.core.errors import InvalidRequest
from forebay.gateway.batch_lines import ENDPOINTS
from forebay.gateway.conversation_request import METADATA, METADATA_NOTE, read_metadata
from forebay.gateway.expires_after import NOTE, SCHEMA, ttl_seconds
from forebay.gateway.fields import Field, screen, supported, table
from forebay.gateway.idempotency import (
    KEY_PARAM,
    MAX_KEY_CHARACTERS,
    fingerprint,
    idempotency,
)
from forebay.gateway.read import missing, seen, text

MAX_ID_CHARACTERS = 128
KEY_FIELD = "idempotency_key"

_UPLOAD = "POST /v1/files uploads a file and answers its id."

BATCH_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "input_file_id",
            "id of an uploaded file; one that is not there fails the batch, not this request",
            {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS},
            required=True,
        ),
        supported(
            "endpoint",
            f"of every line of the file: {', '.join(ENDPOINTS)}",
            {"type": "string", "enum": list(ENDPOINTS)},
            required=True,
        ),
        supported(
            "completion_window",
            "one of the setting `batch.completion_windows` (24h): a batch that takes longer expires "
            "with what is done",
            {"type": "string"},
            required=True,
        ),
        supported("metadata", METADATA_NOTE, METADATA),
        supported(
            "output_expires_after",
            f"{NOTE}: how long the files with its answers are kept; else the setting "
            "`batch.file_ttl_seconds`",
            SCHEMA,
        ),
        supported(
            KEY_FIELD,
            f"1 to {MAX_KEY_CHARACTERS} characters: asking again with the same key finds the same "
            "batch (an extension; the header `Idempotency-Key` does it, too)",
            {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARACTERS},
        ),
    )
)


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid body. `ignored` are the names in it that mean nothing to us; `keyed_by` says where the
    order's key was."""

    order: BatchOrder
    keyed_by: str
    ignored: tuple[str, ...]


def parse_batch(
    body: Mapping[str, Any],
    headers: Sequence[tuple[bytes, bytes]],
    path: str,
    windows: Sequence[str],
) -> BatchRequest:
    """Check every field. Raises InvalidRequest."""
    ignored = screen(body, BATCH_FIELDS)
    metadata, expiry = body.get("metadata"), body.get("output_expires_after")
    key, keyed_by = _key(body, headers, path)
    window = _window(body.get("completion_window"), windows)
    order = BatchOrder(
        input_file_id=_input_file_id(body.get("input_file_id")),
        endpoint=_endpoint(body.get("endpoint")),
        window=window,
        window_seconds=window_seconds(window),
        metadata={} if metadata is None else read_metadata(metadata),
        output_ttl_seconds=None if expiry is None else ttl_seconds(expiry, "output_expires_after"),
        key=key,
        fingerprint=fingerprint(path, {n: v for n, v in body.items() if n != KEY_FIELD}),
    )
    return BatchRequest(order=order, keyed_by=keyed_by, ignored=tuple(ignored))


def _key(
    body: Mapping[str, Any], headers: Sequence[tuple[bytes, bytes]], path: str
) -> tuple[str, str]:
    """And where it was."""
    header = idempotency(headers, path, body)
    value = body.get(KEY_FIELD)
    if value is None:
        return ("", "") if header is None else (header.key, KEY_PARAM)
    key = text(value, KEY_FIELD, low=1, high=MAX_KEY_CHARACTERS)
    if header is not None and header.key != key:
        raise InvalidRequest(
            f"{KEY_FIELD} is {seen(key)}, and the header {KEY_PARAM} is another one. Send one of "
            "the two.",
            param=KEY_FIELD,
            code="mutually_exclusive_parameters",
        )
    return key, KEY_FIELD


def _input_file_id(value: Any) -> str:
    if value is None:
        raise missing("input_file_id", _UPLOAD)
    return text(value, "input_file_id", low=1, high=MAX_ID_CHARACTERS, if_empty=_UPLOAD)


def _endpoint(value: Any) -> str:
    supported_values = f"Supported values: {', '.join(ENDPOINTS)}."
    if value is None:
        raise missing("endpoint", supported_values)
    if value not in ENDPOINTS:
        raise InvalidRequest(
            f"Invalid endpoint: {seen(value)}. {supported_values}",
            param="endpoint",
            code="invalid_value" if isinstance(value, str) else "invalid_type",
        )
    return str(value)


def _window(value: Any, windows: Sequence[str]) -> str:
    allowed = f"It may be {' or '.join(windows)}."
    if value is None:
        raise missing("completion_window", allowed)
    if value not in windows:
        raise InvalidRequest(
            f"Invalid completion_window: {seen(value)}. {allowed}",
            param="completion_window",
            code="invalid_value" if isinstance(value, str) else "invalid_type",
        )
    return str(value)
