"""How long a file is kept: `expires_after` of an upload, `output_expires_after` of a batch. Pure.

Not here: how long without it (`forebay.batch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.core.errors import InvalidRequest
from forebay.gateway.read import missing, out_of_range, seen, wrong_type

ANCHOR = "created_at"
MIN_TTL_SECONDS, MAX_TTL_SECONDS = 3600, 30 * 24 * 3600
SECONDS_SCHEMA: Mapping[str, Any] = {
    "type": "integer",
    "minimum": MIN_TTL_SECONDS,
    "maximum": MAX_TTL_SECONDS,
}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"anchor": {"enum": [ANCHOR]}, "seconds": SECONDS_SCHEMA},
    "required": ["anchor", "seconds"],
}
NOTE = f"an object of `anchor` ({ANCHOR}) and `seconds` ({MIN_TTL_SECONDS} to {MAX_TTL_SECONDS})"


def ttl_seconds(value: Any, path: str) -> int:
    """So many seconds after it was made. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    anchor, seconds = value.get("anchor"), value.get("seconds")
    if anchor is None:
        raise missing(f"{path}.anchor", f"Send {ANCHOR}.")
    if anchor != ANCHOR:
        raise InvalidRequest(
            f"{path}.anchor is {seen(anchor)}, but must be {ANCHOR}.",
            param=f"{path}.anchor",
            code="invalid_value" if isinstance(anchor, str) else "invalid_type",
        )
    if seconds is None:
        raise missing(f"{path}.seconds", f"Send {MIN_TTL_SECONDS} to {MAX_TTL_SECONDS}.")
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise wrong_type(f"{path}.seconds", "an integer", seconds)
    if not MIN_TTL_SECONDS <= seconds <= MAX_TTL_SECONDS:
        raise out_of_range(f"{path}.seconds", seconds, MIN_TTL_SECONDS, MAX_TTL_SECONDS, "integer")
    return seconds
