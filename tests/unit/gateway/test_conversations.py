from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItemList,
    Message,
)

from forebay.core.errors import ConversationFull, ConversationLocked, StoreUnavailable
from forebay.gateway.conversations import OPERATIONS
from tests.unit.gateway.conftest import OTHER_SECRET, SECRET

HOME = "/v1/conversations"
HELLO, HI = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}
BODIES = {
    ("post", HOME): {"items": [HELLO]},
    ("post", HOME + "/{id}"): {"metadata": {}},
    ("post", HOME + "/{id}/items"): {"items": [HELLO]},
}
BY_NAME = {f"{each.method} {each.path}": each for each in OPERATIONS}


async def ask(gateway, method, path, body: Any = None, secret=SECRET) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {secret}"}
    return await gateway.request(method.upper(), path, body=raw, headers=headers)


async def good(gateway, method, path, body: Any = None) -> Any:
    answer = await ask(gateway, method, path, body)
    assert answer.status == 200, answer.body
    return answer.json()


async def begin(gateway, *items, **more) -> str:
    return (await good(gateway, "POST", HOME, {"items": list(items), **more}))["id"]


async def texts(gateway, id_, query="order=asc") -> list[str]:
    found = await good(gateway, "GET", f"{HOME}/{id_}/items?{query}")
    return [item["content"][0]["text"] for item in found["data"]]


async def test_a_conversation_is_as_openai_writes_it_and_says_when_it_expires(gateway):
    body = {"items": [HELLO, HI], "metadata": {"topic": "x"}, "ttl_seconds": 3600}
    answer = await ask(gateway, "POST", HOME, body)
    made = answer.json()
    now = int(gateway.clock.now())
    assert made == {
        "id": made["id"],
        "object": "conversation",
        "created_at": now,
        "metadata": {"topic": "x"},
        "expires_at": now + 3600,
    }
    assert made["id"].startswith("conv_")
    Conversation.model_validate_json(answer.body, strict=True)
    assert await good(gateway, "GET", f"{HOME}/{made['id']}") == made
    assert await texts(gateway, made["id"]) == ["Hello", "Hi"]


@pytest.mark.parametrize("body", [None, {}])
async def test_an_empty_one_needs_no_body(gateway, body):
    id_ = (await good(gateway, "POST", HOME, body))["id"]
    answer = await ask(gateway, "GET", f"{HOME}/{id_}/items")
    ConversationItemList.model_validate_json(answer.body, strict=True)
    assert answer.json() == {
        "object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False
    }  # fmt: skip


async def test_c2_one_that_has_expired_is_gone(gateway):
    id_ = await begin(gateway, HELLO, ttl_seconds=60)
    gateway.clock.advance(60)
    for path in (f"{HOME}/{id_}", f"{HOME}/{id_}/items"):
        answer = await ask(gateway, "GET", path)
        assert (answer.status, answer.error["code"]) == (404, "not_found")


async def test_metadata_is_replaced(gateway):
    id_ = await begin(gateway, metadata={"a": "1", "b": "2"})
    changed = await good(gateway, "POST", f"{HOME}/{id_}", {"metadata": {"c": "3"}})
    assert changed["metadata"] == {"c": "3"}
    assert await good(gateway, "GET", f"{HOME}/{id_}") == changed


async def test_a_deleted_one_is_gone(gateway):
    id_ = await begin(gateway, HELLO)
    answer = await ask(gateway, "DELETE", f"{HOME}/{id_}")
    assert answer.json() == {"id": id_, "object": "conversation.deleted", "deleted": True}
    ConversationDeletedResource.model_validate_json(answer.body, strict=True)
    assert (await ask(gateway, "DELETE", f"{HOME}/{id_}")).status == 404


async def test_appended_items_are_answered_with_their_ids(gateway):
    id_ = await begin(gateway, {"role": "developer", "content": "Be kind"})
    answer = await ask(gateway, "POST", f"{HOME}/{id_}/items?include[]=x", {"items": [HELLO, HI]})
    ConversationItemList.model_validate_json(answer.body, strict=True)
    added = answer.json()
    first, last = added["data"]
    assert (added["first_id"], added["last_id"]) == (first["id"], last["id"])
    assert added["has_more"] is False
    assert first == {
        "id": first["id"],
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hello"}],
    }
    assert len({first["id"], last["id"]}) == 2
    assert first["id"].startswith("msg_")
    one = await ask(gateway, "GET", f"{HOME}/{id_}/items/{last['id']}")
    assert one.json() == last
    Message.model_validate_json(one.body, strict=True)
    assert await texts(gateway, id_) == ["Be kind", "Hello", "Hi"]


