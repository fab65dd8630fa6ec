"""Plain completions over a fake pipeline; what they share with chat is in test_answer.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forebay.core.delta import FinishReason, TokenLogprob
from forebay.core.event import Delta, Finished
from forebay.core.usage import Usage
from forebay.gateway import KeepAlive


async def complete(gateway, **fields):
    body = json.dumps({"model": "tiny", "prompt": "Once", **fields}).encode()
    return await gateway.request("POST", "/v1/completions", body=body)


async def test_a_whole_completion_byte_for_byte(gateway, golden):
    gateway.script(" upon", " a time")
    answer = await complete(gateway)
    assert answer.status == 200
    assert (gateway.call.prompt, gateway.call.messages) == ("Once", ())
    assert gateway.call.max_output_tokens == 16
    golden("completion.json", answer.body + b"\n")


async def test_a_streamed_completion_byte_for_byte(gateway, golden):
    gateway.script(" upon", "", " a — time")
    answer = await complete(gateway, stream=True, stream_options={"include_usage": True})
    golden("completion_stream.sse", answer.body)


async def test_rule_42_logprobs_are_in_the_shape_of_completions(gateway, events):
    delta = Delta(2, 1, 0, (1, 2), "ab", (TokenLogprob(b"a", -0.1), TokenLogprob(b"b", -0.2)))
    usage = Usage(5, 2, finish_reasons=(FinishReason.STOP,))
    end = Finished(3, 1, usage, 17, (FinishReason.STOP,))
    gateway.script(events.admitted(), delta, end)
    (choice,) = (await complete(gateway, logprobs=0)).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.1, -0.2],
        "text_offset": [0, 1],
        "top_logprobs": None,
    }
    assert gateway.call.sampling.logprobs


@pytest.mark.parametrize("keep_alive", ["chunk", "comment"])
async def test_rule_20_a_silent_stream_of_completions_is_kept_alive(gateway, events, keep_alive):
    gateway.settings = replace(
        gateway.settings, keep_alive=KeepAlive(keep_alive), keep_alive_seconds=0.05
    )
    usage = Usage(5, 1, finish_reasons=(FinishReason.STOP,))
    end = Finished(3, 1, usage, 17, (FinishReason.STOP,))
    gateway.script(events.admitted(), events.delta(2, "a"), 0.2, end)
    answer = await complete(gateway, stream=True)
    texts = [choice["text"] for chunk in answer.chunks() for choice in chunk["choices"]]
    assert "".join(texts) == "a"
    assert (b": ka" in answer.body) == (keep_alive == "comment")
    assert (len(texts) > 2) == (keep_alive == "chunk")
