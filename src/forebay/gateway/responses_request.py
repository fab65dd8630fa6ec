"""What POST /v1/responses asks for: items, what they go on from, and what is to be kept of it.

Not here: which fields there are (`responses_fields.py`), what an item may be (`items.py`), what
responses have in common with chat (`request.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from forebay.core.errors import InvalidRequest, UnsupportedParameter
from forebay.core.job import Sampling
from forebay.gateway.continued import MAX_ID_CHARACTERS, Continued, conversation
from forebay.gateway.conversation_request import read_metadata
from forebay.gateway.fields import MAX_OUTPUT_TOKENS, screen
from forebay.gateway.items import RoleAndParts, read_items
from forebay.gateway.read import boolean, integer, missing, seen, text, wrong_type
from forebay.gateway.request import ApiRequest, common
from forebay.gateway.response_format import json_schema
from forebay.gateway.responses_fields import (
    INCLUDABLE,
    LOGPROBS,
    MAX_ITEMS,
    MAX_NAME_CHARACTERS,
    RESPONSES_FIELDS,
)
from forebay.gateway.responses_schema import ID_PREFIX, Echo, WireText
from forebay.gateway.schema import TIERS

_TEXT_KEYS = frozenset({"format", "verbosity"})
_TOOLS_SHOWN, _TOOL_CHARACTERS = 10, 64


def parse_response(body: Mapping[str, Any], defaults: Callable[[str], Sampling]) -> ApiRequest:
    """Check every field. Raises InvalidRequest, UnsupportedParameter.

    `defaults`: how a call of a model is sampled if it says nothing; the response tells.
    """
    _refuse_tools(body.get("tools"))
    ignored = screen(body, RESPONSES_FIELDS)
    answer = _text(body.get("text"), ignored)
    continued = _continued(body, ignored)
    request = common(
        {name: value for name, value in body.items() if name != "stream_options"},
        ignored,
        logprobs=_logprobs(body.get("include")),
        json_schema=json_schema(answer.format, "text.format", nested=False),
        max_output_tokens=integer(body, "max_output_tokens", low=1, high=MAX_OUTPUT_TOKENS),
    )
    background = _background(body, continued)
    echo = _echo(body, request, answer, continued, defaults(request.model))
    return msgspec.structs.replace(
        request,
        include_usage=True,
        background=background,
        continued=msgspec.structs.replace(continued, record=msgspec.json.encode(echo)),
    )


def _refuse_tools(tools: Any) -> None:
    """By what they are. What is no array of them is refused as any other field."""
    if not isinstance(tools, list) or not tools:
        return
    named = ", ".join(_tool(tool) for tool in tools[:_TOOLS_SHOWN])
    more = ", …" if len(tools) > _TOOLS_SHOWN else ""
    raise UnsupportedParameter(
        f"Tool calling is not built yet, and the request has these tools: {named}{more}. Remove "
        "them, or send an empty array.",
        param="tools",
    )


def _tool(tool: Any) -> str:
    """Its type, and its name where it has one."""
    if not isinstance(tool, dict):
        return seen(tool)
    words = (tool.get("type"), tool.get("name"))
    shown = [word[:_TOOL_CHARACTERS] for word in words if isinstance(word, str)]
    return " ".join(shown) or "one without a type"


def _continued(body: Mapping[str, Any], ignored: list[str]) -> Continued:
    spoken = _input(body.get("input"), ignored)
    previous_id = _previous(body.get("previous_response_id"))
    found = conversation(body, ignored)
    if found is not None and previous_id is not None:
        raise InvalidRequest(
            "A response goes on from a conversation or from a previous response, not from both. "
            "Remove conversation or previous_response_id.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    conversation_id, fresh = found or (None, False)
    kept = boolean(body, "store") is not False or conversation_id is not None
    return Continued(
        spoken=spoken,
        field="input",
        turn_prefix=ID_PREFIX if kept else "",
        conversation_id=conversation_id,
        previous_id=previous_id,
        instructions=_named(body, "instructions", high=None) or "",
        fresh=fresh,
        cut=_truncation(body.get("truncation")) != "disabled",
    )


def _input(value: Any, ignored: list[str]) -> tuple[RoleAndParts, ...]:
    if value is None:
        raise missing("input", "Send what the user says, or an array of messages.")
    if isinstance(value, str):
        return (("user", (value,)),)
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array of messages", value)
    if not value:
        raise InvalidRequest(
            "input is empty. Send at least one message.", param="input", code="empty_array"
        )
    if len(value) > MAX_ITEMS:
        raise InvalidRequest(
            f"input has {len(value)} items; the limit is {MAX_ITEMS}.",
            param="input",
            code="array_above_max_length",
        )
    return tuple(read_items(value, "input", ignored))


def _previous(value: Any) -> str | None:
    """A turn of a chat has no response to go on from."""
    if value is None:
        return None
    id_ = text(value, "previous_response_id", low=1, high=MAX_ID_CHARACTERS)
    if not id_.startswith(ID_PREFIX):
        raise InvalidRequest(
            f"previous_response_id is {seen(id_)}, but ids of responses begin with {ID_PREFIX}.",
            param="previous_response_id",
        )
    return id_


def _background(body: Mapping[str, Any], continued: Continued) -> bool:
    """What nobody waits for has to be stored."""
    background = boolean(body, "background") or False
    if background and not continued.turn_prefix:
        raise InvalidRequest(
            "background is true and store is false, but a response in the background is asked for "
            "later. Send store: true, or leave it out.",
            param="background",
            code="unsupported_value",
        )
    return background


def _truncation(value: Any) -> Literal["auto", "disabled"] | None:
    if value == "auto":
        return "auto"
    if value == "disabled":
        return "disabled"
    if value is None:
        return None
    raise _none_of("truncation", value, "auto or disabled")


def _text(value: Any, ignored: list[str]) -> WireText:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise wrong_type("text", "an object", value)
    ignored += [f"text.{name}" for name in value if name not in _TEXT_KEYS]
    verbosity = value.get("verbosity")
    if verbosity not in (None, "medium"):
        raise InvalidRequest(
            f"text.verbosity is {seen(verbosity)}, but the models here have no such setting. Send "
            "medium, or leave it out.",
            param="text.verbosity",
            code="unsupported_value",
        )
    format_ = value.get("format")
    if format_ is not None and not isinstance(format_, dict):
        raise wrong_type("text.format", "an object", format_)
    return WireText(format_ or {"type": "text"})


def _echoed(answer: WireText) -> WireText:
    """A schema not nested and with a name, as readers of responses expect it."""
    asked = answer.format
    if asked.get("type") != "json_schema":
        return answer
    inner = asked.get("json_schema") or asked
    name = inner.get("name")
    shown = {
        "type": "json_schema",
        "name": name if isinstance(name, str) else "schema",
        "schema": inner["schema"],
        "strict": inner.get("strict") is not False,
    }
    description = inner.get("description")
    return WireText(shown | ({"description": description} if isinstance(description, str) else {}))


def _logprobs(include: Any) -> bool:
    """Whether they are to be included; a name that is not OpenAI's is refused."""
    if include is None:
        return False
    if not isinstance(include, list):
        raise wrong_type("include", "an array", include)
    for position, name in enumerate(include):
        path = f"include[{position}]"
        if not isinstance(name, str):
            raise wrong_type(path, "a string", name)
        if name not in INCLUDABLE:
            raise InvalidRequest(
                f"{path} is {seen(name)}, but must be one of {', '.join(INCLUDABLE)}.",
                param=path,
                code="unsupported_value",
            )
    return LOGPROBS in include


