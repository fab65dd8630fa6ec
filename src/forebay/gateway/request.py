"""A JSON object becomes a ChatRequest, or an error that says exactly what is wrong with it.

Every message says what was wrong, the value seen, the limit, and so what to do; `param` is the
path of the value, such as `messages[2].content[0].type`. The codes are OpenAI's.

Null means absent for every optional field. A boolean is never a number, 1.0 never an integer.

Not here: which fields exist at all (`fields.py`), whether the model does (`forebay.catalog`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forebay.core.call import Message, SamplingWish
from forebay.core.errors import InvalidRequest, UnsupportedParameter
from forebay.core.job import Lane
from forebay.gateway.fields import (
    MAX_MESSAGES,
    MAX_MODEL_CHARACTERS,
    MAX_OUTPUT_TOKENS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MESSAGE_FIELDS,
    STREAM_OPTIONS,
    screen,
)
from forebay.gateway.schema import LANES

_INT64 = 2**63
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ROLE_NAMES = "system, developer, user and assistant"
_UNBUILT_PARTS = frozenset({"image_url", "input_audio", "file", "video_url", "audio_url"})
_SEEN_CHARACTERS = 60
_WHICH_MODELS = "GET /v1/models lists the models that this key may use."


class ChatRequest(msgspec.Struct, frozen=True):
    """A valid request. `ignored` are the names in it that mean nothing to us."""

    model: str
    messages: tuple[Message, ...]
    lane: Lane
    streamed: bool
    include_usage: bool
    running_usage: bool
    max_output_tokens: int | None
    sampling: SamplingWish
    ignored: tuple[str, ...]


def parse(body: Mapping[str, Any]) -> ChatRequest:
    """Check every field. Raises InvalidRequest, UnsupportedParameter."""
    ignored = screen(body)
    _only_one_choice(body)
    streamed = _boolean(body, "stream") or False
    options = _stream_options(body, ignored) if streamed else {}
    return ChatRequest(
        model=_model(body),
        messages=_messages(body, ignored),
        lane=_lane(body),
        streamed=streamed,
        include_usage=_boolean(options, "include_usage", path="stream_options.") or False,
        running_usage=_boolean(options, "continuous_usage_stats", path="stream_options.") or False,
        max_output_tokens=_max_output_tokens(body),
        sampling=SamplingWish(
            temperature=_decimal(body, "temperature", low=0, high=2),
            top_p=_top_p(body),
            top_k=_integer(body, "top_k", low=1, high=_INT64 - 1),
            seed=_integer(body, "seed", low=-_INT64, high=_INT64 - 1),
            stop=_stop(body),
            ignore_eos=_boolean(body, "ignore_eos") or False,
        ),
        ignored=tuple(dict.fromkeys(ignored)),
    )


def _model(body: Mapping[str, Any]) -> str:
    value = body.get("model")
    if value is None:
        raise _missing("model", _WHICH_MODELS)
    return _text(value, "model", low=1, high=MAX_MODEL_CHARACTERS, if_empty=_WHICH_MODELS)


def _only_one_choice(body: Mapping[str, Any]) -> None:
    n = _integer(body, "n", low=1, high=_INT64)
    if n is not None and n > 1:
        raise UnsupportedParameter(
            f"n is {n}, but only one choice per call is supported. Send {n} calls instead.",
            param="n",
        )


def _max_output_tokens(body: Mapping[str, Any]) -> int | None:
    """Both names are taken; the smaller wins, so neither limit is ever overrun."""
    names = ("max_completion_tokens", "max_tokens")
    found = [_integer(body, name, low=1, high=MAX_OUTPUT_TOKENS) for name in names]
    return min((value for value in found if value is not None), default=None)


def _lane(body: Mapping[str, Any]) -> Lane:
    value = body.get("service_tier")
    if value is None:
        return Lane.INTERACTIVE
    lane = LANES.get(value) if isinstance(value, str) else None
    if lane is None:
        raise InvalidRequest(
            f"service_tier is {_seen(value)}, but must be one of {', '.join(LANES)}.",
            param="service_tier",
            code="invalid_value" if isinstance(value, str) else "invalid_type",
        )
    return lane


def _stream_options(body: Mapping[str, Any], ignored: list[str]) -> Mapping[str, Any]:
    value = body.get("stream_options")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong_type("stream_options", "an object", value)
    ignored += [f"stream_options.{name}" for name in value if name not in STREAM_OPTIONS]
    return value


def _top_p(body: Mapping[str, Any]) -> float | None:
    value = _decimal(body, "top_p", low=0, high=1)
    if value == 0:
        raise InvalidRequest(
            "top_p is 0, but must be above 0 and at most 1. For greedy decoding send "
            "temperature 0.",
            param="top_p",
            code="decimal_below_min_value",
        )
    return value


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (_text(value, "stop", low=1, high=MAX_STOP_CHARACTERS),)
    if not isinstance(value, list):
        raise _wrong_type("stop", "a string or an array of strings", value)
    if len(value) > MAX_STOPS:
        raise InvalidRequest(
            f"stop has {len(value)} strings; the limit is {MAX_STOPS}.",
            param="stop",
            code="array_above_max_length",
        )
    return tuple(
        _text(item, f"stop[{i}]", low=1, high=MAX_STOP_CHARACTERS) for i, item in enumerate(value)
    )


def _messages(body: Mapping[str, Any], ignored: list[str]) -> tuple[Message, ...]:
    value = body.get("messages")
    if value is None:
        raise _missing("messages", "Send at least one message.")
    if not isinstance(value, list):
        raise _wrong_type("messages", "an array", value)
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
    read = [_message(item, f"messages[{i}]", ignored) for i, item in enumerate(value)]
    return _merge_leading_system(read)


def _message(value: Any, path: str, ignored: list[str]) -> Message:
    if not isinstance(value, dict):
        raise _wrong_type(path, "an object", value)
    role = _role(value.get("role"), f"{path}.role")
    for name in screen(value, MESSAGE_FIELDS, path=f"{path}."):
        ignored.append("messages[]" + name[len(path) :])
    content = value.get("content")
    if content is None:
        if role == "assistant":
            return Message(role, "")
        raise _missing(f"{path}.content", "Send a string or an array of text parts.")
    return Message(role, _content(content, f"{path}.content", role))


def _role(value: Any, path: str) -> str:
    if value is None:
        raise _missing(path, f"Roles are {_ROLE_NAMES}.")
    if not isinstance(value, str):
        raise _wrong_type(path, "a string", value)
    role = _ROLES.get(value)
    if role is not None:
        return role
    if value in ("tool", "function"):
        raise InvalidRequest(
            f"{path} is {_seen(value)}, which needs tool calling, and that is not supported. "
            f"Roles are {_ROLE_NAMES}.",
            param=path,
            code="unsupported_value",
        )
    raise InvalidRequest(
        f"{path} is {_seen(value)}, but must be one of {_ROLE_NAMES}.",
        param=path,
        code="invalid_value",
    )


def _content(value: Any, path: str, role: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong_type(path, "a string or an array of parts", value)
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
        raise _wrong_type(path, "an object", value)
    kind = value.get("type")
    if kind is None:
        raise _missing(f"{path}.type", 'Send {"type": "text", "text": …}.')
    if kind == "text" or (kind == "refusal" and role == "assistant"):
        text = value.get(kind)
        if text is None:
            raise _missing(f"{path}.{kind}", "Send the text of this part.")
        return _text(text, f"{path}.{kind}", low=0, high=None)
    if not isinstance(kind, str):
        raise _wrong_type(f"{path}.type", "a string", kind)
    unbuilt = kind in _UNBUILT_PARTS
    raise InvalidRequest(
        f"{path}.type is {_seen(kind)}, but only text parts are supported. Remove this part.",
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


def _boolean(body: Mapping[str, Any], name: str, *, path: str = "") -> bool | None:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise _wrong_type(path + name, "true or false", value)


def _integer(body: Mapping[str, Any], name: str, *, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(name, "an integer", value)
    if not low <= value <= high:
        raise _out_of_range(name, value, low, high, "integer")
    return value


def _decimal(body: Mapping[str, Any], name: str, *, low: int, high: int) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(name, "a number", value)
    if not low <= value <= high:
        raise _out_of_range(name, value, low, high, "decimal")
    return float(value)


def _text(
    value: Any,
    path: str,
    *,
    low: int,
    high: int | None,
    if_empty: str = "Send at least one character, or leave it out.",
) -> str:
    if not isinstance(value, str):
        raise _wrong_type(path, "a string", value)
    if len(value) < low:
        raise InvalidRequest(
            f"{path} is an empty string. {if_empty}",
            param=path,
            code="string_below_min_length",
        )
    if high is not None and len(value) > high:
        raise InvalidRequest(
            f"{path} has {len(value)} characters ({_seen(value)}); the limit is {high}.",
            param=path,
            code="string_above_max_length",
        )
    return value


def _missing(path: str, hint: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: {path}. {hint}",
        param=path,
        code="missing_required_parameter",
    )


def _wrong_type(path: str, expected: str, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for {path}: expected {expected}, but got {_kind(value)} ({_seen(value)}).",
        param=path,
        code="invalid_type",
    )


def _out_of_range(path: str, value: float, low: int, high: int, kind: str) -> InvalidRequest:
    side = "below_min" if value < low else "above_max"
    return InvalidRequest(
        f"{path} is {_seen(value)}, but must be between {low} and {high}.",
        param=path,
        code=f"{kind}_{side}_value",
    )


def _kind(value: Any) -> str:
    """The JSON type, as a reader of the request would call it."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _seen(value: Any) -> str:
    """The value as it was sent, short enough for a message."""
    if isinstance(value, list | dict):
        return f"{len(value)} entries"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SEEN_CHARACTERS else text[: _SEEN_CHARACTERS - 1] + "…"
