"""What a worker and its engine child say to each other: msgpack frames with a length before each.

    parent ── Start ──▶ child ── Ready | Fault ──▶ parent
    parent ── Submit* Cancel* ──▶ child ── Step* (one per engine step) ──▶ parent

On the wire a frame is four bytes, big-endian, with the length of the msgpack array that follows.
Either side ends when the socket closes.

Invariants
- E7 `Submit` is all that ever reaches an engine about a call; it has no free-form field.
- A frame longer than `MAX_FRAME_BYTES` is an error on both sides, before any memory is taken.
- `sequence` is new for every submission over the parent's life, so that a late frame about a
  cancelled submission can never be taken for news about a later one of the same call.

Not here: what the child does (`child.py`), the parent's supervision (`process.py`).
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Annotated, cast

import msgspec

from forebay.core.delta import EngineLimits, FinishReason
from forebay.engine.settings import EngineSettings, ScriptedSettings

# A million-token prompt is 5 MB of msgpack; nothing that we send is longer.
MAX_FRAME_BYTES = 16 * 1024 * 1024
_HEADER_BYTES = 4
# No engine gets there, and sums of it fit the ledger's 64 bits.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
_READ_BYTES = 256 * 1024


class FrameError(Exception):
    """The other side does not speak this protocol."""


class ChannelClosed(Exception):
    """The other side is gone."""


class Start(msgspec.Struct, tag="start", array_like=True, frozen=True):
    """The first frame: what to load. `scripted` set: the scripted engine, and no weights."""

    weights: str
    settings: EngineSettings
    scripted: ScriptedSettings | None
    prefix_cache: bool


class Submit(msgspec.Struct, tag="submit", array_like=True, frozen=True):
    """One choice to generate. `request_id` is for the engine's own log only."""

    sequence: int
    request_id: str
    choice: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    ignore_eos: bool
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: bool = False
    json_schema: str = ""


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    """Stop a submission before the next step (E1)."""

    sequence: int


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The child is loaded and warm."""

    limits: EngineLimits


class Fault(msgspec.Struct, tag="fault", array_like=True, frozen=True):
    """The child cannot start, and why; it ends after this."""

    reason: str


class Output(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one step added to one submission; `position` is that of the first token.

    `reported` comes with the finish, where the engine counts: all tokens of the submission (E2).
    `fault` ends the submission without a finish (E9); tokens that come with it are counted as made.
    """

    sequence: int
    position: int
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    reported: int | None = None
    cached: int | None = None
    fault: str | None = None
    logprobs: tuple[float, ...] = ()


class Step(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """One engine step, also when it added nothing: it is the child's sign of life.

    `made` is the engine's own count of all output tokens since its start, these included.
    """

    outputs: list[Output]
    kv_use: float
    made: Count


ToChild = Start | Submit | Cancel
ToParent = Ready | Step | Fault

_encode = msgspec.msgpack.Encoder().encode
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_to_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)


def pack(frame: ToChild | ToParent) -> bytes:
    """The frame as it goes over the wire."""
    body = _encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_HEADER_BYTES, "big") + body


def parse_for_child(body: bytes) -> ToChild:
    """What the parent said. Raises FrameError."""
    try:
        return _to_child.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from None


def parse_for_parent(body: bytes) -> ToParent:
    """What the child said. Raises FrameError."""
    try:
        return _to_parent.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from None


class FrameBuffer:
    """Cuts a byte stream into frame bodies, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete now. Raises FrameError for one that is too long."""
        buffer = self._bytes
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= _HEADER_BYTES:
            body = start + _HEADER_BYTES
            size = int.from_bytes(buffer[start:body], "big")
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {size} bytes is larger than {MAX_FRAME_BYTES}")
            if len(buffer) - body < size:
                break
            bodies.append(bytes(buffer[body : body + size]))
            start = body + size
        del buffer[:start]
        return bodies


class ChildChannel:
    """The child's end: synchronous, because its loop is `receive`, `step`, `send`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = FrameBuffer()

    def receive(self, wait_seconds: float | None) -> list[ToChild]:
        """All frames that are here, after waiting for the first (None: for as long as it takes).

        Raises ChannelClosed as soon as the parent is gone, even if frames came before: nobody
        would read their answers.
        """
        frames: list[ToChild] = []
        while self._readable(0.0 if frames else wait_seconds):
            try:
                data = self._socket.recv(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                raise ChannelClosed
            frames += map(parse_for_child, self._buffer.feed(data))
        return frames

    def send(self, frame: ToParent) -> None:
        """Hand over a frame, waiting while the parent is behind. Raises ChannelClosed."""
        try:
            self._socket.sendall(pack(frame))
        except ConnectionError:
            raise ChannelClosed from None

    def _readable(self, wait_seconds: float | None) -> bool:
        # select, not poll: its time-out is in microseconds, and this process has few descriptors.
        return bool(select.select([self._socket], [], [], wait_seconds)[0])


class ParentChannel(asyncio.Protocol):
    """The parent's end: one callback per frame, one when the child is gone."""

    def __init__(self, frame: Callable[[ToParent], None], closed: Callable[[], None]) -> None:
        self._frame = frame
        self._closed = closed
        self._buffer = FrameBuffer()
        self._transport: asyncio.WriteTransport | None = None

    @property
    def is_open(self) -> bool:
        """Whether the child can still be spoken to."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._buffer.feed(data):
                self._frame(parse_for_parent(body))
        except FrameError:
            self.close()  # `closed` follows: a child that talks nonsense is a dead child

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._closed()

    def send(self, frame: ToChild) -> None:
        """Queue a frame; without effect once the child is gone (`closed` has told or will tell)."""
        if self._transport is not None:
            self._transport.write(pack(frame))

    def close(self) -> None:
        """Close now, dropping what was not sent; idempotent."""
        if self._transport is not None:
            self._transport.abort()
