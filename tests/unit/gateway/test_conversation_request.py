from __future__ import annotations

import pytest

from forebay.core.errors import InvalidRequest
from forebay.gateway.conversation_request import (
    ConversationRequest,
    parse_conversation,
    parse_items,
    parse_metadata,
)

HELLO = {"role": "user", "content": "Hello"}


def refusal(parse, body):
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    return caught.value


def test_a_conversation_needs_nothing_and_null_is_nothing():
    assert parse_conversation({}) == ConversationRequest()
    nulls = {"items": None, "metadata": None, "ttl_seconds": None}
    assert parse_conversation(nulls) == ConversationRequest()
    assert parse_conversation({"items": []}) == ConversationRequest()


def test_all_of_it_is_read():
    body = {"items": [HELLO, HELLO], "metadata": {"topic": "x"}, "ttl_seconds": 60}
    assert parse_conversation(body) == ConversationRequest(
        items=(("user", ("Hello",)),) * 2, metadata={"topic": "x"}, ttl_seconds=60
    )


def test_names_that_mean_nothing_are_told_once():
    body = {"items": [HELLO | {"name": "a"}, HELLO | {"name": "b"}], "store": True}
    assert parse_conversation(body).ignored == ("store", "items[].name")
    assert parse_items(body).ignored == ("store", "items[].name")
    assert parse_metadata({"metadata": {}, "items": []}).ignored == ("items",)


@pytest.mark.parametrize("parse", [parse_conversation, parse_items])
def test_twenty_items_are_the_most(parse):
    assert len(parse({"items": [HELLO] * 20}).items) == 20
    fault = refusal(parse, {"items": [HELLO] * 21})
    assert (fault.param, fault.code) == ("items", "array_above_max_length")
    assert "has 21 items; the limit is 20" in fault.message


@pytest.mark.parametrize("parse", [parse_conversation, parse_items])
def test_what_is_no_list_of_items_is_refused(parse):
    assert refusal(parse, {"items": "Hello"}).code == "invalid_type"
    assert refusal(parse, {"items": [HELLO, {}]}).param == "items[1].role"


@pytest.mark.parametrize(
    ("body", "code"),
    [({}, "missing_required_parameter"), ({"items": None}, "missing_required_parameter"),
     ({"items": []}, "empty_array")],
)  # fmt: skip
def test_there_must_be_something_to_append(body, code):
    fault = refusal(parse_items, body)
    assert (fault.param, fault.code) == ("items", code)


@pytest.mark.parametrize("body", [{}, {"metadata": None}])
def test_metadata_is_not_removed_by_leaving_it_out(body):
    fault = refusal(parse_metadata, body)
    assert (fault.param, fault.code) == ("metadata", "missing_required_parameter")
    assert "Send {}" in fault.message
    assert parse_metadata({"metadata": {}}).metadata == {}


@pytest.mark.parametrize("parse", [parse_conversation, parse_metadata])
def test_metadata_has_at_most_sixteen_short_texts(parse):
    largest = {f"{n:064}": "x" * 512 for n in range(16)}
    assert parse({"metadata": largest}).metadata == largest


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ([], "metadata", "invalid_type"),
        ("x", "metadata", "invalid_type"),
        ({str(n): "" for n in range(17)}, "metadata", "array_above_max_length"),
        ({"a": "", "k" * 65: ""}, "metadata." + "k" * 64, "string_above_max_length"),
        ({"a": "", "topic": "x" * 513}, "metadata.topic", "string_above_max_length"),
        ({"a": "", "topic": 1}, "metadata.topic", "invalid_type"),
        ({"a": "", "topic": None}, "metadata.topic", "invalid_type"),
    ],
)
@pytest.mark.parametrize("parse", [parse_conversation, parse_metadata])
def test_other_metadata_is_refused_by_its_key(parse, metadata, param, code):
    fault = refusal(parse, {"metadata": metadata})
    assert (fault.param, fault.code) == (param, code)
    assert param in fault.message


@pytest.mark.parametrize("ttl_seconds", ["60", 60.0, True, [], {}])
def test_a_time_to_live_is_an_integer(ttl_seconds):
    fault = refusal(parse_conversation, {"ttl_seconds": ttl_seconds})
    assert (fault.param, fault.code) == ("ttl_seconds", "invalid_type")
