"""What every Blobs must do: B6. Fixtures: `blobs`, empty, and `damage`, which lets a test change bytes
behind its back: `await damage(id, change)`, where `change` makes other bytes of them (None: there are
none any more).

Not here: what a crash or a full disk does to those on a disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from hashlib import sha256

import pytest

from forebay.batch import Blobs
from forebay.core.batch import StoredFile
from forebay.core.errors import StoreUnavailable
from forebay.testing.contracts.batch import file_of

Damage = Callable[[str, Callable[[bytes], bytes | None]], Awaitable[None]]

PIECE_BYTES = 64 * 1024
SIZES = (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 4 * PIECE_BYTES, 600_001)
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "its first byte": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "a byte in the middle": lambda content: flipped(content, len(content) // 2),
    "its last byte": lambda content: flipped(content, len(content) - 1),
    "without its last byte": lambda content: content[:-1],
    "without its last piece": lambda content: content[: (len(content) - 1) // PIECE_BYTES * PIECE_BYTES],
    "cut in half": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "longer": lambda content: content + b"\n",
    "twice": lambda content: content * 2,
    "gone": lambda _: None,
}  # fmt: skip
NO_NAMES = ["", ".", "..", "../file-1", "a/b", "/etc/passwd", ".hidden", "a.part", "a\0", "ä", "-a"]
NO_NAMES += ["a\n", "x" * 129]


def content_of(size_bytes: int) -> bytes:
    """So many bytes, of which no piece is like another."""
    lines = (b"%09d\n" % number for number in range(size_bytes // 10 + 1))
    return b"".join(lines)[:size_bytes]


def described(content: bytes, id: str = "file-1") -> StoredFile:
    """What is known of a file with this content."""
    return file_of(id, size_bytes=len(content), sha256=sha256(content).hexdigest())


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :]


async def store(
    blobs: Blobs, content: bytes, id: str = "file-1", chunk: int = 50_000
) -> StoredFile:
    """In chunks of this size."""
    async with blobs.create(id) as upload:
        for start in range(0, len(content), chunk):
            await upload.write(content[start : start + chunk])
        assert upload.size_bytes == len(content)
        assert upload.sha256 == sha256(content).hexdigest()
        await upload.commit()
    return described(content, id)


async def read(blobs: Blobs, file: StoredFile) -> bytes:
    return b"".join([piece async for piece in blobs.read(file)])


async def read_until_refused(blobs: Blobs, file: StoredFile) -> bytes:
    """What is handed out of a file before it is refused."""
    pieces: list[bytes] = []
    with pytest.raises(StoreUnavailable) as refused:
        async for piece in blobs.read(file):
            pieces.append(piece)
    assert file.id in refused.value.message
    return b"".join(pieces)


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("chunk", [9_999, 100_000, 700_000])
async def test_bytes_are_read_in_order_in_pieces_as_they_were_written(
    blobs: Blobs, size_bytes: int, chunk: int
) -> None:
    content = content_of(size_bytes)
    file = await store(blobs, content, chunk=chunk)
    pieces = [piece async for piece in blobs.read(file)]
    assert b"".join(pieces) == content
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert await blobs.ids() == ["file-1"]


async def test_size_and_digest_are_known_at_any_time(blobs: Blobs) -> None:
    content = content_of(300_000)
    async with blobs.create("file-1") as upload:
        for end in (0, 1, 20_000, 290_000, 300_000):
            await upload.write(content[upload.size_bytes : end])
            assert upload.size_bytes == end
            assert upload.sha256 == sha256(content[:end]).hexdigest()
            assert upload.sha256 == sha256(content[:end]).hexdigest()


async def test_b6_what_is_not_committed_is_not_there(blobs: Blobs) -> None:
    for size_bytes in (0, 10, 600_000):
        async with blobs.create("file-1") as upload:
            await upload.write(content_of(size_bytes))
            assert await blobs.ids() == []
        assert await blobs.ids() == []
        await read_until_refused(blobs, described(content_of(size_bytes)))


async def test_b6_an_upload_that_breaks_off_leaves_nothing(blobs: Blobs) -> None:
    with pytest.raises(ConnectionError):
        async with blobs.create("file-1") as upload:
            await upload.write(content_of(600_000))
            raise ConnectionError
    assert await blobs.ids() == []


@pytest.mark.parametrize("after", range(6))
async def test_b6_an_upload_that_is_cancelled_leaves_all_or_nothing(
    blobs: Blobs, after: int
) -> None:
    content = content_of(600_000)

    async def upload() -> None:
        await store(blobs, content, chunk=300_000)

    uploading = asyncio.ensure_future(upload())
    for _ in range(after):
        await asyncio.sleep(0)
    uploading.cancel()
    await asyncio.gather(uploading, return_exceptions=True)
    for id in await blobs.ids():
        assert await read(blobs, described(content, id)) == content


async def test_b6_the_same_id_again_replaces_what_was_there_at_the_commit(blobs: Blobs) -> None:
    before, after = content_of(100_000), content_of(300_000)
    await store(blobs, before)
    async with blobs.create("file-1") as upload:
        await upload.write(after)
        assert await read(blobs, described(before)) == before
    assert await read(blobs, described(before)) == before
    await store(blobs, after)
    assert await read(blobs, described(after)) == after
    assert len(await read_until_refused(blobs, described(before))) < len(before)
    assert await blobs.ids() == ["file-1"]


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("size_bytes", [1, 70_000, 8 * PIECE_BYTES])
async def test_b6_bytes_that_are_not_those_that_were_stored_are_never_told_to_the_end(
    blobs: Blobs, damage: Damage, change: Callable[[bytes], bytes | None], size_bytes: int
) -> None:
    content = content_of(size_bytes)
    file = await store(blobs, content)
    await damage(file.id, change)
    told = await read_until_refused(blobs, file)
    assert len(told) < size_bytes
    assert await read_until_refused(blobs, file) == told


async def test_b6_bytes_of_an_empty_file_are_none(blobs: Blobs, damage: Damage) -> None:
    file = await store(blobs, b"")
    assert await read(blobs, file) == b""
    await damage(file.id, lambda _: b"x")
    assert await read_until_refused(blobs, file) == b""
    await blobs.delete(file.id)
    assert await read_until_refused(blobs, file) == b""


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(blobs: Blobs) -> None:
    one, two = [await store(blobs, b"content", id) for id in ("file-1", "file-2")]
    for _ in range(2):
        await blobs.delete("file-1")
    assert await blobs.ids() == ["file-2"]
    assert await read_until_refused(blobs, one) == b""
    assert await read(blobs, two) == b"content"


async def test_who_reads_what_is_deleted_meanwhile_reads_on(blobs: Blobs) -> None:
    content = content_of(600_000)
    file = await store(blobs, content)
    pieces: list[bytes] = []
    async for piece in blobs.read(file):
        if not pieces:
            await blobs.delete(file.id)
        pieces.append(piece)
    assert b"".join(pieces) == content


async def test_a_reader_may_leave(blobs: Blobs) -> None:
    file = await store(blobs, content_of(600_000))
    reading: AsyncIterator[bytes] = blobs.read(file)
    async with aclosing(reading) as pieces:  # type: ignore[type-var]
        async for _ in pieces:
            break
    assert await read(blobs, file) == content_of(600_000)


async def test_many_write_and_read_at_once(blobs: Blobs) -> None:
    contents = {f"file-{number}": content_of(30_000 * number) for number in range(20)}
    files = await asyncio.gather(*(store(blobs, each, id) for id, each in contents.items()))
    assert sorted(await blobs.ids()) == sorted(contents)
    assert await asyncio.gather(*(read(blobs, file) for file in files)) == [*contents.values()]


async def test_b6_of_uploads_under_one_id_at_once_one_is_there_whole(blobs: Blobs) -> None:
    contents = [content_of(300_000 + number) for number in range(5)]
    await asyncio.gather(*(store(blobs, each) for each in contents))
    assert await blobs.ids() == ["file-1"]
    whole = 0
    for content in contents:
        try:
            whole += await read(blobs, described(content)) == content
        except StoreUnavailable:
            pass
    assert whole == 1


@pytest.mark.parametrize("id", NO_NAMES)
async def test_what_could_not_be_a_name_is_refused(blobs: Blobs, id: str) -> None:
    with pytest.raises(ValueError, match="no name of a file"):
        async with blobs.create(id):
            pass
    with pytest.raises(ValueError, match="no name of a file"):
        await blobs.delete(id)
    with pytest.raises(ValueError, match="no name of a file"):
        await read(blobs, described(b"", id))
