"""What POST /v1/chat/completions asks for: messages, what they go on from, the answer's format.

Not here: which fields there are (`chat_fields.py`), what chat has in common with plain completions
(`request.py`), what schemas are accepted (`forebay.core.json_schema`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.core.call import Message
from forebay.core.errors import InvalidRequest
from forebay.gateway.chat_fields import CHAT_FIELDS, MAX_MESSAGES, MESSAGE_FIELDS, ROLES
from forebay.gateway.continued import Continued, conversation
from forebay.gateway.fields import MAX_CHOICES, MAX_OUTPUT_TOKENS, screen
from forebay.gateway.read import boolean, integer, missing, seen, text, wrong_type
from forebay.gateway.request import ApiRequest, common
from forebay.gateway.response_format import json_schema

ROLE_NAMES = "system, developer, user and assistant"
_UNBUILT_PARTS = frozenset({"image_url", "input_audio", "file", "video_url", "audio_url"})


def parse_chat(body: Mapping[str, Any]) -> ApiRequest:
    """Check every field. Raises InvalidRequest, UnsupportedParameter."""
    ignored = screen(body, CHAT_FIELDS)
    messages = _messages(body, ignored)
    continued = _continued(body, ignored, messages)
    return common(
        body,
        ignored,
        logprobs=boolean(body, "logprobs") or False,
        json_schema=json_schema(body.get("response_format")),
        max_output_tokens=_max_output_tokens(body),
        messages=() if continued else _merge_leading_system(messages),
        continued=continued,
    )


def _continued(
    body: Mapping[str, Any], ignored: list[str], messages: Sequence[Message]
) -> Continued | None:
    """With a conversation, the messages are only what is new in it."""
    found = conversation(body, ignored)
    if found is None:
        return None
    if (integer(body, "n", low=1, high=MAX_CHOICES) or 1) > 1:
        raise InvalidRequest(
            f"n is {seen(body['n'])}, but a conversation goes on with one answer. Leave n out.",
            param="n",
            code="unsupported_value",
        )
    id_, fresh = found
    return Continued(
        spoken=tuple((message.role, (message.content,)) for message in messages),
        field="messages",
        turn_prefix="turn_",
        conversation_id=id_,
        fresh=fresh,
    )


def _max_output_tokens(body: Mapping[str, Any]) -> int | None:
    """Both names are taken; the smaller wins, so neither limit is ever overrun."""
    names = ("max_completion_tokens", "max_tokens")
    found = [integer(body, name, low=1, high=MAX_OUTPUT_TOKENS) for name in names]
    return min((value for value in found if value is not None), default=None)


def _messages(body: Mapping[str, Any], ignored: list[str]) -> list[Message]:
    value = body.get("messages")
    if value is None:
        raise missing("messages", "Send at least one message.")
    if not isinstance(value, list):
        raise wrong_type("messages", "an array", value)
    if not value:
        raise InvalidRequest(
            "messages is empty. Send at least one message.", param="messages", code="empty_array"
        )
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(value)} messages; the limit is {MAX_MESSAGES}.",
            param="messages",
            code="array_above_max_length",
        )
    return [_message(item, f"messages[{i}]", ignored) for i, item in enumerate(value)]


def _message(value: Any, path: str, ignored: list[str]) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    role = _role(value.get("role"), f"{path}.role")
    for name in screen(value, MESSAGE_FIELDS, path=f"{path}."):
        ignored.append("messages[]" + name[len(path) :])
    content = value.get("content")
    if content is None:
        if role == "assistant":
            return Message(role, "")
        raise missing(f"{path}.content", "Send a string or an array of text parts.")
    return Message(role, _content(content, f"{path}.content", role))


def _role(value: Any, path: str) -> str:
    if value is None:
        raise missing(path, f"Roles are {ROLE_NAMES}.")
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    role = ROLES.get(value)
    if role is not None:
        return role
    if value in ("tool", "function"):
        raise InvalidRequest(
            f"{path} is {seen(value)}, which needs tool calling, and that is not supported. "
            f"Roles are {ROLE_NAMES}.",
            param=path,
            code="unsupported_value",
        )
    raise InvalidRequest(
        f"{path} is {seen(value)}, but must be one of {ROLE_NAMES}.",
        param=path,
        code="invalid_value",
    )


def _content(value: Any, path: str, role: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    if not value and role != "assistant":
        raise InvalidRequest(
            f"{path} is an empty array. Send a string or text parts.",
            param=path,
            code="empty_array",
        )
    return "\n".join([_part(part, f"{path}[{i}]", role) for i, part in enumerate(value)])


def _part(value: Any, path: str, role: str) -> str:
    """The text of a content part. A refusal in the history is what the assistant had said."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    kind = value.get("type")
    if kind is None:
        raise missing(f"{path}.type", 'Send {"type": "text", "text": …}.')
    if kind == "text" or (kind == "refusal" and role == "assistant"):
        said = value.get(kind)
        if said is None:
            raise missing(f"{path}.{kind}", "Send the text of this part.")
        return text(said, f"{path}.{kind}", low=0, high=None)
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    unbuilt = kind in _UNBUILT_PARTS
    raise InvalidRequest(
        f"{path}.type is {seen(kind)}, but only text parts are supported. Remove this part.",
        param=f"{path}.type",
        code="unsupported_value" if unbuilt else "invalid_value",
    )


def _merge_leading_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Several system messages at the start are one; most templates take no more.

    Later ones stay where they are: whether a model's template can show them is its own business.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    if leading < 2:
        return tuple(messages)
    merged = "\n\n".join(message.content for message in messages[:leading])
    return (Message("system", merged), *messages[leading:])
