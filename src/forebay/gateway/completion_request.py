"""What POST /v1/completions asks for: a prompt that is continued as it is.

Not here: which fields there are (`completion_fields.py`), what plain completions have in common with
chat (`request.py`), which ids a model has (`forebay.tokens`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.core.errors import InvalidRequest
from forebay.gateway.completion_fields import COMPLETION_FIELDS, DEFAULT_OUTPUT_TOKENS
from forebay.gateway.fields import MAX_OUTPUT_TOKENS, screen
from forebay.gateway.read import integer, missing, seen, text, wrong_type
from forebay.gateway.request import ApiRequest, common

_EXPECTED = "a string, an array of one string, or token ids"
_EMPTY = "Send at least one character: an answer needs something to continue."

_NO_IDS = "Send at least one token id, or text."


def parse_completion(body: Mapping[str, Any]) -> ApiRequest:
    """Check every field. Raises InvalidRequest, UnsupportedParameter."""
    ignored = screen(body, COMPLETION_FIELDS)
    maximum = integer(body, "max_tokens", low=1, high=MAX_OUTPUT_TOKENS)
    return common(
        body,
        ignored,
        logprobs=_logprobs(body),
        max_output_tokens=DEFAULT_OUTPUT_TOKENS if maximum is None else maximum,
        prompt=_prompt(body.get("prompt")),
    )


def _logprobs(body: Mapping[str, Any]) -> bool:
    """A count of alternatives: 0 means the chosen token alone, which is all there is here."""
    if body.get("logprobs") is False:  # chat's way of asking for nothing
        return False
    value = integer(body, "logprobs", low=0, high=2**31)
    if value:
        raise InvalidRequest(
            f"logprobs is {value}, but the engines here report the chosen token's alone. Send 0 for "
            "that, or leave it out.",
            param="logprobs",
            code="unsupported_value",
        )
    return value == 0


def _prompt(value: Any) -> str | tuple[int, ...]:
    if value is None:
        raise missing("prompt", "Send the text that is to be continued.")
    if isinstance(value, str):
        return text(value, "prompt", low=1, high=None, if_empty=_EMPTY)
    if not isinstance(value, list):
        raise wrong_type("prompt", _EXPECTED, value)
    if not value:
        raise InvalidRequest(f"prompt is empty. {_NO_IDS}", param="prompt", code="empty_array")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return _ids(value, "prompt")
    if len(value) > 1:
        raise InvalidRequest(
            f"prompt has {len(value)} entries, but a call continues one prompt. Send a call for each.",
            param="prompt",
            code="unsupported_value",
        )
    only = value[0]
    if isinstance(only, str):
        return text(only, "prompt[0]", low=1, high=None, if_empty=_EMPTY)
    if not isinstance(only, list):
        raise wrong_type("prompt[0]", "a string or token ids", only)
    return _ids(only, "prompt[0]")


def _ids(values: list[Any], path: str) -> tuple[int, ...]:
    if not values:
        raise InvalidRequest(f"{path} is empty. {_NO_IDS}", param=path, code="empty_array")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(f"{path}[{position}]", "a token id", value)
        if value < 0:
            raise InvalidRequest(
                f"{path}[{position}] is {seen(value)}, but a token id is 0 or more.",
                param=f"{path}[{position}]",
                code="integer_below_min_value",
            )
    return tuple(values)
