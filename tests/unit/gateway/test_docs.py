from __future__ import annotations

import re
from dataclasses import replace

import pytest

from forebay.gateway.app import Front, build_public
from forebay.gateway.docs import overview_text
from forebay.gateway.manual import article, codes, page

# What the overview has no need to name: itself, where one begins, what is only refused.
REFUSED = {"/v1/embeddings", "/v1/responses/compact", "/v1/responses/{id}/cancel"}
NOT_NAMED = {"/llms.txt", "/", "/v1"} | REFUSED


async def get(gateway, path, method="GET"):
    return await gateway.request(method, path, headers={"authorization": ""})


@pytest.mark.parametrize(
    "path", ["/docs/errors", "/docs/errors/", "/docs/errors/not_found", "/llms.txt"]
)
async def test_pages_are_markdown_that_may_be_kept_and_need_no_key(gateway, path):
    for method in ("GET", "HEAD"):
        answer = await get(gateway, path, method)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
        assert answer.headers["cache-control"] == "public, max-age=3600"
        assert int(answer.headers["content-length"]) == len(answer.body)
    assert (await get(gateway, path, "POST")).status == 405


async def test_the_page_of_all_errors_is_the_reference(gateway):
    assert (await get(gateway, "/docs/errors")).body.decode() == page()


@pytest.mark.parametrize("code", codes())
async def test_every_code_has_a_page(gateway, code):
    assert (await get(gateway, f"/docs/errors/{code}")).body.decode() == article(code)


@pytest.mark.parametrize("code", ["nothing", "x" * 5000, "NOT_FOUND", "not_found.md"])
async def test_an_unknown_code_is_not_found(gateway, code):
    answer = await get(gateway, f"/docs/errors/{code}")
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert "All codes are at GET /docs/errors." in answer.error["message"]
    assert len(answer.error["message"]) < 300


async def test_a_link_of_an_error_leads_to_its_page(gateway):
    gateway.settings = replace(gateway.settings, public_url="https://llm.example.org")
    link = (await get(gateway, "/nothing")).json()["error"]["doc_url"]
    answer = await get(gateway, link.removeprefix("https://llm.example.org"))
    assert answer.body.startswith(b"# not_found\n")


async def test_the_overview_is_as_llmstxt_org_says_and_its_links_work(gateway):
    gateway.settings = replace(gateway.settings, public_url="https://llm.example.org/")
    text = (await get(gateway, "/llms.txt")).body.decode()
    assert re.match(r"# Forebay\n\n> .*`https://llm\.example\.org/v1`.*\n\n", text)
    links = re.findall(
        r"^- \[(/[\w/.]+)\]\(https://llm\.example\.org(/[\w/.]+)\): .*\.$", text, re.M
    )
    assert len(links) == text.count("\n- ")
    for name, path in links:
        assert name == path
        assert (await gateway.request("GET", path)).status in (200, 405)


async def test_the_overview_names_every_path_of_the_listener(gateway):
    app = build_public(gateway.services, gateway.settings)
    assert isinstance(app, Front)
    text = overview_text("")
    for route in app.routes:
        path = route.path.replace(":path}", "}")
        assert path in NOT_NAMED or f"({path}):" in text or f"`{path}`" in text, path


async def test_where_the_address_is_not_known_links_are_relative(gateway):
    assert "(/docs/errors): " in (await get(gateway, "/llms.txt")).body.decode()
