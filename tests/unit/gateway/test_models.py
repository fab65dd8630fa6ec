from __future__ import annotations

import pytest


async def test_rule_53_models_are_listed_completely(gateway, golden):
    answer = await gateway.request("GET", "/v1/models")
    assert answer.status == 200
    golden("models.json", answer.body + b"\n")
    assert answer.json()["object"] == "list"
    for model in answer.json()["data"]:
        assert {"id", "object", "created", "owned_by"} <= set(model)
        assert type(model["created"]) is int
        assert model["object"] == "model"
        assert model["max_model_len"] > 0
        assert None not in model.values()


@pytest.mark.parametrize("name", ["org/model-a", "small", "tiny-1", "tiny"])
async def test_rule_53_a_model_is_found_by_id_also_with_slashes_and_by_alias(gateway, name):
    answer = await gateway.request("GET", f"/v1/models/{name}")
    assert answer.status == 200
    assert answer.json()["id"] in ("org/model-a", "tiny-1")


async def test_an_unknown_model_is_not_found_and_known_ones_are_named(gateway):
    answer = await gateway.request("GET", "/v1/models/gpt-9")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"
    assert "org/model-a, small, tiny-1, tiny." in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
async def test_models_need_a_key(gateway, path):
    answer = await gateway.request("GET", path, headers={"authorization": "Bearer wrong"})
    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
async def test_rule_58_head_is_answered(gateway, path):
    assert (await gateway.request("HEAD", path)).status == 200
