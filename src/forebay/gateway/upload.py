"""What POST /v1/files asks for: one file, and what is said of it, in a form that comes in pieces. Pure.

- Of a form no more than `FORM_BYTES` are held: everything that is not the file's. The file's bytes are
  handed on as they come, and are at most so many.
- A purpose that is said before the file is checked before any of that is handed on.

Not here: the form's syntax (`multipart.py`), where the bytes go (`files.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.core.errors import InvalidRequest, RequestTooLarge
from forebay.gateway.expires_after import NOTE, SCHEMA, ttl_seconds
from forebay.gateway.fields import Field, supported, table
from forebay.gateway.multipart import Form, Part
from forebay.gateway.read import missing, seen, text, wrong_type
from forebay.pipeline.batches import INPUT_PURPOSE, NewFile

FORM_BYTES = 64 * 1024
MAX_NAME_CHARACTERS = 255

FILE_FIELDS: Mapping[str, Field] = table(
    (
        supported(
            "file",
            f"a part with a filename, which is kept without folders and has at most "
            f"{MAX_NAME_CHARACTERS} characters; at least one byte, at most the setting "
            "`batch.max_file_bytes`",
            {"type": "string", "format": "binary"},
            required=True,
        ),
        supported(
            "purpose",
            f"`{INPUT_PURPOSE}`; others get `unsupported_value`",
            {"type": "string", "enum": [INPUT_PURPOSE]},
            required=True,
        ),
        supported(
            "expires_after",
            f"{NOTE}; in a form the two fields `expires_after[anchor]` and `expires_after[seconds]`, "
            "or one of JSON; else the setting `batch.file_ttl_seconds`",
            SCHEMA,
        ),
    )
)

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_KNOWN = (*FILE_FIELDS, _ANCHOR, _SECONDS)
_FOLDERS = re.compile(r".*[/\\]", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """A valid form. `ignored` are the fields in it that mean nothing to us."""

    new: NewFile
    ignored: tuple[str, ...]


class UploadForm:
    """One upload. `take` what arrives, then `end` it."""

    def __init__(self, boundary: bytes, most_file_bytes: int) -> None:
        self._form = Form(boundary)
        self._most_file_bytes = most_file_bytes
        self._values: dict[str, list[bytes]] = {}
        self._file_name: str | None = None
        self._filling: list[bytes] | None = None  # None: what comes is the file's
        self._taken_bytes = self._file_bytes = 0

    def take(self, piece: bytes) -> list[bytes]:
        """What of it is the file's. Raises InvalidRequest, RequestTooLarge."""
        handed_on: list[bytes] = []
        for found in self._form.feed(piece):
            if isinstance(found, Part):
                self._begin(found)
            elif self._filling is None:
                handed_on.append(found)
            else:
                self._filling.append(found)
        self._taken_bytes += len(piece)
        self._file_bytes += sum(map(len, handed_on))
        self._require_bounds()
        return handed_on

    def end(self) -> UploadRequest:
        """All of it is here. Raises InvalidRequest."""
        self._form.end()
        if self._file_name is None:
            raise missing("file", "Send the file as a part of the form that has a filename.")
        if not self._file_bytes:
            raise InvalidRequest(
                "Invalid file format: the file is empty. Send JSONL, one call on each line.",
                param="file",
            )
        purpose = self._purpose()
        ttl = self._ttl_seconds()
        ignored = tuple(name for name in self._values if name not in _KNOWN)
        return UploadRequest(NewFile(self._file_name, purpose, ttl), ignored)

    def _begin(self, part: Part) -> None:
        is_file = part.name == "file"
        if part.name in self._values or (is_file and self._file_name is not None):
            raise InvalidRequest(
                f"The form has {part.name!r:.60} twice. Send it once.", param=part.name[:60]
            )
        if not is_file:
            self._filling = self._values.setdefault(part.name, [])
            return
        self._file_name, self._filling = _file_name(part.file_name), None
        if "purpose" in self._values:
            self._purpose()

    def _require_bounds(self) -> None:
        most = self._most_file_bytes
        if self._file_bytes > most:
            raise too_large(self._file_bytes, most)
        if self._taken_bytes - self._file_bytes > FORM_BYTES:
            raise RequestTooLarge(
                f"The form has more than {FORM_BYTES} bytes beside the file. Send fewer and shorter "
                "fields."
            )

    def _purpose(self) -> str:
        value = self._value("purpose")
        if value is None:
            raise missing("purpose", f"Send {INPUT_PURPOSE}.")
        if value != INPUT_PURPOSE:
            raise InvalidRequest(
                f"purpose is {seen(value)}, but only {INPUT_PURPOSE} is supported: files are the input "
                "of batches here.",
                param="purpose",
                code="unsupported_value",
            )
        return value

    def _ttl_seconds(self) -> int | None:
        written = self._value("expires_after")
        if written is not None:
            return ttl_seconds(_decoded(written), "expires_after")
        anchor, seconds = self._value(_ANCHOR), self._value(_SECONDS)
        if anchor is None and seconds is None:
            return None
        return ttl_seconds({"anchor": anchor, "seconds": _number(seconds)}, "expires_after")

    def _value(self, name: str) -> str | None:
        """One that is there as a whole."""
        if name not in self._values:
            return None
        try:
            return b"".join(self._values[name]).decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"{name} is not UTF-8.", param=name, code="invalid_unicode"
            ) from None


def too_large(size_bytes: int, most_bytes: int) -> RequestTooLarge:
    """A file has at least so many bytes."""
    return RequestTooLarge(
        f"The file has at least {size_bytes} bytes; the limit is {most_bytes} bytes. Make several of it."
    )


def _file_name(sent: str | None) -> str:
    """Without the folders that some clients put before it, and without control characters."""
    bare = _CONTROL.sub("_", _FOLDERS.sub("", sent or ""))
    hint = "Send the file as a part of the form that has a filename."
    return text(bare, "filename", low=1, high=MAX_NAME_CHARACTERS, if_empty=hint)


def _number(value: str | None) -> int | str | None:
    if value is None or not _WHOLE_NUMBER.fullmatch(value):
        return value
    return int(value)


def _decoded(written: str) -> Any:
    try:
        return msgspec.json.decode(written)
    except msgspec.DecodeError:
        raise wrong_type("expires_after", "an object as JSON", written) from None
