"""Values out of a decoded JSON object, each with an error that says exactly what is wrong with it.

Every message says what was wrong, the value seen, the limit, and so what to do; `param` is the
path of the value, such as `messages[2].content[0].type`. The codes are OpenAI's.

Null means absent for every optional field. A boolean is never a number, 1.0 never an integer.

Not here: which fields there are (`fields.py`), what they mean (`request.py` and its two users).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.core.errors import InvalidRequest

_SEEN_CHARACTERS = 60


def boolean(body: Mapping[str, Any], name: str, *, path: str = "") -> bool | None:
    """True, false, or None where it is absent."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise wrong_type(path + name, "true or false", value)


def integer(body: Mapping[str, Any], name: str, *, low: int, high: int) -> int | None:
    """An integer between two bounds, both included."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer", value)
    if not low <= value <= high:
        raise out_of_range(name, value, low, high, "integer")
    return value


def decimal(body: Mapping[str, Any], name: str, *, low: int, high: int) -> float | None:
    """A number between two bounds, both included."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number", value)
    if not low <= value <= high:
        raise out_of_range(name, value, low, high, "decimal")
    return float(value)


def text(
    value: Any,
    path: str,
    *,
    low: int,
    high: int | None,
    if_empty: str = "Send at least one character, or leave it out.",
) -> str:
    """This value, which must be a string of so many characters."""
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if len(value) < low:
        raise InvalidRequest(
            f"{path} is an empty string. {if_empty}",
            param=path,
            code="string_below_min_length",
        )
    if high is not None and len(value) > high:
        raise InvalidRequest(
            f"{path} has {len(value)} characters ({seen(value)}); the limit is {high}.",
            param=path,
            code="string_above_max_length",
        )
    return value


def missing(path: str, hint: str) -> InvalidRequest:
    """A required value is absent."""
    return InvalidRequest(
        f"Missing required parameter: {path}. {hint}",
        param=path,
        code="missing_required_parameter",
    )


def wrong_type(path: str, expected: str, value: Any) -> InvalidRequest:
    """A value has another JSON type than the field takes."""
    return InvalidRequest(
        f"Invalid type for {path}: expected {expected}, but got {kind(value)} ({seen(value)}).",
        param=path,
        code="invalid_type",
    )


def out_of_range(path: str, value: float, low: int, high: int, number: str) -> InvalidRequest:
    """A number (an "integer" or a "decimal") is outside its bounds."""
    side = "below_min" if value < low else "above_max"
    return InvalidRequest(
        f"{path} is {seen(value)}, but must be between {low} and {high}.",
        param=path,
        code=f"{number}_{side}_value",
    )


def kind(value: Any) -> str:
    """The JSON type, as a reader of the request would call it."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def seen(value: Any) -> str:
    """The value as it was sent, short enough for a message."""
    if isinstance(value, list | dict):
        return f"{len(value)} entries"
    encoded = msgspec.json.encode(value).decode()
    long = len(encoded) > _SEEN_CHARACTERS
    return encoded[: _SEEN_CHARACTERS - 1] + "…" if long else encoded