async def test_an_item_may_be_removed_and_the_conversation_is_answered(gateway):
    id_ = await begin(gateway, HELLO, HI)
    found = await good(gateway, "GET", f"{HOME}/{id_}/items")
    path = f"{HOME}/{id_}/items/{found['first_id']}"
    assert await good(gateway, "DELETE", path) == await good(gateway, "GET", f"{HOME}/{id_}")
    assert await texts(gateway, id_) == ["Hello"]
    assert (await ask(gateway, "GET", path)).status == 404


async def test_a_list_is_read_a_page_at_a_time_newest_first_unless_asked_otherwise(gateway):
    said = [str(n) for n in range(20)]
    id_ = await begin(gateway, *({"role": "user", "content": text} for text in said))
    await good(gateway, "POST", f"{HOME}/{id_}/items", {"items": [HELLO]})
    said.append("Hello")
    assert await texts(gateway, id_, "") == said[:0:-1]
    assert await texts(gateway, id_, "limit=100&order=desc") == said[::-1]
    for order, expected in (("asc", said), ("desc", said[::-1])):
        after, read, pages = "", [], 0
        while True:
            query = f"limit=7&order={order}&after={after}"
            found = await good(gateway, "GET", f"{HOME}/{id_}/items?{query}")
            read += [item["content"][0]["text"] for item in found["data"]]
            after, pages = found["last_id"], pages + 1
            if not found["has_more"]:
                break
        assert (read, pages) == (expected, 3)


@pytest.mark.parametrize(
    "query", ["include=a", "include[]=a&include[]=b", "include=a&include=b", "unknown=1", "after="]
)
async def test_what_means_nothing_in_a_query_is_ignored(gateway, query):
    assert await texts(gateway, await begin(gateway, HELLO), query) == ["Hello"]


@pytest.mark.parametrize(
    ("query", "param", "says"),
    [
        ("limit=0", "limit", "between 1 and 100"),
        ("limit=101", "limit", "between 1 and 100"),
        ("limit=x", "limit", "an integer"),
        ("limit=", "limit", "an integer"),
        ("limit=1&limit=2", "limit", "twice"),
        ("order=up", "order", "one of: asc, desc"),
        ("after=msg_9", "after", "'msg_9'"),
        ("after=%ff", "query", "UTF-8"),
    ],
)
async def test_other_queries_are_refused_by_their_name(gateway, query, param, says):
    id_ = await begin(gateway, HELLO)
    answer = await ask(gateway, "GET", f"{HOME}/{id_}/items?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)
    assert says in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [({"items": [{"type": "function_call"}]}, "items[0].type"), ({"ttl_seconds": 59}, "ttl_seconds"),
     ({"metadata": {"a": 1}}, "metadata.a"), ([], None)],
)  # fmt: skip
async def test_a_body_that_is_wrong_makes_nothing(gateway, body, param):
    answer = await ask(gateway, "POST", HOME, body)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_names_that_mean_nothing_are_told_counted_and_refused_to_the_strict(gateway):
    body = {"store": True, "items": [HELLO | {"name": "x"}]}
    answer = await ask(gateway, "POST", HOME, body)
    assert answer.status == 200
    assert answer.headers["x-forebay-ignored"] == "store, items[].name"
    assert gateway.metrics.unknown_fields._value.get() == 2
    strict = await gateway.request(
        "POST", HOME, body=json.dumps(body).encode(), headers={"x-forebay-strict": "true"}
    )
    assert (strict.status, strict.error["code"]) == (400, "unknown_parameter")


async def test_a_client_that_leaves_before_its_body_is_there_makes_nothing(gateway, monkeypatch):
    made: list[Any] = []
    monkeypatch.setattr(gateway.conversations, "create", lambda *each: made.append(each))
    answer = await gateway.request("POST", HOME, body=[b'{"items', None])
    assert (answer.status, made) == (0, [])


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(ConversationLocked(), 409, "conversation_locked"), (ConversationFull(), 400, "conversation_full"),
     (StoreUnavailable(), 503, "store_unavailable")],
)  # fmt: skip
async def test_what_the_room_refuses_is_told(gateway, monkeypatch, error, status, code):
    async def refuse(*_: Any) -> None:
        raise error

    id_ = await begin(gateway)
    monkeypatch.setattr(gateway.conversations, "add", refuse)
    answer = await ask(gateway, "POST", f"{HOME}/{id_}/items", {"items": [HELLO]})
    assert (answer.status, answer.error["code"]) == (status, code)


async def made(gateway) -> dict[str, str]:
    id_ = await begin(gateway, HELLO)
    found = await good(gateway, "GET", f"{HOME}/{id_}/items")
    return {"id": id_, "item_id": found["last_id"]}


