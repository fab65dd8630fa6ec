"""Bodies that mean harm, against a real server: each is refused as it should be, costs nothing, and
another client's stream runs on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.core.delta import EngineRequest
from forebay.testing.rawhttp import RawClient
from tests.e2e import enginelog
from tests.e2e.conftest import REAL
from tests.e2e.running import Server

USER = {"role": "user", "content": "hi"}
SCHEMA = "response_format.json_schema.schema"


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "scripted", "messages": [USER], **fields}).encode()


def says(content: Any) -> bytes:
    return body(messages=[{"role": "user", "content": content}])


def schema(value: Any) -> bytes:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
    return body(response_format=wanted)


def deep(levels: int) -> Any:
    return {"type": "array", "items": deep(levels - 1)} if levels else {}


# What is sent, the answer's status, code and param.
BAD: dict[str, tuple[bytes, int, str, str | None]] = {
    "50 too large": (b" " * 4_200_000 + body(), 413, "request_too_large", None),
    "52 brackets": (b"[" * 100_000, 400, "invalid_json", None),
    "52 many keys": (
        json.dumps({f"k{n}": n for n in range(100_000)}).encode(), 400, "invalid_json", None,
    ),
    "52 a key twice": (body()[:-1] + b',"model":"other"}', 400, "invalid_json", None),
    "52 a huge integer": (body(seed=0)[:-2] + b"9" * 5000 + b"}", 400, "invalid_json", None),
    "52 1e400": (body()[:-1] + b',"top_p":1e400}', 400, "invalid_json", None),
    "52 NaN": (body()[:-1] + b',"top_p":NaN}', 400, "invalid_json", None),
    "53 no UTF-8": (says("x").replace(b"x", b"\xff"), 400, "invalid_unicode", None),
    "53 half a pair": (says("x").replace(b"x", b"\\ud800"), 400, "invalid_unicode", None),
    "54 a million words": (says("word " * 400_000), 400, "context_length_exceeded", "messages"),
    "55 one letter": (says("a" * 1_000_000), 400, "context_length_exceeded", "messages"),
    "55 one sign": (says("^" * 1_000_000), 400, "context_length_exceeded", "messages"),
    "55 a long word": (says("a" * 100_000), 400, "prompt_unprocessable", "messages"),
    "57 a role": (
        body(messages=[{"role": "root", "content": "hi"}]), 400, "invalid_value", "messages[0].role",
    ),
    "57 a tool's message": (
        body(messages=[USER, {"role": "tool", "content": "x", "tool_call_id": "call_1"}]),
        400, "unsupported_value", "messages[1].role",
    ),
    "57 messages": (body(messages=[USER] * 2049), 400, "array_above_max_length", "messages"),
    "57 none": (body(messages=[]), 400, "empty_array", "messages"),
    "58 n": (body(n=1000), 400, "integer_above_max_value", "n"),
    "58 n of nothing": (body(n=0), 400, "integer_below_min_value", "n"),
    "58 n below": (body(n=-1), 400, "integer_below_min_value", "n"),
    "58 n true": (body(n=True), 400, "invalid_type", "n"),
    "58 n text": (body(n="2"), 400, "invalid_type", "n"),
    "58 best_of": (body(best_of=20), 400, "unsupported_parameter", "best_of"),
    "59 negative": (body(max_tokens=-1), 400, "integer_below_min_value", "max_tokens"),
    "59 nothing": (body(max_tokens=0), 400, "integer_below_min_value", "max_tokens"),
    "59 huge": (body(max_tokens=10**18), 400, "integer_above_max_value", "max_tokens"),
    "59 a decimal": (body(max_tokens=1.5), 400, "invalid_type", "max_tokens"),
    "60 stops": (body(stop=["x"] * 10_000), 400, "array_above_max_length", "stop"),
    "60 a long stop": (body(stop="x" * 1_000_000), 400, "string_above_max_length", "stop"),
    "60 an empty stop": (body(stop=[""]), 400, "string_below_min_length", "stop[0]"),
    "61 logit_bias": (
        body(logit_bias={str(n): 1e9 for n in range(30_000)}),
        400, "unsupported_parameter", "logit_bias",
    ),
    "62 top_logprobs": (
        body(logprobs=True, top_logprobs=128), 400, "unsupported_parameter", "top_logprobs",
    ),
    "63 temperature": (body(temperature=-1), 400, "decimal_below_min_value", "temperature"),
    "63 penalty": (
        body(presence_penalty=1e9), 400, "decimal_above_max_value", "presence_penalty",
    ),
    "63 seed": (body(seed=2**64), 400, "integer_above_max_value", "seed"),
    "64 a pattern": (schema({"type": "string", "pattern": "(a+)+b"}), 400, "invalid_schema", None),
    "64 deep": (schema(deep(17)), 400, "invalid_schema", None),
    "64 large": (schema({"enum": ["x" * 20_000]}), 400, "invalid_schema", None),
    "64 itself": (schema({"$ref": "#"}), 400, "invalid_schema", None),
    "64 elsewhere": (schema({"$ref": "http://127.0.0.1/x"}), 400, "invalid_schema", None),
    "64 a grammar": (body(guided_regex="(a+)+b"), 400, "unsupported_parameter", "guided_regex"),
    "65 a template": (
        body(chat_template="{{ 7 * 7 }}"), 400, "unsupported_parameter", "chat_template",
    ),
    "65 embeddings": (
        body(prompt_embeds="AAAA"), 400, "unsupported_parameter", "prompt_embeds",
    ),
    "67 an image": (
        says([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/x"}}]),
        400, "unsupported_value", "messages[0].content[0].type",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "engine.jsonl"


@pytest.fixture(scope="module")
def server(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.01", "FOREBAY_SCRIPTED__LOG_PATH": str(log)}
    data = tmp_path_factory.mktemp("bad")
    with Server.start("--model", "scripted", data_dir=data, env=env) as server:
        yield server


def post(
    server: Server, data: bytes, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], dict[str, str]]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    sent = {"Authorization": f"Bearer {server.key}", **(headers or {})}
    try:
        connection.request("POST", "/v1/chat/completions", data, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.headers)
    finally:
        connection.close()


def works(log: Path) -> list[enginelog.Work]:
    """What the engine was given until now."""
    return enginelog.read(log).work if log.exists() else []


@pytest.mark.parametrize("name", BAD)
def test_what_means_harm_is_refused_for_what_it_is_and_reaches_no_engine(
    server: Server, log: Path, name: str
) -> None:
    data, status, code, param = BAD[name]
    before = works(log)
    found, answer, _ = post(server, data)
    error = answer["error"]
    assert (found, error["code"]) == (status, code), error["message"]
    if code == "invalid_schema":
        assert error["param"].startswith(SCHEMA)
    else:
        assert error["param"] == param
    assert len(error["message"]) < 600
    assert works(log) == before


def test_a_compressed_bomb_is_refused(server: Server) -> None:
    bomb = gzip.compress(bytes(100_000_000), 9)
    status, answer, _ = post(server, bomb, {"Content-Encoding": "gzip"})
    assert (status, answer["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "fields",
    [
        {"api_base": "http://169.254.169.254/"},
        {"base_url": "file:///etc/passwd", "user_config": {"model_list": []}},
        {"callbacks": ["http://127.0.0.1/"], "metadata": {"hooks": "x"}},
        {"extra_body": {"prompt_embeds": "AAAA"}, "min_tokenz": 987654321},
    ],
)
def test_what_is_not_known_reaches_no_engine_and_is_named(
    server: Server, log: Path, fields: dict[str, Any]
) -> None:
    """E7: ignored by default, and refused where a client asks to be told."""
    status, _, headers = post(server, body(max_tokens=3, **fields))
    assert status == 200
    assert next(iter(fields)) in headers["x-forebay-ignored"]
    allowed = {field.name for field in dataclasses.fields(EngineRequest)}
    assert allowed.isdisjoint(fields)
    submitted = log.read_text().splitlines()
    assert not any(str(value) in line for line in submitted for value in fields.values())
    strict = post(server, body(max_tokens=3, **fields), {"x-forebay-strict": "true"})
    assert (strict[0], strict[1]["error"]["code"]) == (400, "unknown_parameter")


async def test_another_clients_stream_runs_on_meanwhile(server: Server, log: Path) -> None:
    """In the order of its tokens, to its end, while every bad body is refused at once."""
    asking = {
        "model": "scripted",
        "stream": True,
        "max_tokens": 300,
        "ignore_eos": True,
        "messages": [USER],
    }
    async with RawClient(server.host, server.port, server.key) as client:
        stream = asyncio.create_task(client.post(asking))
        await asyncio.sleep(0.3)
        statuses = await asyncio.gather(
            *(asyncio.to_thread(post, server, data) for data, *_ in BAD.values())
        )
        assert {status for status, *_ in statuses} <= {400, 413}
        answer = await stream
    assert answer.complete
    assert answer.events == 300
    paid = {row["call_id"] for row in await asyncio.to_thread(server.usage)}
    assert paid == {work.call_id for work in works(log)}, "L6: and nothing else was held"


@pytest.mark.model
@pytest.mark.parametrize("unit", ["a", "^", "é", " ", "\n", "👩‍🔬", "0"])
async def test_text_that_is_hard_for_a_tokeniser_stops_nobody(real: Server, unit: str) -> None:
    """K3: at the largest size that is tokenised at all; the loop answers others meanwhile."""
    answered = 0

    async def ping() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection(real.host, real.port)
        with contextlib.closing(writer):
            while True:
                writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                async with asyncio.timeout(10):
                    await reader.readuntil(b"}")
                answered += 1

    pinging = asyncio.create_task(ping())
    hard = [unit * (count // len(unit.encode())) for count in (60_000, 100_000, 1_000_000)]
    asking = [
        json.dumps(
            {"model": REAL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        )
        for text in hard
    ]
    answers = await asyncio.gather(
        *(asyncio.to_thread(post, real, text.encode()) for text in asking * 2)
    )
    pinging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pinging
    for status, answer, _ in answers:
        codes = ("context_length_exceeded", "prompt_unprocessable")
        assert status == 200 or (status == 400 and answer["error"]["code"] in codes)
    assert answered
