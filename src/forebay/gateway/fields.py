"""What becomes of each request field that we know of: the words of the tables, and those in common.

    supported   read, checked and obeyed
    refused     known to OpenAI's API or to vLLM, and it would change the answer: 400
                `unsupported_parameter`, unless the value asks for nothing (`harmless`)
    ignored     on purpose: it changes no answer here

A name that is not in an endpoint's table is ignored too, but named in the response header
`x-forebay-ignored` and counted. Null means absent, everywhere. Nothing but supported fields ever
reaches the pipeline, and nothing at all is passed through to an engine.

`docs/reference/compatibility.md` and `/openapi.json` are made from the same tables.

Not here: the tables of one endpoint (`chat_fields.py`, `completion_fields.py`), how values are
checked (`request.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from forebay.core.errors import UnsupportedParameter

JsonSchema = Mapping[str, Any]


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
    values of a refused one that pass; `schema` is what a supported one takes, but for null."""

    name: str
    kind: Kind
    note: str
    harmless: tuple[Any, ...] = ()
    schema: JsonSchema = field(default_factory=dict)
    required: bool = False

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


def supported(name: str, note: str, schema: JsonSchema, *, required: bool = False) -> Field:
    """Read, checked and obeyed."""
    note = f"{note}; required" if required else note
    return Field(name, Kind.SUPPORTED, note, schema=schema, required=required)


def ignored(name: str, note: str) -> Field:
    """It changes no answer here."""
    return Field(name, Kind.IGNORED, note)


def refused(name: str, note: str, harmless: tuple[Any, ...] = NOTHING) -> Field:
    """It would change the answer, but for these values."""
    return Field(name, Kind.REFUSED, note, harmless)


def table(*fields: Iterable[Field]) -> Mapping[str, Field]:
    """By name, in order."""
    return {each.name: each for group in fields for each in group}


MAX_CHOICES = 8
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_MODEL_CHARACTERS = 256
MAX_OUTPUT_TOKENS = 2**31 - 1
MAX_PENALTY = 2
INT64 = 2**63

_BOOLEAN = {"type": "boolean"}
_PENALTY = {"type": "number", "minimum": -MAX_PENALTY, "maximum": MAX_PENALTY}
OUTPUT_TOKENS = {"type": "integer", "minimum": 1, "maximum": MAX_OUTPUT_TOKENS}
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})

VLLM = "vLLM has it, it is not built here"
_GUIDED = "vLLM's constrained decoding; use response_format"

# What chat and plain completions have in common.
COMMON_SUPPORTED = (
    supported(
        "model",
        f"name or alias; 1 to {MAX_MODEL_CHARACTERS} characters",
        {"type": "string", "minLength": 1, "maxLength": MAX_MODEL_CHARACTERS},
        required=True,
    ),
    supported("stream", "boolean", _BOOLEAN),
    supported(
        "stream_options",
        "include_usage; continuous_usage_stats (usage so far on every chunk); other keys are "
        "ignored, and so is all of it without `stream`",
        {
            "type": "object",
            "properties": {
                "include_usage": {"type": ["boolean", "null"]},
                "continuous_usage_stats": {"type": ["boolean", "null"]},
            },
        },
    ),
    supported("temperature", "0 to 2; 0 is greedy", {"type": "number", "minimum": 0, "maximum": 2}),
    supported(
        "top_p",
        "above 0, at most 1",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    ),
    supported(
        "top_k",
        "at least 1; 0 and -1 turn it off (an extension)",
        {"type": "integer", "minimum": -1, "maximum": INT64 - 1},
    ),
    supported(
        "seed",
        "signed 64-bit integer; best effort: on an idle engine, and with n above 1 the first choice "
        "alone, an answer repeats",
        {"type": "integer", "minimum": -INT64, "maximum": INT64 - 1},
    ),
    supported(
        "stop",
        f"a string or up to {MAX_STOPS}, each 1 to {MAX_STOP_CHARACTERS} characters; never part "
        "of the answer",
        {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]},
    ),
    supported(
        "n",
        f"1 to {MAX_CHOICES} choices, each with a seed of its own; the prompt is charged once; "
        "more than one need a temperature above 0",
        {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    ),
    supported("presence_penalty", f"-{MAX_PENALTY} to {MAX_PENALTY}", _PENALTY),
    supported("frequency_penalty", f"-{MAX_PENALTY} to {MAX_PENALTY}", _PENALTY),
    supported(
        "repetition_penalty",
        f"above 0, at most {MAX_PENALTY}; 1 is none (an extension)",
        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_PENALTY},
    ),
    supported(
        "service_tier",
        "priority (or fast) is the premium lane, auto and default the interactive one, flex the "
        "batch lane; the answer names the tier used",
        {"type": "string", "enum": ["auto", "default", "flex", "priority", "fast"]},
    ),
    supported(
        "ignore_eos",
        "boolean: generate up to the maximum (an extension, for measuring); not with JSON",
        _BOOLEAN,
    ),
)

COMMON_REFUSED = (
    refused("length_penalty", "beam search is not built", (1, "")),
    refused("min_p", VLLM),
    refused("logit_bias", "the engines here cannot do it"),
    refused("use_beam_search", "beam search is not built"),
    refused("min_tokens", VLLM),
    refused("stop_token_ids", "vLLM's; use stop"),
    refused("include_stop_str_in_output", "vLLM's; stop strings are never part of the answer"),
    refused("bad_words", VLLM),
    refused("allowed_token_ids", VLLM),
    refused("logits_processors", VLLM),
    refused("skip_special_tokens", VLLM, (True, "")),
    refused("spaces_between_special_tokens", VLLM, (True, "")),
    refused("truncate_prompt_tokens", "vLLM's; a prompt is never cut silently", ()),
    refused("prompt_logprobs", VLLM, ()),
    refused("logprob_token_ids", VLLM),
    refused("return_tokens_as_token_ids", VLLM),
    refused("return_token_ids", VLLM),
    refused("return_prompt_text", VLLM),
    refused("add_special_tokens", VLLM),
    refused("prompt_embeds", VLLM),
    refused("structured_outputs", _GUIDED),
    refused("guided_json", _GUIDED),
    refused("guided_regex", _GUIDED),
    refused("guided_choice", _GUIDED),
    refused("guided_grammar", _GUIDED),
    refused("guided_decoding_backend", _GUIDED),
    refused("guided_whitespace_pattern", _GUIDED),
    refused("structural_tag", _GUIDED),
    refused("repetition_detection", VLLM),
    refused("watermarking", VLLM),
    refused("vllm_xargs", VLLM),
    refused("kv_transfer_params", VLLM),
    refused("ec_transfer_params", VLLM),
    refused("priority", "vLLM's; use service_tier"),
)

COMMON_IGNORED = (
    ignored("user", "end users are not told apart"),
    ignored("cache_salt", "vLLM's; prefixes are never shared between organisations anyway"),
    ignored("truncation_side", "vLLM's; nothing is truncated"),
    ignored("request_id", "vLLM's; ids are given by the server"),
    ignored("session_id", "vLLM's"),
)


def screen(values: Mapping[str, Any], known: Mapping[str, Field], *, path: str = "") -> list[str]:
    """Refuse what would change the answer; return the names never heard of, with their path."""
    unheard = []
    for name, value in values.items():
        found = known.get(name)
        if found is None:
            unheard.append(path + name)
        elif found.kind is Kind.REFUSED and not (value is None or value in found.harmless):
            raise UnsupportedParameter(
                f"{path}{name} would change the answer and is not supported: {found.note}. "
                f"Remove it, or send {found.instead()}.",
                param=path + name,
            )
    return unheard
