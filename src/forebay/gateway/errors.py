"""The one table from error class to HTTP status, type, code and headers.

Every error that a client sees is `{"error": {"message", "type", "param", "code"}}`, in a plain
response and in a stream alike, and names the request id. A waiting time is given where waiting
helps (429 of limits, 503); where it does not, `x-should-retry: false` stops SDKs from trying.

Where the server knows what clients call it, `doc_url` says where its code is explained. SDKs retry a
409, so it is a conflict that goes away by itself, or tells them not to.

Not here: what went wrong (`forebay.core.errors`), what to do about it (`manual.py`), sending the
answer (`respond.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec
from msgspec import UNSET, UnsetType

from forebay.core.errors import (
    BatchConflict,
    CallCancelled,
    ClientTooSlow,
    ContextLengthExceeded,
    ConversationFull,
    ConversationLocked,
    EngineFailed,
    EngineTimeout,
    FileDamaged,
    FlowFull,
    ForebayError,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    InsufficientQuota,
    InternalError,
    InvalidKey,
    InvalidRequest,
    LaneFull,
    MethodNotAllowed,
    ModelNotFound,
    NotAllowed,
    NotFound,
    Overloaded,
    OverloadError,
    QueueDeadline,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
    ShuttingDown,
    StorageFull,
    StoreUnavailable,
    TooManyOpenCalls,
    UnsupportedParameter,
)
from forebay.gateway.body import MAX_DEPTH, MAX_VALUES
from forebay.gateway.responses_schema import CANCELLED_CODE
from forebay.gateway.schema import WireError

Headers = list[tuple[bytes, bytes]]

# A lost store connection is usually back at once; clients need some number (503 always has one).
STORE_RETRY_SECONDS = 1.0
# Answers take seconds, and OpenAI's SDKs try twice again.
LOCKED_RETRY_SECONDS = 4.0
# Where the server explains its errors (`manual.py`).
DOCS_PATH = "/docs/errors"


@dataclass(frozen=True, slots=True)
class Row:
    """How one error class looks from outside. An empty code: the error carries its own."""

    status: int
    type: str
    code: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


_CALLER, _SERVER, _LIMIT = "invalid_request_error", "server_error", "rate_limit_exceeded"
_NO_RETRY = ((b"x-should-retry", b"false"),)
_CLOSE = ((b"connection", b"close"),)

TABLE: dict[type[ForebayError], Row] = {
    InvalidRequest: Row(400, _CALLER, ""),
    UnsupportedParameter: Row(400, _CALLER, "unsupported_parameter"),
    ContextLengthExceeded: Row(400, _CALLER, "context_length_exceeded"),
    ConversationFull: Row(400, _CALLER, "conversation_full"),
    StorageFull: Row(400, _CALLER, "storage_full"),
    CallCancelled: Row(400, _CALLER, CANCELLED_CODE),
    InvalidKey: Row(401, _CALLER, "invalid_api_key", ((b"www-authenticate", b"Bearer"),)),
    NotAllowed: Row(403, "permission_error", ""),
    ModelNotFound: Row(404, _CALLER, "model_not_found"),
    NotFound: Row(404, _CALLER, "not_found"),
    MethodNotAllowed: Row(405, _CALLER, "method_not_allowed"),
    RequestTimeout: Row(408, _CALLER, "request_timeout", _CLOSE),
    ClientTooSlow: Row(408, _CALLER, "client_too_slow", _NO_RETRY),
    IdempotencyKeyInUse: Row(409, _CALLER, "idempotency_key_in_use"),
    ConversationLocked: Row(409, _CALLER, "conversation_locked"),
    BatchConflict: Row(409, _CALLER, "batch_conflict", _NO_RETRY),
    IdempotencyKeyReused: Row(422, _CALLER, "idempotency_key_reused", _NO_RETRY),
    RequestTooLarge: Row(413, _CALLER, "request_too_large"),
    InsufficientQuota: Row(429, "insufficient_quota", "insufficient_quota", _NO_RETRY),
    RateLimited: Row(429, _LIMIT, "rate_limit_exceeded"),
    TooManyOpenCalls: Row(429, _LIMIT, "rate_limit_exceeded"),
    FlowFull: Row(429, _LIMIT, "rate_limit_exceeded"),
    Overloaded: Row(503, _SERVER, "server_is_overloaded"),
    LaneFull: Row(503, _SERVER, "queue_full"),
    QueueDeadline: Row(503, _SERVER, "queue_deadline"),
    ShuttingDown: Row(503, _SERVER, "server_shutdown"),
    EngineFailed: Row(500, _SERVER, "engine_error"),
    EngineTimeout: Row(504, _SERVER, "engine_timeout"),
    StoreUnavailable: Row(503, _SERVER, "store_unavailable"),
    FileDamaged: Row(500, _SERVER, "file_damaged", _NO_RETRY),
    InternalError: Row(500, _SERVER, "internal_error"),
}

# The codes of InvalidRequest.
INVALID_REQUEST_CODES = {
    "invalid_json": (
        f"The body is not JSON, is nested more than {MAX_DEPTH} levels deep, has more than "
        f"{MAX_VALUES:,} values, has a number out of range, or repeats a key."
    ),
    "invalid_unicode": "The body is not UTF-8, or has half of a surrogate pair.",
    "unsupported_content_encoding": "The body is compressed, but not with gzip alone.",
    "invalid_encoding": "The body says that it is gzip, and is not, or not one whole stream.",
    "invalid_multipart": (
        "The body is no form with a file in it, has too many parts, or ends before its end."
    ),
    "invalid_type": "A value has another JSON type than the field takes.",
    "invalid_value": "A value is not one of those allowed.",
    "missing_required_parameter": "A required field is absent (or null).",
    "unsupported_value": "The field is supported, this value of it is not.",
    "unknown_parameter": (
        "A field means nothing here, and `x-forebay-strict` asked to be told; the admin API always "
        "tells."
    ),
    "mutually_exclusive_parameters": "Two fields are there of which a request has one at most.",
    "previous_response_not_found": (
        "The response that `previous_response_id` names is gone, was not stored or never was."
    ),
    "invalid_schema": "The JSON schema of `response_format` or `text.format` cannot be enforced, or is too large.",
    "unsupported_endpoint": "Nothing here serves what this endpoint is for.",
    "integer_below_min_value": "Too small.",
    "integer_above_max_value": "Too large.",
    "decimal_below_min_value": "Too small.",
    "decimal_above_max_value": "Too large.",
    "string_below_min_length": "An empty string where text is needed.",
    "string_above_max_length": "Too long.",
    "empty_array": "An empty array where elements are needed.",
    "array_above_max_length": "Too many elements.",
}

# The codes of NotAllowed.
NOT_ALLOWED_CODES = {
    "not_allowed": "This API key may not do that.",
    "lane_not_allowed": (
        "The key may not use the lane that `service_tier` asks for: its plan does not have it, or "
        "the key is limited to others."
    ),
    "plan_not_configured": "The plan of the key's organisation is missing in the settings.",
}

# Answers that are not made from an error class: status, code, type, headers, meaning.
OTHER_ANSWERS = (
    (400, "invalid_http", _CALLER, "`connection: close`", "The request is not valid HTTP/1.1."),
    (
        408,
        "request_timeout",
        _CALLER,
        "`connection: close`",
        "The request's head did not arrive in time.",
    ),
    (
        431,
        "request_head_too_large",
        _CALLER,
        "`connection: close`",
        "The request line and headers are too many bytes, or too many lines.",
    ),
    (
        429,
        "rate_limit_exceeded",
        _LIMIT,
        "`connection: close`, `retry-after`, `retry-after-ms`",
        "Your address has too many connections open.",
    ),
    (
        503,
        "server_is_overloaded",
        _SERVER,
        "`connection: close`, `retry-after`, `retry-after-ms`",
        "The server has as many connections open as it can.",
    ),
    (
        503,
        "not_ready",
        _SERVER,
        "`retry-after`, `retry-after-ms`",
        "Of GET /readyz only: calls cannot be served now; `reasons` lists why.",
    ),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as it is sent: by status and headers, or as an event inside a stream."""

    status: int
    body: WireError
    headers: Headers


