"""`response_format` of chat, `text.format` of responses: the JSON schema that an answer is bound to,
as text; empty for plain text.

Both ways of writing it are taken: nested in `json_schema` as OpenAI has it in chat, and not nested, as
it has it in responses and many clients of local servers send it everywhere. It is enforced whatever
`strict` says.

Not here: what a schema may hold (`forebay.core.json_schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.core.errors import InvalidRequest
from forebay.core.json_schema import read, without_annotations
from forebay.gateway.read import missing, seen, wrong_type

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def json_schema(value: Any, field: str = "response_format", *, nested: bool = True) -> str:
    """The schema's JSON text; errors place it in this field, and a missing one nested or not.
    Raises InvalidRequest."""
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise wrong_type(field, "an object", value)
    kind = value.get("type")
    if kind is None and not value:
        return ""
    if kind is None:
        raise missing(f"{field}.type", "Send text, json_object or json_schema.")
    if kind == "text":
        return ""
    if kind == "json_object":
        schema, path = value.get("schema"), f"{field}.schema"
        schema = _ANY_OBJECT if schema is None else schema
    elif kind == "json_schema":
        schema, path = _schema(value, field, nested)
    else:
        raise InvalidRequest(
            f"{field}.type is {seen(kind)}, but must be one of text, json_object, json_schema.",
            param=f"{field}.type",
            code="invalid_value" if isinstance(kind, str) else "invalid_type",
        )
    read(schema, path=path)
    return msgspec.json.encode(without_annotations(schema)).decode()


def _schema(value: Mapping[str, Any], field: str, nested: bool) -> tuple[Any, str]:
    """The schema and where it stands."""
    inner = value.get("json_schema")
    if inner is None:
        schema, path = value.get("schema"), f"{field}.schema"
    elif not isinstance(inner, dict):
        raise wrong_type(f"{field}.json_schema", "an object", inner)
    else:
        schema, path = inner.get("schema"), f"{field}.json_schema.schema"
    if schema is None:
        where = f"{field}.json_schema.schema" if nested else path
        raise missing(where, "Send the JSON schema, or json_object.")
    return schema, path
