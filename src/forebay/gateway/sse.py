"""Answers as server-sent events, spliced from bytes rendered once per stream.

Rules kept here (every one was somebody's bug):
- the first chunk of a chat's choice has `role` and an empty `content`; later ones have no role;
- one `finish_reason` per choice, in a chunk of its own whose delta is `{}` (or text empty);
- usage is a chunk of its own with `choices: []`, only if asked for; the other chunks then carry
  `usage: null`, and no such key at all otherwise;
- `data: [DONE]` ends every stream, also after an error event;
- no `id:` or empty `data:` lines, ever; no `event:` lines but in streams of responses;
- U+2028, U+2029 and U+0085 are escaped: some clients split the stream with `str.splitlines`.

A sign of life is a comment line *without* a blank line after it: in OpenAI's own client a blank
line dispatches whatever is pending, so a lone comment line is the one form that nothing between
us and the client (a proxy that adds `id:`, say) can turn into an empty event.

Not here: when something is sent (`answer.py`), the streams of responses (`response_events.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from forebay.core.delta import TokenLogprob
from forebay.gateway.schema import (
    ChatLogprobs,
    CompletionLogprobs,
    ErrorAnswer,
    Head,
    Place,
    WireError,
    WireUsage,
    chat_logprobs,
    completion_logprobs,
)

DONE = b"data: [DONE]\n\n"
COMMENT = b": ka\n"

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would otherwise collect tokens into 4 KiB pages.
    (b"x-accel-buffering", b"no"),
)

_encode = msgspec.json.Encoder().encode
# As UTF-8 each is a sequence that occurs nowhere else, so bytes can be replaced.
_LINE_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def encode_text(text: str) -> bytes:
    """The JSON string of this text, free of anything that a client could take for a line end."""
    return _encode(text) if text.isascii() else encode_safely(text)


def error_event(error: WireError) -> bytes:
    """A failure after the status line has left."""
    return b"data: " + encode_safely(ErrorAnswer(error)) + b"\n\n"


def encode_safely(value: object) -> bytes:
    """The same of any value."""
    encoded = _encode(value)
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return encoded


class AnswerWriter(ABC):
    """Renders the events of one stream.

    `running`, where given, is the usage so far: `continuous_usage_stats`, which load generators
    ask for, puts it on every chunk.
    """

    def opening(self) -> bytes:
        """What leaves with the status line, before all else."""
        return b""

    def started(self) -> bytes:
        """A worker has begun with it."""
        return b""

    @abstractmethod
    def begin(self, choice: int, running: WireUsage | None = None) -> bytes:
        """The first chunk of a choice, or nothing."""

    @abstractmethod
    def content(
        self,
        choice: int,
        text: str,
        logprobs: Sequence[TokenLogprob] = (),
        running: WireUsage | None = None,
    ) -> bytes:
        """More text of a choice."""

    @abstractmethod
    def nothing(self, choice: int) -> bytes:
        """A chunk that changes nothing: the sign of life for clients that choke on comments."""

    @abstractmethod
    def finish(self, choice: int, reason: str, running: WireUsage | None = None) -> bytes:
        """The last chunk of a choice."""

    @abstractmethod
    def usage(self, usage: WireUsage, completed_at: float | None = None) -> bytes:
        """The usage, after all choices have finished; `completed_at`: when, if that was not now."""

    def error(self, error: WireError) -> bytes:
        """A failure after the status line has left."""
        return error_event(error)


class ChunkWriter(AnswerWriter):
    """Of chunks that all have the same head; `include_usage` as the client asked."""

    object: bytes

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        conversation = b""
        if head.conversation_id is not None:
            conversation = b',"conversation":{"id":%b}' % encode_text(head.conversation_id)
        self._head = b"".join(
            (
                b'data: {"id":',
                encode_text(head.id),
                b',"object":"%b","created":%d,"model":' % (self.object, head.created),
                encode_text(head.model),
                b',"service_tier":',
                encode_text(head.service_tier),
                b',"system_fingerprint":',
                encode_text(head.system_fingerprint),
                conversation,
                b',"choices":[',
            )
        )
        self._usage_null = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def usage(self, usage: WireUsage, completed_at: float | None = None) -> bytes:
        """A chunk of its own, without choices."""
        return self._head + b"]" + self._tail(usage)

    def _tail(self, usage: WireUsage | None) -> bytes:
        if usage is None:
            return self._usage_null
        return b',"usage":' + _encode(usage) + b"}\n\n"


class ChatChunks(ChunkWriter):
    """Of a chat completion."""

    object = b"chat.completion.chunk"

    def begin(self, choice: int, running: WireUsage | None = None) -> bytes:
        delta = b'{"index":%d,"delta":{"role":"assistant","content":"","refusal":null' % choice
        return self._head + delta + _OPEN + self._tail(running)

    def content(
        self,
        choice: int,
        text: str,
        logprobs: Sequence[TokenLogprob] = (),
        running: WireUsage | None = None,
    ) -> bytes:
        tail = self._usage_null if running is None else self._tail(running)
        delta = b'{"index":%d,"delta":{"content":' % choice
        end = _open_with(chat_logprobs(logprobs)) if logprobs else _OPEN
        return self._head + delta + encode_text(text) + end + tail

    def nothing(self, choice: int) -> bytes:
        return self._head + b'{"index":%d,"delta":{' % choice + _OPEN + self._usage_null

    def finish(self, choice: int, reason: str, running: WireUsage | None = None) -> bytes:
        delta = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":' % choice
        return self._head + delta + _encode(reason) + b"}]" + self._tail(running)


class CompletionChunks(ChunkWriter):
    """Of a plain completion."""

    object = b"text_completion"

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        super().__init__(head, include_usage=include_usage)
        self._places: dict[int, Place] = {}

    def begin(self, choice: int, running: WireUsage | None = None) -> bytes:
        return b""

    def content(
        self,
        choice: int,
        text: str,
        logprobs: Sequence[TokenLogprob] = (),
        running: WireUsage | None = None,
    ) -> bytes:
        shown = None
        if logprobs:
            shown = completion_logprobs(logprobs, self._places.setdefault(choice, Place()))
        return self._chunk(choice, text, shown, None, running)

    def nothing(self, choice: int) -> bytes:
        return self._chunk(choice, "", None, None, None)

    def finish(self, choice: int, reason: str, running: WireUsage | None = None) -> bytes:
        return self._chunk(choice, "", None, reason, running)

    def _chunk(
        self,
        choice: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        reason: str | None,
        running: WireUsage | None,
    ) -> bytes:
        parts = (
            self._head,
            b'{"index":%d,"text":' % choice,
            encode_text(text),
            b',"logprobs":',
            encode_safely(logprobs),
            b',"finish_reason":',
            _encode(reason),
            b"}]",
            self._tail(running),
        )
        return b"".join(parts)


def _open_with(logprobs: ChatLogprobs) -> bytes:
    """The end of a chat's choice that has not finished."""
    return b'},"logprobs":' + encode_safely(logprobs) + b',"finish_reason":null}]'


_OPEN = b'},"logprobs":null,"finish_reason":null}]'
