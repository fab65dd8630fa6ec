"""Files and batches as clients of other servers expect them, with OpenAI's own clients on a real server.

Not here: what the lane promises beside (`test_batch_lane.py`), large files (`test_batch_size.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch

from tests.e2e.running import Server

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ENDED = ("completed", "failed", "expired", "cancelled")
SAID = "Go. [[script length=5]]"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "scripted", "messages": [{"role": "user", "content": SAID}]},
    COMPLETIONS: {"model": "scripted", "prompt": SAID},
    RESPONSES: {"model": "scripted", "input": SAID},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("batches")
    with Server.start("--model", "scripted", data_dir=data_dir) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as client:
        yield client


def line(endpoint: str = CHAT, envelope: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """One of a file; what is `...` is left out."""
    body = {**BODIES[endpoint], **fields}
    body = {name: value for name, value in body.items() if value is not ...}
    whole = {"custom_id": "1", "method": "POST", "url": endpoint, "body": body, **(envelope or {})}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def content(*lines: bytes) -> bytes:
    return b"".join(each + b"\n" for each in lines)


def upload(client: OpenAI, *lines: bytes) -> str:
    return client.files.create(file=("calls.jsonl", content(*lines)), purpose="batch").id


def order(client: OpenAI, file_id: str, endpoint: Any = CHAT, **more: Any) -> Batch:
    return client.batches.create(
        input_file_id=file_id, endpoint=endpoint, completion_window="24h", **more
    )


def wait(client: OpenAI, batch: Batch, seconds: float = 60.0) -> Batch:
    """It has ended."""
    deadline = time.monotonic() + seconds
    while (found := client.batches.retrieve(batch.id)).status not in ENDED:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def lines_of(client: OpenAI, file_id: str | None) -> list[Any]:
    assert file_id is not None
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


# -- what is asked for is done ------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES])
def test_a_file_of_calls_becomes_a_file_of_answers(
    server: Server, client: OpenAI, endpoint: str
) -> None:
    sent = [line(endpoint, {"custom_id": f"call {n}"}) for n in range(3)]
    batch = order(client, upload(client, *sent), endpoint, metadata={"a": "b"})
    ended = wait(client, batch)
    assert (ended.status, ended.errors, ended.error_file_id) == ("completed", None, None)
    assert (ended.model, ended.metadata, ended.endpoint) == ("scripted", {"a": "b"}, endpoint)
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 3, "completed": 3, "failed": 0}
    assert isinstance(ended.in_progress_at, int)
    assert ended.created_at <= ended.in_progress_at <= (ended.completed_at or 0)
    answers = lines_of(client, ended.output_file_id)
    assert [each["custom_id"] for each in answers] == ["call 0", "call 1", "call 2"]
    directly = client.post(endpoint.removeprefix("/v1"), body=BODIES[endpoint], cast_to=object)
    for each in answers:
        assert (each["error"], each["response"]["status_code"]) == (None, 200)
        inner = each["response"]["body"]
        assert set(inner) == set(directly)  # type: ignore[call-overload]
        assert inner["usage"] == directly["usage"]  # type: ignore[index]
    rows = {row["call_id"]: row for row in server.usage()}
    mine = [rows[each["id"]] for each in answers]
    assert {row["outcome"] for row in mine} == {"completed"}
    assert ended.usage is not None
    assert ended.usage.output_tokens == sum(row["output_tokens"] for row in mine) == 15
    assert ended.to_dict()["cost"]["amount_usd"] != "0.00"  # type: ignore[index]


def test_a_batch_keeps_what_it_was_asked_for(client: OpenAI) -> None:
    metadata = {"purpose": "test", "tags": "a,b"}
    file_id = upload(client, line())
    batch = order(client, file_id, metadata=metadata)
    found = client.batches.retrieve(batch.id)
    for each in (batch, found):
        asked = (each.object, each.endpoint, each.input_file_id, each.completion_window)
        assert asked == ("batch", CHAT, file_id, "24h")
        assert each.metadata == metadata
    assert found.id == batch.id
    wait(client, batch)


def test_batches_are_listed_also_those_whose_file_is_not_there(client: OpenAI) -> None:
    begun = [order(client, "file-unknown").id for _ in range(3)]
    listed = [each.id for each in client.batches.list(limit=2)]
    assert listed[:3] == begun[::-1]


def test_one_may_be_cancelled_at_once(client: OpenAI) -> None:
    sent = [line(envelope={"custom_id": str(n)}) for n in range(200)]
    batch = order(client, upload(client, *sent))
    cancelling = client.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    assert isinstance(cancelling.cancelling_at, int)
    ended = wait(client, batch)
    assert ended.status == "cancelled"
    assert isinstance(ended.cancelled_at, int)
    assert client.batches.cancel(batch.id).status == "cancelled", "again changes nothing"


async def test_both_clients_do_all_of_it(async_client: AsyncOpenAI) -> None:
    client = async_client
    file = await client.files.create(file=("calls.jsonl", line()), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h"
    )
    found = batch
    while found.status not in ENDED:
        await asyncio.sleep(0.05)
        found = await client.batches.retrieve(batch.id)
    assert found.status == "completed"
    assert found.output_file_id is not None
    answer = (await client.files.content(found.output_file_id)).text
    assert json.loads(answer)["response"]["status_code"] == 200
    assert batch.id in [each.id async for each in client.batches.list(limit=1)]
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(batch.id)
    assert (await client.files.delete(found.output_file_id)).deleted
    assert (await client.files.delete(file.id)).deleted


# -- what is wrong is named ---------------------------------------------------------------------------

Named = tuple[str, int | None, str | None]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([line(), b"{invalid json here"], [("invalid_json_line", 2, None)]),
        ([b"{", line()], [("invalid_json_line", 1, None)]),
        (
            [line(envelope={name: ...}) for name in ("custom_id", "method", "url", "body")],
            [
                ("missing_required_parameter", 1, "custom_id"),
                ("missing_required_parameter", 2, "method"),
                ("missing_required_parameter", 3, "url"),
                ("missing_required_parameter", 4, "body"),
            ],
        ),
        ([line(stream=True)], [("streaming_unsupported", 1, "body.stream")]),
        (
            [line(), line(envelope={"custom_id": "2"}, stream=True)],
            [("streaming_unsupported", 2, "body.stream")],
        ),
        ([line(envelope={"url": "/v1/embeddings"})], [("invalid_url", 1, "url")]),
        ([line(model="nonexistent")], [("model_not_found", 1, "body.model")]),
        (
            [line(model=...), line(envelope={"custom_id": "2"}, messages=...)],
            [("invalid_request", 1, "body.model"), ("invalid_request", 2, "body.messages")],
        ),
        ([line(messages=[{"rolez": "user"}])], [("invalid_request", 1, "body.messages[0].role")]),
    ],
    ids=range(9),
)
def test_a_file_with_a_bad_line_fails_the_batch_and_names_the_line(
    client: OpenAI, lines: list[bytes], named: list[Named]
) -> None:
    ended = wait(client, order(client, upload(client, *lines)))
    assert ended.status == "failed"
    assert isinstance(ended.failed_at, int)
    assert ended.errors is not None
    data = ended.errors.data or []
    assert [(each.code, each.line, each.param) for each in data] == named
    assert ended.usage is not None
    assert ended.usage.total_tokens == 0


def test_what_is_said_of_bad_lines_can_be_understood_and_none_was_run(
    server: Server, client: OpenAI
) -> None:
    before = len(server.usage())
    lines = [
        b"{invalid json here",
        line(stream=True),
        line(envelope={"url": "/v1/embeddings", "custom_id": "3"}),
        line(envelope={"custom_id": "4"}, model="nonexistent"),
    ]
    ended = wait(client, order(client, upload(client, *lines)))
    assert ended.errors is not None
    said = [(each.message or "").lower() for each in ended.errors.data or []]
    words = [
        ("not", "valid json"),
        ("streaming", "not supported"),
        ("does not match", "endpoint"),
        ("not supported",),
    ]
    assert len(said) == len(words)
    for message, those in zip(said, words, strict=True):
        assert all(word in message for word in those), message
    assert len(server.usage()) == before


def test_a_file_that_is_not_there_fails_the_batch_not_the_request(client: OpenAI) -> None:
    ended = wait(client, order(client, "file-nonexistent-xyz"))
    assert ended.status == "failed"
    assert ended.errors is not None
    (error,) = ended.errors.data or []
    assert (error.code, error.line) == ("invalid_request", None)
    assert "cannot find file" in (error.message or "").lower()


def test_an_endpoint_that_is_none_is_refused_with_those_that_are(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        order(client, "file-1", "/v1/invalid/endpoint")
    message = str(refused.value)
    assert (refused.value.param, refused.value.code) == ("endpoint", "invalid_value")
    assert "/v1/invalid/endpoint" in message
    assert "Supported values" in message


@pytest.mark.parametrize("window", ["1h", "48h", "invalid", ""])
def test_a_window_that_is_none_is_refused(client: OpenAI, window: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="completion_window") as refused:
        client.batches.create(input_file_id="file-1", endpoint=CHAT, completion_window=window)
    assert refused.value.param == "completion_window"


def test_metadata_that_is_no_text_is_refused_by_its_name(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"metadata\.tags: expected a string"):
        order(client, "file-1", metadata={"tags": ["a", "b"]})


def test_what_does_not_exist_is_not_found(client: OpenAI) -> None:
    for ask in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="No batch found"):
            ask("batch-nonexistent-xyz")
    for of_file in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match="No file found"):
            of_file("file-nonexistent-xyz")


def test_one_that_has_ended_cannot_be_cancelled(client: OpenAI) -> None:
    """Also when its output was deleted."""
    ended = wait(client, order(client, upload(client, line())))
    assert ended.output_file_id is not None
    assert client.files.delete(ended.output_file_id).deleted
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(ended.id)


# -- asked for twice ----------------------------------------------------------------------------------


def test_with_the_same_key_it_is_the_same_batch(client: OpenAI) -> None:
    asked = {"a": "1", "b": "2"}
    key = {"idempotency_key": "the-same-key"}
    first = order(client, "file-none", metadata=asked, extra_body=key)
    turned = dict(reversed(asked.items()))
    again = order(client, "file-none", metadata=turned, extra_body=key)
    header = {"idempotency-key": "the-same-key"}
    third = order(client, "file-none", metadata=asked, extra_headers=header)
    assert first.id == again.id == third.id
    assert (first.created_at, first.metadata) == (again.created_at, again.metadata)


def test_with_the_same_key_for_something_else_it_is_a_conflict(client: OpenAI) -> None:
    key = {"idempotency_key": "another-key"}
    first = order(client, "file-1", metadata={"a": "1"}, extra_body=key)
    with pytest.raises(openai.ConflictError, match=r"(?i)conflict"):
        order(client, "file-2", metadata={"a": "2"}, extra_body=key)
    with pytest.raises(openai.UnprocessableEntityError):
        order(client, "file-2", extra_headers={"idempotency-key": "another-key"})
    assert client.batches.retrieve(first.id).input_file_id == "file-1"


# -- files --------------------------------------------------------------------------------------------


def test_a_file_is_listed_shown_read_and_deleted_once(client: OpenAI) -> None:
    raw = b"files are bytes \x00\xff\n" * 10_000
    file = client.files.create(file=("notes.txt", raw), purpose="batch")
    assert file.id.startswith("file-")
    assert (file.filename, file.bytes, file.status) == ("notes.txt", len(raw), "processed")
    assert file.id in [each.id for each in client.files.list()]
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == raw
    assert client.files.delete(file.id).deleted
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            gone(file.id)
    assert file.id not in [each.id for each in client.files.list()]


def test_when_a_file_expires_may_be_said_by_any_client(server: Server, client: OpenAI) -> None:
    file = client.files.create(
        file=("a", line()), purpose="batch", expires_after={"anchor": "created_at", "seconds": 4545}
    )
    assert file.expires_at == file.created_at + 4545
    answer = httpx.post(
        f"{server.base_url}/files",
        headers={"authorization": f"Bearer {server.key}"},
        files={"file": ("a.jsonl", line())},
        data={
            "purpose": "batch",
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": "4545",
        },
    )
    made = answer.json()
    assert (answer.status_code, made["expires_at"]) == (200, made["created_at"] + 4545)
    assert client.files.retrieve(made["id"]).expires_at == made["expires_at"]


def test_an_empty_file_and_other_purposes_are_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"(?i)invalid file format.*jsonl"):
        client.files.create(file=("a.jsonl", b""), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="only batch is supported"):
        client.files.create(file=("a.jsonl", line()), purpose="assistants")


def test_no_other_organisation_sees_any_of_it(server: Server, client: OpenAI) -> None:
    made = server.command_json("keys", "create", "--organisation", "strangers")
    file_id = upload(client, line())
    ended = wait(client, order(client, file_id))
    assert ended.output_file_id is not None
    with OpenAI(base_url=server.base_url, api_key=made["key"], max_retries=0) as stranger:
        assert stranger.files.list().data == stranger.batches.list().data == []
        for id_ in (file_id, ended.output_file_id):
            for of_file in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
                with pytest.raises(openai.NotFoundError):
                    of_file(id_)
        for of_batch in (stranger.batches.retrieve, stranger.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                of_batch(ended.id)
        theirs = wait(stranger, order(stranger, file_id))
        assert theirs.status == "failed"
    assert client.files.content(file_id).content == content(line())
