"""Files, batches and bytes in memory: the specification that the other stores are compared with.

No verb awaits, so each runs to completion on the event loop: that is its atomicity. Nothing is counted
ahead but a batch's own counts and sums, which are what it shows.

Not here: what is decided (`rules`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import dropwhile, islice
from typing import TypeVar

from forebay.batch.contract import Batches, Blobs, FileInUse, Files, Learnt, Listing, Upload
from forebay.batch.rules import (
    advanced,
    damaged,
    exists_already,
    no_content,
    pieces_of,
    require_name,
    require_room,
    require_whole,
)
from forebay.batch.settings import BatchSettings
from forebay.core.batch import (
    Answered,
    Batch,
    BatchState,
    Item,
    ItemState,
    Place,
    Refused,
    Spent,
    StoredFile,
)
from forebay.core.clock import Clock
from forebay.core.errors import StaleAttempt

Listed = TypeVar("Listed", StoredFile, Batch)


@dataclass(slots=True)
class MemoryState:
    """What is kept, by id in the order of its making; both contracts share one, as tables are shared.

    `needs`: the input file of each batch that has not ended, if it was there when that was made.
    """

    settings: BatchSettings
    clock: Clock
    files: dict[str, StoredFile] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)
    items: dict[str, dict[int, Item]] = field(default_factory=dict)

    def living(self, organisation_id: str) -> list[StoredFile]:
        """The files of an organisation that are there (B1, B7, B9)."""
        mine = (each for each in self.files.values() if each.organisation_id == organisation_id)
        return [each for each in mine if not self.is_gone(each)]

    def is_gone(self, file: StoredFile) -> bool:
        """It has expired, and nothing needs it."""
        expired = file.expires_at is not None and file.expires_at <= self.clock.now()
        return expired and file.id not in self.needs.values()

    def require_new(self, file: StoredFile) -> None:
        if file.id in self.files:
            raise exists_already("file", file.id)


class MemoryFiles(Files):
    """On the same state as MemoryBatches."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def add(self, file: StoredFile) -> None:
        self._state.require_new(file)
        there = self._state.living(file.organisation_id)
        used_bytes = sum(each.size_bytes for each in there)
        require_room(self._state.settings, used_bytes + file.size_bytes, len(there) + 1)
        self._state.files[file.id] = file

    async def find(self, organisation_id: str, id: str) -> StoredFile:
        return _by_id(self._state.living(organisation_id), id)

    async def page(self, organisation_id: str, listing: Listing) -> list[StoredFile]:
        found = _listed(self._state.living(organisation_id), listing)
        fitting = (each for each in found if listing.purpose in (None, each.purpose))
        return list(islice(fitting, listing.limit))

    async def remove(self, organisation_id: str, id: str) -> None:
        await self.find(organisation_id, id)
        for batch_id, file_id in self._state.needs.items():
            if file_id == id:
                raise FileInUse(batch_id)
        del self._state.files[id]

    async def used_bytes(self, organisation_id: str) -> int:
        return sum(each.size_bytes for each in self._state.living(organisation_id))

    async def sweep(self, limit: int) -> list[str]:
        expired = filter(self._state.is_gone, self._state.files.values())
        ordered = sorted(expired, key=lambda each: each.expires_at or 0.0)
        ids = [each.id for each in ordered[:limit]]
        for id in ids:
            del self._state.files[id]
        return ids

    async def ids(self) -> list[str]:
        return list(self._state.files)