@pytest.mark.parametrize("name", BY_NAME)
async def test_every_endpoint_wants_a_key_before_anything_else(gateway, name):
    each, ids = BY_NAME[name], await made(gateway)
    before = gateway.pipeline.knocks
    for secret in ("", "fbk_live_wrong"):
        body = [60.0, b"never read"]
        headers = {"authorization": f"Bearer {secret}" if secret else ""}
        path = each.path.format(**ids)
        answer = await gateway.request(each.method.upper(), path, body=body, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert gateway.pipeline.knocks == before
    answer = await ask(
        gateway, each.method, each.path.format(**ids), BODIES.get((each.method, each.path))
    )
    assert answer.status == 200
    assert gateway.pipeline.knocks == before + 1


@pytest.mark.parametrize("name", [name for name in BY_NAME if "{id}" in name])
async def test_c1_another_organisation_gets_byte_for_byte_what_an_unknown_id_gets(gateway, name):
    """Also of an item that is there, and of a cursor; and what it asked for stays as it was."""
    each, ids = BY_NAME[name], await made(gateway)
    body = BODIES.get((each.method, each.path))
    path = each.path.format(**ids)
    query = f"?after={ids['item_id']}" if name == f"get {HOME}/{{id}}/items" else ""
    home = f"{HOME}/{ids['id']}"
    before = [(await ask(gateway, "GET", at)).body for at in (home, f"{home}/items")]

    async def seen() -> tuple[Any, ...]:
        answer = await ask(gateway, each.method, path + query, body, secret=OTHER_SECRET)
        id_ = answer.headers.pop("x-request-id")
        return answer.status, answer.headers, answer.body.replace(id_.encode(), b"")

    theirs = await seen()
    assert theirs[0] == 404
    assert [(await ask(gateway, "GET", at)).body for at in (home, f"{home}/items")] == before
    await good(gateway, "DELETE", home)
    assert await seen() == theirs


@pytest.mark.parametrize("body", [b"", b"{", b'{"items": 1}', b"\xff"])
async def test_c1_a_wrong_body_does_not_tell_whether_there_is_a_conversation(gateway, body):
    ids = await made(gateway)
    answers = []
    for id_ in (ids["id"], "conv_unknown"):
        for path in (f"{HOME}/{id_}", f"{HOME}/{id_}/items"):
            answer = await gateway.request(
                "POST", path, body=body, headers={"authorization": f"Bearer {OTHER_SECRET}"}
            )
            assert answer.status == 400
            answers.append(answer.error["code"])
    assert answers[:2] == answers[2:]


async def test_openais_own_client_does_all_of_it(gateway, listener):
    url = (await listener()).base_url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=SECRET, max_retries=0) as client:
        made = await client.conversations.create(items=[HELLO], metadata={"a": "1"})
        assert (await client.conversations.retrieve(made.id)).metadata == {"a": "1"}
        changed = await client.conversations.update(made.id, metadata={"b": "2"})
        assert changed.metadata == {"b": "2"}
        many = [{"role": "user", "content": str(n)} for n in range(20)]
        added = await client.conversations.items.create(
            made.id, items=many, include=["message.output_text.logprobs"]
        )
        pages = client.conversations.items.list(made.id, order="asc", limit=9, include=[])
        read = [item async for item in pages]
        assert [item.content[0].text for item in read] == ["Hello", *map(str, range(20))]
        last = added.data[-1]
        items = client.conversations.items
        assert await items.retrieve(last.id, conversation_id=made.id) == last
        assert (await items.delete(last.id, conversation_id=made.id)).id == made.id
        with pytest.raises(openai.NotFoundError, match=last.id):
            await items.retrieve(last.id, conversation_id=made.id)
        assert (await client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError, match=made.id):
            await client.conversations.retrieve(made.id)


def _with_a_blocking_client(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key=SECRET, max_retries=0) as client:
        made = client.conversations.create(extra_body={"ttl_seconds": 60})
        assert made.expires_at == made.created_at + 60
        added = client.conversations.items.create(made.id, items=[HELLO, HI])
        read = list(client.conversations.items.list(made.id, limit=1))
        assert read == added.data[::-1]
        client.conversations.update(made.id, metadata={"a": "1"})
        found = client.conversations.items.retrieve(read[0].id, conversation_id=made.id)
        assert found.content[0].type == "output_text"
        left = client.conversations.items.delete(read[0].id, conversation_id=made.id)
        assert left == client.conversations.retrieve(made.id)
        assert client.conversations.delete(made.id).id == made.id


async def test_openais_blocking_client_does_so_too(gateway, listener):
    await asyncio.to_thread(_with_a_blocking_client, (await listener()).base_url + "/v1")
