"""Every field of POST /v1/completions (see `fields.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.gateway.fields import (
    COMMON_IGNORED,
    COMMON_REFUSED,
    COMMON_SUPPORTED,
    OUTPUT_TOKENS,
    Field,
    refused,
    supported,
    table,
)

# OpenAI's default, which clients count on.
DEFAULT_OUTPUT_TOKENS = 16
_ID = {"type": "integer", "minimum": 0}
_IDS = {"type": "array", "items": _ID, "minItems": 1}

COMPLETION_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "prompt",
            "a string, an array of one string, an array of token ids, or an array of one such "
            "array; completed as it is, without a chat template; text never becomes a control "
            "token, and ids of control tokens are refused",
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1},
                        "minItems": 1,
                        "maxItems": 1,
                    },
                    _IDS,
                    {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 1},
                ]
            },
            required=True,
        ),
        supported(
            "max_tokens",
            f"1 to {OUTPUT_TOKENS['maximum']}, by default {DEFAULT_OUTPUT_TOKENS}; lowered to the "
            "model's or key's maximum",
            OUTPUT_TOKENS,
        ),
        supported(
            "logprobs",
            "0: the log-probability of each token of the answer; more, for that many other tokens, "
            "is refused because the engines here report the chosen token's alone",
            {"type": "integer", "minimum": 0, "maximum": 0},
        ),
    ),
    COMMON_SUPPORTED,
    (
        refused("best_of", "all choices are returned; use n", (1, "")),
        refused("echo", "the prompt is not part of the answer"),
        refused("suffix", "text is only continued, not filled in"),
        refused("conversation", "use POST /v1/chat/completions, or POST /v1/responses"),
        refused("previous_response_id", "use POST /v1/responses"),
        refused("background", "use POST /v1/responses"),
        refused("response_format", "use POST /v1/chat/completions", ({"type": "text"}, "", {})),
    ),
    COMMON_REFUSED,
    COMMON_IGNORED,
)
