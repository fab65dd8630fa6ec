from __future__ import annotations

import re
from dataclasses import replace

import pytest

from forebay.core.errors import EngineFailed, LeaseLost
from forebay.gateway import Readiness
from forebay.gateway.app import build_public


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1/models/", "//v1//models", "/models", "/models/", "/v1/v1/models",
     "/v1/v1/v1//models//"],
)  # fmt: skip
async def test_rule_52_slashes_and_prefixes_are_forgiven_without_a_redirect(gateway, path):
    answer = await gateway.request("GET", path)
    assert answer.status == 200
    assert answer.json()["object"] == "list"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "//v1/chat/completions", "/chat/completions"]
)
async def test_rule_52_a_post_is_never_redirected(gateway, path):
    gateway.script("a")
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    assert (await gateway.request("POST", path, body=body)).status == 200


@pytest.mark.parametrize(
    "path",
    ["/v2/models", "/nothing", "/v1x", "/V1/models", "/openai/deployments/small/chat/completions",
     "/" + "x" * 5000],
)  # fmt: skip
async def test_rule_52_what_is_not_there_says_what_a_base_url_looks_like(gateway, path):
    answer = await gateway.request("GET", path)
    assert answer.status == 404
    assert answer.error["code"] == "not_found"
    assert "base_url should end in /v1" in answer.error["message"]
    assert not re.search(r":\d", answer.error["message"]), "ports are settings"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/moderations", "/v1/moderations"),
        ("/v1/threads/", "/v1/threads"),
        ("/v1/uploads", "/v1/uploads"),
        ("/v1/uploads/upload_1/parts", "/v1/uploads/upload_1/parts"),
        ("/v1/chat", "/v1/chat"),
        ("/v1/chat/completions/chatcmpl-1", "/v1/chat/completions/chatcmpl-1"),
        ("/v1/anything", "/v1/anything"),
        ("/evals", "/v1/evals"),
        ("/v1/v1/images/generations", "/v1/images/generations"),
        ("/v1/" + "x" * 5000, "/v1/xxx"),
    ],
)
async def test_an_endpoint_that_is_not_built_is_named_with_those_that_are(gateway, path, shown):
    answer = await gateway.request("POST", path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    message = answer.error["message"]
    assert f"POST {shown}" in message
    assert "not supported" in message
    assert "POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, GET" in message
    assert "base_url" not in message
    assert len(message) < 450


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/health", "/livez"),
        ("/healthz/", "/readyz"),
        ("/v1/health", "/readyz"),
        ("/docs", "/docs/errors"),
        ("/docs", "/llms.txt"),
        ("/redoc", "docs/reference"),
        ("/metrics", "admin listener (setting admin_port)"),
    ],
)
async def test_what_people_try_first_is_pointed_out(gateway, path, pointer):
    answer = await gateway.request("GET", path)
    assert answer.status == 404
    assert pointer in answer.error["message"]
    assert "base_url" not in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/health", "/", "/v1/embeddings"])
