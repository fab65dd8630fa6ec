"""B13: a batch of very many lines is checked, run and written in memory that does not grow with it.

Its source is made up as it is read, its calls end at once, and what is stored of it is counted only.
`--batch-lines` says how many lines there are (30,000; `make batch` does a million).
"""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from forebay.batch import Batches, BatchSettings, Blobs, Learnt, Listing, Upload
from forebay.batch.rules import advanced
from forebay.core.batch import (
    Answered,
    Batch,
    BatchOrder,
    BatchState,
    Item,
    LineCounts,
    Place,
    Refused,
    StoredFile,
)
from forebay.core.call import Call
from forebay.core.event import Admitted, CallEvent, Finished
from forebay.core.job import Lane
from forebay.core.usage import Usage
from forebay.pipeline.batch import BatchLane
from forebay.testing.fabric import Fabric
from forebay.testing.plain_lines import PlainLines
from forebay.testing.plans import Scenario
from forebay.testing.world import MODEL, Topology, World

WINDOW = 16
PIECE_BYTES = 64 * 1024


def line(number: int) -> bytes:
    return b'{"id":"line-%d","prompt":"%s"}\n' % (number, b"word " * 40)


class Source(Blobs):
    """A file that is nowhere; what is written is measured and thrown away."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.written_bytes: list[int] = []

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        waiting = bytearray()
        for number in range(self.count):
            waiting += line(number)
            if len(waiting) >= PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting)

    @asynccontextmanager
    async def create(self, id: str) -> AsyncIterator[Upload]:  # type: ignore[override]
        yield Sink(self.written_bytes)

    async def delete(self, id: str) -> None:
        raise AssertionError

    async def ids(self) -> list[str]:
        return []


class Sink(Upload):
    def __init__(self, written: list[int]) -> None:
        self._written, self._size = written, 0

    async def write(self, chunk: bytes) -> None:
        self._size += len(chunk)

    async def commit(self) -> None:
        self._written.append(self._size)

    @property
    def size_bytes(self) -> int:
        return self._size

    @property
    def sha256(self) -> str:
        return hashlib.sha256().hexdigest()


class Counted(Batches):
    """One batch, and of its lines those that are open."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.open_lines: set[int] = set()
        self.most_open = 0

    async def create(self, batch: Batch) -> Batch:
        raise AssertionError

    async def find(self, organisation_id: str, id: str) -> Batch:
        return self.batch

    async def by_key(self, organisation_id: str, key: str) -> Batch | None:
        raise AssertionError

    async def page(self, organisation_id: str, listing: Listing) -> list[Batch]:
        raise AssertionError

    async def unfinished(self) -> list[Batch]:
        return [self.batch]

    async def advance(
        self, batch_id: str, to: BatchState, at: float, learnt: Learnt | None = None
    ) -> Batch:
        self.batch = advanced(self.batch, to, at, learnt)
        return self.batch

    async def open(self, places: Sequence[Place]) -> None:
        self.open_lines.update(place.line for place in places)
        self.most_open = max(self.most_open, len(self.open_lines))
        await asyncio.sleep(0)

    async def keep(self, place: Place, attempt: int, answer: bytes) -> None:
        raise AssertionError

    async def tell(self, place: Place, outcome: Answered | Refused) -> bool:
        assert isinstance(outcome, Answered)
        self.open_lines.remove(place.line)
        counts = self.batch.counts
        self.batch = replace(self.batch, counts=replace(counts, completed=counts.completed + 1))
        return True

    async def items(self, batch_id: str, after: int, limit: int) -> list[Item]:
        return []

    async def pending(self) -> list[Place]:
        return []

    async def forget_items(self, limit: int) -> int:
        return 0


async def at_once(call: Call) -> AsyncGenerator[list[CallEvent], None]:
    """A call that is over before anybody looks."""
    yield [Admitted(call.id, 0.0, MODEL.id, Lane.BATCH, "", 1)]
    await asyncio.sleep(0)
    yield [Finished(1, 1, Usage(1, 1), 1, (None,))]


@pytest.mark.timeout(1800)
async def test_memory_does_not_grow_with_the_lines(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--batch-lines")
    world = World(1, Topology.MACHINE, Scenario())
    scopes = world.principals[0].scopes
    order = BatchOrder("file-1", "/plain", "24h", 86_400)
    now = world.clock.now()
    batch = Batch("batch_1", scopes, order, BatchState.VALIDATING, now, now + 86_400, {})
    source, store = Source(count), Counted(batch)
    await world.files.add(StoredFile("file-1", scopes.organisation_id, "batch", "", 1, "", now))
    rooms = replace(Fabric(world).rooms(world), blobs=source, batches=store)
    settings = BatchSettings(max_lines=count, window_items=WINDOW)
    lane = BatchLane(rooms, Nobody(), at_once, PlainLines(MODEL.id), settings)
    tracemalloc.start()
    try:
        lane.begin(batch)
        await asyncio.gather(*lane.attending)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        world.loop.close()
    assert store.batch.state is BatchState.COMPLETED, store.batch.errors
    assert store.batch.counts == LineCounts(count, count)
    assert 1 < store.most_open <= WINDOW
    assert len(source.written_bytes) == 1  # of none an answer was kept here: all are errors
    # A set of 64-bit numbers, for custom_ids that occur twice, is all that may grow.
    assert peak_bytes < 16 * 1024 * 1024 + 120 * count


class Nobody:
    """The owner of calls that never hold anything."""

    process = "nobody"

    async def suspend(self, call_id: str) -> bool:
        return True

    def let_go(self, call_id: str) -> None:
        return
