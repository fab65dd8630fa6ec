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
from forebay.gateway import admin_openapi, batch_schema, expires_after, file_schema
from forebay.gateway.admin_operations import ADMIN_OPERATIONS
from forebay.gateway.admin_schema import Page
from forebay.gateway.batch_request import BATCH_FIELDS
from forebay.gateway.batch_schema import WireBatch
from forebay.gateway.chat_fields import CHAT_FIELDS
from forebay.gateway.compatibility import COMPATIBILITY_PATH
from forebay.gateway.completion_fields import COMPLETION_FIELDS
from forebay.gateway.conversation_request import (
    CONVERSATION_FIELDS,
    ITEMS_FIELDS,
    METADATA_FIELDS,
)
from forebay.gateway.conversation_schema import (
    MAX_LISTED,
    DeletedConversation,
    ItemList,
    WireConversation,
)
from forebay.gateway.errors import DOCS_PATH, OTHER_ANSWERS, TABLE
from forebay.gateway.fields import Field, Kind
from forebay.gateway.file_schema import DeletedFile, WireFile
from forebay.gateway.items import WireItem
from forebay.gateway.responses_fields import RESPONSES_FIELDS
from forebay.gateway.responses_schema import DeletedResponse, InputTokens, WireResponse
from forebay.gateway.schema import ChatCompletion, Completion, ErrorAnswer, ModelList, WireModel
from forebay.gateway.upload import FILE_FIELDS
from forebay.gateway.usage_me import WireOwnUsage

Json = dict[str, Any]

_WIRE = (ChatCompletion, Completion, ModelList, WireModel, WireOwnUsage, ErrorAnswer)
_RESPONSE_WIRE = (WireResponse, DeletedResponse, InputTokens)
_CONVERSATION_WIRE = (WireConversation, DeletedConversation, WireItem, ItemList)
_BATCH_WIRE = (WireFile, DeletedFile, Page[WireFile], WireBatch, Page[WireBatch])
_REQUEST_ID = {"x-request-id": {"required": True, "schema": {"type": "string"}}}
_TEXT = {"type": "string"}
# One event of a stream; its data is a chunk, an error, or [DONE].
_EVENT = {"type": "object", "properties": {"data": _TEXT}, "required": ["data"]}
_STATUS = {
    "type": "object",
    "properties": {"status": _TEXT},
    "required": ["status"],
}
_ORDER = {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}}


def _page(most: int) -> list[Json]:
    """Of a list, so many at most."""
    limit = {"type": "integer", "minimum": 1, "maximum": most}
    return [
        {"name": "limit", "in": "query", "schema": limit},
        {"name": "after", "in": "query", "schema": _TEXT},
    ]


_LISTING = [
    *_page(MAX_LISTED),
    _ORDER,
    {"name": "include", "in": "query", "schema": {"type": "array", "items": _TEXT}},
]
_READING = [
    {"name": "stream", "in": "query", "schema": {"type": "boolean"}},
    {"name": "starting_after", "in": "query", "schema": {"type": "integer", "minimum": 0}},
]
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
    paths |= _responses() | _conversations() | _files() | _batches()
    kinds = (*_WIRE, *_RESPONSE_WIRE, *_CONVERSATION_WIRE, *_BATCH_WIRE)
    return _document("Forebay", paths, address, kinds)


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


def _responses() -> Json:
    create = _generation("Create a response", RESPONSES_FIELDS, "WireResponse")
    count = _operation("Count input tokens", _ok(_ref("InputTokens")))
    id_ = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
    stored = _ok(_ref("WireResponse"))
    stored["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
    return {
        "/v1/responses": {"post": create},
        "/v1/responses/input_tokens": {"post": count | {"requestBody": create["requestBody"]}},
        "/v1/responses/compact": {"post": _operation("Refused: compaction is not built", {})},
        "/v1/responses/{id}": {
            "get": _operation("A stored response", stored) | {"parameters": _READING},
            "delete": _operation("Delete a response", _ok(_ref("DeletedResponse"))),
            "parameters": [id_],
        },
        "/v1/responses/{id}/input_items": {
            "get": _operation("List input items", _ok(_ref("ItemList"))) | {"parameters": _LISTING},
            "parameters": [id_],
        },
        "/v1/responses/{id}/cancel": {
            "post": _operation("Cancel a response", _ok(_ref("WireResponse"))),
            "parameters": [id_],
        },
    }


def _conversations() -> Json:
    ids = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in ("id", "item_id")
    ]
    one, items = _ok(_ref("WireConversation")), _ok(_ref("ItemList"))
    deleted, item = _ok(_ref("DeletedConversation")), _ok(_ref("WireItem"))
    create = _operation("Create a conversation", one) | _body(CONVERSATION_FIELDS)
    create["requestBody"]["required"] = False
    return {
        "/v1/conversations": {"post": create},
        "/v1/conversations/{id}": {
            "get": _operation("One conversation", one),
            "post": _operation("Replace its metadata", one) | _body(METADATA_FIELDS),
            "delete": _operation("Delete a conversation", deleted),
            "parameters": ids[:1],
        },
        "/v1/conversations/{id}/items": {
            "get": _operation("List items", items) | {"parameters": _LISTING},
            "post": _operation("Append items", items) | _body(ITEMS_FIELDS),
            "parameters": ids[:1],
        },
        "/v1/conversations/{id}/items/{item_id}": {
            "get": _operation("One item", item),
            "delete": _operation("Delete an item", one),
            "parameters": ids,
        },
    }


def _files() -> Json:
    ids = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    listing = [*_page(file_schema.MAX_LISTED), _ORDER]
    listing.append({"name": "purpose", "in": "query", "schema": _TEXT})
    one, content = _ok(_ref("WireFile")), _ok({}, "application/octet-stream")
    return {
        "/v1/files": {
            "get": _operation("List files", _ok(_ref("Page_WireFile_"))) | {"parameters": listing},
            "post": _operation("Upload a file", one) | _form(),
        },
        "/v1/files/{id}": {
            "get": _operation("One file", one),
            "delete": _operation("Delete a file", _ok(_ref("DeletedFile"))),
            "parameters": ids,
        },
        "/v1/files/{id}/content": {
            "get": _operation("The bytes of a file", content),
            "parameters": ids,
        },
    }


def _form() -> Json:
    """What an upload may be: a form has fields where JSON has an object."""
    schema = request_schema({name: FILE_FIELDS[name] for name in ("file", "purpose")})
    schema["properties"] |= {
        "expires_after[anchor]": {"enum": [expires_after.ANCHOR]},
        "expires_after[seconds]": dict(expires_after.SECONDS_SCHEMA),
    }
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def _batches() -> Json:
    ids = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    one, listing = _ok(_ref("WireBatch")), {"parameters": _page(batch_schema.MAX_LISTED)}
    return {
        "/v1/batches": {
            "get": _operation("List batches", _ok(_ref("Page_WireBatch_"))) | listing,
            "post": _operation("Create a batch", one) | _body(BATCH_FIELDS),
        },
        "/v1/batches/{id}": {"get": _operation("One batch", one), "parameters": ids},
        "/v1/batches/{id}/cancel": {
            "post": _operation("Cancel a batch", one),
            "parameters": ids,
        },
    }


def _generation(summary: str, fields: Mapping[str, Field], answer: str) -> Json:
    ok = _ok(_ref(answer))
    ok["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
    return _operation(summary, ok) | _body(fields)


def _body(fields: Mapping[str, Field]) -> Json:
    content = {"application/json": {"schema": request_schema(fields)}}
    return {"requestBody": {"required": True, "content": content}}


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
