from __future__ import annotations

import pytest

from forebay.gateway import Readiness


@pytest.mark.parametrize("admin", [True, False])
async def test_alive_and_ready(gateway, admin):
    headers = {"authorization": ""}
    live = await gateway.request("GET", "/livez", admin=admin, headers=headers)
    assert (live.status, live.json()) == (200, {"status": "alive"})
    ready = await gateway.request("GET", "/readyz", admin=admin, headers=headers)
    assert (ready.status, ready.json()) == (200, {"status": "ready", "reasons": []})


@pytest.mark.parametrize("admin", [True, False])
async def test_not_ready_says_why_and_is_an_error(gateway, admin):
    gateway.readiness = Readiness(("The engine of tiny-1 is starting.", "The disk is full."))
    answer = await gateway.request("GET", "/readyz", admin=admin)
    assert answer.status == 503
    assert answer.json()["reasons"] == list(gateway.readiness.reasons)
    assert answer.json()["error"]["code"] == "not_ready"
    assert "starting" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "1"
    assert (await gateway.request("GET", "/livez", admin=admin)).status == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
async def test_the_front_page_points_at_the_api(gateway, path):
    answer = await gateway.request("GET", path)
    assert answer.json()["base_url"] == "/v1"
    assert (await gateway.request("HEAD", path)).status == 200


async def test_metrics_are_on_the_admin_listener_only(gateway):
    await gateway.request("GET", "/v1/models")
    answer = await gateway.request("GET", "/metrics", admin=True)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    counted = 'forebay_http_responses_total{route="/v1/models",status="200"} 1.0'
    assert counted in answer.body.decode()
    assert (await gateway.request("GET", "/metrics")).status == 404
