"""GET /openapi.json: an OpenAPI 3.1 document of each listener, composed from what the code reads.

Requests from the tables of fields, answers from the wire types (by msgspec), statuses from the table
of errors. Made once when the server starts.

Not here: prose (docs/reference), the routes themselves (`app.py`; a test compares them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from forebay import __version__
from forebay.gateway import admin_openapi
from forebay.gateway.admin_operations import ADMIN_OPERATIONS
from forebay.gateway.chat_fields import CHAT_FIELDS
from forebay.gateway.compatibility import COMPATIBILITY_PATH
from forebay.gateway.completion_fields import COMPLETION_FIELDS
from forebay.gateway.errors import DOCS_PATH, OTHER_ANSWERS, TABLE
from forebay.gateway.fields import Field, Kind
from forebay.gateway.schema import ChatCompletion, Completion, ErrorAnswer, ModelList, WireModel
from forebay.gateway.usage_me import WireOwnUsage

Json = dict[str, Any]

_WIRE = (ChatCompletion, Completion, ModelList, WireModel, WireOwnUsage, ErrorAnswer)
_REQUEST_ID = {"x-request-id": {"required": True, "schema": {"type": "string"}}}
_TEXT = {"type": "string"}
# One event of a stream; its data is a chunk, an error, or [DONE].
_EVENT = {"type": "object", "properties": {"data": _TEXT}, "required": ["data"]}
_STATUS = {
    "type": "object",
    "properties": {"status": _TEXT},
    "required": ["status"],
}
_STATUSES = sorted({row.status for row in TABLE.values()} | {row[0] for row in OTHER_ANSWERS})
# Of what needs no key and holds no money.
_OPEN_STATUSES = (400, 404, 405, 408, 429, 431, 500, 503)


def public_document(address: str) -> bytes:
    """Of the API; `address` is the server's as clients see it, or empty."""
    chat = _generation("Create a chat completion", CHAT_FIELDS, "ChatCompletion")
    completion = _generation("Continue a text", COMPLETION_FIELDS, "Completion")
    id_ = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
    code = {"name": "code", "in": "path", "required": True, "schema": _TEXT}
    paths: Json = {
        "/v1/chat/completions": {"post": chat},
        "/v1/completions": {"post": completion},
        "/v1/embeddings": {"post": _operation("Refused: there is no embedding pool", {})},
        "/v1/models": {"get": _operation("List models", _ok(_ref("ModelList")))},
        "/v1/models/{id}": {
            "get": _operation("One model, by id or alias", _ok(_ref("WireModel"))),
            "parameters": [id_],
        },
        "/v1/usage/me": {"get": _operation("What this key used", _ok(_ref("WireOwnUsage")))},
        "/v1": {"get": _open("What the API is", _ok({"type": "object"}))},
        "/": {"get": _open("What this is", _ok({"type": "object"}))},
        **_health(),
        DOCS_PATH: {"get": _open("All error codes", _ok(_TEXT, "text/markdown"))},
        f"{DOCS_PATH}/{{code}}": {
            "get": _open("One error code", _ok(_TEXT, "text/markdown")),
            "parameters": [code],
        },
        COMPATIBILITY_PATH: {"get": _open("Field by field", _ok(_TEXT, "text/markdown"))},
        "/llms.txt": {"get": _open("An overview", _ok(_TEXT, "text/markdown"))},
        "/openapi.json": {"get": _open("This document", _ok({"type": "object"}))},
    }
    return _document("Forebay", paths, address)


@cache
def admin_document() -> bytes:
    """Of the operators' listener."""
    errors = {str(status): _error() for status in _STATUSES}
    paths = {
        **admin_openapi.paths(ADMIN_OPERATIONS, errors),
        "/metrics": {"get": _open("Prometheus' text format", _ok(_TEXT, "text/plain"))},
        **_health(),
        "/openapi.json": {"get": _open("This document", _ok({"type": "object"}))},
    }
    kinds = admin_openapi.types(ADMIN_OPERATIONS)
    return _document("Forebay, for operators", paths, "", (ErrorAnswer, *kinds))


def _document(title: str, paths: Json, address: str, kinds: Sequence[Any] = _WIRE) -> bytes:
    _, components = msgspec.json.schema_components(kinds, ref_template=admin_openapi.REF)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }
    if address:
        document["servers"] = [{"url": address}]
    return msgspec.json.encode(document)


def _generation(summary: str, fields: Mapping[str, Field], answer: str) -> Json:
    ok = _ok(_ref(answer))
    ok["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
    body = {"required": True, "content": {"application/json": {"schema": request_schema(fields)}}}
    return _operation(summary, ok) | {"requestBody": body}


def request_schema(fields: Mapping[str, Field]) -> Json:
    """What a body may be. Other names are allowed: they are ignored."""
    return {
        "type": "object",
        "properties": {name: _property(field) for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.required],
    }


def _property(field: Field) -> Json:
    described: Json = {"description": f"{field.kind.capitalize()}: {field.note}."}
    if field.kind is Kind.IGNORED:
        return described
    if field.kind is Kind.REFUSED:
        return described | {"enum": [None, *field.harmless]}
    if field.required:
        return described | dict(field.schema)
    return described | _nullable(field.schema)


def _nullable(schema: Mapping[str, Any]) -> Json:
    return {"anyOf": [dict(schema), {"type": "null"}]}


def _operation(summary: str, answers: Json, statuses: Iterable[int] = _STATUSES) -> Json:
    """One that needs a key; it may fail in every way that there is."""
    words = re.sub(r"[^a-z ]", "", summary.lower()).split()
    return {
        "operationId": "_".join(words),
        "summary": summary,
        "responses": {**answers, **{str(status): _error() for status in statuses}},
    }


def _open(summary: str, answers: Json) -> Json:
    """One that needs none."""
    return _operation(summary, answers, _OPEN_STATUSES) | {"security": []}


def _health() -> Json:
    return {
        "/livez": {"get": _open("Whether the process answers", _ok(_STATUS))},
        "/readyz": {"get": _open("Whether calls are served", _ok(_STATUS))},
    }


def _ok(schema: Json, content_type: str = "application/json") -> Json:
    content = {content_type: {"schema": schema}}
    return {"200": {"description": "Success", "headers": _REQUEST_ID, "content": content}}


def _error() -> Json:
    content = {"application/json": {"schema": _ref("ErrorAnswer")}}
    return {"description": "An error", "headers": _REQUEST_ID, "content": content}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
