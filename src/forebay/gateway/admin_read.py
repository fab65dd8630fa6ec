"""A body or a query of the admin API as its wire type, or an error that says what is wrong with it.

Unlike the public API, which ignores what it does not know, administration refuses it: a misspelt
limit must not be a limit that is not there.

Not here: which fields there are (`admin_schema.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from forebay.core.errors import InvalidRequest
from forebay.gateway.read import missing, seen

T = TypeVar("T")

MAX_PARAMETERS = 1_000
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")


def read_object(value: Mapping[str, Any], kind: type[T]) -> T:
    """The decoded body as this type. Raises InvalidRequest."""
    return _converted(value, kind, strict=True)


def read_query(query: bytes, kind: type[T]) -> T:
    """The query string as this type. Lists are repeated, with or without [] after their name."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidRequest(
            f"The query is not a list of at most {MAX_PARAMETERS} name=value pairs in UTF-8.",
            param="query",
        ) from None
    lists = _lists(kind)
    value: dict[str, Any] = {}
    for name, text in pairs:
        plain = name.removesuffix("[]")
        if plain in lists:
            value.setdefault(plain, []).append(text)
        elif name in value:
            raise InvalidRequest(f"{name!r:.60} is there twice: send it once.", param=name[:60])
        else:
            value[name] = text
    return _converted(value, kind, strict=False)


def _lists(kind: type[Any]) -> frozenset[str]:
    """Those of its fields that take several values."""
    found = []
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        if any(isinstance(each, msgspec.inspect.ListType) for each in kinds):
            found.append(field.encode_name)
    return frozenset(found)


def _converted(value: Mapping[str, Any], kind: type[T], *, strict: bool) -> T:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as fault:
        raise _refusal(str(fault), value, kind) from None


def _refusal(fault: str, value: Mapping[str, Any], kind: type[Any]) -> InvalidRequest:
    """What the decoder says, in our words, with the value that it saw."""
    found = _PLACE.search(fault)
    place = found[1] if found else ""
    said = _PLACE.sub("", fault)
    inside = f"{place}." if place else ""
    if unknown := _UNKNOWN.match(said):
        param = f"{inside}{unknown[1]}"
        known = "" if inside else f" It takes: {', '.join(names(kind)) or 'none'}."
        return InvalidRequest(
            f"Unknown parameter: {param:.100}. This endpoint does not take it.{known}",
            param=param[:100],
            code="unknown_parameter",
        )
    if absent := _MISSING.match(said):
        return missing(f"{inside}{absent[1]}", "This endpoint cannot do without it.")
    code = "invalid_type" if re.match(r"Expected `[^`]*`, got", said) else "invalid_value"
    shown = _at(value, place)
    return InvalidRequest(
        f"Invalid value for {place or 'the body'}: {said.lower()}; it is {shown}.",
        param=place or None,
        code=code,
    )


def names(kind: type[Any]) -> list[str]:
    """The names of a type's fields, as they are sent."""
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _at(value: Any, place: str) -> str:
    """The value at a place such as `channel.recipients[0]`, as far as it can be followed."""
    for name, index in _STEP.findall(place):
        if name and isinstance(value, Mapping) and name in value:
            value = value[name]
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
    return seen(value)
