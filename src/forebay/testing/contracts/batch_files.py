"""What every Files must do: B1 and B7-B9. Fixtures: as in `batch.py`.

Not here: the bytes of files (`batch_blobs.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.batch import Batches, FileInUse, Files, Learnt, Listing
from forebay.core.batch import BatchState, StoredFile
from forebay.core.errors import StorageFull
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.batch import (
    ENDS,
    NOW,
    OLDEST,
    PATHS,
    SETTINGS,
    batch_of,
    file_of,
    refusal_of,
    walk,
)

Verb = Callable[[Files, str, str], Awaitable[Any]]
# Whatever may be asked of a file.
VERBS: dict[str, Verb] = {
    "find": lambda files, org, id: files.find(org, id),
    "page": lambda files, org, id: files.page(org, Listing(10, after=id)),
    "remove": lambda files, org, id: files.remove(org, id),
}


async def ids_of(files: Files, listing: Listing = OLDEST) -> list[str]:
    return [file.id for file in await files.page("org_a", listing)]


async def require_free(files: Files, free_bytes: int) -> None:
    """So many bytes are left to the organisation and not one more: taken, and given back."""
    assert await files.used_bytes("org_a") == SETTINGS.organisation_bytes - free_bytes
    probe = file_of("file-probe", size_bytes=free_bytes, expires_at=None)
    with pytest.raises(StorageFull) as refused:
        await files.add(replace(probe, size_bytes=free_bytes + 1))
    assert "1001 bytes" in refused.value.message
    assert "at most 1000" in refused.value.message
    await files.add(probe)
    await files.remove("org_a", probe.id)


async def test_a_file_is_found_as_it_was_stored(files: Files) -> None:
    plain = file_of(expires_at=None)
    named = file_of("file-2", name="Größe\n\x00.jsonl", purpose="user_data", size_bytes=0)
    for file in (plain, named):
        await files.add(file)
        assert await files.find("org_a", file.id) == file
    assert await files.page("org_a", OLDEST) == [plain, named]


async def test_an_id_of_a_file_is_given_once(files: Files, clock: FakeClock) -> None:
    await files.add(file_of())
    clock.advance(1_000)
    for again in (file_of(expires_at=None), file_of(organisation_id="org_b")):
        with pytest.raises(ValueError, match="file-1 exists already"):
            await files.add(again)
    assert await files.sweep(10) == ["file-1"]
    await files.add(file_of(expires_at=None))


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_b1_another_s_file_is_answered_like_one_that_does_not_exist(
    files: Files, verb: Verb
) -> None:
    await files.add(file_of())
    for id in ("file-1", "file-7"):
        assert await refusal_of(verb(files, "org_b", id)) == id
    assert await files.find("org_a", "file-1") == file_of()
    assert await files.page("org_b", OLDEST) == []
    assert await files.used_bytes("org_b") == 0


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_b9_a_file_is_gone_at_the_moment_that_it_expires(
    files: Files, clock: FakeClock, verb: Verb
) -> None:
    for file in (file_of(), file_of("file-2", expires_at=None)):
        await files.add(file)
    clock.advance(999.5)
    assert await ids_of(files) == ["file-1", "file-2"]
    clock.advance(0.5)
    assert await ids_of(files) == ["file-2"]
    assert await refusal_of(verb(files, "org_a", "file-1")) == "file-1"
    assert await files.sweep(10) == ["file-1"]
    assert await refusal_of(verb(files, "org_a", "file-1")) == "file-1"


async def test_b9_what_has_expired_is_swept_a_few_at_a_time(files: Files, clock: FakeClock) -> None:
    """Of all organisations; their bytes are somebody's until then."""
    for number, lives in enumerate((30, 10, 20, 20, 1_000)):
        organisation_id = f"org_{number}"
        await files.add(
            file_of(f"file-{number}", organisation_id=organisation_id, expires_at=NOW + lives)
        )
    assert await files.sweep(10) == []
    clock.advance(30)
    assert await files.ids() == [f"file-{number}" for number in range(5)]
    assert await files.sweep(0) == []
    assert await files.sweep(2) == ["file-1", "file-2"]
    assert await files.ids() == ["file-0", "file-3", "file-4"]
    assert await files.sweep(10) == ["file-3", "file-0"]
    assert await files.sweep(10) == []
    assert await files.ids() == ["file-4"]


