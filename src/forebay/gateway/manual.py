"""The error reference: every code with all that a client sees of it, and what to do about it.

`page()` is docs/reference/errors.md, and what the server shows at /docs/errors; `article` is one
code's part of it, at /docs/errors/{code}. A test compares the file, and asks for a remedy for every
code of the table.

Not here: which error has which code (`errors.py`), the endpoints (`docs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forebay.core.errors import (
    ConversationLocked,
    ForebayError,
    IdempotencyKeyInUse,
    InvalidRequest,
    MethodNotAllowed,
    NotAllowed,
    OverloadError,
    RateLimited,
    StoreUnavailable,
)
from forebay.gateway.errors import (
    INVALID_REQUEST_CODES,
    NOT_ALLOWED_CODES,
    OTHER_ANSWERS,
    TABLE,
    Row,
)

_RETRY = "`retry-after`, `retry-after-ms`"
_RANGE = "Send a value inside the range that the message names; `param` is its place."

# What to do, in the order of the page.
REMEDIES = {
    "unsupported_parameter": (
        "Leave out the field that `param` names, or ask for what is served: GET "
        "/docs/compatibility lists all fields."
    ),
    "context_length_exceeded": (
        "Shorten the prompt, drop old messages, or ask for fewer output tokens: the message has "
        "the model's limit and how much this prompt takes of it."
    ),
    "conversation_full": (
        "Delete conversations that are not needed any more, or items of this one, or begin a new "
        "one. The limits are the operator's settings `conversation.max_items`, `max_bytes` and "
        "`organisation_bytes`."
    ),
    "storage_full": (
        "Delete files that are not needed any more (`DELETE /v1/files/{id}`), those with the answers of "
        "old batches, too, or upload files that expire sooner (`expires_after`). The limit is the "
        "operator's setting `batch.organisation_bytes`."
    ),
    "invalid_api_key": (
        "Send the key in the header `Authorization: Bearer fbk_live_…`, once. A key that is "
        "unknown, expired or revoked stays so: ask the operator for a new one "
        "(`forebay keys create`)."
    ),
    "model_not_found": (
        "Use an `id` or alias of `GET /v1/models`, which lists what this key may use."
    ),
    "not_found": (
        "Compare the address: an OpenAI client's base URL is this server's address + `/v1`. "
        "The message names the endpoints that there are. A conversation or item may also have "
        "expired, been deleted, or be another organisation's: these are not told apart."
    ),
    "method_not_allowed": "Use a method of the header `allow`.",
    "request_timeout": (
        "Send the request again; the connection is closed. If it happens often, something between "
        "client and server is slow, or the client opens connections without using them."
    ),
    "client_too_slow": (
        "Read the stream as it comes, without waiting for anything else between events. What was "
        "generated until then is charged."
    ),
    "response_cancelled": (
        "Somebody cancelled this response. What had been generated was charged. Make a new one."
    ),
    "idempotency_key_in_use": (
        "A call with this key is being answered by another process, or has just lost it. Send the "
        "same request again after `retry-after`."
    ),
    "conversation_locked": (
        "A conversation is worked on by one call at a time. Send the request again after "
        "`retry-after`, when the other call has ended. OpenAI's SDKs do it twice; where answers take "
        "longer than that, raise their `max_retries`."
    ),
    "batch_conflict": (
        "The message says what stands in the way: a batch that has ended cannot be cancelled, the file "
        "of one that has not cannot be deleted, a key that has made one makes no other. Do not send the "
        "same request again."
    ),
    "idempotency_key_reused": (
        "Send a fresh `Idempotency-Key` with every new request; the same key only with exactly the "
        "same request, to the same endpoint."
    ),
    "request_too_large": (
        "Send fewer or shorter messages. The message has the limit (the operator's setting "
        "`gateway.max_body_bytes`; of a file `batch.max_file_bytes`); it also holds for what a "
        "compressed body inflates to."
    ),
    "insufficient_quota": (
        "Do not retry: waiting does not help until the budget's period ends (a total's never "
        "does). Ask for fewer output tokens (`max_completion_tokens`), which lowers what the call "
        "can cost at most, or have the budget raised (`forebay budgets set`)."
    ),
    "rate_limit_exceeded": (
        "Wait as long as `retry-after` says (OpenAI's SDKs do it themselves), and have fewer "
        "calls open at once. A lower maximum of output tokens lets more calls through; the "
        "`x-ratelimit-…` headers say what is left. With `x-should-retry: false` waiting does not help."
    ),
    "server_is_overloaded": (
        "Wait as long as `retry-after` says and try again; nothing was charged. The lane `flex` "
        "(`service_tier`) may wait longer before it is refused."
    ),
    "queue_full": "Wait as long as `retry-after` says and try again; nothing was charged.",
    "queue_deadline": (
        "Wait as long as `retry-after` says and try again; nothing was charged. The lane `flex` "
        "(`service_tier`) may wait longer."
    ),
    "server_shutdown": (
        "Try again after `retry-after`: another server, or this one once it is back, will answer."
    ),
    "engine_error": (
        "Try again; nothing was charged. If the same call fails every time, tell the operator its "
        "request id."
    ),
    "engine_timeout": (
        "Try again; nothing was charged. If it goes on, tell the operator the request id."
    ),
    "file_damaged": "Upload the file again; the operator may restore it from a backup.",
    "store_unavailable": "Try again after `retry-after`; nothing was charged.",
    "internal_error": (
        "Try again; nothing was charged. Tell the operator the request id: the log has the cause "
        "under it."
    ),
    "invalid_json": (
        "Build the body with a JSON library: no trailing commas, single quotes or NaN, every key "
        "once, and less nesting and fewer values than the limits above."
    ),
    "invalid_unicode": (
        "Encode the body as UTF-8, and cut texts between characters, never inside a pair of "
        "surrogates."
    ),
    "unsupported_content_encoding": (
        "Compress with gzip (`Content-Encoding: gzip`), or send the body as it is."
    ),
    "invalid_encoding": (
        "Compress the whole body once, with gzip's header and checksum and nothing after them; "
        "or leave out `Content-Encoding` if it is not compressed."
    ),
    "invalid_multipart": (
        "Upload the file as HTTP clients do, such as `client.files.create` of OpenAI's SDKs or "
        "`curl -F purpose=batch -F file=@calls.jsonl`; let them set `Content-Type`."
    ),
    "invalid_type": "Send the JSON type that the message names at the place that `param` names.",
    "invalid_value": "Send one of the values that the message names.",
    "missing_required_parameter": "Add the field that `param` names.",
    "unsupported_value": (
        "Send another value, or leave out the field that `param` names: the message says what is "
        "served."
    ),
    "unknown_parameter": "Remove the fields that the message names, or the header.",
    "mutually_exclusive_parameters": "Send one of the fields that the message names.",
    "previous_response_not_found": (
        "Send what was said before as `input`, or use a conversation. Responses are kept as long as "
        "the operator's setting `conversation.ttl_seconds` says, unless they were made with "
        "`store: false`."
    ),
    "invalid_schema": (
        "Change what stands at the place that `param` names: GET /docs/compatibility says what can "
        "be enforced. Generated schemas often need a `pattern` or a `format` taken out: in Pydantic "
        "with a field of a plainer type, in zod with `z.string()`."
    ),
    "unsupported_endpoint": "The message names what is here instead.",
    "integer_below_min_value": _RANGE,
    "integer_above_max_value": _RANGE,
    "decimal_below_min_value": _RANGE,
    "decimal_above_max_value": _RANGE,
    "string_below_min_length": "Send text at the place that `param` names, or leave it out.",
    "string_above_max_length": "Send less text there: the message has the limit.",
    "empty_array": "Send at least one element, or leave the field out where it is optional.",
    "array_above_max_length": "Send fewer elements: the message has the limit.",
    "not_allowed": "Use a key that may, or ask the operator for the permission.",
    "lane_not_allowed": (
        "Ask for another `service_tier`, or leave it out; or have the organisation's plan or the "
        "key's lanes changed."
    ),
    "plan_not_configured": (
        "Only the operator can help: the setting `plans` lacks the plan that the key's "
        "organisation has."
    ),
    "invalid_http": (
        "Send HTTP/1.1, without TLS unless a proxy in front speaks it. The connection is closed."
    ),
    "request_head_too_large": (
        "Send fewer or shorter headers, or a shorter address (settings `gateway.max_header_bytes` "
        "and `gateway.max_headers`). The connection is closed."
    ),
    "not_ready": "Send calls to another server, and ask this one again after `retry-after`.",
}


@dataclass(frozen=True, slots=True)
class Look:
    """One way in which a code is answered. Several kinds of error may share a code."""

    status: int
    code: str
    type: str
    headers: str
    meaning: str


def looks() -> Iterator[Look]:
    """All of them, in the order of the page."""
    own: dict[type[ForebayError], dict[str, str]] = {
        InvalidRequest: INVALID_REQUEST_CODES,
        NotAllowed: NOT_ALLOWED_CODES,
    }
    for kind, row in TABLE.items():
        headers = ", ".join(_headers(kind, row)) or "–"
        meanings = own.get(kind, {row.code: (kind.__doc__ or "").strip().split("\n")[0]})
        for code, meaning in meanings.items():
            yield Look(row.status, code, row.type, headers, meaning)
    for status, code, type_, headers, meaning in OTHER_ANSWERS:
        yield Look(status, code, type_, headers, meaning)


def codes() -> tuple[str, ...]:
    """Every code once."""
    return tuple(dict.fromkeys(look.code for look in looks()))


def page() -> str:
    """The whole reference."""
    lines = [
        "# Errors",
        "",
        "Every answer that is not a success, and every error inside a stream, has the body",
        '`{"error": {"message": …, "type": …, "param": …, "code": …, "doc_url": …}}`. The message',
        "ends with the request id, which is also in the header `x-request-id`. Match on `code`, not",
        "on the text. `param` is the path of the value that is wrong (such as",
        "`messages[2].content[0].type`), or null. `doc_url` leads to what the running server says",
        "about the code; it is absent where the server does not know its own address (setting",
        "`gateway.public_url`).",
        "",
        "After the first byte of a stream the same object arrives as an event, followed by",
        "`data: [DONE]`; such a stream has no `finish_reason`, and costs nothing unless its client",
        "was too slow to read it.",
        "",
        "| HTTP | code | type | headers | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.status} | [`{each.code}`](#{each.code}) | `{each.type}` | {each.headers} "
        f"| {each.meaning} |"
        for each in looks()
    ]
    for code in codes():
        lines += ["", f"## {code}", "", *_explained(code)]
    return "\n".join([*lines, ""])


def article(code: str) -> str:
    """One code's page."""
    return "\n".join([f"# {code}", "", *_explained(code), ""])


def _explained(code: str) -> Iterator[str]:
    for each in looks():
        if each.code == code:
            headers = "" if each.headers == "–" else f", with {each.headers}"
            yield f"- HTTP {each.status}, type `{each.type}`{headers}: {each.meaning}"
    yield from ("", f"What to do: {REMEDIES[code]}")


def _headers(kind: type[ForebayError], row: Row) -> Iterator[str]:
    for name, value in row.headers:
        yield f"`{name.decode()}: {value.decode()}`"
    waits = OverloadError | StoreUnavailable | IdempotencyKeyInUse | ConversationLocked
    if issubclass(kind, waits):
        yield _RETRY
    elif issubclass(kind, RateLimited):
        yield f"{_RETRY}; or `x-should-retry: false`"
    elif kind is MethodNotAllowed:
        yield "`allow`"
