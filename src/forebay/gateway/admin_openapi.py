"""The admin API's part of the OpenAPI document, made from its table of operations.

Not here: the document around it (`openapi.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from forebay.gateway.admin import Operation
from forebay.gateway.admin_schema import Body

Json = dict[str, Any]

REF = "#/components/schemas/{name}"
_IN_PATH = re.compile(r"{(\w+)(?::path)?}")


def types(operations: Iterable[Operation]) -> tuple[Any, ...]:
    """All that are sent or answered."""
    found = dict.fromkeys(operation.answer for operation in operations)
    bodies = (operation.body for operation in operations if operation.body is not Body)
    return (*found, *dict.fromkeys(bodies))


def paths(operations: Iterable[Operation], errors: Mapping[str, Json]) -> Json:
    """The paths; `errors` are the answers that every operation may give."""
    found: Json = {}
    for operation in operations:
        path = _IN_PATH.sub(r"{\1}", operation.path)
        found.setdefault(path, {})[operation.method.lower()] = _operation(operation, errors)
    return found


def _operation(operation: Operation, errors: Mapping[str, Json]) -> Json:
    described: Json = {
        "operationId": operation.summary.lower().replace(" ", "_"),
        "summary": operation.summary,
        "parameters": [*_path(operation), *_query(operation)],
        "responses": {
            "200": {"description": "Success", "content": _json(operation.answer)},
            **errors,
        },
    }
    if operation.body is not Body:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    return described


def _path(operation: Operation) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _IN_PATH.findall(operation.path)
    ]


def _query(operation: Operation) -> list[Json]:
    """Lists are repeated, with [] after their name, as OpenAI's clients send them."""
    schema = msgspec.json.schema(operation.query)
    described = schema["$defs"][operation.query.__name__]
    found = []
    for name, each in described["properties"].items():
        kinds = each.get("anyOf", [each])
        # An absent value is absent: there is no null in a query.
        kinds = [kind for kind in kinds if kind.get("type") != "null"]
        parameter: Json = {"in": "query", "required": name in described.get("required", ())}
        parameter["name"] = f"{name}[]" if kinds[0].get("type") == "array" else name
        parameter["schema"] = kinds[0]
        found.append(parameter)
    return found


def _json(kind: Any) -> Json:
    (schema,), _ = msgspec.json.schema_components((kind,), ref_template=REF)
    return {"application/json": {"schema": schema}}
