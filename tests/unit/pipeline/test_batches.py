from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from forebay.batch import BatchSettings, Listing
from forebay.batch.memory import MemoryBatches, MemoryBlobs, MemoryFiles, MemoryState
from forebay.core.batch import Batch, BatchOrder, BatchState, StoredFile
from forebay.core.errors import (
    BatchConflict,
    IdempotencyKeyReused,
    NotAllowed,
    NotFound,
    RateLimited,
    StorageFull,
)
from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes
from forebay.pipeline.batches import BatchDesk, FileDesk, NewFile
from forebay.testing.clock import CountingIds, FakeClock

ME = Principal(Scopes("org", "proj", "key"), weight=1, lanes=frozenset(Lane))
OTHER = Principal(Scopes("else", "proj2", "key2"), weight=1, lanes=frozenset(Lane))
ORDER = BatchOrder("file-1", "/v1/chat/completions", "24h", 86_400)


class Lane_:
    """Remembers what it was told to begin, and cancels at once."""

    def __init__(self, batches: MemoryBatches) -> None:
        self.batches = batches
        self.begun: list[str] = []

    def begin(self, batch: Batch) -> None:
        self.begun.append(batch.id)

    async def cancel(self, batch: Batch) -> Batch:
        return await self.batches.advance(batch.id, BatchState.CANCELLING, 1.0)


class Desks:
    def __init__(self, **settings: Any) -> None:
        chosen, self.clock = BatchSettings(**settings), FakeClock()
        state, ids = MemoryState(chosen, self.clock), CountingIds()
        self.blobs, self.store = MemoryBlobs(), MemoryBatches(state)
        self.lane = Lane_(self.store)
        self.files = FileDesk(MemoryFiles(state), self.blobs, chosen, self.clock, ids)
        self.batches = BatchDesk(self.store, self.lane, chosen, self.clock, ids)

    async def upload(self, content: bytes, who: Principal = ME) -> StoredFile:
        async with self.files.upload(who) as receiving:
            await receiving.write(content)
            return await receiving.finish(NewFile("a.jsonl", "batch"))


async def test_a_file_is_there_whole_for_its_organisation_alone() -> None:
    """B1, B6."""
    desks = Desks()
    made = await desks.upload(b"one\ntwo\n")
    assert (made.size_bytes, made.name, made.purpose) == (8, "a.jsonl", "batch")
    assert made.id.startswith("file-")
    found, content = await desks.files.content(ME, made.id)
    assert (found, b"".join([piece async for piece in content])) == (made, b"one\ntwo\n")
    with pytest.raises(NotFound, match=made.id):
        await desks.files.find(OTHER, made.id)
    with pytest.raises(NotFound):
        await desks.files.delete(OTHER, made.id)
    await desks.files.delete(ME, made.id)
    assert await desks.blobs.ids() == []


async def test_a_file_that_never_ends_is_none() -> None:
    desks = Desks()
    with suppress(ConnectionError):
        async with desks.files.upload(ME) as receiving:
            await receiving.write(b"half")
            raise ConnectionError
    assert await desks.files.page(ME, Listing(10)) == []
    assert await desks.blobs.ids() == []


async def test_an_organisation_has_room_for_so_many_bytes() -> None:
    """B8."""
    desks = Desks(organisation_bytes=10)
    await desks.upload(b"x" * 8)
    async with desks.files.upload(ME) as receiving:
        with pytest.raises(StorageFull, match="8 bytes, and 3 more"):
            await receiving.expect(3)
    async with desks.files.upload(ME) as one, desks.files.upload(ME) as other:
        await one.write(b"x")
        await other.write(b"x")
        with pytest.raises(StorageFull):
            await one.write(b"x")
    with pytest.raises(StorageFull):
        await desks.upload(b"xxx")
    assert len(await desks.blobs.ids()) == 1
    await desks.upload(b"xxx", OTHER)


async def test_a_batch_is_begun_once_however_often_it_is_sent() -> None:
    """B5."""
    desks = Desks()
    keyed = replace(ORDER, key="k", fingerprint=b"one")
    first = await desks.batches.create(ME, keyed)
    assert await desks.batches.create(ME, keyed) == first
    assert desks.lane.begun == [first.id]
    with pytest.raises(IdempotencyKeyReused, match=first.id):
        await desks.batches.create(ME, replace(keyed, fingerprint=b"two"))
    assert first.state is BatchState.VALIDATING
    assert first.expires_at == first.created_at + 86_400


async def test_a_project_has_so_many_unfinished_ones() -> None:
    desks = Desks(max_unfinished=2)
    keyed = replace(ORDER, key="k")
    made = [await desks.batches.create(ME, each) for each in (ORDER, keyed)]
    assert await desks.batches.create(ME, keyed) == made[1]  # it is no new one
    with pytest.raises(RateLimited, match="2 batches"):
        await desks.batches.create(ME, ORDER)
    await desks.batches.create(OTHER, ORDER)
    await desks.store.advance(made[0].id, BatchState.FAILED, 1.0)
    await desks.batches.create(ME, ORDER)


async def test_a_key_without_the_lane_orders_nothing() -> None:
    desks = Desks()
    with pytest.raises(NotAllowed, match="batch lane"):
        await desks.batches.create(replace(ME, lanes=frozenset({Lane.PREMIUM})), ORDER)


async def test_a_batch_is_cancelled_until_it_has_ended() -> None:
    desks = Desks()
    made = await desks.batches.create(ME, ORDER)
    with pytest.raises(NotFound):
        await desks.batches.cancel(OTHER, made.id)
    assert (await desks.batches.cancel(ME, made.id)).state is BatchState.CANCELLING
    await desks.store.advance(made.id, BatchState.CANCELLED, 2.0)
    assert (await desks.batches.cancel(ME, made.id)).state is BatchState.CANCELLED
    failed = await desks.batches.create(ME, ORDER)
    await desks.store.advance(failed.id, BatchState.FAILED, 2.0)
    with pytest.raises(BatchConflict, match="Cannot cancel a batch with status 'failed'"):
        await desks.batches.cancel(ME, failed.id)


async def test_the_input_of_a_batch_that_goes_on_is_not_deleted() -> None:
    """B7."""
    desks = Desks()
    file = await desks.upload(b"{}")
    batch = await desks.batches.create(ME, replace(ORDER, input_file_id=file.id))
    with pytest.raises(BatchConflict, match=batch.id):
        await desks.files.delete(ME, file.id)
