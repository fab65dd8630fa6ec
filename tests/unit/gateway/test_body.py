from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidRequest
from forebay.gateway.body import MAX_DEPTH, MAX_VALUES, decode_object
from forebay.gateway.inflate import STEP_BYTES

CHAT = "/v1/chat/completions"
HELLO = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
PACKED = gzip.compress(HELLO, mtime=0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "invalid_json"),
        (b"  \n", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"a":1,}', "invalid_json"),
        (b'{"a":1} x', "invalid_json"),
        (b'{"a":NaN}', "invalid_json"),
        (b'{"a":Infinity}', "invalid_json"),
        (b'{"a":1e400}', "invalid_json"),
        (b'{"a":' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"a":1,"a":2}', "invalid_json"),
        (b'{"m":[{"a":{"b":1,"b":1}}]}', "invalid_json"),
        (b'{"a":"\xff"}', "invalid_unicode"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_unicode"),
        (b'{"a":"\\ud800"}', "invalid_unicode"),
        (b'{"a":"\\udc00x"}', "invalid_unicode"),
        (b'{"a":"\\ud800\\u0041"}', "invalid_unicode"),
        (b"[1]", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b"null", "invalid_type"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "invalid_json"),
        (b"[" * 100_000 + b"]" * 100_000, "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a":' * 5000, "invalid_json"),
        (b'{"a":[' + b"1," * MAX_VALUES + b"1]}", "invalid_json"),
        (b'{"a":[' + b'"",' * 5 * MAX_VALUES + b"1]}", "invalid_json"),
    ],
    ids=range(26),
)
def test_a_body_that_is_no_object_is_refused_with_a_clear_code(text, code):
    with pytest.raises(InvalidRequest) as caught:
        decode_object(text)
    assert caught.value.code == code
    assert len(caught.value.message) < 300


def refused(text):
    with pytest.raises(InvalidRequest) as caught:
        decode_object(text)
    return caught.value.message


@pytest.mark.parametrize(
    "number", [b"1e999", b"-1e999", b"9" * 5000, b"9" * 500 + b".5"], ids=range(4)
)
def test_a_number_out_of_range_is_said_without_the_parsers_own_words(number):
    message = refused(b'{"a":{"b":[1,{"temperature":' + number + b"}]}}")
    assert "a number that is out of range: at most 1.8e308" in message
    assert "$" not in message
    assert "trailing commas" not in message


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"a":[{}],"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 200_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * MAX_DEPTH + b"[1,[]]" + b"}" * MAX_DEPTH,
    ],
    ids=range(6),
)
def test_deep_nesting_is_called_that_however_much_of_it_there_is(text):
    assert f"nested more than {MAX_DEPTH} levels" in refused(text)


def test_many_flat_values_are_called_that():
    assert f"more than {MAX_VALUES} values" in refused(b"[" + b"[]," * 100_000 + b"[]]")


def test_a_byte_order_mark_is_ignored_once_and_only_in_front():
    mark = b"\xef\xbb\xbf"
    assert decode_object(mark + b'{"a":1}') == {"a": 1}
    assert decode_object(b'{"a":"' + mark + b'"}') == {"a": "\ufeff"}
    assert "empty" in refused(mark)
    assert "not valid JSON" in refused(mark + mark + b"{}")
    assert "not UTF-8" in refused("{}".encode("utf-16"))


