"""The header Idempotency-Key: what it stands for, and what is told of a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import IdempotencyKeyReused, InvalidRequest
from forebay.gateway.idempotency import MAX_KEY_CHARACTERS, idempotency

PATH = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


def keyed(*values: bytes, path: str = PATH, body: dict[str, Any] = BODY) -> Any:
    return idempotency([(b"idempotency-key", value) for value in values], path, body)


def test_without_the_header_there_is_no_key() -> None:
    assert idempotency([(b"x-idempotency-key", b"1")], PATH, BODY) is None


def test_a_key_stands_for_what_is_asked_not_for_how_it_is_written() -> None:
    turned = dict(reversed(BODY.items()))
    assert keyed(b"k", body=turned) == keyed(b" k ")


@pytest.mark.parametrize(
    "change",
    [
        {"body": {**BODY, "stream": True}},
        {"body": {**BODY, "seed": 1}},
        {"path": "/v1/completions"},
    ],
)
def test_another_request_has_another_fingerprint(change: dict[str, Any]) -> None:
    assert keyed(b"k", **change).fingerprint != keyed(b"k").fingerprint


@pytest.mark.parametrize(
    "values",
    [
        (b"",),
        (b"  ",),
        (b"a" * (MAX_KEY_CHARACTERS + 1),),
        (b"a\tb",),
        ("schlüssel".encode(),),
        (b"a", b"a"),
    ],
)
def test_a_key_that_is_none_is_refused_with_what_to_send(values: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key") as refused:
        keyed(*values)
    assert refused.value.param == "Idempotency-Key"


async def test_a_call_carries_its_key(gateway: Any, events: Any) -> None:
    gateway.pipeline.script = events.script("Hi")
    await gateway.chat(headers={"idempotency-key": "retry-1"})
    await gateway.chat()
    first, second = gateway.pipeline.calls
    assert first.idempotency.key == "retry-1"
    assert len(first.idempotency.fingerprint) == 32
    assert second.idempotency is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replay_says_so_and_has_the_first_calls_id(
    gateway: Any, events: Any, stream: bool
) -> None:
    _, *rest = events.script("Hi")
    replayed = replace(events.admitted(), call_id="req_first", replayed=True)
    gateway.pipeline.script = [replayed, *rest]
    answer = await gateway.chat({"stream": stream}, headers={"idempotency-key": "retry-1"})
    assert answer.headers["idempotency-hit"] == "true"
    body = answer.chunks()[0] if stream else answer.json()
    assert body["id"] == "chatcmpl-first"


async def test_a_reused_key_is_422_and_not_to_be_sent_again(gateway: Any) -> None:
    gateway.pipeline.script = [IdempotencyKeyReused(param="Idempotency-Key")]
    answer = await gateway.chat(headers={"idempotency-key": "retry-1"})
    assert answer.status == 422
    assert answer.error["code"] == "idempotency_key_reused"
    assert answer.error["param"] == "Idempotency-Key"
    assert answer.headers["x-should-retry"] == "false"


async def test_a_request_with_a_key_is_weighed_by_the_pipeline_which_knows_repetitions(
    gateway: Any, events: Any
) -> None:
    gateway.pipeline.script = events.script("Hi")
    await gateway.chat()
    await gateway.chat(headers={"idempotency-key": "retry-1"})
    plain, keyed = gateway.pipeline.calls
    assert gateway.pipeline.weights == [plain.body_bytes]
    assert keyed.body_bytes == plain.body_bytes > 0
