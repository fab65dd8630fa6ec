"""Every request field of chat completions that we know of, and what becomes of each: one table.

    supported   read, checked and obeyed
    refused     known to OpenAI's API or to vLLM, and it would change the answer: 400
                `unsupported_parameter`, unless the value asks for nothing (`harmless`)
    ignored     on purpose: it changes no answer here

A name that is not in the table is ignored too, but named in the response header
`x-forebay-ignored` and counted. Null means absent, everywhere. Nothing but supported fields ever
reaches the pipeline, and nothing at all is passed through to an engine.

`docs/reference/chat-fields.md` is `markdown()`; a test compares the two.

Not here: how values are checked (`request.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from forebay.core.errors import UnsupportedParameter


class Kind(StrEnum):
    """What becomes of a field."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    IGNORED = "ignored"


# Values with which a client library spells "not used".
NOTHING: tuple[Any, ...] = (False, 0, "", [], {})


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `note` is its documentation, of a refused one the reason; `harmless` are the
    values of a refused one that pass."""

    name: str
    kind: Kind
    note: str
    harmless: tuple[Any, ...] = ()

    @property
    def takes_nothing(self) -> bool:
        """Whether everything that spells "not used" passes."""
        return all(value in self.harmless for value in NOTHING)

    def special(self) -> list[str]:
        """The harmless values that are this field's own, as JSON."""
        skipped = NOTHING if self.takes_nothing else ("",)
        return [msgspec.json.encode(v).decode() for v in self.harmless if v not in skipped]

    def instead(self) -> str:
        """What may be sent instead of a refused value."""
        values = ["null", *self.special()]
        if self.takes_nothing:
            values.append("a value that asks for nothing (false, 0, or anything empty)")
        return ", ".join(values[:-1]) + " or " + values[-1] if values[1:] else values[0]


def _supported(name: str, note: str) -> Field:
    return Field(name, Kind.SUPPORTED, note)


def _ignored(name: str, note: str) -> Field:
    return Field(name, Kind.IGNORED, note)


def _refused(name: str, note: str, harmless: tuple[Any, ...] = NOTHING) -> Field:
    return Field(name, Kind.REFUSED, note, harmless)


MAX_MESSAGES = 2048
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_MODEL_CHARACTERS = 256
MAX_OUTPUT_TOKENS = 2**31 - 1

_VLLM = "an extension of vLLM's"
_PENALTY = "penalties are not built yet"
_GUIDED = "vLLM's constrained decoding"
_TEMPLATE = "vLLM's way into the prompt; the model's own template is used as it is"
_LOGPROBS = "probabilities are not reported"

_SUPPORTED_FIELDS = (
    _supported("model", f"name or alias; 1 to {MAX_MODEL_CHARACTERS} characters; required"),
    _supported(
        "messages",
        f"1 to {MAX_MESSAGES}; roles system, developer (= system), user, assistant; content is a "
        "string or an array of text parts (joined by a line break); leading system messages are "
        "merged (joined by an empty line); required",
    ),
    _supported("stream", "boolean"),
    _supported(
        "stream_options",
        "include_usage; continuous_usage_stats (usage so far on every chunk); other keys are "
        "ignored, and so is all of it without `stream`",
    ),
    _supported(
        "max_completion_tokens",
        f"1 to {MAX_OUTPUT_TOKENS}; with max_tokens: the smaller; lowered to the "
        "model's or key's maximum",
    ),
    _supported("max_tokens", "the older name of max_completion_tokens"),
    _supported("temperature", "0 to 2; 0 is greedy"),
    _supported("top_p", "above 0, at most 1"),
    _supported("top_k", "at least 1 (an extension)"),
    _supported("seed", "signed 64-bit integer; best effort"),
    _supported(
        "stop",
        f"a string or up to {MAX_STOPS}, each 1 to {MAX_STOP_CHARACTERS} characters; never part "
        "of the answer",
    ),
    _supported("n", "1"),
    _supported(
        "service_tier",
        "priority (or fast) is the premium lane, auto and default the interactive one, flex the "
        "batch lane; the answer names the tier used",
    ),
    _supported("ignore_eos", "boolean: generate up to the maximum (an extension, for measuring)"),
)