async def test_the_admin_listener_names_its_own_paths(gateway, path):
    answer = await gateway.request("GET", path, admin=True)
    assert answer.status == 404
    assert f"GET {path}." in answer.error["message"]
    assert "GET /metrics, GET /openapi.json, GET /livez, GET /readyz" in answer.error["message"]
    assert "/v1/chat" not in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/chat/completions", "POST, OPTIONS"),
        ("HEAD", "/v1/chat/completions", "POST, OPTIONS"),
        ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("POST", "/livez", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_gets_405_in_our_shape_with_allow(gateway, method, path, allow):
    answer = await gateway.request(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allow
    assert answer.error["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v1/chat/completions", "POST, OPTIONS"),
        ("/chat/completions/", "POST, OPTIONS"),
        ("/v1/models/any/thing", "GET, HEAD, OPTIONS"),
        ("/readyz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_options_says_the_methods_of_a_path_without_a_key_or_a_body(gateway, path, allow):
    unread = [60.0, b"never read"]
    answer = await gateway.request("OPTIONS", path, headers={"authorization": ""}, body=unread)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["allow"] == allow
    assert "content-length" not in answer.headers


@pytest.mark.parametrize("path", ["/nothing", "/v1/uploads", "*", ""])
async def test_options_of_nothing_is_not_found(gateway, path):
    answer = await gateway.request("OPTIONS", path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert "allow" not in answer.headers


async def test_without_cors_nothing_speaks_of_it(gateway):
    asks = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for method, path in (("OPTIONS", "/v1/models"), ("GET", "/v1/models"), ("GET", "/nothing")):
        answer = await gateway.request(method, path, headers=asks)
        assert not any(name.startswith(("access-control", "vary")) for name in answer.headers)


HEAD_PATHS = ["/", "/livez", "/readyz", "/v1", "/v1/models", "/v1/models/tiny", "/nothing"]


@pytest.mark.parametrize("path", HEAD_PATHS)
async def test_rule_58_head_says_what_get_would_and_has_no_body(connect, path):
    client = await connect()
    line = f" {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer fbk_live_test\r\n"
    heads = []
    for method, more in (("HEAD", ""), ("GET", "Connection: close\r\n")):
        await client.send((method + line + more + "\r\n").encode())
        heads.append(await client.until(b"\r\n\r\n"))
    changing = re.compile(rb"(x-request-id|date|connection): .*\r\n")
    head, of_get = (changing.sub(b"", each) for each in heads)
    # Of an error, the two messages differ by their method.
    shorter = len("HEAD") - len("GET") if path == "/nothing" else 0
    length = len(await client.rest())
    assert b"content-length: %d\r\n" % length in of_get
    assert head == of_get.replace(b"h: %d" % length, b"h: %d" % (length + shorter))


async def test_an_error_in_a_stream_has_its_explanation_too(gateway, events):
    gateway.settings = replace(gateway.settings, public_url="https://llm.example.org")
    gateway.script(*events.script("a")[:3], EngineFailed())
    answer = await gateway.stream()
    link = "https://llm.example.org/docs/errors/engine_error"
    assert answer.chunks()[-1]["error"]["doc_url"] == link


@pytest.mark.parametrize("admin", [True, False])
async def test_errors_of_both_listeners_link_to_the_public_one(gateway, admin):
    gateway.settings = replace(gateway.settings, public_url="https://llm.example.org/")
    gateway.readiness = Readiness(("Not yet.",))
    for path, code in (("/nothing", "not_found"), ("/readyz", "not_ready")):
        answer = await gateway.request("GET", path, admin=admin)
        link = f"https://llm.example.org/docs/errors/{code}"
        assert answer.json()["error"]["doc_url"] == link


@pytest.mark.parametrize(
    ("method", "path", "admin"),
    [
        ("GET", "/", False),
        ("GET", "/livez", False),
        ("GET", "/readyz", True),
        ("GET", "/metrics", True),
        ("GET", "/v1/models", False),
        ("GET", "/v1/models/none", False),
        ("POST", "/v1/chat/completions", False),
        ("PUT", "/v1/chat/completions", False),
        ("GET", "/nothing", False),
    ],
)
async def test_rule_57_every_response_has_a_request_id(gateway, method, path, admin):
    answer = await gateway.request(method, path, admin=admin)
    assert answer.headers["x-request-id"].startswith("req_")
    if answer.status >= 400:
        assert answer.headers["x-request-id"] in answer.error["message"]


async def test_rule_57_the_request_id_names_the_call(gateway):
    gateway.script("a")
    answer = await gateway.stream()
    assert answer.headers["x-request-id"] == gateway.call.id
    assert answer.chunks()[0]["id"] == gateway.call.id.replace("req_", "chatcmpl-")


@pytest.mark.parametrize("failure", [ValueError("planted"), LeaseLost("planted"), RecursionError()])
async def test_rule_48_an_unexpected_error_is_500_in_our_shape_and_logged(gateway, failure, capsys):
    gateway.pipeline.refusal = failure
    answer = await gateway.chat()
    assert answer.status == 500
    assert answer.error["code"] == "internal_error"
    assert "planted" not in answer.body.decode()
    log = capsys.readouterr()
    assert "unhandled_error" in log.out + log.err
    assert answer.headers["x-request-id"] in log.out + log.err


async def test_an_error_after_half_an_answer_ends_the_connection(gateway):
    def fail(message):
        if message["type"] == "http.response.body":
            raise ConnectionError("planted")

    with pytest.raises(ConnectionError):
        await gateway.request("GET", "/v1/models", send_hook=fail)


async def test_only_http_is_spoken(gateway):
    app = build_public(gateway.services, gateway.settings)
    with pytest.raises(RuntimeError, match="websocket"):
        await app({"type": "websocket"}, None, None)


# What may be asked without a key: it tells nothing of anybody.
OPEN = {
    "/", "/v1", "/livez", "/readyz", "/llms.txt", "/openapi.json", "/docs/errors",
    "/docs/errors/{code}", "/docs/compatibility",
}  # fmt: skip


def public_routes(gateway):
    for route in build_public(gateway.services, gateway.settings).routes:
        for method in route.endpoint.methods:
            yield route.path, method, re.sub(r"\{[^}]*\}", "x", route.path)


# How a request may try to look like one for another path: by its Host, its target, its headers.
DISGUISES = [
    {},
    {"host": "x/livez"},
    {"host": "x/livez?"},
    {"host": "x/?y=http://x/livez"},
    {"host": "[::1]:80/livez#"},
    {"host": ""},
    {"x-original-url": "/livez", "x-rewrite-url": "/livez"},
    {"x-forwarded-host": "x", "x-forwarded-prefix": "/livez", "x-forwarded-for": "127.0.0.1"},
    {"x-http-method-override": "OPTIONS"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer fbk_live_test' OR '1'='1"},
    {"authorization": "Bearer fbk_live_test\r\nx: y"},
    {"cookie": "key=fbk_live_test"},
]


@pytest.mark.parametrize("disguise", DISGUISES, ids=range(len(DISGUISES)))
async def test_every_route_but_the_listed_ones_refuses_who_has_no_key(gateway, disguise):
    """Whatever a request says of itself elsewhere, its path in the route table decides."""
    gateway.settings = replace(gateway.settings, max_bad_keys_per_minute=1000)
    walked = set()
    for pattern, method, path in public_routes(gateway):
        headers = {"authorization": "", **disguise}
        answer = await gateway.request(method, path, headers=headers, body=b"{}")
        walked.add(pattern)
        if pattern in OPEN:
            assert answer.status in (200, 404), pattern
        else:
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), pattern
    assert walked > OPEN
    assert gateway.pipeline.calls == []


async def test_another_query_or_a_path_in_disguise_opens_nothing(connect):
    """The target as it is sent: percent signs, dots, semicolons, a whole URL."""
    client = await connect()
    targets = [
        "/v1/models?key=fbk_live_test", "/v1/models;/livez", "/v1/models%2f..%2f..%2flivez",
        "/v1/models/../../livez", "/livez/../v1/models", "/v1/%6dodels", "//v1/models",
        "http://x/v1/models", "http://x:80/v1/models?/livez", "/v1/models%00", "/v1/models#/livez",
    ]  # fmt: skip
    for target in targets:
        await client.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await client.until(b"}}")
        assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 404 ")), target
        assert b"alive" not in answer


@pytest.mark.parametrize("trusted", [True, False])
async def test_whoever_tries_keys_out_is_slowed_down_and_a_right_key_is_served_all_the_same(
    connect, gateway, trusted
):
    """Per client address. What a client says of its own address changes nothing, unless it is a
    proxy that the operator has named."""
    proxies = ("127.0.0.0/8",) if trusted else ("10.0.0.0/8",)
    gateway.settings = replace(gateway.settings, max_bad_keys_per_minute=5, trusted_proxies=proxies)
    client = await connect()

    async def ask(key: str, forwarded: str) -> bytes:
        head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {forwarded}\r\n"
        await client.send(f"{head}Authorization: Bearer {key}\r\n\r\n".encode())
        return await client.until(b"}]}" if key == "fbk_live_test" else b"}}")

    async def status(forwarded: str) -> int:
        return int((await ask("fbk_live_guess", forwarded)).split()[1])

    assert [await status("192.0.2.1") for _ in range(7)] == [401] * 5 + [429] * 2
    refused = await ask("fbk_live_guess", "192.0.2.1")
    assert b'"code":"rate_limit_exceeded"' in refused
    assert 1 <= int(re.search(rb"retry-after: (\d+)", refused).group(1)) <= 12
    assert b"fbk_live_guess" not in refused
    assert (await ask("fbk_live_test", "192.0.2.1")).startswith(b"HTTP/1.1 200 ")
    assert await status("192.0.2.2") == (401 if trusted else 429)
    gateway.clock.advance(60)
    assert await status("192.0.2.1") == 401
