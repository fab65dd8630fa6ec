"""A request's body: from the socket to a JSON object, within bounds of bytes, time and structure.

Invariants
- Never more than `max_body_bytes` are held; a declared length above it is refused unread. A gzip
  body is bounded twice: as it arrives, and as it is inflated.
- A client that sends is waited for `body_seconds` (a file's as long as it takes), one that sends hardly
  anything not so long: after `body_grace_seconds` what has arrived must be `min_body_bytes_per_second`
  for each second since.
- Nothing is decoded whose structure could cost more than its bytes: values and depth are counted
  on the raw bytes first. Keys occur once, so no two readers can disagree on what was asked.

Not here: what the object means (`request.py`), gzip itself (`inflate.py`), bodies that are forms
(`multipart.py`).
"""

from __future__ import annotations

import asyncio
import codecs
import math
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope

from forebay.core.errors import InvalidRequest, RequestTimeout, RequestTooLarge
from forebay.gateway.inflate import Inflater
from forebay.gateway.services import GatewaySettings

# Enough for 2,048 messages of several parts each, and bounds the work of the walk below.
MAX_VALUES = 65_536
MAX_DEPTH = 32

_GZIP = (b"gzip", b"x-gzip")
_decoder = msgspec.json.Decoder()
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_TOO_MANY_OPEN = b"[" * (MAX_DEPTH + 1)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class ClientGone(Exception):
    """The client left before its request was complete; there is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, settings: GatewaySettings) -> bytes:
    """The whole body, inflated. Raises RequestTooLarge, RequestTimeout, InvalidRequest, ClientGone."""
    limit = settings.max_body_bytes
    declared = declared_bytes(scope["headers"])
    if declared is not None and declared > limit:
        raise _too_large(declared, limit)
    patience = Patience(settings, settings.body_seconds)
    found = [piece async for piece in pieces(scope, receive, limit, patience)]
    return found[0] if len(found) == 1 else b"".join(found)


async def pieces(
    scope: Scope, receive: Receive, limit: int, patience: Patience
) -> AsyncGenerator[bytes, None]:
    """The body as it comes, inflated, up to so many bytes. Raises what `read_body` does.

    Others run between what one part inflates to.
    """
    inflater = Inflater(limit) if _is_compressed(scope["headers"]) else None
    size, more = 0, True
    while more:
        try:
            async with asyncio.timeout_at(patience.due()):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout(patience.reason()) from None
        if message["type"] != "http.request":
            raise ClientGone
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        patience.arrived(len(part))
        if size > limit:
            raise _too_large(size, limit)
        if inflater is None:
            yield part
            continue
        for piece in inflater.steps(part):
            yield piece
            await asyncio.sleep(0)
    if inflater is not None:
        inflater.end()


def declared_bytes(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """How long the body is, as it says itself."""
    return next((int(value) for name, value in headers if name == b"content-length"), None)


class Patience:
    """How long a body is waited for: the longer, the more of it has arrived, up to `most_seconds` in all."""

    def __init__(self, settings: GatewaySettings, most_seconds: float = math.inf) -> None:
        self._settings = settings
        self._most_seconds = most_seconds
        self._begun = asyncio.get_running_loop().time()
        self._bytes = 0

    def arrived(self, size: int) -> None:
        """So many bytes more are here."""
        self._bytes += size

    def due(self) -> float:
        """When the next bytes must be here, in the loop's time."""
        return self._begun + min(self._allowed_seconds(), self._most_seconds)

    def reason(self) -> str:
        """What to tell a client that was not waited for any longer."""
        settings = self._settings
        if self._allowed_seconds() >= self._most_seconds:
            return (
                f"The request body did not arrive within {self._most_seconds:g} s. Send it again."
            )
        return (
            f"Only {self._bytes} bytes of the request body arrived within "
            f"{self._allowed_seconds():.3g} s. After {settings.body_grace_seconds:g} s it must be "
            f"{settings.min_body_bytes_per_second} bytes a second or more. Send it again."
        )

    def _allowed_seconds(self) -> float:
        settings = self._settings
        return settings.body_grace_seconds + self._bytes / settings.min_body_bytes_per_second


