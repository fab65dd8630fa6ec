from __future__ import annotations


async def test_rule_45_embeddings_are_refused_with_what_is_there_instead(gateway):
    answer = await gateway.request("POST", "/v1/embeddings", body=b'{"input": "x"}')
    assert (answer.status, answer.error["code"]) == (400, "unsupported_endpoint")
    assert "no embedding pool" in answer.error["message"]
    assert "POST /v1/chat/completions" in answer.error["message"]
    assert answer.error["param"] == "model"


async def test_who_may_not_call_is_not_told_so_much(gateway):
    answer = await gateway.request(
        "POST", "/v1/embeddings", body=b"{}", headers={"authorization": "Bearer x"}
    )
    assert answer.status == 401


async def test_compaction_is_refused_as_not_built_and_is_no_id_of_a_response(gateway):
    answer = await gateway.request("POST", "/v1/responses/compact", body=b'{"model": "m"}')
    assert (answer.status, answer.error["code"]) == (400, "unsupported_endpoint")
    assert "previous_response_id" in answer.error["message"]
    assert answer.error["param"] is None