async def test_files_are_listed_by_time_of_creation_and_paged(files: Files) -> None:
    for number, at in ((1, 30), (2, 10), (3, 20), (4, 20), (5, 20)):
        await files.add(file_of(f"file-{number}", created_at=NOW + at))
    oldest = [f"file-{number}" for number in (2, 3, 4, 5, 1)]
    for newest_first, ordered in ((False, oldest), (True, oldest[::-1])):
        assert await ids_of(files, Listing(100, newest_first=newest_first)) == ordered
        paged: list[str] = []
        while page := await ids_of(files, Listing(2, next(reversed(paged), None), newest_first)):
            assert len(page) <= 2
            paged += page
        assert paged == ordered


async def test_files_are_listed_by_purpose(files: Files) -> None:
    for number in range(6):
        purpose = "batch" if number % 2 else "batch_output"
        await files.add(file_of(f"file-{number}", purpose=purpose))
    listing = Listing(2, newest_first=False, purpose="batch")
    assert await ids_of(files, listing) == ["file-1", "file-3"]
    # The one before it may be of another.
    for after, expected in (("file-0", ["file-1", "file-3"]), ("file-3", ["file-5"])):
        assert await ids_of(files, replace(listing, after=after)) == expected
    assert await ids_of(files, replace(listing, purpose="")) == []


async def test_what_is_removed_is_gone(files: Files) -> None:
    await files.add(file_of())
    await files.add(file_of("file-2"))
    await files.remove("org_a", "file-1")
    assert await refusal_of(files.remove("org_a", "file-1")) == "file-1"
    assert await files.ids() == ["file-2"]


async def test_b7_a_file_that_a_batch_needs_is_not_deleted(files: Files, batches: Batches) -> None:
    await files.add(file_of())
    for number in (2, 1):
        await batches.create(batch_of(f"batch_{number}"))
    for id in ("batch_2", "batch_1"):
        with pytest.raises(FileInUse) as refused:
            await files.remove("org_a", "file-1")
        assert refused.value.batch_id == id
        assert await files.find("org_a", "file-1") == file_of()
        await walk(batches, id, BatchState.FAILED)
    await files.remove("org_a", "file-1")


@pytest.mark.parametrize("end", ENDS)
async def test_b7_a_file_that_a_batch_needs_does_not_expire(
    files: Files, batches: Batches, clock: FakeClock, end: BatchState
) -> None:
    await files.add(file_of())
    await batches.create(batch_of())
    clock.advance(1_000)
    for step in PATHS[end]:
        assert await files.find("org_a", "file-1") == file_of()
        assert await ids_of(files) == ["file-1"]
        assert await files.sweep(10) == []
        await require_free(files, 900)
        with pytest.raises(FileInUse):
            await files.remove("org_a", "file-1")
        await batches.advance("batch_1", step, clock.now())
    assert await refusal_of(files.find("org_a", "file-1")) == "file-1"
    await require_free(files, 1_000)
    assert await files.sweep(10) == ["file-1"]


async def test_b7_a_file_that_is_there_for_one_batch_is_there_for_the_next(
    files: Files, batches: Batches, clock: FakeClock
) -> None:
    await files.add(file_of())
    await batches.create(batch_of())
    clock.advance(1_000)
    await batches.create(batch_of("batch_2"))
    await walk(batches, "batch_1", BatchState.FAILED)
    assert await files.find("org_a", "file-1") == file_of()
    await walk(batches, "batch_2", BatchState.FAILED)
    assert await refusal_of(files.find("org_a", "file-1")) == "file-1"


