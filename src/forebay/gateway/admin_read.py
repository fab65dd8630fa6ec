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
from msgspec import inspect

from forebay.core.errors import InvalidRequest
from forebay.gateway.read import missing, out_of_range, seen, text, wrong_type

T = TypeVar("T")

MAX_PARAMETERS = 1_000
MAX_INT = 2**63 - 1
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_KINDS: dict[type[Any], str] = {
    inspect.BoolType: "true or false",
    inspect.IntType: "an integer",
    inspect.ListType: "an array",
    inspect.LiteralType: "a string",
    inspect.StrType: "a string",
    inspect.StructType: "an object",
}


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
    for name, said in pairs:
        plain = name.removesuffix("[]")
        if plain in lists:
            value.setdefault(plain, []).append(said)
        elif name in value:
            raise InvalidRequest(f"{name!r:.60} is there twice: send it once.", param=name[:60])
        else:
            value[name] = said
    return _converted(value, kind, strict=False)


def _lists(kind: type[Any]) -> frozenset[str]:
    """Those of its fields that take several values."""
    found = []
    for field in msgspec.structs.fields(kind):
        info = inspect.type_info(field.type)
        kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
        if any(isinstance(each, inspect.ListType) for each in kinds):
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
    return _refused(place, *_at(value, kind, place))


def names(kind: type[Any]) -> list[str]:
    """The names of a type's fields, as they are sent."""
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _at(value: Any, kind: type[Any], place: str) -> tuple[Any, Any]:
    """The value at a place such as `channel.recipients[0]`, and what it should have been."""
    wanted: Any = inspect.type_info(kind)
    # A name of ours may have brackets: `effective_at[gt]`.
    steps = [(place, "")] if place in names(kind) else _STEP.findall(place)
    for name, index in steps:
        if name:
            value = value[name]
            wanted = next(field.type for field in wanted.fields if field.encode_name == name)
        else:
            value, wanted = value[int(index)], wanted.item_type
        if isinstance(wanted, inspect.UnionType):
            wanted = next(e for e in wanted.types if not isinstance(e, inspect.NoneType))
    return value, wanted


def _refused(place: str, value: Any, wanted: Any) -> InvalidRequest:
    """Why this value is none of those wanted. In a query every value is a string."""
    extra: Mapping[str, Any] = {}
    if isinstance(wanted, inspect.Metadata):
        wanted, extra = wanted.type, wanted.extra or {}
    match wanted:
        case inspect.LiteralType() if isinstance(value, str):
            allowed = ", ".join(map(str, wanted.values))
            return InvalidRequest(
                f"{place} is {seen(value)}, but must be one of: {allowed}.", param=place
            )
        case inspect.IntType() if _is_integer(value):
            return out_of_range(place, int(value), wanted.ge or 0, wanted.le or MAX_INT, "integer")
        case inspect.StrType() if isinstance(value, str):
            low, high = wanted.min_length or 0, wanted.max_length
            text(value, place, low=low, high=high)
            return InvalidRequest(
                f"{place} is {seen(value)}, but must be {extra['form']}.", param=place
            )
        case inspect.ListType() if isinstance(value, list):
            return InvalidRequest(
                f"{place} has {len(value)} elements; the limit is {wanted.max_length}.",
                param=place,
                code="array_above_max_length",
            )
    return wrong_type(place, _KINDS[type(wanted)], value)


def _is_integer(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"-?[0-9]{1,20}", value) is not None
    return isinstance(value, int) and not isinstance(value, bool)
