"""The scripted engine's own log of what it made, and for whom: what bills are checked against.

In memory as records; with a path also as JSON lines, each written with one system call as it
happens and before any output leaves, so the file is there after `kill -9` and never claims less
than was sent:

    {"event": "submit", "sequence": 1, "id": "req_…", "choice": 0, "prompt_ids": […], "max_tokens": 8}
    {"event": "step", "made": [[1, 5]]}                   after this step, sequence 1 has made 5
    {"event": "cancel", "sequence": 1, "made": 5}
    {"event": "finish", "sequence": 1, "made": 8, "reason": "length"}     or "fault", or "stop"

Every line has "at", monotonic seconds, which all processes of a machine share.

Not here: what is made (`script.py`, `scripted.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.core.clock import Clock
from forebay.engine.frames import Output, Submit

_MODE = 0o600  # prompts are in it


@dataclass(slots=True)
class Made:
    """One submission, as far as it came. `cancelled_at`: what it had made when the cancel came."""

    request_id: str
    choice: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    made: int = 0
    cancelled_at: int | None = None
    finished: str | None = None


class Journal:
    """One engine's log; `keep` off forgets a submission in memory once it ends."""

    def __init__(self, path: str = "", *, keep: bool, clock: Clock) -> None:
        self.records: dict[int, Made] = {}
        self._keep = keep
        self._clock = clock
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(path, flags, _MODE) if path else None

    def submitted(self, work: Submit) -> None:
        """A call arrived."""
        record = Made(work.request_id, work.choice, work.prompt_ids, work.max_tokens)
        self.records[work.sequence] = record
        self._write(
            event="submit",
            sequence=work.sequence,
            id=work.request_id,
            choice=work.choice,
            prompt_ids=work.prompt_ids,
            max_tokens=work.max_tokens,
        )

    def stepped(self, made: Sequence[tuple[int, int]]) -> None:
        """A step ended, after which these sequences have made so much."""
        for sequence, count in made:
            if sequence in self.records:
                self.records[sequence].made = count
        if made:
            self._write(event="step", made=made)

    def cancelled(self, sequence: int) -> None:
        """A cancel arrived."""
        record = self.records.get(sequence)
        if record is None or record.finished is not None or record.cancelled_at is not None:
            return
        record.cancelled_at = record.made
        self._write(event="cancel", sequence=sequence, made=record.made)
        self._forget(sequence)

    def ended(self, output: Output) -> None:
        """A sequence ended by itself."""
        record = self.records.get(output.sequence)
        if record is None:
            return
        record.made = max(record.made, output.position + len(output.token_ids))
        record.finished = output.finish.value if output.finish is not None else "fault"
        self._write(
            event="finish", sequence=output.sequence, made=record.made, reason=record.finished
        )
        self._forget(output.sequence)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _forget(self, sequence: int) -> None:
        if not self._keep:
            del self.records[sequence]

    def _write(self, **event: Any) -> None:
        if self._file is not None:
            event["at"] = self._clock.monotonic()
            os.write(self._file, msgspec.json.encode(event) + b"\n")
