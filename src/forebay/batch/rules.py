"""What all stores of files and batches decide alike. Pure.

The ways of a batch (B2), and what it is like on the other side; what is too much (B8); whether bytes are
those that were stored (B6).

Not here: the sums (`memory`, `sql_files`), the bytes (`memory`, `disk`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from forebay.batch.contract import Learnt, WrongWay
from forebay.batch.settings import BatchSettings
from forebay.core.batch import Batch, BatchState, StoredFile
from forebay.core.errors import FileDamaged, StorageFull

PIECE_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

_STATE = BatchState
WAYS: dict[BatchState, tuple[BatchState, ...]] = {
    _STATE.VALIDATING: (_STATE.FAILED, _STATE.IN_PROGRESS, _STATE.CANCELLING),
    _STATE.IN_PROGRESS: (_STATE.FINALIZING, _STATE.CANCELLING),
    _STATE.FINALIZING: (_STATE.COMPLETED, _STATE.EXPIRED),
    _STATE.CANCELLING: (_STATE.CANCELLED,),
}


def advanced(batch: Batch, to: BatchState, at: float, learnt: Learnt | None) -> Batch:
    """The batch in its next state, or as it is if it is there. Raises WrongWay."""
    if batch.state is to:
        return batch
    if to not in WAYS.get(batch.state, ()):
        raise WrongWay(batch)
    known = learnt or Learnt()
    counts = batch.counts
    output, errors = known.files
    return replace(
        batch,
        state=to,
        entered={**batch.entered, to: at},
        model=known.model or batch.model,
        counts=counts if known.total is None else replace(counts, total=known.total),
        errors=known.errors or batch.errors,
        output_file_id=_id(output) or batch.output_file_id,
        error_file_id=_id(errors) or batch.error_file_id,
    )


def exists_already(what: str, id: str) -> ValueError:
    """For an id that is known."""
    return ValueError(f"the {what} {id} exists already")


def require_room(settings: BatchSettings, stored_bytes: int, files: int = 0) -> None:
    """Raises StorageFull if an organisation may not have so much, or so many (B8)."""
    if files > settings.max_files:
        raise StorageFull(
            f"This organisation has {files - 1} files; at most {settings.max_files} are kept. Delete some, "
            "or wait until they expire."
        )
    if stored_bytes > settings.organisation_bytes:
        raise StorageFull(
            f"The files of this organisation would take {stored_bytes} bytes; at most "
            f"{settings.organisation_bytes} are kept. Delete some, or wait until they expire."
        )


def require_name(id: str) -> str:
    """The id of a file whose bytes are kept under it: nothing that leads elsewhere. Raises ValueError."""
    if not is_name(id):
        raise ValueError(f"{id!r:.100} is no name of a file")
    return id


def is_name(id: str) -> bool:
    return _NAME.fullmatch(id) is not None


def pieces_of(content: bytes) -> Iterator[bytes]:
    """As they are read, the last one shorter."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


def require_whole(file: StoredFile, size_bytes: int, sha256: str) -> None:
    """Raises FileDamaged unless bytes of this size and digest are the file's (B6)."""
    if (size_bytes, sha256) != (file.size_bytes, file.sha256):
        raise damaged(file)


def damaged(file: StoredFile) -> FileDamaged:
    """Its bytes are others than those that were stored."""
    return FileDamaged(
        f"The content of the file {file.id} is damaged: it is not the {file.size_bytes} bytes that were "
        "stored. Store it again, or restore it from a backup."
    )


def no_content(file: StoredFile) -> FileDamaged:
    """There are no bytes of it at all."""
    return FileDamaged(
        f"The content of the file {file.id} is missing. Store it again, or restore it from a backup."
    )


def _id(file: StoredFile | None) -> str | None:
    return None if file is None else file.id
