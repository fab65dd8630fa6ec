"""What is stored of a call in the background, as bytes: its job, and the parts of its log.

The room keeps both without looking inside (`Turn.job`, `TurnLogs`). From the log the call's events can
be told again, each as it was told the first time, and its answer be gone on with (E8).

Not here: when something is logged, and to whom it is told (`background.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from forebay.core.dialogue import Said
from forebay.core.event import Admitted, CallEvent, Delta, Finished
from forebay.core.job import Job, Resume


class _Part(msgspec.Struct, array_like=True):
    """What was ready together. `admitted` begins the first one."""

    admitted: Admitted | None
    deltas: list[Delta]


_encode = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(_Part).decode
_decode_job = msgspec.msgpack.Decoder(Job).decode

encode_job = _encode


class Unreadable(Exception):
    """Another version of this program wrote it, which had other jobs or events."""


def decode_job(stored: bytes) -> Job:
    """Raises Unreadable."""
    try:
        return _decode_job(stored)
    except msgspec.MsgspecError:
        raise Unreadable from None


def encode_part(events: Sequence[CallEvent]) -> bytes:
    """What of these is to be told again; empty if there is nothing."""
    admitted = next((event for event in events if isinstance(event, Admitted)), None)
    deltas = [event for event in events if isinstance(event, Delta)]
    return _encode(_Part(admitted, deltas)) if admitted or deltas else b""


def decode_parts(parts: Iterable[bytes]) -> list[CallEvent]:
    """The events of a log, in order. Raises Unreadable."""
    events: list[CallEvent] = []
    try:
        for part in map(_decode_part, parts):
            events += [part.admitted] if part.admitted else []
            events += part.deltas
    except msgspec.MsgspecError:
        raise Unreadable from None
    return events


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
    return [*end, Finished(sequence + 2, 1, said.usage, 0, said.usage.finish_reasons)]