def refusal(error: ForebayError, request_id: str, public_url: str = "") -> Refusal:
    """What a client sees of this error. One that is not in the table is an internal error."""
    found = told(error, public_url)
    return replace(found, body=with_request_id(found.body, request_id))


def told(error: ForebayError, public_url: str = "") -> Refusal:
    """The same, of no request."""
    row = _row(error)
    if row is None:
        error, row = InternalError(), TABLE[InternalError]
    code = row.code or getattr(error, "code", "")
    param = error.param or ("model" if isinstance(error, ModelNotFound) else None)
    body = WireError(
        message=error.message,
        type=row.type,
        param=param,
        code=code,
        doc_url=doc_url(public_url, code),
    )
    return Refusal(row.status, body, [*row.headers, *_waiting(error)])


def with_request_id(body: WireError, request_id: str) -> WireError:
    """Who was refused can name the request."""
    return msgspec.structs.replace(body, message=f"{body.message} (request id: {request_id})")


def _row(error: ForebayError) -> Row | None:
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)


def doc_url(public_url: str, code: str) -> str | UnsetType:
    """Where this server explains the code, if it knows what clients call it."""
    return f"{public_url.rstrip('/')}{DOCS_PATH}/{code}" if public_url else UNSET


def _waiting(error: ForebayError) -> Headers:
    """`retry-after` in whole seconds for everyone, in milliseconds for OpenAI's SDKs."""
    if isinstance(error, OverloadError | RateLimited):
        seconds = error.retry_after_seconds
    elif isinstance(error, FileDamaged):
        return []
    elif isinstance(error, StoreUnavailable | IdempotencyKeyInUse):
        seconds = STORE_RETRY_SECONDS
    elif isinstance(error, ConversationLocked):
        seconds = LOCKED_RETRY_SECONDS
    else:
        return []
    if seconds is None:
        return list(_NO_RETRY)
    milliseconds = max(1, math.ceil(seconds * 1000))
    whole = -(-milliseconds // 1000)
    return [(b"retry-after", b"%d" % whole), (b"retry-after-ms", b"%d" % milliseconds)]
