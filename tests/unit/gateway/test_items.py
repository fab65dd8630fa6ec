from __future__ import annotations

import msgspec
import pytest
from openai.types.conversations import Message

from forebay.core.dialogue import Item
from forebay.core.errors import InvalidRequest
from forebay.gateway.items import ITEM_ROLES, read_items, wire_item


def read(*items, ignored=None):
    return read_items(list(items), "items", [] if ignored is None else ignored)


def refusal(*items):
    with pytest.raises(InvalidRequest) as caught:
        read(*items)
    return caught.value


@pytest.mark.parametrize("role", ITEM_ROLES)
@pytest.mark.parametrize("kind", [{}, {"type": "message"}, {"type": None}])
def test_a_message_may_leave_out_that_it_is_one(role, kind):
    assert read({"role": role, "content": "Hello", **kind}) == [(role, ("Hello",))]


def test_content_is_a_string_or_parts_of_text():
    kinds = ("input_text", "output_text", "text")
    parts = [{"type": kind, "text": kind.upper()} for kind in kinds]
    found = read({"role": "user", "content": parts}, {"role": "user", "content": ""})
    assert found == [("user", ("INPUT_TEXT", "OUTPUT_TEXT", "TEXT")), ("user", ("",))]


def test_a_refusal_is_what_the_assistant_had_said():
    said = [{"type": "refusal", "refusal": "No"}]
    assert read({"role": "assistant", "content": said}) == [("assistant", ("No",))]
    assert (
        refusal({"role": "user", "content": [{"type": "refusal"}]}).param
        == "items[0].content[0].refusal"
    )


@pytest.mark.parametrize(
    "kind",
    ["function_call", "function_call_output", "item_reference", "reasoning", "mcp_call", "", "Message"],
)  # fmt: skip
def test_other_items_are_refused_by_their_name(kind):
    fault = refusal({"role": "user", "content": "x"}, {"type": kind, "id": "x"})
    assert (fault.code, fault.param) == ("unsupported_value", "items[1].type")
    assert f'"{kind}"' in fault.message


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio", "reasoning_text", ""])
def test_other_parts_are_refused_by_their_name(kind):
    fault = refusal({"role": "user", "content": [{"type": "text", "text": ""}, {"type": kind}]})
    assert (fault.code, fault.param) == ("unsupported_value", "items[0].content[1].type")
    assert f'"{kind}"' in fault.message


PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ("x", "", "invalid_type"),
        ({"type": 1}, ".type", "invalid_type"),
        ({"content": "x"}, ".role", "missing_required_parameter"),
        ({"role": 1, "content": "x"}, ".role", "invalid_type"),
        ({"role": "tool", "content": "x"}, ".role", "unsupported_value"),
        ({"role": "wizard", "content": "x"}, ".role", "invalid_value"),
        ({"role": "user"}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "content": None}, ".content", "missing_required_parameter"),
        ({"role": "user", "content": 1}, ".content", "invalid_type"),
        ({"role": "user", "content": []}, ".content", "empty_array"),
        ({"role": "user", "content": [PART, "x"]}, ".content[1]", "invalid_type"),
        ({"role": "user", "content": [{"text": "x"}]}, ".content[0].type",
         "missing_required_parameter"),
        ({"role": "user", "content": [{"type": []}]}, ".content[0].type", "invalid_type"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text",
         "missing_required_parameter"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, ".content[0].text",
         "invalid_type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(item, param, code):
    fault = refusal(item)
    assert (fault.param, fault.code) == (f"items[0]{param}", code)


def test_items_are_an_array():
    with pytest.raises(InvalidRequest) as caught:
        read_items({}, "input", [])
    assert (caught.value.param, caught.value.code) == ("input", "invalid_type")


def test_an_answer_may_be_sent_back_as_it_came():
    answer = Item("msg_1", "assistant", ("a", "b"), complete=False)
    ignored: list[str] = []
    sent = msgspec.to_builtins(wire_item(answer))
    assert read(sent, ignored=ignored) == [("assistant", ("a", "b"))]
    assert ignored == []


def test_names_that_mean_nothing_are_told():
    ignored: list[str] = []
    parts = [{"type": "text", "text": "x", "detail": "high"}]
    read({"role": "user", "content": parts, "name": "Ann"}, ignored=ignored)
    assert ignored == ["items[].name", "items[].content[].detail"]


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("role", ITEM_ROLES)
def test_an_item_is_sent_as_openai_writes_it(role, complete):
    sent = msgspec.json.encode(wire_item(Item("msg_1", role, ("a", "b"), complete)))
    theirs = Message.model_validate_json(sent, strict=True)
    assert (theirs.id, theirs.role) == ("msg_1", role)
    assert theirs.status == ("completed" if complete else "incomplete")
    parts = msgspec.json.decode(sent)["content"]
    if role == "assistant":
        more = {"annotations": [], "logprobs": []}
        assert parts == [{"type": "output_text", "text": text, **more} for text in "ab"]
    else:
        assert parts == [{"type": "input_text", "text": text} for text in "ab"]
