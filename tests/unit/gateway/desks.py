"""The desks of files and batches over their rooms in memory, and a lane that runs nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from forebay.batch import BatchSettings, Upload
from forebay.batch.memory import MemoryBatches, MemoryBlobs, MemoryFiles, MemoryState, MemoryUpload
from forebay.core.batch import Batch, BatchState, StoredFile
from forebay.core.clock import Clock, IdSource
from forebay.core.errors import StoreUnavailable
from forebay.pipeline.batches import BatchDesk, FileDesk


class WatchedBlobs(MemoryBlobs):
    """`writers`, `readers`: of now. With `broken` it stores nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.writers = self.readers = self.largest_chunk_bytes = 0
        self.broken = False

    @asynccontextmanager
    async def _created(self, id: str) -> AsyncIterator[Upload]:
        self.begun += 1
        self.writers += 1
        try:
            yield WatchedUpload(id, self)
        finally:
            self.writers -= 1

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        self.readers += 1
        try:
            async for piece in super().read(file):
                yield piece
        finally:
            self.readers -= 1

    def content(self, id: str) -> bytes:
        return self._contents[id]

    def damage(self, id: str) -> None:
        """Its last byte is another one."""
        content = self._contents[id]
        self._contents[id] = content[:-1] + bytes([content[-1] ^ 1])


class WatchedUpload(MemoryUpload):
    def __init__(self, id: str, blobs: WatchedBlobs) -> None:
        super().__init__(id, blobs._contents)
        self._blobs = blobs

    async def write(self, chunk: bytes) -> None:
        if self._blobs.broken:
            raise StoreUnavailable
        self._blobs.largest_chunk_bytes = max(self._blobs.largest_chunk_bytes, len(chunk))
        await super().write(chunk)


class IdleLane:
    def __init__(self, batches: MemoryBatches, clock: Clock) -> None:
        self.begun: list[Batch] = []
        self._batches = batches
        self._clock = clock

    def begin(self, batch: Batch) -> None:
        self.begun.append(batch)

    async def cancel(self, batch: Batch) -> Batch:
        now = self._clock.now()
        return await self._batches.advance(batch.id, BatchState.CANCELLING, now)


class Desks:
    """Of one gateway."""

    def __init__(self, clock: Clock, ids: IdSource, settings: BatchSettings | None = None) -> None:
        settings = settings or BatchSettings()
        self.state = MemoryState(settings, clock)
        self.blobs = WatchedBlobs()
        batches = MemoryBatches(self.state)
        self.lane = IdleLane(batches, clock)
        self.files = FileDesk(MemoryFiles(self.state), self.blobs, settings, clock, ids)
        self.batches = BatchDesk(batches, self.lane, settings, clock, ids)

    def change(self, batch_id: str, **fields: Any) -> None:
        """As the lane would, sooner or later."""
        self.state.batches[batch_id] = replace(self.state.batches[batch_id], **fields)

    @property
    def hold_nothing(self) -> bool:
        return not (self.blobs.writers or self.blobs._contents or self.state.files)
