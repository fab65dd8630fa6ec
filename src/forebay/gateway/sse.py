"""A chat completion as server-sent events, spliced from bytes rendered once per stream.

Rules kept here (every one was somebody's bug):
- the first chunk of a choice has `role` and an empty `content`; later ones have no role;
- one `finish_reason` per choice, in a chunk of its own whose delta is `{}`;
- usage is a chunk of its own with `choices: []`, only if asked for; the other chunks then carry
  `usage: null`, and no such key at all otherwise;
- `data: [DONE]` ends every stream, also after an error event;
- no `id:`, `event:` or empty `data:` lines, ever;
- U+2028, U+2029 and U+0085 are escaped: some clients split the stream with `str.splitlines`.

A sign of life is a comment line *without* a blank line after it: in OpenAI's own client a blank
line dispatches whatever is pending, so a lone comment line is the one form that nothing between
us and the client (a proxy that adds `id:`, say) can turn into an empty event.

Not here: when something is sent (`chat.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from forebay.gateway.schema import ErrorAnswer, WireError, WireUsage

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
    encoded = _encode(text)
    if not text.isascii():
        for raw, escaped in _LINE_ENDS:
            encoded = encoded.replace(raw, escaped)
    return encoded


def error_event(error: WireError) -> bytes:
    """A failure after the status line has left."""
    encoded = _encode(ErrorAnswer(error))
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return b"data: " + encoded + b"\n\n"


@dataclass(frozen=True, slots=True)
class StreamHead:
    """What all chunks of a stream have in common."""

    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str


class ChunkWriter:
    """Renders the chunks of one stream; `include_usage` as the client asked.

    `running`, where given, is the usage so far: `continuous_usage_stats`, which load generators
    ask for, puts it on every chunk.
    """

    __slots__ = ("_end", "_head", "_usage_null")

    def __init__(self, head: StreamHead, *, include_usage: bool) -> None:
        self._head = b"".join(
            (
                b'data: {"id":',
                encode_text(head.id),
                b',"object":"chat.completion.chunk","created":%d,"model":' % head.created,
                encode_text(head.model),
                b',"service_tier":',
                encode_text(head.service_tier),
                b',"system_fingerprint":',
                encode_text(head.system_fingerprint),
                b',"choices":[',
            )
        )
        self._usage_null = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._end = b'},"logprobs":null,"finish_reason":null}]'

    def role(self, choice: int, running: WireUsage | None = None) -> bytes:
        """The first chunk of a choice."""
        delta = b'{"index":%d,"delta":{"role":"assistant","content":"","refusal":null' % choice
        return self._head + delta + self._end + self._tail(running)

    def content(self, choice: int, text: str, running: WireUsage | None = None) -> bytes:
        """More text of a choice."""
        tail = self._usage_null if running is None else self._tail(running)
        delta = b'{"index":%d,"delta":{"content":' % choice
        return self._head + delta + encode_text(text) + self._end + tail

    def nothing(self, choice: int) -> bytes:
        """A chunk that changes nothing: the sign of life for clients that choke on comments."""
        return self._head + b'{"index":%d,"delta":{' % choice + self._end + self._usage_null

    def finish(self, choice: int, reason: str, running: WireUsage | None = None) -> bytes:
        """The last chunk of a choice."""
        delta = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":' % choice
        return self._head + delta + _encode(reason) + b"}]" + self._tail(running)

    def usage(self, usage: WireUsage) -> bytes:
        """The usage chunk, after all choices have finished."""
        return self._head + b"]" + self._tail(usage)

    def _tail(self, usage: WireUsage | None) -> bytes:
        if usage is None:
            return self._usage_null
        return b',"usage":' + _encode(usage) + b"}\n\n"