_REFUSED_FIELDS = (
    _refused("tools", "tool calling is not built yet"),
    _refused("tool_choice", "as tools", ("none", "auto", *NOTHING)),
    _refused("functions", "the older name of tools"),
    _refused("function_call", "the older name of tool_choice", ("none", "auto", *NOTHING)),
    _refused("response_format", "only plain text is built", ({"type": "text"}, *NOTHING)),
    _refused("logprobs", _LOGPROBS, (False,)),
    _refused("top_logprobs", _LOGPROBS, (0,)),
    _refused("presence_penalty", _PENALTY),
    _refused("frequency_penalty", _PENALTY),
    _refused("repetition_penalty", _VLLM, (1, "")),
    _refused("length_penalty", "beam search is not built", (1, "")),
    _refused("min_p", _VLLM),
    _refused("logit_bias", "the engines here cannot do it"),
    _refused("audio", "text only"),
    _refused("modalities", "text only", (["text"], *NOTHING)),
    _refused("prediction", "predicted outputs are not built"),
    _refused("moderation", "no moderation is applied"),
    _refused("web_search_options", "no web search"),
    _refused("reasoning_effort", "the models here do not reason", ("none", "")),
    _refused("verbosity", "the models here have no such setting", ("medium", "")),
    _refused("thinking_token_budget", "vLLM's; the models here do not reason", ()),
    _refused("best_of", "one answer is generated, and no other to choose from", (1, "")),
    _refused("use_beam_search", "beam search is not built"),
    _refused("min_tokens", _VLLM),
    _refused("stop_token_ids", "vLLM's; use stop"),
    _refused("include_stop_str_in_output", "vLLM's; stop strings are never part of the answer"),
    _refused("bad_words", _VLLM),
    _refused("allowed_token_ids", _VLLM),
    _refused("logits_processors", _VLLM),
    _refused("skip_special_tokens", _VLLM, (True, "")),
    _refused("spaces_between_special_tokens", _VLLM, (True, "")),
    _refused("truncate_prompt_tokens", "vLLM's; a prompt is never cut silently", ()),
    _refused("prompt_logprobs", _VLLM, ()),
    _refused("logprob_token_ids", _VLLM),
    _refused("return_tokens_as_token_ids", _VLLM),
    _refused("return_token_ids", _VLLM),
    _refused("return_prompt_text", _VLLM),
    _refused("echo", _VLLM),
    _refused("add_generation_prompt", _VLLM, (True, "")),
    _refused("continue_final_message", _VLLM),
    _refused("add_special_tokens", _VLLM),
    _refused("documents", _VLLM),
    _refused("chat_template", _TEMPLATE),
    _refused("chat_template_kwargs", _TEMPLATE),
    _refused("media_io_kwargs", "vLLM's; text only"),
    _refused("mm_processor_kwargs", "vLLM's; text only"),
    _refused("prompt_embeds", _VLLM),
    _refused("structured_outputs", _GUIDED),
    _refused("guided_json", _GUIDED),
    _refused("guided_regex", _GUIDED),
    _refused("guided_choice", _GUIDED),
    _refused("guided_grammar", _GUIDED),
    _refused("guided_decoding_backend", _GUIDED),
    _refused("guided_whitespace_pattern", _GUIDED),
    _refused("structural_tag", _GUIDED),
    _refused("repetition_detection", _VLLM),
    _refused("watermarking", _VLLM),
    _refused("vllm_xargs", _VLLM),
    _refused("kv_transfer_params", _VLLM),
    _refused("ec_transfer_params", _VLLM),
    _refused("priority", "vLLM's; use service_tier"),
)

