"""Files and batches, as their organisation may see and order them: what the gateway asks of the lane.

Not here: the batches' walk (`batch.py`), HTTP (`forebay.gateway`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from forebay.batch import (
    Batches,
    BatchSettings,
    Blobs,
    FileInUse,
    Files,
    Listing,
    Upload,
    WrongWay,
)
from forebay.core.batch import Batch, BatchOrder, BatchState, StoredFile
from forebay.core.clock import Clock, IdSource
from forebay.core.errors import (
    BatchConflict,
    IdempotencyKeyReused,
    NotAllowed,
    NotFound,
    RateLimited,
    StorageFull,
)
from forebay.core.job import Lane
from forebay.core.principal import Principal

INPUT_PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"


@dataclass(frozen=True, slots=True)
class NewFile:
    """What a client says of a file whose bytes follow. `ttl_seconds` None: as the settings say."""

    name: str
    purpose: str
    ttl_seconds: int | None = None


class Walks(Protocol):
    """The walk of batches."""

    def begin(self, batch: Batch) -> None: ...
    async def cancel(self, batch: Batch) -> Batch: ...


class FileDesk:
    """Files of organisations."""

    def __init__(
        self, files: Files, blobs: Blobs, settings: BatchSettings, clock: Clock, ids: IdSource
    ) -> None:
        self._files = files
        self._blobs = blobs
        self.settings = settings
        self._clock = clock
        self._ids = ids
        self._arriving: Counter[str] = Counter()  # bytes of files that are coming in

    @asynccontextmanager
    async def upload(self, principal: Principal) -> AsyncIterator[Receiving]:
        """Take a file whose bytes come one by one; it is there after `Receiving.finish`. Raises
        StorageFull."""
        organisation_id = principal.scopes.organisation_id
        id_ = self._ids.new("file").replace("_", "-", 1)
        used_bytes = await self._files.used_bytes(organisation_id)
        async with self._blobs.create(id_) as upload:
            try:
                yield Receiving(self, organisation_id, id_, upload, used_bytes)
            finally:
                self._arriving[organisation_id] -= upload.size_bytes

    async def find(self, principal: Principal, id: str) -> StoredFile:
        """Raises NotFound."""
        try:
            return await self._files.find(principal.scopes.organisation_id, id)
        except KeyError:
            raise _no_file(id) from None

    async def page(self, principal: Principal, listing: Listing) -> list[StoredFile]:
        """Raises NotFound for an unknown `after`."""
        try:
            return await self._files.page(principal.scopes.organisation_id, listing)
        except KeyError:
            raise _no_file(listing.after or "") from None

    async def content(
        self, principal: Principal, id: str
    ) -> tuple[StoredFile, AsyncIterator[bytes]]:
        """Raises NotFound; the bytes raise FileDamaged before their last piece if they are not those
        that were stored (B6)."""
        file = await self.find(principal, id)
        return file, self._blobs.read(file)

    async def delete(self, principal: Principal, id: str) -> None:
        """Raises NotFound, BatchConflict."""
        try:
            await self._files.remove(principal.scopes.organisation_id, id)
        except KeyError:
            raise _no_file(id) from None
        except FileInUse as use:
            raise BatchConflict(
                f"The file {id} is the input of {use.batch_id}, which has not ended. Cancel that, or "
                "wait for it.",
                param="file_id",
            ) from None
        await self._blobs.delete(id)

    def require_room(self, organisation_id: str, used_bytes: int, size_bytes: int) -> None:
        """Raises StorageFull (B8) if there is none for so many more, beside all that is arriving now."""
        used_bytes += self._arriving[organisation_id]
        if used_bytes + size_bytes > (most := self.settings.organisation_bytes):
            raise StorageFull(
                f"The files of this organisation have {used_bytes} bytes, and {size_bytes} more would be "
                f"above the limit of {most}. Delete some."
            )

    def arrived(self, organisation_id: str, size_bytes: int) -> None:
        """So many are in a file that is coming in."""
        self._arriving[organisation_id] += size_bytes

    async def stored(
        self, organisation_id: str, id: str, new: NewFile, upload: Upload
    ) -> StoredFile:
        now = self._clock.now()
        ttl = self.settings.file_ttl_seconds if new.ttl_seconds is None else new.ttl_seconds
        file = StoredFile(
            id=id,
            organisation_id=organisation_id,
            purpose=new.purpose,
            name=new.name,
            size_bytes=upload.size_bytes,
            sha256=upload.sha256,
            created_at=now,
            expires_at=now + ttl,
        )
        await upload.commit()
        try:
            await self._files.add(file)
        except StorageFull:
            await self._blobs.delete(id)
            raise
        return file


class Receiving:
    """A file that is coming in."""

    def __init__(
        self, desk: FileDesk, organisation_id: str, id: str, upload: Upload, used_bytes: int
    ) -> None:
        self._desk = desk
        self._organisation_id = organisation_id
        self._id = id
        self._upload = upload
        self._used_bytes = used_bytes

    async def expect(self, size_bytes: int) -> None:
        """So many bytes are announced. Raises StorageFull if there is no room for them."""
        self._desk.require_room(self._organisation_id, self._used_bytes, size_bytes)

    async def write(self, chunk: bytes) -> None:
        """Raises StorageFull, StoreUnavailable."""
        self._desk.require_room(self._organisation_id, self._used_bytes, len(chunk))
        self._desk.arrived(self._organisation_id, len(chunk))
        await self._upload.write(chunk)

    async def finish(self, new: NewFile) -> StoredFile:
        """All of it is here. Raises StorageFull, StoreUnavailable."""
        return await self._desk.stored(self._organisation_id, self._id, new, self._upload)


class BatchDesk:
    """Batches of organisations."""

    def __init__(
        self,
        batches: Batches,
        lane: Walks,
        settings: BatchSettings,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._batches = batches
        self._lane = lane
        self.settings = settings
        self._clock = clock
        self._ids = ids

    async def create(self, principal: Principal, order: BatchOrder) -> Batch:
        """Raises NotAllowed, RateLimited (too many), IdempotencyKeyReused. Whether its file is there
        and good is seen afterwards."""
        if Lane.BATCH not in principal.lanes:
            raise NotAllowed(
                "This API key may not use the batch lane. Lanes come with the plan of the key's "
                "organisation: ask whoever runs this server.",
                code="lane_not_allowed",
            )
        if await self._batches.by_key(principal.scopes.organisation_id, order.key) is None:
            await self._require_few(principal)
        now = self._clock.now()
        batch = Batch(
            id=self._ids.new("batch"),
            scopes=principal.scopes,
            order=order,
            state=BatchState.VALIDATING,
            created_at=now,
            expires_at=now + order.window_seconds,
            entered={},
        )
        stored = await self._batches.create(batch)
        if stored.order.fingerprint != order.fingerprint:
            raise IdempotencyKeyReused(
                f"Conflict: the key {order.key!r:.80} was used for the batch {stored.id}, which is a "
                "different one. Send a new key with a new request.",
                param="idempotency_key",
            )
        if stored.id == batch.id:
            self._lane.begin(stored)
        return stored

    async def _require_few(self, principal: Principal) -> None:
        project_id, most = principal.scopes.project_id, self.settings.max_unfinished
        mine = [b for b in await self._batches.unfinished() if b.scopes.project_id == project_id]
        if len(mine) >= most:
            raise RateLimited(
                f"{len(mine)} batches of this project have not ended; the limit is {most}. Wait for "
                "some, or cancel some.",
                retry_after_seconds=None,
            )

    async def find(self, principal: Principal, id: str) -> Batch:
        """Raises NotFound."""
        try:
            return await self._batches.find(principal.scopes.organisation_id, id)
        except KeyError:
            raise _no_batch(id) from None

    async def page(self, principal: Principal, listing: Listing) -> list[Batch]:
        """Raises NotFound for an unknown `after`."""
        try:
            return await self._batches.page(principal.scopes.organisation_id, listing)
        except KeyError:
            raise _no_batch(listing.after or "") from None

    async def cancel(self, principal: Principal, id: str) -> Batch:
        """Stop it; what is done is kept. Raises NotFound, BatchConflict for one that has ended."""
        batch = await self.find(principal, id)
        try:
            return await self._lane.cancel(batch)
        except WrongWay as wrong:
            if wrong.batch.state is BatchState.CANCELLED:
                return wrong.batch
            raise BatchConflict(
                f"Cannot cancel a batch with status {wrong.batch.state.value!r}."
            ) from None


def _no_file(id: str) -> NotFound:
    return NotFound(f"No file found with id {id!r:.100}.", param="file_id")


def _no_batch(id: str) -> NotFound:
    return NotFound(f"No batch found with id {id!r:.100}.", param="batch_id")
