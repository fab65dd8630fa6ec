"""The wire types of the Files API, as OpenAI names them; encoded by msgspec.

Not here: how a file comes (`upload.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forebay.core.batch import StoredFile

MAX_LISTED = 10_000


class WireFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file. Its bytes are all there, and nothing else is done to it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FilesQuery(msgspec.Struct, frozen=True):
    """Which part of the list is asked for."""

    purpose: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = MAX_LISTED
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def wire_file(file: StoredFile) -> WireFile:
    """As it is sent."""
    return WireFile(
        id=file.id,
        bytes=file.size_bytes,
        created_at=int(file.created_at),
        expires_at=None if file.expires_at is None else int(file.expires_at),
        filename=file.name,
        purpose=file.purpose,
    )