_IGNORED_FIELDS = (
    _ignored("user", "end users are not told apart"),
    _ignored("safety_identifier", "as user"),
    _ignored("metadata", "answers are not stored"),
    _ignored("store", "answers are not stored"),
    _ignored("prompt_cache_key", "prefixes are cached per organisation"),
    _ignored("prompt_cache_options", "as prompt_cache_key"),
    _ignored("prompt_cache_retention", "as prompt_cache_key"),
    _ignored("cache_salt", "vLLM's; prefixes are never shared between organisations anyway"),
    _ignored("parallel_tool_calls", "there are no tool calls"),
    _ignored("include_reasoning", "vLLM's; there is no reasoning"),
    _ignored("truncation_side", "vLLM's; nothing is truncated"),
    _ignored("request_id", "vLLM's; ids are given by the server"),
    _ignored("session_id", "vLLM's"),
)

FIELDS: Mapping[str, Field] = {
    field.name: field for field in (*_SUPPORTED_FIELDS, *_REFUSED_FIELDS, *_IGNORED_FIELDS)
}

MESSAGE_FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        _supported("role", "system, developer, user or assistant; required"),
        _supported("content", "a string or text parts; may be null for the assistant"),
        _refused("tool_calls", "tool calling is not built yet"),
        _refused("function_call", "the older name of tool_calls"),
        _refused("audio", "text only"),
        _ignored("name", "the models' templates have no place for it"),
        _ignored("refusal", "a refusal's text belongs into content"),
        _ignored("annotations", "they come with answers that are sent back as history"),
        _ignored("tool_call_id", "only tool messages have one"),
        _ignored("reasoning", "reasoning is not part of a history"),
        _ignored("reasoning_content", "as reasoning"),
    )
}

STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})


def screen(
    values: Mapping[str, Any], table: Mapping[str, Field] = FIELDS, *, path: str = ""
) -> list[str]:
    """Refuse what would change the answer; return the names never heard of, with their path."""
    unheard = []
    for name, value in values.items():
        field = table.get(name)
        if field is None:
            unheard.append(path + name)
        elif field.kind is Kind.REFUSED and not (value is None or value in field.harmless):
            raise UnsupportedParameter(
                f"{path}{name} would change the answer and is not supported: {field.note}. "
                f"Remove it, or send {field.instead()}.",
                param=path + name,
            )
    return unheard


def markdown() -> str:
    """The text of docs/reference/chat-fields.md."""
    lines = [
        "# Request fields of POST /v1/chat/completions",
        "",
        "Null means absent, for every field. A name that is not listed here is ignored, named in",
        "the response header `x-forebay-ignored`, and counted in the metric",
        "`forebay_unknown_request_fields_total`.",
        "",
        "A refused field gets 400 `unsupported_parameter` with `param` set to its path, except",
        "for values that ask for nothing: null, false, 0, an empty string, array or object,",
        "unless the note says which values are accepted instead.",
        "",
        "A maximum above the model's or the API key's own is lowered to that, not refused: an answer",
        "that is cut there has the `finish_reason` `length`. One that does not fit the model's",
        "context is refused with `context_length_exceeded`.",
        "",
        "Of the headers only those listed in [http.md](http.md) are read. All others are ignored;",
        "for now `Idempotency-Key` is too, so a request that is sent twice is served, and charged,",
        "twice.",
        "",
    ]
    for title, table in (("Fields", FIELDS), ("Fields of a message", MESSAGE_FIELDS)):
        lines += [f"## {title}", "", "| field | | note |", "|---|---|---|"]
        lines += _rows(table.values())
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _rows(fields: Iterable[Field]) -> list[str]:
    return [f"| `{field.name}` | {field.kind} | {_documented(field)} |" for field in fields]


def _documented(field: Field) -> str:
    if field.kind is not Kind.REFUSED or field.harmless == NOTHING:
        return field.note
    also = "also accepted" if field.takes_nothing else "accepted"
    return f"{field.note}; {also}: {', '.join(f'`{v}`' for v in field.special()) or 'only null'}"
