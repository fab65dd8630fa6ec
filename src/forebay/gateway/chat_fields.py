"""Every field of POST /v1/chat/completions and of its messages (see `fields.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.core.json_schema import MAX_BYTES, MAX_DEPTH
from forebay.gateway.continued import CONVERSATION_SCHEMA
from forebay.gateway.fields import (
    COMMON_IGNORED,
    COMMON_REFUSED,
    COMMON_SUPPORTED,
    NOTHING,
    OUTPUT_TOKENS,
    VLLM,
    Field,
    ignored,
    refused,
    supported,
    table,
)

MAX_MESSAGES = 2048
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_TEMPLATE = "vLLM's way into the prompt; the model's own template is used as it is"
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_REFUSAL_PART = {
    "type": "object",
    "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
    "required": ["type", "refusal"],
}


def _message(roles: list[str], content: object, *, required: bool) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"role": {"enum": roles}, "content": content},
        "required": ["role", "content"] if required else ["role"],
    }


_OTHERS = _message(
    ["system", "developer", "user"],
    {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART, "minItems": 1}]},
    required=True,
)
_ASSISTANT = _message(
    ["assistant"],
    {
        "anyOf": [
            {"type": ["string", "null"]},
            {"type": "array", "items": {"anyOf": [_TEXT_PART, _REFUSAL_PART]}},
        ]
    },
    required=False,
)
_RESPONSE_FORMAT = {
    "anyOf": [
        {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]},
        {"type": "object", "properties": {"type": {"const": "json_object"}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "schema": {"const": {"type": "object"}},
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
    ]
}

CHAT_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "messages",
            f"1 to {MAX_MESSAGES}; roles system, developer (= system), user, assistant; content "
            "is a string or an array of text parts (joined by a line break); leading system "
            "messages are merged (joined by an empty line)",
            {
                "type": "array",
                "items": {"anyOf": [_OTHERS, _ASSISTANT]},
                "minItems": 1,
                "maxItems": MAX_MESSAGES,
            },
            required=True,
        ),
        supported(
            "conversation",
            "id of a conversation (POST /v1/conversations), or an object of `id` and `on_expired` "
            "(error, or new: one that is gone is begun anew): `messages` are then only what is new, "
            "the past is put before them and this turn is added to it; `n` must be 1 (an extension)",
            CONVERSATION_SCHEMA,
        ),
        supported(
            "max_completion_tokens",
            f"1 to {OUTPUT_TOKENS['maximum']}; with max_tokens: the smaller; lowered to the "
            "model's or key's maximum",
            OUTPUT_TOKENS,
        ),
        supported("max_tokens", "the older name of max_completion_tokens", OUTPUT_TOKENS),
        supported(
            "response_format",
            "text, json_object, or json_schema with a schema (also not nested in `json_schema`) of "
            f"at most {MAX_BYTES // 1024} KiB and {MAX_DEPTH} levels: enforced while the answer is "
            "generated, whatever `strict` says; more under JSON",
            _RESPONSE_FORMAT,
        ),
        supported(
            "logprobs",
            "boolean: the log-probability of each token of the answer, before temperature and "
            "penalties; a token that is part of a stop string has none",
            {"type": "boolean"},
        ),
    ),
    COMMON_SUPPORTED,
    (
        refused("tools", "tool calling is not built yet"),
        refused("tool_choice", "tool calling is not built yet", ("none", "auto", *NOTHING)),
        refused("parallel_tool_calls", "tool calling is not built yet"),
        refused("functions", "the older name of tools"),
        refused("function_call", "the older name of tool_choice", ("none", "auto", *NOTHING)),
        refused("top_logprobs", "the engines here report the chosen token's alone", (0,)),
        refused("previous_response_id", "use conversation, or POST /v1/responses"),
        refused("background", "use POST /v1/responses"),
        refused("audio", "text only"),
        refused("modalities", "text only", (["text"], *NOTHING)),
        refused("prediction", "predicted outputs are not built"),
        refused("moderation", "no moderation is applied"),
        refused("web_search_options", "no web search"),
        refused("reasoning_effort", "the models here do not reason", ("none", "")),
        refused("verbosity", "the models here have no such setting", ("medium", "")),
        refused("thinking_token_budget", "vLLM's; the models here do not reason", ()),
        refused("best_of", "all choices are returned; use n", (1, "")),
        refused("echo", VLLM),
        refused("add_generation_prompt", VLLM, (True, "")),
        refused("continue_final_message", VLLM),
        refused("documents", VLLM),
        refused("chat_template", _TEMPLATE),
        refused("chat_template_kwargs", _TEMPLATE),
        refused("media_io_kwargs", "vLLM's; text only"),
        refused("mm_processor_kwargs", "vLLM's; text only"),
    ),
    COMMON_REFUSED,
    COMMON_IGNORED,
    (
        ignored("safety_identifier", "as user"),
        ignored("metadata", "answers are stored in a conversation only, without metadata"),
        ignored("store", "answers are stored in a conversation only, and always"),
        ignored("prompt_cache_key", "prefixes are cached per organisation"),
        ignored("prompt_cache_options", "as prompt_cache_key"),
        ignored("prompt_cache_retention", "as prompt_cache_key"),
        ignored("include_reasoning", "vLLM's; there is no reasoning"),
    ),
)

MESSAGE_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "role", "system, developer, user or assistant", {"enum": [*ROLES]}, required=True
        ),
        supported(
            "content",
            "a string or text parts; may be null for the assistant",
            {"type": ["string", "array"]},
        ),
        refused("tool_calls", "tool calling is not built yet"),
        refused("function_call", "the older name of tool_calls"),
        refused("audio", "text only"),
        ignored("name", "the models' templates have no place for it"),
        ignored("refusal", "a refusal's text belongs into content"),
        ignored("annotations", "they come with answers that are sent back as history"),
        ignored("tool_call_id", "only tool messages have one"),
        ignored("reasoning", "reasoning is not part of a history"),
        ignored("reasoning_content", "as reasoning"),
    ),
)
