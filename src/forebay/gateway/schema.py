"""The wire types of answers, as OpenAI names them; encoded by msgspec.

Keys that strict clients look for are always there: `refusal` (null), `logprobs` (null), and every
token detail as an integer, never null or absent.

Not here: requests (`request.py`, which needs better error messages than a decoder's), server-sent
events (`sse.py`, which splices pre-rendered bytes).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal

import msgspec

from forebay.core.delta import TokenLogprob
from forebay.core.job import Lane
from forebay.core.usage import Usage

# What `service_tier` may be asked to be, and the lane each means. `fast` is OpenAI's newer name of
# `priority`; the answer names the tier that was used.
LANES = {
    "auto": Lane.INTERACTIVE,
    "default": Lane.INTERACTIVE,
    "flex": Lane.BATCH,
    "priority": Lane.PREMIUM,
    "fast": Lane.PREMIUM,
}
TIERS = {Lane.PREMIUM: "priority", Lane.INTERACTIVE: "default", Lane.BATCH: "flex"}


class WireError(msgspec.Struct, frozen=True):
    """What is inside `{"error": …}`."""

    message: str
    type: str
    param: str | None
    code: str | None
    # Where the code is explained; no such key where nobody knows this server's address.
    doc_url: str | msgspec.UnsetType = msgspec.UNSET


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every answer that is not a success."""

    error: WireError


class InputDetails(msgspec.Struct, frozen=True):
    """Breakdown of `prompt_tokens`."""

    cached_tokens: int = 0
    audio_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Breakdown of `completion_tokens`."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class WireUsage(msgspec.Struct, frozen=True):
    """Tokens as they are billed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails
    completion_tokens_details: OutputDetails


class Head(msgspec.Struct, frozen=True):
    """What a whole answer and all chunks of a stream have in common."""

    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    # That it went on with, which may be another one than it asked for.
    conversation_id: str | None = None
    # What it was shown of the past, if that was not all of it.
    window: str = ""


class InConversation(msgspec.Struct, frozen=True):
    """The conversation that a call goes on with."""

    id: str


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat answer; no other tokens are reported."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: tuple[()] = ()


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens whose text is beside it."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The tokens whose text is beside it; offsets are characters from the answer's beginning."""

    tokens: list[str]
    token_logprobs: list[float]
    text_offset: list[int]
    top_logprobs: None = None


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer's text."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; `finish_reason` is stop or length."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a call that is not streamed."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: WireUsage
    service_tier: str
    system_fingerprint: str
    # Ours, and there only for who asked for it.
    conversation: InConversation | msgspec.UnsetType = msgspec.UNSET


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; `finish_reason` is stop or length."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a plain completion that is not streamed."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: WireUsage
    service_tier: str
    system_fingerprint: str


class WireModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. The last three keys are extras that agents ask for."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    max_model_len: int
    max_output_tokens: int
    aliases: tuple[str, ...]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models that a key may use."""

    object: str = "list"
    data: list[WireModel]


def wire_usage(input_tokens: int, output_tokens: int, cached_input_tokens: int = 0) -> WireUsage:
    """Usage in OpenAI's names."""
    return WireUsage(
        prompt_tokens=input_tokens,
        completion_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        prompt_tokens_details=InputDetails(cached_tokens=cached_input_tokens),
        completion_tokens_details=OutputDetails(),
    )


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> ChatLogprobs:
    """In chat's shape."""
    return ChatLogprobs(
        [ChatLogprob(_shown(token), _finite(logprob), list(token)) for token, logprob in logprobs]
    )


class Place:
    """Where a choice's text is, in characters; a token may end inside of one."""

    def __init__(self) -> None:
        self.offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def passes(self, token: bytes) -> int:
        """Where this token begins; from here on what follows it is meant."""
        begins = self.offset
        self.offset += len(self._utf8.decode(token))
        return begins


def completion_logprobs(logprobs: Sequence[TokenLogprob], place: Place) -> CompletionLogprobs:
    """In the shape of plain completions; `place` is moved behind them."""
    return CompletionLogprobs(
        tokens=[_shown(token) for token, _ in logprobs],
        token_logprobs=[_finite(logprob) for _, logprob in logprobs],
        text_offset=[place.passes(token) for token, _ in logprobs],
    )


def _shown(token: bytes) -> str:
    """A token that is part of a character is shown as U+FFFD; its bytes say what it is."""
    return token.decode(errors="replace")


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what is next to impossible."""
    return max(logprob, -9999.0)


def settled_usage(usage: Usage) -> WireUsage:
    """What a settled call is billed for."""
    return wire_usage(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens)
