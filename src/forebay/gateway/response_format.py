"""`response_format`: the JSON schema that an answer is bound to, as text; empty for plain text.

Both ways of writing it are taken: nested in `json_schema` as OpenAI has it, and not nested, as many
clients of local servers send it. It is enforced whatever `strict` says.

Not here: what a schema may hold (`forebay.core.json_schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.core.errors import InvalidRequest
from forebay.core.json_schema import read, without_annotations
from forebay.gateway.read import missing, seen, wrong_type

_FIELD = "response_format"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def json_schema(value: Any) -> str:
    """The schema's JSON text. Raises InvalidRequest."""
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise wrong_type(_FIELD, "an object", value)
    kind = value.get("type")
    if kind is None and not value:
        return ""
    if kind is None:
        raise missing(f"{_FIELD}.type", "Send text, json_object or json_schema.")
    if kind == "text":
        return ""
    if kind == "json_object":
        schema, path = value.get("schema"), f"{_FIELD}.schema"
        schema = _ANY_OBJECT if schema is None else schema
    elif kind == "json_schema":
        schema, path = _schema(value)
    else:
        raise InvalidRequest(
            f"{_FIELD}.type is {seen(kind)}, but must be one of text, json_object, json_schema.",
            param=f"{_FIELD}.type",
            code="invalid_value" if isinstance(kind, str) else "invalid_type",
        )
    read(schema, path=path)
    return msgspec.json.encode(without_annotations(schema)).decode()


def _schema(value: Mapping[str, Any]) -> tuple[Any, str]:
    """The schema and where it stands."""
    nested = value.get("json_schema")
    if nested is None:
        schema, path = value.get("schema"), f"{_FIELD}.schema"
    elif not isinstance(nested, dict):
        raise wrong_type(f"{_FIELD}.json_schema", "an object", nested)
    else:
        schema, path = nested.get("schema"), f"{_FIELD}.json_schema.schema"
    if schema is None:
        raise missing(f"{_FIELD}.json_schema.schema", "Send the JSON schema, or json_object.")
    return schema, path
