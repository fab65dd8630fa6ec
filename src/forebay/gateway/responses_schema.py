"""The wire types of the Responses API, as OpenAI names them; encoded by msgspec.

Keys that strict clients look for are always there, and not null where OpenAI's are not. What a response
repeats of its request is its `Echo`: stored with the turn, so a response looks the same when it is
asked for again.

Not here: requests (`responses_request.py`), events (`response_events.py`), items of a dialogue
(`items.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from forebay.core.delta import TokenLogprob
from forebay.core.dialogue import Said, Turn, answer_id
from forebay.gateway.schema import (
    ChatLogprob,
    InConversation,
    WireError,
    WireUsage,
    chat_logprobs,
    settled_usage,
)

ID_PREFIX = "resp_"
# In the metadata of a response that was not shown all of the past: what it was shown.
WINDOW_KEY = "x-forebay-window"
# Of the error that tells that somebody cancelled it.
CANCELLED_CODE = "response_cancelled"


class WireText(msgspec.Struct, frozen=True):
    """How the text is bound; `format` as it was asked for."""

    format: dict[str, Any]
    verbosity: Literal["medium"] = "medium"


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """What of its request a response repeats, with what holds where it says nothing."""

    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str
    store: bool = True
    temperature: float = 1.0
    text: WireText
    tool_choice: Literal["none", "auto"] = "auto"
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: Literal["auto", "disabled"]
    user: str | None = None
    metadata: dict[str, str] = {}


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """The text of an answer."""

    text: str
    annotations: tuple[()] = ()
    logprobs: list[ChatLogprob] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `incomplete`: cut off by its maximum of tokens."""

    id: str
    type: Literal["message"] = "message"
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response in the background has failed; the code is one that OpenAI's types know."""

    message: str
    code: Literal["server_error"] = "server_error"


class ResponseReasoning(msgspec.Struct, frozen=True):
    """There is none."""

    effort: None = None
    summary: None = None


class ResponseInputDetails(msgspec.Struct, frozen=True):
    """Breakdown of `input_tokens`."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseOutputDetails(msgspec.Struct, frozen=True):
    """Breakdown of `output_tokens`."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as they are billed."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class WireResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response, begun or ended. Only one in the background is queued, failed or cancelled."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    model: str
    output: list[OutputMessage] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: InConversation | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoning = ResponseReasoning()
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: WireText
    tool_choice: Literal["none", "auto"]
    tools: tuple[()] = ()
    top_logprobs: Literal[0] = 0
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: Literal[True] = True


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How long a prompt would be."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Frame(msgspec.Struct, frozen=True):
    """What a response is from its beginning on."""

    id: str
    created_at: int
    conversation_id: str | None
    echo: Echo
    window: str = ""

    @property
    def item_id(self) -> str:
        """Of the only item of its output."""
        return answer_id(self.id.removeprefix(ID_PREFIX))

    def message(
        self, text: str, logprobs: Sequence[TokenLogprob] = (), *, complete: bool = True
    ) -> OutputMessage:
        """The whole answer."""
        return OutputMessage(
            id=self.item_id,
            status="completed" if complete else "incomplete",
            content=[OutputText(text, logprobs=chat_logprobs(logprobs).content)],
        )

    def begun(self, status: Literal["queued", "in_progress"] = "in_progress") -> WireResponse:
        """Before there is an answer."""
        return self._response(status=status)

    def unanswered(self, error: WireError) -> WireResponse:
        """In the background, cancelled or failed like this."""
        if error.code == CANCELLED_CODE:
            return self._response(status="cancelled")
        return self._response(status="failed", error=ResponseError(error.message))

    def ended(
        self, message: OutputMessage, usage: WireUsage, completed_at: float | None = None
    ) -> WireResponse:
        """With the answer."""
        whole = message.status == "completed"
        return self._response(
            status=message.status,
            completed_at=int(completed_at) if whole and completed_at is not None else None,
            incomplete_details=None if whole else IncompleteDetails(),
            output=[message],
            usage=_usage(usage),
        )

    def _response(self, **own: Any) -> WireResponse:
        conversation_id, echo = self.conversation_id, msgspec.structs.asdict(self.echo)
        if self.window:
            echo["metadata"] = {**self.echo.metadata, WINDOW_KEY: self.window}
        return WireResponse(
            id=self.id,
            created_at=self.created_at,
            conversation=InConversation(conversation_id) if conversation_id else None,
            **echo,
            **own,
        )


def frame_of(turn: Turn) -> Frame:
    """Of a response that is stored."""
    echo = msgspec.json.decode(turn.record, type=Echo)
    return Frame(turn.id, int(turn.created_at), turn.conversation_id, echo, turn.window)


def answered(turn: Turn, said: Said) -> WireResponse:
    """A response that was completed and kept."""
    frame = frame_of(turn)
    message = frame.message(said.output.text, complete=said.output.complete)
    return frame.ended(message, settled_usage(said.usage), said.completed_at)


def _usage(usage: WireUsage) -> ResponseUsage:
    inputs, outputs = usage.prompt_tokens_details, usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=ResponseInputDetails(inputs.cached_tokens, inputs.cache_write_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ResponseOutputDetails(outputs.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )
