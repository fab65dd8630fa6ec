"""The header `Idempotency-Key`: which request this is, so that sent twice it is run once.

The key belongs to the organisation. It stands for one request: what is asked, at which endpoint, as
JSON means it (the order of keys and white space do not matter).

Not here: what becomes of a call that has one (`forebay.pipeline.kept`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forebay.core.call import Idempotency
from forebay.core.errors import InvalidRequest

HEADER = b"idempotency-key"
KEY_PARAM = "Idempotency-Key"
REPLAYED = (b"idempotency-hit", b"true")
MAX_KEY_CHARACTERS = 255

_PRINTABLE = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def is_keyed(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the request has a key, good or not."""
    return any(name == HEADER for name, _ in headers)


def idempotency(
    headers: Sequence[tuple[bytes, bytes]], path: str, body: Mapping[str, Any]
) -> Idempotency | None:
    """The key and what it stands for; None without the header. Raises InvalidRequest."""
    found = [value for name, value in headers if name == HEADER]
    if not found:
        return None
    if len(found) > 1:
        raise _refused(f"The request has {len(found)} Idempotency-Key headers. Send one.")
    key = found[0].strip()
    if len(key) > MAX_KEY_CHARACTERS or not _PRINTABLE.fullmatch(key):
        why = "has others" if 0 < len(key) <= MAX_KEY_CHARACTERS else f"has {len(key)}"
        raise _refused(
            f"An Idempotency-Key has 1 to {MAX_KEY_CHARACTERS} printable ASCII characters, and this "
            f"one {why}. Use a UUID that is new for every request."
        )
    return Idempotency(key.decode("ascii"), fingerprint(path, body))


def fingerprint(path: str, body: Mapping[str, Any]) -> bytes:
    """What is asked, whatever its key."""
    return hashlib.sha256(msgspec.json.encode((path, body), order="sorted")).digest()


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, param=KEY_PARAM)
