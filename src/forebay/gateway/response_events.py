"""A response as server-sent events, spliced from bytes rendered once per stream.

    created · in_progress              with the status line; in the background queued between them
    output_item.added · content_part.added
    output_text.delta …                one for each chunk
    output_text.done · content_part.done · output_item.done
    completed, or incomplete           with the usage

Rules kept here (every one was somebody's bug):
- each event has a line `event:` and the same name as `type`, and a `sequence_number` from 0 on;
- deltas and what ends them have `logprobs`, empty where none were asked for;
- a failure is an event `error` with its fields beside `type`, not inside of `error`; the response then
  never ends as completed;
- events of one in the background have the same numbers whenever they are read, so what was read
  before can be left out; its failure is an event `failed`, as there is a response that has failed.

Not here: when something is sent (`answer.py`), what chat's streams have in common (`sse.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.core.clock import Clock
from forebay.core.delta import TokenLogprob
from forebay.gateway.responses_schema import Frame, OutputMessage, OutputText, WireResponse
from forebay.gateway.schema import WireError, WireUsage, chat_logprobs
from forebay.gateway.sse import COMMENT, AnswerWriter, encode_safely, encode_text

_DELTA = b"response.output_text.delta"
_BEGUN = (b"response.created", b"response.in_progress")


class ResponseEvents(AnswerWriter):
    """Of one response. The first two events are `opening()`, which leaves before all others."""

    def __init__(self, frame: Frame, clock: Clock) -> None:
        self._frame = frame
        self._clock = clock
        self._sequence = len(_BEGUN)
        self._after = -1
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._message: OutputMessage | None = None
        item_id = encode_text(frame.item_id)
        self._item = b'"output_index":0,"item":'
        self._part = b'"item_id":%b,"output_index":0,"content_index":0,' % item_id
        self._delta = _head(_DELTA) + self._part + b'"delta":'

    def opening(self) -> bytes:
        response = b'"response":' + encode_safely(self._frame.begun())
        return b"".join(
            _head(type_) + response + _tail(sequence) for sequence, type_ in enumerate(_BEGUN)
        )

    def begin(self, choice: int, running: WireUsage | None = None) -> bytes:
        empty = OutputMessage(id=self._frame.item_id, status="in_progress", content=[])
        return self._event(
            b"response.output_item.added", self._item + encode_safely(empty)
        ) + self._event(
            b"response.content_part.added", self._part + b'"part":' + encode_safely(OutputText(""))
        )

    def content(
        self,
        choice: int,
        text: str,
        logprobs: Sequence[TokenLogprob] = (),
        running: WireUsage | None = None,
    ) -> bytes:
        self._texts.append(text)
        shown = b"[]"
        if logprobs:
            self._logprobs += logprobs
            shown = encode_safely(chat_logprobs(logprobs).content)
        sequence, self._sequence = self._sequence, self._sequence + 1
        if sequence <= self._after:
            return b""
        return b"".join((self._delta, encode_text(text), b',"logprobs":', shown, _tail(sequence)))

    def nothing(self, choice: int) -> bytes:
        return self.content(choice, "")

    def finish(self, choice: int, reason: str, running: WireUsage | None = None) -> bytes:
        complete = reason != "length"
        message = self._frame.message("".join(self._texts), self._logprobs, complete=complete)
        self._message = message
        part = message.content[0]
        text = b'"text":%b,"logprobs":%b' % (encode_text(part.text), encode_safely(part.logprobs))
        return b"".join(
            (
                self._event(b"response.output_text.done", self._part + text),
                self._event(
                    b"response.content_part.done", self._part + b'"part":' + encode_safely(part)
                ),
                self._event(b"response.output_item.done", self._item + encode_safely(message)),
            )
        )

    def usage(self, usage: WireUsage, completed_at: float | None = None) -> bytes:
        assert self._message is not None  # the answer has finished
        response: WireResponse = self._frame.ended(
            self._message, usage, completed_at or self._clock.now()
        )
        type_ = b"response." + response.status.encode()
        return self._event(type_, b'"response":' + encode_safely(response))

    def error(self, error: WireError) -> bytes:
        seen = b'"code":%b,"message":%b,"param":%b'
        values = (error.code, error.message, error.param)
        return self._event(b"error", seen % tuple(encode_safely(value) for value in values))

    def _event(self, type_: bytes, rest: bytes) -> bytes:
        sequence, self._sequence = self._sequence, self._sequence + 1
        return b"" if sequence <= self._after else _head(type_) + rest + _tail(sequence)


class BackgroundEvents(ResponseEvents):
    """Of a response in the background: those with a number above `after`."""

    def __init__(self, frame: Frame, clock: Clock, *, after: int = -1) -> None:
        super().__init__(frame, clock)
        self._after = after
        self._sequence = 0
        self._in_progress = False

    def opening(self) -> bytes:
        response = b'"response":' + encode_safely(self._frame.begun("queued"))
        return self._event(b"response.created", response) + self._event(
            b"response.queued", response
        )

    def started(self) -> bytes:
        if self._in_progress:
            return b""
        self._in_progress = True
        response = b'"response":' + encode_safely(self._frame.begun())
        return self._event(b"response.in_progress", response)

    def begin(self, choice: int, running: WireUsage | None = None) -> bytes:
        return self.started() + super().begin(choice, running)

    def nothing(self, choice: int) -> bytes:
        return COMMENT

    def error(self, error: WireError) -> bytes:
        response = b'"response":' + encode_safely(self._frame.unanswered(error))
        return self.started() + self._event(b"response.failed", response)


def _head(type_: bytes) -> bytes:
    return b'event: %b\ndata: {"type":"%b",' % (type_, type_)


def _tail(sequence: int) -> bytes:
    return b',"sequence_number":%d}\n\n' % sequence
