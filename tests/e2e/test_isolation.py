"""What another organisation has, looks from outside like what is not there: every id, every verb."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from openai import OpenAI

from tests.e2e.running import Server

VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CONVERSATION, RESPONSE = "/v1/conversations/{id}", "/v1/responses/{id}"
FILE, BATCH = "/v1/files/{id}", "/v1/batches/{id}"
# Everybody may read these; their parameter is no object's id.
PUBLIC = {"/docs/errors/{code}"}
NOBODYS = "no-such-thing"
Ids = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = [{"id": "scripted"}, {"id": "private-model", "engine": "scripted"}]
    env = {"FOREBAY_MODELS": json.dumps(models)}
    with Server.start(data_dir=tmp_path_factory.mktemp("two"), env=env) as server:
        yield server


def key_of(server: Server, organisation: str, *more: str) -> str:
    made = server.command_json("keys", "create", "--organisation", organisation, *more)
    return str(made["key"])


@pytest.fixture(scope="module")
def theirs(server: Server) -> str:
    return key_of(server, "theirs")


@pytest.fixture(scope="module")
def ours(server: Server, theirs: str) -> str:
    """Of an organisation that may use one model only."""
    return key_of(server, "ours", "--model", "scripted")


def ask(
    server: Server, key: str, verb: str, path: str, body: Any = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(verb, path, data, {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def their_ids(server: Server, theirs: str) -> Ids:
    """Of each path with ids in it: those of things that the other organisation has. A route that is new
    here joins by naming some; that there are some for every path is asserted below."""

    def make(path: str, **body: Any) -> Any:
        status, _, made = ask(server, theirs, "POST", path, body)
        assert status == 200, made
        return json.loads(made)

    response = make("/v1/responses", model="scripted", input="hi [[script length=2]]")
    said = {"items": [{"role": "user", "content": "hi"}]}
    conversation = make("/v1/conversations", **said)
    items = f"/v1/conversations/{conversation['id']}/items"
    item = make(items, **said)["data"][0]
    in_conversation = {"id": conversation["id"]}
    with OpenAI(base_url=server.base_url, api_key=theirs) as client:
        file = client.files.create(file=("lines.jsonl", b"{}"), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
    return {
        "/v1/models/{id}": {"id": "private-model"},
        CONVERSATION: in_conversation,
        f"{CONVERSATION}/items": in_conversation,
        f"{CONVERSATION}/items/{{item_id}}": {**in_conversation, "item_id": item["id"]},
        RESPONSE: {"id": response["id"]},
        f"{RESPONSE}/input_items": {"id": response["id"]},
        f"{RESPONSE}/cancel": {"id": response["id"]},
        FILE: {"id": file.id},
        f"{FILE}/content": {"id": file.id},
        BATCH: {"id": batch.id},
        f"{BATCH}/cancel": {"id": batch.id},
    }


def named(path: str, ids: dict[str, str]) -> str:
    """The path with its ids."""
    return re.sub(r"\{(\w+)\}", lambda found: quote(ids[found[1]]), path)


def told(answer: tuple[int, dict[str, str], bytes], *names: str) -> tuple[int, Any, bytes]:
    """An answer without what differs each time: its date, its request id, the ids asked for."""
    status, headers, body = answer
    changing = ("date", "x-request-id", "content-length")
    kept = {key: value for key, value in headers.items() if key.lower() not in changing}
    body = re.sub(rb"req_[0-9a-f]+", b"req_", body)
    for name in names:
        body = body.replace(name.encode(), b"ID")
    return status, kept, body


def paths_with_ids(server: Server) -> list[str]:
    _, _, document = ask(server, "", "GET", "/openapi.json")
    return [path for path in json.loads(document)["paths"] if "{" in path and path not in PUBLIC]


def test_every_path_with_an_id_is_asked_for_one_of_somebody_else(
    server: Server, their_ids: Ids
) -> None:
    assert set(paths_with_ids(server)) == set(their_ids), "name ids of another organisation here"


@pytest.mark.parametrize("verb", VERBS)
def test_another_organisations_id_answers_exactly_like_a_missing_one(
    server: Server, ours: str, theirs: str, verb: str, their_ids: Ids
) -> None:
    """L14, C1, B1: status, headers and body, with and without a body of ours."""
    item = {"role": "user", "content": "hi"}
    for path, ids in their_ids.items():
        nobodys = dict.fromkeys(ids, NOBODYS)
        for body in (None, {}, {"metadata": {}, "items": [item]}):
            seen, missing = (
                told(ask(server, ours, verb, named(path, each), body), *each.values())
                for each in (ids, nobodys)
            )
            assert seen == missing, f"{verb} {path}"
        if verb == "GET" and seen[0] != 405:
            there = ask(server, theirs, verb, named(path, ids))
            assert there[0] == 200, "it exists, for its owner"
            assert seen[0] == 404


def test_what_another_organisation_has_in_the_background_is_not_seen_either(
    server: Server, ours: str, theirs: str
) -> None:
    """C1: while it runs, whatever is asked of it: the events of its stream, and its end."""
    wish = {"model": "scripted", "input": "hi [[script length=4000]]", "background": True}
    _, _, begun = ask(server, theirs, "POST", "/v1/responses", wish)
    id = json.loads(begun)["id"]
    nobodys = "resp_" + "0" * 32
    for verb, rest in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "?stream=true&starting_after=0"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        seen, missing = (
            told(ask(server, ours, verb, f"/v1/responses/{each}{rest}"), each)
            for each in (id, nobodys)
        )
        assert seen == missing, f"{verb} {rest}"
        assert seen[0] == 404
    _, _, ended = ask(server, theirs, "POST", f"/v1/responses/{id}/cancel")
    assert json.loads(ended)["status"] == "cancelled", "it ran all the while"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("field", ["conversation", "previous_response_id"])
def test_what_another_organisation_said_is_not_gone_on_from(
    server: Server, ours: str, their_ids: Ids, path: str, field: str
) -> None:
    """C1: by its conversation, or by its response."""
    theirs_id = their_ids[CONVERSATION if field == "conversation" else RESPONSE]["id"]
    nobodys = theirs_id[:5] + "0" * (len(theirs_id) - 5)
    seen, missing = (
        told(ask(server, ours, "POST", path, {"model": "scripted", "input": "hi", field: id_}), id_)
        for id_ in (theirs_id, nobodys)
    )
    assert seen == missing
    assert seen[0] in (400, 404)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_another_organisations_model_in_a_body_answers_like_a_missing_one(
    server: Server, ours: str, theirs: str, path: str, stream: bool
) -> None:
    def body(model: str) -> dict[str, Any]:
        prompt = {"messages": [{"role": "user", "content": "hi"}]}
        if path == "/v1/completions":
            prompt = {"prompt": "hi"}  # type: ignore[dict-item]
        return {"model": model, "stream": stream, "max_tokens": 2, **prompt}

    seen, missing = (
        told(ask(server, ours, "POST", path, body(name)), name)
        for name in ("private-model", NOBODYS)
    )
    assert seen == missing
    assert seen[0] == 404
    assert ask(server, theirs, "POST", path, body("private-model"))[0] == 200


def test_what_is_listed_is_ones_own(server: Server, ours: str, theirs: str) -> None:
    """L14: of every list that takes a key."""
    _, _, listed = ask(server, ours, "GET", "/v1/models")
    assert [model["id"] for model in json.loads(listed)["data"]] == ["scripted"]
    _, _, listed = ask(server, theirs, "GET", "/v1/models")
    assert [model["id"] for model in json.loads(listed)["data"]] == ["private-model", "scripted"]
