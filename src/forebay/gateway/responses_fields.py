"""Every field of POST /v1/responses (see `fields.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.core.json_schema import MAX_BYTES, MAX_DEPTH
from forebay.gateway.continued import CONVERSATION_SCHEMA, MAX_ID_CHARACTERS
from forebay.gateway.conversation_request import METADATA, METADATA_NOTE
from forebay.gateway.fields import (
    COMMON_IGNORED,
    COMMON_REFUSED,
    COMMON_SUPPORTED,
    OUTPUT_TOKENS,
    Field,
    ignored,
    refused,
    supported,
    table,
)
from forebay.gateway.items import ITEM_SCHEMA

MAX_ITEMS = 2048
MAX_NAME_CHARACTERS = 512

LOGPROBS = "message.output_text.logprobs"
# What else OpenAI has to include is of items and parts that no response here has.
INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)

# Of those in common, these have another meaning here, or none.
_OTHERWISE = frozenset({"n", "stream_options", "user"})
_NAME = {"type": "string", "maxLength": MAX_NAME_CHARACTERS}
_TEXT = {
    "type": "object",
    "properties": {
        "format": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"type": {"enum": ["text", "json_object"]}},
                    "required": ["type"],
                },
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "json_schema"},
                        "name": {"type": "string"},
                        "schema": {"const": {"type": "object"}},
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["type", "schema"],
                },
                {"type": "null"},
            ]
        },
        "verbosity": {"enum": ["medium", None]},
    },
}

RESPONSES_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "input",
            f"a string (what the user says), or 1 to {MAX_ITEMS} messages, with or without "
            '`type: "message"`; roles system, developer, user, assistant; content is a string or '
            "text parts; other items (calls of tools, references, reasoning) and parts (images, "
            "files) get `unsupported_value`",
            {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": ITEM_SCHEMA, "minItems": 1, "maxItems": MAX_ITEMS},
                ]
            },
            required=True,
        ),
        supported(
            "instructions",
            "a system message of this call alone: it is not carried over to what goes on from here",
            {"type": "string"},
        ),
        supported(
            "previous_response_id",
            "a stored response: what was said up to it is put before the input",
            {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS},
        ),
        supported(
            "conversation",
            "id of a conversation, or an object of `id` and `on_expired` (error, or new: one that is "
            "gone is begun anew; an extension): the past is put before the input and this turn is "
            "added to it; not together with previous_response_id",
            CONVERSATION_SCHEMA,
        ),
        supported(
            "store",
            "true unless it is false: the response can be asked for and gone on from later; one of a "
            "conversation is stored whatever is said here, because it belongs to that",
            {"type": "boolean"},
        ),
        supported(
            "background",
            "true: the answer comes at once, and the response is asked for later, with GET; with "
            "`stream` its events are sent too, and can be read again with `starting_after`; it needs "
            "`store`, has no deadline in the queue, and goes on after a restart of the server",
            {"type": "boolean"},
        ),
        supported(
            "truncation",
            "auto: a past that does not fit is cut, whole turns, the oldest first; disabled: it is "
            "refused with `context_length_exceeded`; by default auto, where OpenAI has disabled; "
            "the input and instructions are never cut",
            {"enum": ["auto", "disabled"]},
        ),
        supported(
            "max_output_tokens",
            f"1 to {OUTPUT_TOKENS['maximum']} (OpenAI's least is 16); lowered to the model's or "
            "key's maximum",
            OUTPUT_TOKENS,
        ),
        supported(
            "text",
            "`format`: text, json_object, or json_schema with its schema not nested, of at most "
            f"{MAX_BYTES // 1024} KiB and {MAX_DEPTH} levels: enforced whatever `strict` says, more "
            "under JSON; `verbosity`: medium alone",
            _TEXT,
        ),
        supported(
            "include",
            f"`{LOGPROBS}`: the log-probability of each token of the answer; what else OpenAI has to "
            "include is of tools, images and reasoning: there is none; others get `unsupported_value`",
            {"type": "array", "items": {"enum": [*INCLUDABLE]}},
        ),
        supported("metadata", f"{METADATA_NOTE}; kept with the response", METADATA),
        supported("tool_choice", "none or auto: there are no tools", {"enum": ["none", "auto"]}),
        supported("parallel_tool_calls", "boolean; there are no tools", {"type": "boolean"}),
        supported("user", "repeated in the response; end users are not told apart", _NAME),
        supported("safety_identifier", "as user", _NAME),
        supported(
            "prompt_cache_key", "as user; prefixes are cached per organisation anyway", _NAME
        ),
    ),
    (field for field in COMMON_SUPPORTED if field.name not in _OTHERWISE),
    (
        refused("tools", "tool calling is not built yet"),
        refused("messages", "use input"),
        refused("max_tokens", "use max_output_tokens", ()),
        refused("max_completion_tokens", "use max_output_tokens", ()),
        refused("response_format", "use text.format"),
        refused("prompt", "prompts are not stored here; send instructions and input"),
        refused("top_logprobs", "the engines here report the chosen token's alone", (0,)),
        refused("n", "a response is one answer", (1,)),
        refused("context_management", "compaction is not built yet"),
        refused("moderation", "no moderation is applied"),
    ),
    COMMON_REFUSED,
    (
        ignored("stream_options", "include_obfuscation is for what is not built here"),
        ignored("reasoning", "the models here do not reason"),
        ignored("max_tool_calls", "there are no tools"),
        ignored("client_metadata", "clients send it for themselves"),
        ignored("background_options", "nothing of a response in the background can be chosen"),
        ignored("image", "text only"),
        ignored("prompt_cache_options", "as prompt_cache_key"),
        ignored("prompt_cache_retention", "as prompt_cache_key"),
    ),
    (field for field in COMMON_IGNORED if field.name not in _OTHERWISE),
)
