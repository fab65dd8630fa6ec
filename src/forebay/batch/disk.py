"""The bytes of files, in one folder: a file of the same name for each, readable by its owner only.

Bytes are written beside, into `ID.N.part`, synced, and renamed; then the folder is synced. So a crash
leaves a file that is whole, or none (B6), and parts that the next process deletes. Reading compares all
bytes with their digest before it hands out the last ones.

Whatever waits for the disk runs in a thread. A thread cannot be stopped: a caller that is cancelled
waits until it is through, so nothing is closed or deleted under its hands.

Not here: which files there are (`sql_files`), and that one process at a time has the folder (wiring).
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import IO, TypeVar

from forebay.batch.contract import Blobs, Upload
from forebay.batch.rules import damaged, is_name, no_content, pieces_of, require_name, require_whole
from forebay.core.batch import StoredFile
from forebay.core.errors import StoreUnavailable

T = TypeVar("T")

# What one visit of a thread reads or writes: the way there takes about as long as 64 KiB.
BLOCK_BYTES = 256 * 1024
_PART = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskBlobs(Blobs):
    """One per process. Making it makes the folder, beside others that exist; raises StoreUnavailable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._parts: set[str] = set()  # names of those that are being written
        with _translating(f"The folder {folder} cannot be made"):
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)

    def create(self, id: str) -> AbstractAsyncContextManager[Upload]:
        return self._created(require_name(id))

    @asynccontextmanager
    async def _created(self, id: str) -> AsyncIterator[Upload]:
        name = f"{id}.{next(self._numbers)}{_PART}"
        upload = DiskUpload(self._folder / name, self._folder / id)
        self._parts.add(name)
        try:
            yield upload
        finally:
            await _in_thread(upload.leave)
            self._parts.discard(name)

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        reading = _Reading(self._folder / require_name(file.id))
        last = b""
        try:
            while block := await self._next_block(reading, file):
                if reading.size_bytes > file.size_bytes:
                    raise damaged(file)
                for piece in pieces_of(block):
                    if last:
                        yield last
                    last = piece
        finally:
            reading.close()
        require_whole(file, reading.size_bytes, reading.digest.hexdigest())
        if last:
            yield last

    async def delete(self, id: str) -> None:
        path = self._folder / require_name(id)
        with _translating(f"The content of the file {id} cannot be deleted"):
            await _in_thread(partial(path.unlink, missing_ok=True))

    async def ids(self) -> list[str]:
        with _translating("The folder of files cannot be read"):
            names = await _in_thread(partial(os.listdir, self._folder))
            left = [name for name in names if name.endswith(_PART) and name not in self._parts]
            await _in_thread(partial(_delete, [self._folder / name for name in left]))
        return sorted(filter(is_name, names))

    async def _next_block(self, reading: _Reading, file: StoredFile) -> bytes:
        with _translating(f"The content of the file {file.id} cannot be read"):
            try:
                return await _in_thread(reading.next_block)
            except FileNotFoundError:
                raise no_content(file) from None


class DiskUpload(Upload):
    """Made by DiskBlobs. What is written waits here until it is worth a visit of a thread; after a
    failure, or a cancelled verb, nothing more is taken."""

    def __init__(self, part: Path, target: Path) -> None:
        self._part = part
        self._target = target
        self._file: IO[bytes] | None = None
        self._waiting = bytearray()
        self._digest = sha256()
        self._written_bytes = 0
        self._failed = False
        self._committed = False

    async def write(self, chunk: bytes) -> None:
        self._waiting += chunk
        if self._failed or len(self._waiting) >= BLOCK_BYTES:
            await self._do(self._store)

    async def commit(self) -> None:
        await self._do(self._finish)

    @property
    def size_bytes(self) -> int:
        return self._written_bytes + len(self._waiting)

    @property
    def sha256(self) -> str:
        digest = self._digest.copy()
        digest.update(self._waiting)
        return digest.hexdigest()

    def leave(self) -> None:
        """In a thread: forget it, if it is not committed."""
        with suppress(OSError):  # that it could not be written has been said
            if self._file is not None:
                self._file.close()
        with suppress(OSError):  # then the next process deletes it
            if not self._committed:
                _delete([self._part])

    async def _do(self, work: Callable[[], None]) -> None:
        with _translating("A file cannot be stored"):
            if self._failed:
                raise OSError(errno.EIO, "writing it has failed before")
            self._failed = True
            await _in_thread(work)
            self._failed = False

    def _store(self) -> None:
        file = self._opened()
        file.write(self._waiting)
        self._digest.update(self._waiting)
        self._written_bytes += len(self._waiting)
        self._waiting.clear()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._file = os.fdopen(os.open(self._part, flags, 0o600), "wb")
        return self._file

    def _finish(self) -> None:
        self._store()
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(self._part, self._target)
        self._committed = True
        _sync_folder(self._target.parent)


class _Reading:
    """A file from its beginning on; what was read of it so far, in numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.digest = sha256()
        self.size_bytes = 0

    def next_block(self) -> bytes:
        """In a thread. Empty at the end."""
        if self._file is None:
            self._file = os.fdopen(os.open(self._path, os.O_RDONLY), "rb")
        block = self._file.read(BLOCK_BYTES)
        self.digest.update(block)
        self.size_bytes += len(block)
        return block

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


async def _in_thread(work: Callable[[], T]) -> T:
    """What this answers; who is cancelled waits for it all the same."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


@contextmanager
def _translating(what: str) -> Iterator[None]:
    """Failures of the disk become ours."""
    try:
        yield
    except OSError as error:
        full = " Make room on the disk." if error.errno in _FULL else ""
        raise StoreUnavailable(f"{what}: {error.strerror}.{full}") from error


def _delete(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
