from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.core.errors import EngineFailed
from forebay.gateway.cors import EXPOSED, MAX_REFLECTED_BYTES, Cors, check_origins

HTTP = Path(__file__).parents[3] / "docs" / "reference" / "http.md"
SITE, OTHER = "https://app.example.org", "https://evil.example"
# As OpenAI's SDK for browsers asks.
WANTED = "authorization,content-type,x-stainless-arch,x-stainless-os,x-stainless-retry-count"
PREFLIGHT = {
    "authorization": "",
    "origin": SITE,
    "access-control-request-method": "POST",
    "access-control-request-headers": WANTED,
}


@pytest.fixture
def site(gateway):
    gateway.settings = replace(gateway.settings, cors_origins=(SITE, "http://localhost:3000"))
    return gateway


def granted(answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if "access-control" in name}


async def test_rule_51_a_preflight_is_granted_without_a_key_with_the_headers_it_asks_for(site):
    answer = await site.request("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == SITE
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == WANTED.replace(",", ", ")
    assert answer.headers["access-control-max-age"] == "7200"
    assert answer.headers["vary"] == "origin"
    assert answer.headers["x-request-id"].startswith("req_")
    assert site.tenancy.secrets == []


async def test_rule_51_a_preflight_of_another_spelling_or_of_nothing_is_granted_too(site):
    for path, methods in (
        ("//models/", "GET, HEAD"),
        ("/docs/errors/not_found", "GET, HEAD"),
        ("/v1/uploads", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        ("*", "GET, HEAD, POST, PUT, PATCH, DELETE"),
    ):
        answer = await site.request("OPTIONS", path, headers=PREFLIGHT)
        assert answer.status == 204
        assert answer.headers["access-control-allow-methods"] == methods


async def test_rule_51_every_kind_of_answer_may_be_read(site, events):
    site.script("a")
    answers = [
        await site.chat(headers={"origin": SITE}),
        await site.stream(headers={"origin": SITE}),
        await site.request("GET", "/v1/models", headers={"origin": SITE, "authorization": ""}),
        await site.request("GET", "/nothing", headers={"origin": SITE}),
        await site.request("DELETE", "/v1/models", headers={"origin": SITE}),
        await site.request("GET", "/livez", headers={"origin": SITE}),
        await site.request("OPTIONS", "/livez", headers={"origin": SITE}),
    ]
    site.script(EngineFailed())
    answers.append(await site.chat(headers={"origin": SITE}))
    assert [answer.status for answer in answers] == [200, 200, 401, 404, 405, 200, 204, 500]
    for answer in answers:
        assert granted(answer) == {
            "access-control-allow-origin": SITE,
            "access-control-expose-headers": ", ".join(EXPOSED),
        }
        assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("origin", [OTHER, SITE + ".evil.example", SITE.upper(), "null", "", None])
async def test_rule_51_another_origin_gets_no_such_header_and_its_answer_as_ever(site, origin):
    headers = PREFLIGHT | {"origin": origin}
    if origin is None:
        del headers["origin"]
    asked = await site.request("OPTIONS", "/v1/models", headers=headers)
    assert (asked.status, asked.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    headers["authorization"] = "Bearer fbk_live_test"
    answer = await site.request("GET", "/v1/models", headers=headers)
    assert answer.status == 200
    for each in (asked, answer):
        assert granted(each) == {}
        assert each.headers["vary"] == "origin", "caches must not give it to the origin that may"


async def test_rule_51_a_star_allows_every_origin_and_never_cookies(gateway):
    gateway.settings = replace(gateway.settings, cors_origins=("*",))
    for method in ("OPTIONS", "GET"):
        headers = PREFLIGHT | {"origin": OTHER, "authorization": "Bearer fbk_live_test"}
        answer = await gateway.request(method, "/v1/models", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "vary" not in answer.headers
        assert "access-control-allow-credentials" not in answer.headers
    assert granted(await gateway.request("GET", "/v1/models")) == {}, "no browser asked"


async def test_the_admin_listener_is_for_no_script(site):
    answer = await site.request("GET", "/metrics", headers={"origin": SITE}, admin=True)
    assert answer.status == 200
    assert granted(answer) == {}


@pytest.mark.parametrize(
    ("asked", "reflected"),
    [
        ("x-a", "x-a"),
        (" X-A ,, x_b ", "X-A, x_b"),
        ("x-a, b c, d:e, é, (f), g\x00h, x-z", "x-a, x-z"),
        ("*", "*"),
        ("", None),
        (",;,", None),
    ],
)
def test_only_names_of_headers_are_reflected(asked, reflected):
    headers = [(name.encode(), value.encode()) for name, value in PREFLIGHT.items()]
    headers[-1] = (headers[-1][0], asked.encode())
    found = dict(Cors([SITE]).preflight(headers, ["GET"]) or [])
    expected = None if reflected is None else reflected.encode()
    assert found.get(b"access-control-allow-headers") == expected


def test_what_is_reflected_is_bounded():
    asked = b",".join(b"x-%d" % number for number in range(100_000))
    headers = [
        (b"origin", SITE.encode()),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", asked),
    ]
    found = dict(Cors([SITE]).preflight(headers, ["POST"]) or [])
    assert len(found[b"access-control-allow-headers"]) < 2 * MAX_REFLECTED_BYTES


def test_every_header_of_ours_that_the_documentation_names_may_be_read():
    table = HTTP.read_text().partition("## Headers of an answer")[2].partition("\n## ")[0]
    rows = "\n".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))
    named = set(re.findall(r"`([a-z0-9-]+)", rows))
    ours = {name for name in named if name.startswith(("x-", "retry-", "idempotency-hit"))}
    assert ours == set(EXPOSED)


@pytest.mark.parametrize(
    "origin",
    ["https://a.example", "http://localhost:3000", "http://127.0.0.1:80801", "http://[::1]:8080",
     "chrome-extension://abcdef", "tauri://localhost", "https://a.example:80", "*"],
)  # fmt: skip
def test_an_origin_is_a_scheme_and_a_host(origin):
    check_origins([origin])


@pytest.mark.parametrize(
    "origin",
    ["a.example", "https://", "https://a.example/", "https://a.example/chat", "https://A.example",
     "https://*.a.example", "https://me@a.example", "https://a.example:", "https://a b", "null", "",
     "https://a.example\n", "HTTPS://a.example"],
)  # fmt: skip
def test_what_no_browser_would_send_is_no_origin(origin):
    with pytest.raises(ValueError, match=r"is no origin; write scheme://host\[:port\]"):
        check_origins([SITE, origin])


def test_a_port_that_browsers_leave_out_and_a_star_among_others_are_refused():
    with pytest.raises(ValueError, match="browsers leave :443 out"):
        check_origins(["https://a.example:443"])
    with pytest.raises(ValueError, match="stands alone"):
        check_origins(["*", SITE])