def _echo(
    body: Mapping[str, Any],
    request: ApiRequest,
    answer: WireText,
    continued: Continued,
    defaults: Sampling,
) -> Echo:
    wish = request.sampling
    parallel = boolean(body, "parallel_tool_calls")
    metadata = body.get("metadata")
    return Echo(
        background=boolean(body, "background") or False,
        instructions=_named(body, "instructions", high=None),
        max_output_tokens=request.max_output_tokens,
        model=request.model,
        parallel_tool_calls=parallel is not False,
        previous_response_id=continued.previous_id,
        prompt_cache_key=_named(body, "prompt_cache_key"),
        safety_identifier=_named(body, "safety_identifier"),
        service_tier=TIERS[request.lane],
        store=boolean(body, "store") is not False,
        temperature=defaults.temperature if wish.temperature is None else wish.temperature,
        text=_echoed(answer),
        tool_choice=_tool_choice(body.get("tool_choice")),
        top_p=defaults.top_p if wish.top_p is None else wish.top_p,
        presence_penalty=wish.presence_penalty,
        frequency_penalty=wish.frequency_penalty,
        truncation=_truncation(body.get("truncation")) or "auto",
        user=_named(body, "user"),
        metadata={} if metadata is None else read_metadata(metadata),
    )


def _named(
    body: Mapping[str, Any], name: str, *, high: int | None = MAX_NAME_CHARACTERS
) -> str | None:
    value = body.get(name)
    return None if value is None else text(value, name, low=0, high=high)


def _tool_choice(value: Any) -> Literal["none", "auto"]:
    if value is None or value == "auto":
        return "auto"
    if value == "none":
        return "none"
    raise UnsupportedParameter(
        f"tool_choice is {seen(value)}, but tool calling is not built yet. Send none or auto, or "
        "leave it out.",
        param="tool_choice",
    )


def _none_of(name: str, value: Any, those: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {seen(value)}, but must be {those}.",
        param=name,
        code="invalid_value" if isinstance(value, str) else "invalid_type",
    )