async def test_a_body_with_a_byte_order_mark_is_served(gateway):
    gateway.script("a")
    answer = await gateway.request("POST", CHAT, body=b"\xef\xbb\xbf" + HELLO)
    assert answer.status == 200


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": 'quotes " and \\ backslashes \\" : , { [ ] } "'},
        {"a\\": "\\", 'b":': '\\\\"'},
        {"text": "\x00 😀 \u2028 é", "nested": [[{"a": {"b": []}}], {}, {"a": 1}]},
        {"code": 'if (x) { return [":", ","]; }' * 10_000},
        {"deep": json.loads("[" * 31 + "]" * 31)},
    ],
    ids=range(6),
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_stands_inside_strings_does_not_count_as_structure(value, ascii_only):
    assert decode_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _JSON, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_every_object_is_decoded_as_it_is(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert decode_object(text.encode()) == value


def test_a_surrogate_pair_is_one_character():
    assert decode_object(b'{"a":"\\ud83d\\ude00"}') == {"a": "😀"}


async def test_a_body_in_parts_is_put_together(gateway):
    gateway.script("a")
    parts = [HELLO[:10], b"", HELLO[10:]]
    assert (await gateway.request("POST", CHAT, body=parts)).status == 200


async def test_a_declared_length_above_the_limit_is_refused_unread(gateway):
    gateway.settings = replace(gateway.settings, max_body_bytes=100)
    answer = await gateway.request(
        "POST", CHAT, body=[60.0, b"never read"], headers={"content-length": "101"}
    )
    assert answer.status == 413
    assert answer.error["code"] == "request_too_large"
    assert "101 bytes; the limit is 100 bytes" in answer.error["message"]


async def test_an_undeclared_length_is_counted(gateway):
    gateway.settings = replace(gateway.settings, max_body_bytes=100)
    answer = await gateway.request("POST", CHAT, body=[b"x" * 60, b"x" * 60, 60.0, b"never read"])
    assert answer.status == 413


async def test_a_body_that_does_not_arrive_is_refused_and_the_connection_closed(gateway):
    gateway.settings = replace(gateway.settings, body_seconds=0.02)
    answer = await gateway.request("POST", CHAT, body=[b"{", 60.0, b"}"])
    assert answer.status == 408
    assert answer.error["code"] == "request_timeout"
    assert answer.headers["connection"] == "close"


async def test_a_body_that_drips_is_not_waited_for_as_long_as_one_that_flows(gateway):
    gateway.script("a")
    gateway.settings = replace(
        gateway.settings, body_grace_seconds=0.1, min_body_bytes_per_second=1000, body_seconds=30
    )
    drip = [part for byte in HELLO for part in (bytes([byte]), 0.05)]
    answer = await asyncio.wait_for(gateway.request("POST", CHAT, body=drip), 5)
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert "it must be 1000 bytes a second or more" in answer.error["message"]
    assert answer.headers["connection"] == "close"
    padding = b" " * 500
    flow = [part for _ in range(8) for part in (padding, 0.05)]  # ten times as fast as it must
    assert (await gateway.request("POST", CHAT, body=[*flow, HELLO])).status == 200


async def test_a_body_that_flows_for_ever_is_cut_off_too(gateway):
    gateway.settings = replace(gateway.settings, body_seconds=0.2)
    flow = [part for _ in range(1000) for part in (b" " * 2000, 0.01)]
    answer = await asyncio.wait_for(gateway.request("POST", CHAT, body=flow), 5)
    assert answer.status == 408
    assert "did not arrive within 0.2 s" in answer.error["message"]


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", " gzip , identity"])
async def test_rule_58_a_gzip_body_is_served(gateway, coding):
    gateway.script("a")
    packed = gzip.compress(HELLO)
    for parts in (packed, [packed[:5], b"", packed[5:-3], packed[-3:]]):
        headers = {"content-encoding": coding}
        answer = await gateway.request("POST", CHAT, body=parts, headers=headers)
        assert answer.status == 200
    assert [call.messages[0].content for call in gateway.pipeline.calls] == ["Hi", "Hi"]


@pytest.mark.parametrize("coding", ["identity", ""])
async def test_a_body_may_say_that_it_is_not_compressed(gateway, coding):
    gateway.script("a")
    headers = {"content-encoding": coding}
    assert (await gateway.request("POST", CHAT, body=HELLO, headers=headers)).status == 200


@pytest.mark.parametrize(
    "coding", ["deflate", "br", "zstd", "gzip, gzip", "gzip,br", "é", "g" * 999]
)
async def test_another_compression_is_refused_with_the_one_that_works(gateway, coding):
    headers = {"content-encoding": coding}
    answer = await gateway.request("POST", CHAT, body=[60.0, b"never read"], headers=headers)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_content_encoding")
    assert "Send it as gzip" in answer.error["message"]
    assert len(answer.error["message"]) < 300


@pytest.mark.parametrize("body", [HELLO, PACKED[:-1], PACKED * 2, b""])
async def test_rule_58_what_is_not_one_whole_gzip_stream_is_refused(gateway, body):
    answer = await gateway.request("POST", CHAT, body=body, headers={"content-encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (400, "invalid_encoding")


async def test_rule_58_the_limit_holds_for_what_a_gzip_body_inflates_to(gateway):
    packed = gzip.compress(HELLO)
    gateway.settings = replace(gateway.settings, max_body_bytes=len(HELLO) - 1)
    assert len(packed) > len(HELLO), "the limit of what arrives comes first"
    for body, said in ((packed, "at least"), (gzip.compress(b" " * 9999), "inflates to more than")):
        answer = await gateway.request(
            "POST", CHAT, body=[body, 60.0, b""], headers={"content-encoding": "gzip"}
        )
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert said in answer.error["message"]


async def test_the_declared_length_is_looked_at_before_the_compression(gateway):
    headers = {"content-encoding": "br", "content-length": "999999999"}
    assert (await gateway.request("POST", CHAT, body=[60.0], headers=headers)).status == 413


async def test_a_bomb_is_refused_soon_and_others_run_meanwhile(gateway):
    """100 MB of zeros in 100 kB: no more than the limit is inflated, a step at a time."""
    bomb = gzip.compress(bytes(100_000_000), 9)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    tracemalloc.start()
    try:
        answer = await gateway.request(
            "POST", CHAT, body=bomb, headers={"content-encoding": "gzip"}
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        running.cancel()
    limit = gateway.settings.max_body_bytes
    assert answer.status == 413
    assert peak < 2 * limit
    assert turns >= limit // STEP_BYTES - 1


async def test_a_large_body_never_holds_the_event_loop_for_long(gateway):
    """4 MiB of anything: the loop's other work goes on within a few tens of milliseconds."""
    gateway.script("a")
    for text in ("x" * 4_000_000, '\\"' * 900_000, "\n" * 1_900_000):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
        loop = asyncio.get_running_loop()
        before = loop.time()
        await gateway.request("POST", CHAT, body=body.encode())
        assert loop.time() - before < 1.0


def test_a_body_that_is_no_object_is_refused_with_an_example_of_the_endpoint():
    with pytest.raises(InvalidRequest, match=r'an object such as \{"name": …\}'):
        decode_object(b"[]", '{"name": …}')
