from __future__ import annotations

import pytest

from forebay.core.errors import LeaseLost
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
    "path", ["/v2/models", "/v1/", "/nothing", "/v1/chat", "/v1x", "/V1/models", "/" + "x" * 5000]
)
async def test_rule_52_what_is_not_there_says_what_a_base_url_looks_like(gateway, path):
    answer = await gateway.request("POST" if path == "/v1/" else "GET", path)
    if path == "/v1/":
        assert answer.status == 405
        return
    assert answer.status == 404
    assert answer.error["code"] == "not_found"
    assert "base_url should end in /v1" in answer.error["message"]
    assert len(answer.error["message"]) < 300


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("POST", "/livez", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_gets_405_in_our_shape_with_allow(gateway, method, path, allow):
    answer = await gateway.request(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allow
    assert answer.error["code"] == "method_not_allowed"


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