def _is_compressed(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the body is gzip. Raises InvalidRequest for any other encoding, or several."""
    found = [
        coding
        for name, value in headers
        if name == b"content-encoding"
        for coding in (each.strip().lower() for each in value.split(b","))
        if coding not in (b"", b"identity")
    ]
    if len(found) > 1 or (found and found[0] not in _GZIP):
        shown = b", ".join(found).decode("latin-1")[:40]
        raise InvalidRequest(
            f"The body has the Content-Encoding {shown!r}, which is not supported. "
            "Send it as gzip, or without a Content-Encoding.",
            code="unsupported_content_encoding",
        )
    return bool(found)


def _too_large(size: int, limit: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"The request body has at least {size} bytes; the limit is {limit} bytes. "
        "Send fewer or shorter messages."
    )


CHAT_EXAMPLE = '{"model": …, "messages": […]}'


def decode_object(body: bytes, example: str = CHAT_EXAMPLE) -> dict[str, Any]:
    """The JSON object that the body is. Raises InvalidRequest saying what it is instead.

    A byte order mark before it is ignored, as RFC 8259 allows: some editors write one.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    outside = _outside_strings(body)
    brackets = outside.translate(_BRACKETS, _NOT_BRACKETS)
    if _TOO_MANY_OPEN in brackets:
        raise _too_deep()
    if outside.count(b",") >= MAX_VALUES or len(brackets) > 2 * MAX_VALUES:
        raise _too_many()
    try:
        value = _decoder.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as fault:
        raise _undecodable(body, str(fault)) from None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"The request body is valid JSON but not an object. Send an object such as {example}.",
            code="invalid_type",
        )
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # strips exactly the innermost level
        if not brackets:
            break
    else:
        raise _too_deep()
    if outside.count(b":") != _count_keys(value):
        raise InvalidRequest(
            "The request body has an object with the same key twice. Send each key once.",
            code="invalid_json",
        )
    return value


def _outside_strings(body: bytes) -> bytes:
    """What is left of a JSON text without its strings; never slower than a few scans of it.

    Backslashes occur only inside strings. Dropping escaped backslashes, then escaped quotes,
    leaves only the quotes that open and close strings.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * MAX_VALUES:
        raise _too_many()
    return b"".join(bare.split(b'"')[::2])


def _count_keys(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(
            _count_keys(v) for v in value.values() if isinstance(v, dict | list)
        )
    if isinstance(value, list):
        return sum(_count_keys(v) for v in value if isinstance(v, dict | list))
    return 0


def _undecodable(body: bytes, fault: str) -> InvalidRequest:
    if not body.strip():
        return InvalidRequest("The request body is empty. Send a JSON object.", code="invalid_json")
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return InvalidRequest(
            f"The request body is not UTF-8: byte {broken.start} is wrong.", code="invalid_unicode"
        )
    if _LONE_SURROGATE.search(body):
        return InvalidRequest(
            "The request body has half of a surrogate pair (\\ud800 to \\udfff). Send the whole "
            "character, or none.",
            code="invalid_unicode",
        )
    if "out of range" in fault:  # what follows in the fault is a path that only its parser reads
        return InvalidRequest(
            "The request body has a number that is out of range: at most 1.8e308, and integers of "
            "at most 4300 digits, can be read.",
            code="invalid_json",
        )
    return InvalidRequest(
        f"The request body is not valid JSON ({fault}). Check for trailing commas, single quotes, "
        "NaN, or text before or after the object.",
        code="invalid_json",
    )


def _too_many() -> InvalidRequest:
    return InvalidRequest(
        f"The request body has more than {MAX_VALUES} values. Send fewer.", code="invalid_json"
    )


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"The request body is nested more than {MAX_DEPTH} levels deep. Send it flatter.",
        code="invalid_json",
    )
