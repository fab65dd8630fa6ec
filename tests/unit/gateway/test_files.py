"""/v1/files: what OpenAI's own client does, what is refused, and that nothing is left of half a file."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from openai.types import FileDeleted, FileObject

from forebay.gateway.upload import FORM_BYTES
from tests.unit.gateway.conftest import OTHER_SECRET, SECRET

HOME = "/v1/files"
LINE = b'{"custom_id": "1"}\n'
FIELDS = {"purpose": "batch"}


def form(
    content: bytes = LINE, name: str = "calls.jsonl", fields: Any = FIELDS
) -> tuple[bytes, dict[str, str]]:
    """A body and its headers, as httpx makes them."""
    request = httpx.Request("POST", "http://x", files={"file": (name, content)}, data=fields)
    return request.read(), {"content-type": request.headers["content-type"]}


async def ask(gateway, method, path, secret=SECRET) -> Any:
    return await gateway.request(method, path, headers={"authorization": f"Bearer {secret}"})


async def upload(gateway, *args, secret=SECRET, **headers: str) -> Any:
    body, kind = form(*args)
    sent = {"authorization": f"Bearer {secret}", **kind}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.request("POST", HOME, body=body, headers=sent)


async def uploaded(gateway, *args, **headers: str) -> str:
    answer = await upload(gateway, *args, **headers)
    assert answer.status == 200, answer.body
    return answer.json()["id"]


async def test_a_file_is_as_openai_writes_it(gateway):
    gateway.clock.advance(0.7)
    answer = await upload(gateway)
    made = answer.json()
    now = int(gateway.clock.now())
    assert made == {
        "id": made["id"],
        "object": "file",
        "bytes": len(LINE),
        "created_at": now,
        "expires_at": now + 30 * 24 * 3600,
        "filename": "calls.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    assert made["id"].startswith("file-")
    FileObject.model_validate_json(answer.body, strict=True)
    shown = await ask(gateway, "GET", f"{HOME}/{made['id']}")
    assert shown.json() == made


async def test_its_bytes_are_sent_as_something_to_be_saved(gateway):
    content = LINE * 20_000
    id_ = await uploaded(gateway, content)
    answer = await ask(gateway, "GET", f"{HOME}/{id_}/content")
    assert (answer.status, answer.body, answer.complete) == (200, content, True)
    assert len(answer.sends) > 3, "in pieces"
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"calls.jsonl\"; filename*=UTF-8''calls.jsonl"
    )
    head = await ask(gateway, "HEAD", f"{HOME}/{id_}/content")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(content))
    assert gateway.desks.blobs.readers == 0


async def test_a_name_can_put_nothing_into_a_header(gateway):
    name = 'a"; x=\\1; é😀%22.jsonl'
    body, headers = form(name="calls.jsonl")
    sent = name.replace('"', '\\"').encode()
    body = body.replace(b"calls.jsonl", sent)
    answer = await gateway.request("POST", HOME, body=body, headers=headers)
    made = answer.json()
    shown = made["filename"]
    content = await ask(gateway, "GET", f"{HOME}/{made['id']}/content")
    header = content.headers["content-disposition"]
    assert header.isascii()
    assert header.count('"') == 2
    assert httpx.Headers({"x": header})["x"] == header
    assert header.split("''")[1] == quote(shown, safe="")


async def test_a_deleted_file_is_gone_with_its_bytes(gateway):
    id_ = await uploaded(gateway)
    answer = await ask(gateway, "DELETE", f"{HOME}/{id_}")
    assert answer.json() == {"id": id_, "object": "file", "deleted": True}
    FileDeleted.model_validate_json(answer.body, strict=True)
    assert gateway.desks.hold_nothing
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        gone = await ask(gateway, method, f"{HOME}/{id_}{path}")
        assert (gone.status, gone.error["code"]) == (404, "not_found")


async def test_b7_the_input_of_a_batch_that_has_not_ended_is_not_deleted(gateway):
    id_ = await uploaded(gateway)
    gateway.desks.state.needs["batch_1"] = id_
    answer = await ask(gateway, "DELETE", f"{HOME}/{id_}")
    assert (answer.status, answer.error["code"]) == (409, "batch_conflict")
    assert answer.headers["x-should-retry"] == "false"
    assert gateway.desks.blobs.content(id_)


async def test_how_long_it_is_kept_may_be_said(gateway):
    fields = {**FIELDS, "expires_after[anchor]": "created_at", "expires_after[seconds]": "4545"}
    made = (await upload(gateway, LINE, "a", fields)).json()
    assert made["expires_at"] == made["created_at"] + 4545


async def test_a_list_is_read_a_page_at_a_time_newest_first_unless_asked_otherwise(gateway):
    empty = await ask(gateway, "GET", HOME)
    assert empty.json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False
    }  # fmt: skip
    ids = [await uploaded(gateway, LINE, f"{n}.jsonl") for n in range(5)]
    whole = (await ask(gateway, "GET", HOME)).json()
    assert [each["id"] for each in whole["data"]] == ids[::-1]
    assert (whole["first_id"], whole["last_id"], whole["has_more"]) == (ids[4], ids[0], False)
    after, read, pages = "", [], 0
    while True:
        query = f"limit=2&order=asc&after={after}&purpose=batch"
        found = (await ask(gateway, "GET", f"{HOME}?{query}")).json()
        read += [each["id"] for each in found["data"]]
        after, pages = found["last_id"], pages + 1
        if not found["has_more"]:
            break
    assert (read, pages) == (ids, 3)
    others = (await ask(gateway, "GET", f"{HOME}?purpose=batch_output")).json()
    assert others["data"] == []


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("limit=0", 400, "limit"),
        ("limit=10001", 400, "limit"),
        ("order=up", 400, "order"),
        ("after=file-9", 404, "file_id"),
    ],
)
async def test_other_queries_are_refused_by_their_name(gateway, query, status, param):
    answer = await ask(gateway, "GET", f"{HOME}?{query}")
    assert (answer.status, answer.error["param"]) == (status, param)


async def test_names_that_mean_nothing_are_told_counted_and_refused_to_the_strict(gateway):
    fields = {**FIELDS, "user": "x"}
    answer = await upload(gateway, LINE, "a", fields)
    assert answer.headers["x-forebay-ignored"] == "user"
    assert gateway.metrics.unknown_fields._value.get() == 1
    await ask(gateway, "DELETE", f"{HOME}/{answer.json()['id']}")
    strict = await upload(gateway, LINE, "a", fields, x_forebay_strict="true")
    assert (strict.status, strict.error["code"]) == (400, "unknown_parameter")
    assert gateway.desks.hold_nothing


# -- what is not taken, and what is left of it ------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -20])
async def test_b6_half_a_form_leaves_nothing(gateway, cut):
    """Whether its client says that this is the end, or leaves."""
    body, headers = form(LINE * 30)
    half = body[: cut - 3 if cut < 0 else cut]
    answer = await gateway.request("POST", HOME, body=[half], headers=headers)
    assert (answer.status, answer.error["code"]) == (400, "invalid_multipart")
    assert gateway.desks.hold_nothing
    answer = await gateway.request("POST", HOME, body=[half, None], headers=headers)
    assert answer.status == 0
    assert gateway.desks.hold_nothing


@pytest.mark.parametrize(
    ("content", "fields", "param"),
    [
        (LINE, {}, "purpose"),
        (LINE, {"purpose": "assistants"}, "purpose"),
        (b"", FIELDS, "file"),
        (LINE, {**FIELDS, "expires_after": "1"}, "expires_after"),
    ],
    ids=range(4),
)
async def test_what_is_wrong_with_a_form_is_told_and_nothing_is_left(
    gateway, content, fields, param
):
    answer = await upload(gateway, content, "a", fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert gateway.desks.hold_nothing


async def test_what_is_no_form_is_refused_unread(gateway):
    for kind in ("application/json", "multipart/form-data"):
        answer = await gateway.request(
            "POST", HOME, body=[60.0, b"never read"], headers={"content-type": kind}
        )
        assert (answer.status, answer.error["code"]) == (400, "invalid_multipart")


async def test_a_file_that_is_certainly_too_large_is_refused_unread(gateway):
    gateway.settle(max_file_bytes=1000)
    _, headers = form()
    headers["content-length"] = str(1001 + FORM_BYTES)
    answer = await gateway.request("POST", HOME, body=[60.0, b"never read"], headers=headers)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert "at least 1001 bytes; the limit is 1000 bytes" in answer.error["message"]
    assert gateway.desks.hold_nothing


@pytest.mark.parametrize("size", [1000, 1001])
async def test_a_file_may_have_just_the_most_bytes(gateway, size):
    gateway.settle(max_file_bytes=1000)
    answer = await upload(gateway, b"x" * size)
    assert answer.status == (200 if size == 1000 else 413)
    assert size == 1000 or gateway.desks.hold_nothing


async def test_b8_what_has_no_room_is_refused_unread_where_that_is_certain(gateway):
    gateway.settle(organisation_bytes=2 * FORM_BYTES)
    await uploaded(gateway, b"x" * FORM_BYTES)
    body, headers = form(b"x" * (FORM_BYTES + 1))
    refusals = [await gateway.request("POST", HOME, body=body, headers=headers)]
    headers["content-length"] = str(2 * FORM_BYTES + 1)
    unread = [60.0, b"never read"]
    refusals.append(await gateway.request("POST", HOME, body=unread, headers=headers))
    for answer in refusals:
        assert (answer.status, answer.error["code"]) == (400, "storage_full")
    assert len(gateway.desks.state.files) == 1
    other = await upload(gateway, b"x" * FORM_BYTES, secret=OTHER_SECRET)
    assert other.status == 200


async def test_a_store_that_fails_leaves_nothing(gateway):
    gateway.desks.blobs.broken = True
    answer = await upload(gateway)
    assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
    assert gateway.desks.hold_nothing


async def test_an_upload_takes_as_long_as_it_arrives_at_its_least_rate(gateway):
    """Longer than any other body may; one that drips is not waited for."""
    gateway.settings = replace(
        gateway.settings,
        body_seconds=0.05,
        body_grace_seconds=0.1,
        min_body_bytes_per_second=1000,
    )
    body, headers = form(LINE * 100)
    flow = [part for n in range(0, len(body), 250) for part in (body[n : n + 250], 0.05)]
    answer = await gateway.request("POST", HOME, body=flow[:-1], headers=headers)
    assert answer.status == 200
    drip = [part for n in range(40) for part in (body[n : n + 1], 0.05)]
    answer = await asyncio.wait_for(gateway.request("POST", HOME, body=drip, headers=headers), 30)
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    assert gateway.desks.blobs.writers == 0


async def test_rule_58_an_upload_may_be_gzip(gateway):
    body, headers = form(LINE * 100)
    packed = gzip.compress(body)
    headers["content-encoding"] = "gzip"
    answer = await gateway.request("POST", HOME, body=[packed[:50], packed[50:]], headers=headers)
    assert answer.json()["bytes"] == 100 * len(LINE)
    headers["content-encoding"] = "br"
    answer = await gateway.request("POST", HOME, body=packed, headers=headers)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_content_encoding")


async def test_rule_58_a_bomb_is_inflated_no_further_than_a_file_may_be_large(gateway):
    gateway.settle(max_file_bytes=1_000_000)
    body, headers = form(bytes(50_000_000))
    headers["content-encoding"] = "gzip"
    answer = await gateway.request("POST", HOME, body=gzip.compress(body), headers=headers)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert gateway.desks.hold_nothing


async def test_bytes_are_handed_on_as_they_come(gateway):
    body, headers = form(LINE * 1000)
    pieces = [body[n : n + 512] for n in range(0, len(body), 512)]
    answer = await gateway.request("POST", HOME, body=pieces, headers=headers)
    assert gateway.desks.blobs.content(answer.json()["id"]) == LINE * 1000
    assert gateway.desks.blobs.largest_chunk_bytes <= 512


# -- bytes that go ----------------------------------------------------------------------------------


async def test_b6_damaged_bytes_break_the_answer_off_before_its_end(gateway):
    id_ = await uploaded(gateway, LINE * 20_000)
    gateway.desks.blobs.damage(id_)
    sent: list[Any] = []
    with pytest.raises(Exception, match="store"):
        await gateway.request("GET", f"{HOME}/{id_}/content", send_hook=sent.append)
    bodies = [each for each in sent if each["type"] == "http.response.body"]
    assert sum(len(each["body"]) for each in bodies) < 20_000 * len(LINE)
    assert all(each["more_body"] for each in bodies)


async def test_b6_where_nothing_has_left_damage_is_an_error_like_others(gateway):
    id_ = await uploaded(gateway, LINE)
    gateway.desks.blobs.damage(id_)
    answer = await ask(gateway, "GET", f"{HOME}/{id_}/content")
    assert (answer.status, answer.error["code"]) == (500, "file_damaged")


async def test_a_reader_that_leaves_stops_the_reading(gateway):
    id_ = await uploaded(gateway, LINE * 20_000)
    left, stuck = asyncio.Event(), asyncio.Event()

    def hook(message: dict[str, Any]) -> Any:
        if message["type"] != "http.response.body":
            return None
        left.set()
        return stuck.wait()

    answer = await asyncio.wait_for(
        gateway.request("GET", f"{HOME}/{id_}/content", gone=left, send_hook=hook), 10
    )
    assert not answer.complete
    assert gateway.desks.blobs.readers == 0


async def test_b6_over_a_real_connection_a_client_sees_that_bytes_are_missing(gateway, connect):
    id_ = await uploaded(gateway, LINE * 20_000)
    gateway.desks.blobs.damage(id_)
    client = await connect()
    await client.send(
        f"GET {HOME}/{id_}/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()
    )
    head = await client.until(b"\r\n\r\n")
    assert b"content-length: %d" % (20_000 * len(LINE)) in head
    assert len(await client.rest()) < 20_000 * len(LINE)


async def until(true: Any) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_client_that_takes_no_bytes_is_cut_off_and_nothing_is_read_for_it(gateway, connect):
    gateway.settings = replace(gateway.settings, slow_client_seconds=0.2)
    id_ = await uploaded(gateway, LINE * 2_000_000)
    blobs = gateway.desks.blobs
    client = await connect()
    await client.send(
        f"GET {HOME}/{id_}/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()
    )
    await until(lambda: blobs.readers == 1)
    await until(lambda: blobs.readers == 0)


async def test_b6_a_client_that_leaves_in_the_middle_of_its_upload_leaves_nothing(gateway, connect):
    body, headers = form(LINE * 1000)
    client = await connect()
    head = f"POST {HOME} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n"
    head += f"Content-Type: {headers['content-type']}\r\nContent-Length: {len(body)}\r\n\r\n"
    await client.send(head.encode() + body[:-10])
    await until(lambda: gateway.desks.blobs.writers == 1)
    await client.close()
    await until(lambda: gateway.desks.blobs.writers == 0)
    assert gateway.desks.hold_nothing


# -- whose files ------------------------------------------------------------------------------------

ENDPOINTS = [
    ("GET", HOME), ("POST", HOME), ("GET", HOME + "/{id}"), ("DELETE", HOME + "/{id}"),
    ("GET", HOME + "/{id}/content"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_every_endpoint_wants_a_key_before_anything_else(gateway, method, path):
    id_ = await uploaded(gateway)
    before, begun = gateway.pipeline.knocks, gateway.desks.blobs.begun
    for secret in ("", "fbk_live_wrong"):
        headers = {"authorization": f"Bearer {secret}" if secret else ""}
        body = [60.0, b"never read"]
        answer = await gateway.request(method, path.format(id=id_), body=body, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert (gateway.pipeline.knocks, gateway.desks.blobs.begun) == (before, begun)


@pytest.mark.parametrize(("method", "path"), [each for each in ENDPOINTS if "{id}" in each[1]])
async def test_b1_another_organisation_gets_byte_for_byte_what_an_unknown_id_gets(
    gateway, method, path
):
    id_ = await uploaded(gateway)
    found = await ask(gateway, "GET", HOME, OTHER_SECRET)
    assert found.json()["data"] == []

    async def seen() -> tuple[Any, ...]:
        answer = await ask(gateway, method, path.format(id=id_), OTHER_SECRET)
        request_id = answer.headers.pop("x-request-id")
        return answer.status, answer.headers, answer.body.replace(request_id.encode(), b"")

    theirs = await seen()
    assert theirs[0] == 404
    assert (await ask(gateway, "DELETE", f"{HOME}/{id_}")).status == 200
    assert await seen() == theirs


async def test_openais_own_client_does_all_of_it(gateway, listener, tmp_path: Path):
    path = tmp_path / "calls.jsonl"
    path.write_bytes(LINE * 3000)
    url = (await listener()).base_url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=SECRET, max_retries=0) as client:
        made = await client.files.create(
            file=path,
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert made.expires_at == made.created_at + 3600
        assert (made.filename, made.bytes) == ("calls.jsonl", 3000 * len(LINE))
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == LINE * 3000
        more = [await client.files.create(file=("b", LINE), purpose="batch") for _ in range(3)]
        listed = [each.id async for each in client.files.list(limit=2, order="asc")]
        assert listed == [made.id, *(each.id for each in more)]
        assert (await client.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.files.create(file=("a", LINE), purpose="fine-tune")
        assert refused.value.param == "purpose"
