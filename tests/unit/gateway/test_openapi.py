from __future__ import annotations

import json

import pytest

from forebay.gateway.app import build_admin, build_public
from forebay.gateway.chat_fields import CHAT_FIELDS
from forebay.gateway.fields import Kind
from forebay.gateway.openapi import admin_document, public_document, request_schema


def documents(gateway):
    return [
        (json.loads(public_document("")), build_public(gateway.services, gateway.settings)),
        (json.loads(admin_document()), build_admin(gateway.services, gateway.settings)),
    ]


async def test_each_listener_documents_all_of_its_routes_and_no_others(gateway):
    for document, app in documents(gateway):
        routes = {route.path.replace(":path}", "}"): route.endpoint.methods for route in app.routes}
        assert set(document["paths"]) == set(routes)
        for path, item in document["paths"].items():
            methods = {method.upper() for method in item if method != "parameters"}
            assert methods == set(routes[path]) - {"HEAD"}, path


async def test_both_listeners_serve_their_own(gateway):
    public = await gateway.request("GET", "/openapi.json", headers={"authorization": ""})
    assert public.headers["content-type"] == "application/json"
    assert "/v1/chat/completions" in public.json()["paths"]
    admin = await gateway.request("GET", "/openapi.json", admin=True)
    assert "/metrics" in admin.json()["paths"]


def test_every_reference_leads_somewhere():
    for text in (public_document("https://llm.example.org"), admin_document()):
        document = json.loads(text)
        names = set(document["components"]["schemas"])
        used = {part.split('"')[0] for part in text.decode().split("#/components/schemas/")[1:]}
        assert used <= names


def test_the_address_is_the_server_where_it_is_known():
    assert "servers" not in json.loads(public_document(""))
    assert json.loads(public_document("https://x"))["servers"] == [{"url": "https://x"}]


@pytest.mark.parametrize("field", CHAT_FIELDS.values(), ids=lambda field: field.name)
def test_what_becomes_of_each_field_is_in_its_schema(field):
    schema = request_schema(CHAT_FIELDS)["properties"][field.name]
    assert schema["description"].lower().startswith(field.kind)
    if field.kind is Kind.REFUSED:
        assert schema["enum"] == [None, *field.harmless]
    elif field.kind is Kind.IGNORED:
        assert set(schema) == {"description"}
    else:
        nullable = {"type": "null"} in schema.get("anyOf", ())
        assert nullable != field.required
