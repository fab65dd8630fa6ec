"""What the batch lane has to be told of the API whose calls it runs: how a line is read and written.

Not here: how that is done (`forebay.gateway.batch_lines`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay.core.batch import BatchState, LineError, Place
from forebay.core.call import Call
from forebay.core.errors import ForebayError
from forebay.core.event import Admitted
from forebay.core.principal import Principal


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A good line. `call` is what it asks, under the id of its place, in the batch lane and for
    nobody who waits; `request` is its reader's own."""

    custom_id: str
    call: Call
    request: object


class LineRefused(Exception):
    """A bad one. The number is that of its place."""

    def __init__(self, error: LineError) -> None:
        self.error = error
        super().__init__(error.message)


class LineFormat(Protocol):
    """Reads the lines of one organisation's file and writes those of its output. Pure."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """That a batch may be for."""

    @property
    def most_line_bytes(self) -> int:
        """Of a line that is read at all."""

    def read(self, content: bytes, place: Place, endpoint: str, principal: Principal) -> ReadLine:
        """Check every field. Raises LineRefused."""

    def custom_id(self, content: bytes) -> str:
        """Of a line that was read before."""

    def answer(self, line: ReadLine, head: Admitted, kept: bytes) -> bytes:
        """The line of the output file, with its end; `kept` is the answer (`kept_answer.py`)."""

    def fault(self, error: ForebayError) -> bytes:
        """Why a line has no answer: what is kept of it."""

    def faulty(self, custom_id: str, place: Place, why: bytes) -> bytes:
        """The line of the error file, with its end; `why` is as `fault` wrote it."""

    def unrun(self, custom_id: str, place: Place, ended: BatchState) -> bytes:
        """The line of the error file of one that did not run before its batch ended like this."""
