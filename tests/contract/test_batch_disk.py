"""B6 for bytes on a disk: kill -9, a disk that is full, what others left in the folder."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from forebay.batch.disk import DiskBlobs
from forebay.core.errors import StoreUnavailable
from forebay.testing.contracts.batch_blobs import (
    content_of,
    described,
    read,
    read_until_refused,
    store,
)

WRITER = """
import asyncio, sys
from pathlib import Path
from forebay.batch.disk import DiskBlobs
from forebay.testing.contracts.batch_blobs import content_of, store


async def main():
    blobs = DiskBlobs(Path(sys.argv[1]))
    {work}

asyncio.run(main())
"""
HALF = """
    async with blobs.create("file-half") as upload:
        await upload.write(content_of(600_000))
        print("written", flush=True)
        sys.stdin.read()
"""
STORM = """
    async def caller(first):
        for number in range(first, 10**9, 5):
            await store(blobs, content_of(300_000 + number), f"file-{number}")
            print(number, flush=True)

    await asyncio.gather(*map(caller, range(5)))
"""
FULL = """
    import resource, signal
    from forebay.core.errors import StoreUnavailable
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def tried(verb, most_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
        try:
            await verb
        except StoreUnavailable as refused:
            print(refused.message)

    async with blobs.create("file-1") as upload:
        await tried(upload.write(content_of(600_000)), 400_000)
        await tried(upload.write(b"more"), resource.RLIM_INFINITY)
        await tried(upload.commit(), resource.RLIM_INFINITY)
    async with blobs.create("file-2") as upload:
        await upload.write(content_of(100_000))
        await tried(upload.commit(), 50_000)
        await tried(upload.commit(), resource.RLIM_INFINITY)
    await store(blobs, content_of(600_000), "file-3")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


def writer(folder: Path, work: str) -> subprocess.Popen[str]:
    """A process that stores files there."""
    program = WRITER.replace("    {work}\n", work)
    command = [sys.executable, "-c", program, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def killed_after(folder: Path, work: str, lines: int) -> list[str]:
    """What it said until it was killed, so many lines at least."""
    process = writer(folder, work)
    assert process.stdin is not None
    assert process.stdout is not None
    with closing(process.stdin), closing(process.stdout) as out:
        said = [out.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        said += out.read().split("\n")[:-1]
    assert process.wait() == -signal.SIGKILL
    return [line.strip() for line in said]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_b6_a_process_that_is_killed_while_it_writes_leaves_no_file(folder: Path) -> None:
    assert killed_after(folder, HALF, 1) == ["written"]
    (part,) = names_in(folder)
    assert (folder / part).stat().st_size > 0
    blobs = DiskBlobs(folder)
    await read_until_refused(blobs, described(content_of(600_000), "file-half"))
    assert await blobs.ids() == []
    assert names_in(folder) == []


@pytest.mark.parametrize("lines", [1, 7, 20])
async def test_b6_across_kill_9_what_was_committed_is_there_and_all_that_is_there_is_whole(
    folder: Path, lines: int
) -> None:
    committed = killed_after(folder, STORM, lines)
    blobs = DiskBlobs(folder)
    there = await blobs.ids()
    assert {f"file-{number}" for number in committed} <= set(there)
    assert names_in(folder) == there
    for id in there:
        content = content_of(300_000 + int(id.removeprefix("file-")))
        assert await read(blobs, described(content, id)) == content


async def test_b6_a_disk_without_room_refuses_and_leaves_nothing(folder: Path) -> None:
    """And there is room again: for others, not for what has failed."""
    process = writer(folder, FULL)
    said, _ = process.communicate()
    assert process.returncode == 0
    refusals = said.splitlines()
    assert len(refusals) == 5, "three verbs of the first, and both commits of the second"
    assert [line for line in refusals if "cannot be stored: " not in line] == []
    blobs = DiskBlobs(folder)
    assert names_in(folder) == await blobs.ids() == ["file-3"]
    assert await read(blobs, described(content_of(600_000), "file-3")) == content_of(600_000)


async def test_what_is_being_written_is_not_taken_for_what_was_left(folder: Path) -> None:
    blobs = DiskBlobs(folder)
    (folder / "file-1.1.part").write_bytes(b"of an earlier process, under the same name")
    (folder / "file-9.7.part").write_bytes(b"left")
    async with blobs.create("file-1") as upload:
        await upload.write(content_of(300_000))
        assert await blobs.ids() == []
        assert names_in(folder) == ["file-1.1.part"]
        await upload.commit()
    assert names_in(folder) == await blobs.ids() == ["file-1"]
    assert await read(blobs, described(content_of(300_000))) == content_of(300_000)


async def test_files_are_readable_by_their_owner_only(folder: Path) -> None:
    blobs = DiskBlobs(folder)
    await store(blobs, b"content")
    assert (mode_of(folder), mode_of(folder / "file-1")) == (0o700, 0o600)


async def test_files_outlive_the_process(folder: Path) -> None:
    file = await store(DiskBlobs(folder), content_of(100_000))
    assert await read(DiskBlobs(folder), file) == content_of(100_000)


async def test_a_folder_that_cannot_be_used_is_our_error(folder: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be made: No such file"):
        DiskBlobs(folder / "missing")
    blobs = DiskBlobs(folder)
    shutil.rmtree(folder)
    with pytest.raises(StoreUnavailable, match="cannot be read: No such file"):
        await blobs.ids()
    with pytest.raises(StoreUnavailable, match="cannot be stored: No such file"):
        await store(blobs, b"content")
    await blobs.delete("file-1")
    shutil.copy(__file__, folder)
    with pytest.raises(StoreUnavailable, match="cannot be deleted: Not a directory"):
        await blobs.delete("file-1")
    with pytest.raises(StoreUnavailable, match="file-1 cannot be read: Not a directory"):
        await read(blobs, described(b"content"))


async def test_who_is_cancelled_more_than_once_still_leaves_nothing(folder: Path) -> None:
    blobs = DiskBlobs(folder)
    before = asyncio.Event()

    async def upload() -> None:
        async with blobs.create("file-1") as upload:
            before.set()
            for _ in range(100):
                await upload.write(content_of(1_000_000))

    uploading = asyncio.ensure_future(upload())
    await before.wait()
    for _ in range(20):
        uploading.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert names_in(folder) == []
