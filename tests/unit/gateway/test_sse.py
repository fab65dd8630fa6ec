from __future__ import annotations

import json

import pytest

from forebay.core.delta import TokenLogprob
from forebay.gateway.schema import Head, WireError, wire_usage
from forebay.gateway.sse import (
    COMMENT,
    DONE,
    ChatChunks,
    CompletionChunks,
    encode_text,
    error_event,
)

HEAD = Head("chatcmpl-1", 5, 'quote"d\u2028', "default", "fp_1")
TEXTS = [
    "",
    "a",
    '"',
    "\\",
    "\n\r\t\x00\x1f\x7f",
    "é世😀",
    "\u2028\u2029\x85",
    "data: [DONE]\n\n",
    "</",
]


@pytest.mark.parametrize("text", TEXTS)
def test_rule_24_text_is_exact_json_without_anything_that_splits_lines(text):
    encoded = encode_text(text)
    assert json.loads(encoded) == text
    assert len(encoded.decode().splitlines()) == 1


@pytest.mark.parametrize("shape", [ChatChunks, CompletionChunks])
@pytest.mark.parametrize("include_usage", [True, False])
def test_spliced_bytes_are_the_json_that_they_stand_for(include_usage, shape):
    writer = shape(HEAD, include_usage=include_usage)
    usage = wire_usage(1, 2)
    chat = shape is ChatChunks
    choices = [
        writer.begin(0) if chat else writer.nothing(0),
        writer.content(1, "hé"),
        writer.nothing(0),
        writer.finish(0, "stop"),
        writer.content(0, "x", (), usage),
        writer.usage(usage),
    ]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in choices]
    for event, chunk in zip(choices, chunks, strict=True):
        assert event.endswith(b"}\n\n")
        assert event.count(b"\n") == 2
        assert (chunk["id"], chunk["model"], chunk["created"]) == ("chatcmpl-1", HEAD.model, 5)
    assert [("usage" in chunk) for chunk in chunks] == [include_usage] * 4 + [True, True]
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * 5 + [0]
    assert chunks[1]["choices"][0]["index"] == 1
    assert chunks[1]["choices"][0].get("delta", {"content": "hé"}) == {"content": "hé"}
    assert chunks[1]["choices"][0].get("text", "hé") == "hé"
    assert [c["choices"][0]["logprobs"] for c in chunks[:5]] == [None] * 5
    assert chunks[0]["object"] == ("chat.completion.chunk" if chat else "text_completion")
    assert chunks[3]["choices"][0]["finish_reason"] == "stop"
    assert chunks[4]["usage"]["total_tokens"] == 3


LOGPROBS = [TokenLogprob("h\u2028".encode(), -0.5), TokenLogprob(b"\xc3", float("-inf"))]


def test_rule_42_logprobs_of_chat_have_text_bytes_and_no_alternatives():
    event = ChatChunks(HEAD, include_usage=False).content(0, "h\u2028", LOGPROBS)
    assert len(event.decode().splitlines()) == 2
    (choice,) = json.loads(event[6:])["choices"]
    assert choice["logprobs"]["refusal"] is None
    assert choice["logprobs"]["content"] == [
        {"token": "h\u2028", "logprob": -0.5, "bytes": [104, 226, 128, 168], "top_logprobs": []},
        {"token": "\ufffd", "logprob": -9999.0, "bytes": [195], "top_logprobs": []},
    ]


def test_rule_42_logprobs_of_completions_have_offsets_that_go_on_over_chunks():
    writer = CompletionChunks(HEAD, include_usage=False)
    chunks = [json.loads(writer.content(choice, "x", LOGPROBS)[6:]) for choice in (0, 0, 1)]
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert shown[0]["tokens"] == ["h\u2028", "\ufffd"]
    assert shown[0]["token_logprobs"] == [-0.5, -9999.0]
    assert [each["text_offset"] for each in shown] == [[0, 2], [2, 5], [0, 2]]
    assert all(each["top_logprobs"] is None for each in shown)


def test_rule_17_an_error_is_a_data_event():
    event = error_event(WireError("a\u2028b", "server_error", None, "engine_error"))
    assert event.startswith(b'data: {"error":{')
    assert len(event.decode().splitlines()) == 2
    assert json.loads(event[6:])["error"]["message"] == "a\u2028b"


def test_rule_19_a_comment_dispatches_nothing_even_if_something_were_pending():
    from openai._streaming import SSEDecoder

    stream = [b"id: 1\n\n" + COMMENT, COMMENT, b'data: {"a":1}\n\n', COMMENT, DONE]
    data = [event.data for event in SSEDecoder().iter_bytes(iter(stream))]
    assert data == ["", '{"a":1}', "[DONE]"]  # the first is the proxy's own, not ours
