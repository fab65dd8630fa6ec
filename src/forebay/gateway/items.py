"""Items of a dialogue as OpenAI's Responses and Conversations APIs write them: read, and written. Pure.

Only messages of text. What else an item or a part may be there is refused by its name.

Not here: how many items there may be, and who gives them their ids (the endpoints).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from forebay.core.dialogue import Item
from forebay.core.errors import InvalidRequest
from forebay.gateway.read import missing, seen, text, wrong_type

ITEM_ROLES = ("system", "developer", "user", "assistant")
PART_TYPES = ("input_text", "output_text", "text", "refusal")
# Beside those that are read: what comes with answers, and may be sent back with them.
ITEM_KEYS = frozenset({"type", "role", "content", "id", "status", "phase"})
PART_KEYS = frozenset(
    {"type", "text", "refusal", "annotations", "logprobs", "prompt_cache_breakpoint"}
)
# What an item may be in a request.
_PART = {
    "type": "object",
    "properties": {"type": {"enum": [*PART_TYPES]}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
ITEM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["message", None]},
        "role": {"enum": [*ITEM_ROLES]},
        "content": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "minItems": 1}]
        },
    },
    "required": ["role", "content"],
}

_ROLE_NAMES = "system, developer, user and assistant"
_TOOL_ROLES = ("tool", "function")

RoleAndParts = tuple[str, tuple[str, ...]]


class WireInputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """What somebody else than the model has said."""

    text: str


class WireOutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """What the model has said."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class WireItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `incomplete`: cut off by its maximum of tokens."""

    id: str
    type: Literal["message"] = "message"
    status: Literal["completed", "incomplete"]
    role: str
    content: list[WireInputText | WireOutputText]


def wire_item(item: Item) -> WireItem:
    """As it is sent."""
    kind = WireOutputText if item.role == "assistant" else WireInputText
    return WireItem(
        id=item.id,
        status="completed" if item.complete else "incomplete",
        role=item.role,
        content=[kind(part) for part in item.parts],
    )


def read_items(value: Any, path: str, ignored: list[str]) -> list[RoleAndParts]:
    """Role and texts of each; to `ignored` go the names that mean nothing. Raises InvalidRequest."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    read = [_item(each, f"{path}[{i}]") for i, each in enumerate(value)]
    for each in value:
        ignored += [f"{path}[].{name}" for name in each if name not in ITEM_KEYS]
        parts = each["content"] if isinstance(each["content"], list) else ()
        names = (name for part in parts for name in part if name not in PART_KEYS)
        ignored += [f"{path}[].content[].{name}" for name in names]
    return read


def _item(value: Any, path: str) -> RoleAndParts:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    kind = value.get("type")
    if kind is not None and kind != "message":
        raise _unsupported(f"{path}.type", kind, "messages", "item")
    role = _role(value.get("role"), f"{path}.role")
    content = value.get("content")
    if content is None:
        raise missing(f"{path}.content", "Send a string or an array of text parts.")
    if isinstance(content, str):
        return role, (content,)
    return role, _parts(content, f"{path}.content")


def _role(value: Any, path: str) -> str:
    if value is None:
        raise missing(path, f"Roles are {_ROLE_NAMES}.")
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if value not in ITEM_ROLES:
        raise InvalidRequest(
            f"{path} is {seen(value)}, but must be one of {_ROLE_NAMES}.",
            param=path,
            code="unsupported_value" if value in _TOOL_ROLES else "invalid_value",
        )
    return value


def _parts(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    if not value:
        raise InvalidRequest(
            f"{path} is an empty array. Send a string or text parts.",
            param=path,
            code="empty_array",
        )
    return tuple(_part(part, f"{path}[{i}]") for i, part in enumerate(value))


def _part(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    kind = value.get("type")
    if kind is None:
        raise missing(f"{path}.type", 'Send {"type": "input_text", "text": …}.')
    if kind not in PART_TYPES:
        raise _unsupported(f"{path}.type", kind, "text parts", "part")
    name = "refusal" if kind == "refusal" else "text"
    said = value.get(name)
    if said is None:
        raise missing(f"{path}.{name}", "Send the text of this part.")
    return text(said, f"{path}.{name}", low=0, high=None)


def _unsupported(path: str, kind: Any, supported: str, what: str) -> InvalidRequest:
    if not isinstance(kind, str):
        return wrong_type(path, "a string", kind)
    return InvalidRequest(
        f"{path} is {seen(kind)}, but only {supported} are supported. Remove this {what}.",
        param=path,
        code="unsupported_value",
    )
