"""What is stored of a call in the background, as bytes: its job, and the parts of its log.

The room keeps both without looking inside (`Turn.job`, `TurnLogs`). From the log the call's events can
be told again, each as it was told the first time, and its answer be gone on with (E8).

Not here: when something is logged, and to whom it is told (`background.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from forebay.core.delta import TokenLogprob
from forebay.core.dialogue import Said
from forebay.core.event import Admitted, CallEvent, Delta, Finished
from forebay.core.job import Job, Resume

VERSION = 1  # of what is stored; what has another one cannot be read


class _Stored(msgspec.Struct, array_like=True):
    """A job; with what its readers are told first, if its events are to be logged."""

    version: int
    job: Job
    admitted: Admitted | None


class _Delta(msgspec.Struct, array_like=True):
    sequence: int
    attempt: int
    choice: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class _Part(msgspec.Struct, array_like=True):
    """What was ready together. `admitted` begins the first one."""

    version: int
    admitted: Admitted | None
    deltas: list[_Delta]


_encode = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(_Part).decode
_decode_stored = msgspec.msgpack.Decoder(_Stored).decode


S = TypeVar("S", _Stored, _Part)


class Unreadable(Exception):
    """Another version of this program wrote it, which had other jobs or events."""


def encode_job(job: Job, admitted: Admitted | None) -> bytes:
    """What the next process needs; `admitted` if the call is logged."""
    return _encode(_Stored(VERSION, job, admitted))


def decode_job(stored: bytes) -> tuple[Job, Admitted | None]:
    """Raises Unreadable."""
    found = _decoded(_decode_stored, stored)
    return found.job, found.admitted


def encode_part(events: Sequence[CallEvent]) -> bytes:
    """What of these is to be told again; empty if there is nothing."""
    admitted = next((event for event in events if isinstance(event, Admitted)), None)
    deltas = [
        _Delta(*(getattr(event, name) for name in _Delta.__struct_fields__))
        for event in events
        if isinstance(event, Delta)
    ]
    return _encode(_Part(VERSION, admitted, deltas)) if admitted or deltas else b""


def decode_parts(parts: Iterable[bytes]) -> list[CallEvent]:
    """The events of a log, in order. Raises Unreadable."""
    events: list[CallEvent] = []
    for stored in parts:
        part = _decoded(_decode_part, stored)
        events += [part.admitted] if part.admitted else []
        events += [Delta(*msgspec.structs.astuple(delta)) for delta in part.deltas]
    return events


def _decoded(decode: Callable[[bytes], S], stored: bytes) -> S:
    try:
        found = decode(stored)
    except msgspec.MsgspecError:
        raise Unreadable from None
    if found.version != VERSION:
        raise Unreadable
    return found


def goes_on(job: Job, events: Sequence[CallEvent]) -> Job:
    """The job of the next attempt, which begins behind what was logged."""
    deltas = [event for event in events if isinstance(event, Delta)]
    if not deltas:
        return job
    ids = tuple(id for delta in deltas for id in delta.token_ids)
    resume = Resume(token_ids=(ids,) if ids else (), sequence=deltas[-1].sequence)
    return replace(job, resume=resume)


def conclusion(said: Said, events: Sequence[CallEvent]) -> list[CallEvent]:
    """What came after these of an answer that was completed: what its process had no time to log."""
    deltas = [event for event in events if isinstance(event, Delta)]
    told = "".join(delta.text for delta in deltas)
    sequence = deltas[-1].sequence if deltas else 0
    rest = said.output.text[len(told) :]
    end: list[CallEvent] = [Delta(sequence + 1, 1, 0, (), rest)] if rest else []
    reasons = said.usage.finish_reasons
    return [*end, Finished(sequence + 2, 1, said.usage, 0, reasons, said.completed_at)]