async def test_b9_a_batch_brings_no_file_back(
    files: Files, batches: Batches, clock: FakeClock
) -> None:
    """Whether it has been swept or not."""
    await files.add(file_of())
    clock.advance(1_000)
    await batches.create(batch_of())
    assert await refusal_of(files.find("org_a", "file-1")) == "file-1"
    assert await files.sweep(10) == ["file-1"]


async def test_b1_another_s_batch_needs_no_file_of_mine(files: Files, batches: Batches) -> None:
    await files.add(file_of())
    await batches.create(batch_of("batch_b", "org_b"))
    await files.remove("org_a", "file-1")


async def test_a_batch_may_be_ordered_for_a_file_that_is_not_there(
    files: Files, batches: Batches
) -> None:
    await batches.create(batch_of())
    await files.add(file_of())
    await files.remove("org_a", "file-1")


async def test_b8_an_organisation_has_so_many_bytes_and_no_more(files: Files) -> None:
    await require_free(files, 1_000)
    await files.add(file_of())
    await files.add(file_of("file-2", size_bytes=500, expires_at=None))
    await require_free(files, 400)
    await files.add(file_of("file-b", organisation_id="org_b", size_bytes=1_000))
    await require_free(files, 400)
    await files.remove("org_a", "file-2")
    await require_free(files, 900)


async def test_b8_an_organisation_has_so_many_files_and_no_more(files: Files) -> None:
    most = range(SETTINGS.max_files)
    await asyncio.gather(*(files.add(file_of(f"file-{n}", size_bytes=0)) for n in most))
    with pytest.raises(StorageFull, match="has 1100 files; at most 1100"):
        await files.add(file_of("file-more", size_bytes=0))
    await files.add(file_of("file-b", organisation_id="org_b", size_bytes=0))
    await files.remove("org_a", "file-0")
    await files.add(file_of("file-more", size_bytes=0))


@pytest.mark.parametrize("swept", [False, True])
async def test_b8_what_has_expired_counts_no_more(
    files: Files, clock: FakeClock, swept: bool
) -> None:
    for number in range(1, 11):
        await files.add(file_of(f"file-{number}", expires_at=NOW + 10 * number))
    await require_free(files, 0)
    for number in (1, 2):
        clock.advance(10)
        if swept:
            await files.sweep(10)
        await require_free(files, 100 * number)


async def test_b8_what_a_batch_has_made_is_stored_whatever_there_is(
    files: Files, batches: Batches
) -> None:
    await files.add(file_of(size_bytes=1_000))
    await batches.create(batch_of())
    await walk(batches, "batch_1", BatchState.FINALIZING)
    made = file_of("file-out", size_bytes=300), file_of("file-err", size_bytes=7)
    await batches.advance("batch_1", BatchState.COMPLETED, NOW, Learnt(files=made))
    assert await files.used_bytes("org_a") == 1_307
    with pytest.raises(StorageFull):
        await files.add(file_of("file-2", size_bytes=0))
    await files.remove("org_a", "file-1")
    await require_free(files, 693)


async def test_b8_of_files_at_once_as_many_are_taken_as_there_is_room_for(files: Files) -> None:
    adding = [files.add(file_of(f"file-{number}")) for number in range(20)]
    refused = await asyncio.gather(*adding, return_exceptions=True)
    assert [type(each) for each in refused if each is not None] == [StorageFull] * 10
    await require_free(files, 0)


async def test_b7_whatever_comes_first_of_an_order_and_a_deletion(
    files: Files, batches: Batches
) -> None:
    """Either the file stays, or the batch does not find it: never a batch that lost its file."""
    for number in range(10):
        file: StoredFile = file_of(f"file-{number}", size_bytes=1)
        await files.add(file)
        order = batches.create(batch_of(f"batch_{number}", input_file_id=file.id))
        await asyncio.gather(order, files.remove("org_a", file.id), return_exceptions=True)
        is_there = file.id in await ids_of(files)
        if is_there:
            with pytest.raises(FileInUse):
                await files.remove("org_a", file.id)
        await walk(batches, f"batch_{number}", BatchState.FAILED)