class MemoryBatches(Batches):
    """On the same state as MemoryFiles."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def create(self, batch: Batch) -> Batch:
        order = batch.order
        earlier = await self.by_key(batch.scopes.organisation_id, order.key)
        if earlier is not None:
            return earlier
        if batch.id in self._state.batches:
            raise exists_already("batch", batch.id)
        stored = replace(batch, order=replace(order, metadata=dict(order.metadata)))
        self._state.batches[batch.id] = stored
        files = self._state.living(batch.scopes.organisation_id)
        if order.input_file_id in (each.id for each in files):
            self._state.needs[batch.id] = order.input_file_id
        return stored

    async def find(self, organisation_id: str, id: str) -> Batch:
        return _by_id(self._of(organisation_id), id)

    async def by_key(self, organisation_id: str, key: str) -> Batch | None:
        mine = (each for each in self._of(organisation_id) if key and each.order.key == key)
        return next(mine, None)

    async def page(self, organisation_id: str, listing: Listing) -> list[Batch]:
        return list(islice(_listed(self._of(organisation_id), listing), listing.limit))

    async def unfinished(self) -> list[Batch]:
        living = (each for each in self._state.batches.values() if not each.state.is_ended)
        return sorted(living, key=lambda each: each.created_at)

    async def advance(
        self, batch_id: str, to: BatchState, at: float, learnt: Learnt | None = None
    ) -> Batch:
        before = self._state.batches[batch_id]
        after = advanced(before, to, at, learnt)
        if after is before:
            return before
        files = [file for file in (learnt or Learnt()).files if file is not None]
        for file in files:
            self._state.require_new(file)
        self._state.files.update((file.id, file) for file in files)
        self._state.batches[batch_id] = after
        if to.is_ended:
            self._state.needs.pop(batch_id, None)
        return after

    async def open(self, places: Sequence[Place]) -> None:
        for place in places:
            if place.batch_id not in self._state.batches:
                raise KeyError(place.batch_id)
        for place in places:
            lines = self._state.items.setdefault(place.batch_id, {})
            lines.setdefault(place.line, Item(place, ItemState.OPEN))

    async def keep(self, place: Place, attempt: int, answer: bytes) -> None:
        item = self._item(place)
        if item.state.has_outcome:
            return
        if attempt < item.attempt:
            raise StaleAttempt
        kept = replace(item, state=ItemState.KEPT, attempt=attempt, answer=answer)
        self._state.items[place.batch_id][place.line] = kept

    async def tell(self, place: Place, outcome: Answered | Refused) -> bool:
        item = self._item(place)
        if item.state.has_outcome:
            return False
        if isinstance(outcome, Refused):
            told = replace(item, state=ItemState.FAILED, answer=outcome.why)
        elif item.state is ItemState.KEPT:
            told = replace(item, state=ItemState.COMPLETED, head=outcome.head)
        else:
            raise KeyError(place)
        self._state.items[place.batch_id][place.line] = told
        batch = self._state.batches[place.batch_id]
        self._state.batches[place.batch_id] = _with_outcome(batch, outcome)
        return True

    async def items(self, batch_id: str, after: int, limit: int) -> list[Item]:
        lines = sorted(self._state.items.get(batch_id, {}).items())
        return [item for line, item in lines if line > after][:limit]

    async def pending(self) -> list[Place]:
        items = [item for lines in self._state.items.values() for item in lines.values()]
        places = [each.place for each in items if not each.state.has_outcome]
        living = [each for each in places if not self._has_ended(each.batch_id)]
        return sorted(living, key=_in_order)

    async def forget_items(self, limit: int) -> int:
        ended = filter(self._has_ended, self._state.items)
        places = [item.place for id in ended for item in self._state.items[id].values()]
        forgotten = sorted(places, key=_in_order)[:limit]
        for place in forgotten:
            del self._state.items[place.batch_id][place.line]
        return len(forgotten)

    def _of(self, organisation_id: str) -> list[Batch]:
        every = self._state.batches.values()
        return [each for each in every if each.scopes.organisation_id == organisation_id]

    def _item(self, place: Place) -> Item:
        item = self._state.items.get(place.batch_id, {}).get(place.line)
        if item is None:
            raise KeyError(place)
        return item

    def _has_ended(self, batch_id: str) -> bool:
        return self._state.batches[batch_id].state.is_ended


class MemoryBlobs(Blobs):
    """Bytes by id, whole: for tests and what is small."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def create(self, id: str) -> AbstractAsyncContextManager[Upload]:
        return self._created(require_name(id))

    @asynccontextmanager
    async def _created(self, id: str) -> AsyncIterator[Upload]:
        yield MemoryUpload(id, self._contents)

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        content = self._contents.get(require_name(file.id))
        if content is None:
            raise no_content(file)
        if len(content) > file.size_bytes:
            raise damaged(file)
        *first, last = [*pieces_of(content)] or [b""]
        for piece in first:
            yield piece
        require_whole(file, len(content), sha256(content).hexdigest())
        if last:
            yield last

    async def delete(self, id: str) -> None:
        self._contents.pop(require_name(id), None)

    async def ids(self) -> list[str]:
        return list(self._contents)


class MemoryUpload(Upload):
    """Made by MemoryBlobs."""

    def __init__(self, id: str, contents: dict[str, bytes]) -> None:
        self._id = id
        self._contents = contents
        self._content = bytearray()

    async def write(self, chunk: bytes) -> None:
        self._content += chunk

    async def commit(self) -> None:
        self._contents[self._id] = bytes(self._content)

    @property
    def size_bytes(self) -> int:
        return len(self._content)

    @property
    def sha256(self) -> str:
        return sha256(self._content).hexdigest()


def _by_id(known: Iterable[Listed], id: str) -> Listed:
    """Raises KeyError."""
    for each in known:
        if each.id == id:
            return each
    raise KeyError(id)


def _listed(known: list[Listed], listing: Listing) -> Iterable[Listed]:
    """In order, those after the one that it names. Raises KeyError."""
    ordered = sorted(known, key=lambda each: each.created_at)
    if listing.newest_first:
        ordered.reverse()
    if listing.after is None:
        return ordered
    last = _by_id(known, listing.after)
    return islice(dropwhile(lambda each: each is not last, ordered), 1, None)


def _with_outcome(batch: Batch, outcome: Answered | Refused) -> Batch:
    """The batch with one more line told (B3)."""
    counts, spent = batch.counts, batch.spent
    if isinstance(outcome, Refused):
        return replace(batch, counts=replace(counts, failed=counts.failed + 1))
    usage = outcome.usage
    return replace(
        batch,
        counts=replace(counts, completed=counts.completed + 1),
        spent=Spent(
            spent.input_tokens + usage.input_tokens,
            spent.cached_input_tokens + usage.cached_input_tokens,
            spent.output_tokens + usage.output_tokens,
            spent.amount_nanos + outcome.amount_nanos,
        ),
    )


def _in_order(place: Place) -> tuple[str, int]:
    return place.batch_id, place.line
