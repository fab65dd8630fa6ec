"""A form with files in it (multipart/form-data), part by part as its bytes come. Pure.

- Nothing is held but what one feed completes, and what may be the beginning of a boundary.
- At most `MAX_PARTS` parts with a few short headers each. What of a part's head is not a field's name
  or a file's is not read.
- A form is whole once its last boundary has come; whatever follows that is nobody's.

Not here: how its bytes get here (`body.py`), which fields there are (`upload.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from forebay.core.errors import InvalidRequest

MAX_PARTS = 32
MAX_BOUNDARY_CHARACTERS = 70  # RFC 2046
_MOST_HEADERS, _MOST_HEADER_BYTES = 8, 4096
_KIND = b"multipart/form-data"
_HOW = "Send multipart/form-data as HTTP clients make it of a file, and let them set Content-Type."
# The parser warns of what a client sends wrong, and the log is not for that.
_SILENT = logging.Logger("forebay.multipart")
_SILENT.disabled = True


class Part(NamedTuple):
    """A part begins: its field, and the name of the file that it is, None if it is a value."""

    name: str
    file_name: str | None


class Form:
    """One form. `feed` it what arrives, then `end` it."""

    def __init__(self, boundary: bytes) -> None:
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._head_ends,
                "on_part_data": self._content,
                "on_end": self._ends,
            },
            max_header_count=_MOST_HEADERS,
            max_header_size=_MOST_HEADER_BYTES,
        )
        self._parser.logger = _SILENT
        self._found: list[Part | bytes] = []
        self._parts = 0
        self._name = self._value = b""
        self._disposition = b""
        self._whole = False

    def feed(self, data: bytes) -> list[Part | bytes]:
        """The parts that begin here, and the bytes of each. Raises InvalidRequest."""
        try:
            self._parser.write(data)
        except FormParserError:
            raise _invalid("The body is not the form that its Content-Type says it is.") from None
        found, self._found = self._found, []
        return found

    def end(self) -> None:
        """Nothing more comes. Raises InvalidRequest if that is too early."""
        if not self._whole:
            raise _invalid("The form ends before its last boundary: some of it was not sent.")

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _invalid(f"The form has more than {MAX_PARTS} parts.")
        self._disposition = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _head_ends(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise _invalid("A part of the form has no name.")
        file_name = options.get(b"filename")
        self._found.append(Part(_text(name), None if file_name is None else _text(file_name)))

    def _content(self, data: bytes, start: int, end: int) -> None:
        self._found.append(data[start:end])

    def _ends(self) -> None:
        self._whole = True


def boundary_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """What stands between the parts of a request's form. Raises InvalidRequest if it has none."""
    found = [value for name, value in headers if name == b"content-type"]
    kind, options = parse_options_header(found[0] if len(found) == 1 else None)
    if kind != _KIND:
        said = b", ".join(found).decode("latin-1")[:60]
        raise _invalid(f"The Content-Type is {said!r}, but a file comes in a form.")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= MAX_BOUNDARY_CHARACTERS:
        raise _invalid(
            f"The Content-Type has a boundary of {len(boundary)} characters, but it must have 1 to "
            f"{MAX_BOUNDARY_CHARACTERS}."
        )
    return boundary


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what} {_HOW}", code="invalid_multipart")
