"""The two files that a batch ends with (B11): each line of its input is a line of one of them.

They are made from the input file and from what was kept of its lines, in the order of the lines;
made again, after a crash, they are the same.

Not here: how a line is written (a `LineFormat`), when a batch ends (`batch.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from forebay.batch import Batches, BatchSettings, Learnt, Line, Upload, lines
from forebay.core.batch import Batch, BatchState, Item, ItemState, LineError, Place, StoredFile
from forebay.core.errors import FileDamaged, InternalError
from forebay.core.event import Admitted
from forebay.core.job import Lane
from forebay.core.principal import Principal
from forebay.pipeline.batch_lines import LineFormat, LineRefused
from forebay.pipeline.batches import OUTPUT_PURPOSE
from forebay.pipeline.rooms import Rooms

# Between two turns of the event loop; a line takes a tenth of a millisecond, or a few.
LINES_AT_ONCE = 8
_BLANK_WORK = 0.01
_ITEMS_AT_ONCE = 50
_WRITE_BYTES = 256 * 1024

_decode_head = msgspec.msgpack.Decoder(Admitted).decode


async def lines_of(rooms: Rooms, batch: Batch, most_bytes: int) -> AsyncGenerator[Line, None]:
    """The lines of its input file, blank ones included. Raises KeyError if that is gone, FileDamaged
    before its end if its bytes are others by now."""
    organisation_id = batch.scopes.organisation_id
    file = await rooms.files.find(organisation_id, batch.order.input_file_id)
    work = 0.0
    async for line in lines(rooms.blobs.read(file), most_bytes):
        yield line
        work += 1 if line.content else _BLANK_WORK
        if work >= LINES_AT_ONCE:
            await asyncio.sleep(0)
            work = 0.0


class InOrder:
    """What became of a batch's lines, asked for in the order of the lines."""

    def __init__(self, batches: Batches, batch_id: str) -> None:
        self._batches = batches
        self._batch_id = batch_id
        self._page: list[Item] = []
        self._no_more = False

    async def at(self, number: int) -> Item | None:
        """None: it was not begun when its page was read. Numbers must grow."""
        while not self._no_more:
            while self._page and self._page[0].place.line < number:
                self._page.pop(0)
            if self._page:
                break
            self._page = await self._batches.items(self._batch_id, number - 1, _ITEMS_AT_ONCE)
            self._no_more = not self._page
        first = self._page[0] if self._page else None
        return first if first is not None and first.place.line == number else None


class _Part:
    """One of the two files, as it grows."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def write(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes >= _WRITE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if self._waiting:
            await self.upload.write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0


class Output:
    """Writes the files of batches."""

    def __init__(self, rooms: Rooms, format: LineFormat, settings: BatchSettings) -> None:
        self._rooms = rooms
        self._format = format
        self._settings = settings

    async def write(self, batch: Batch, ended: BatchState) -> Learnt:
        """Both files, stored but not yet told of; None for one in which there is nothing. What of the
        input cannot be read any more is an error of the batch.

        Raises StoreUnavailable.
        """
        if not batch.counts.total:  # it ended before its file was accepted
            return Learnt()
        stem = batch.id.removeprefix("batch_")
        blobs, batches = self._rooms.blobs, self._rooms.batches
        ids = f"file-{stem}-output", f"file-{stem}-errors"
        async with blobs.create(ids[0]) as first, blobs.create(ids[1]) as second:
            answers, errors = _Part(first), _Part(second)
            told = InOrder(batches, batch.id)
            damage: tuple[LineError, ...] = ()
            try:
                await self._tell(batch, ended, told, (answers, errors))
            except FileDamaged as fault:
                damage = (LineError("file_damaged", f"{fault} Its last lines are in no file."),)
            files = (
                await self._close(batch, answers, ids[0], f"{batch.id}_output.jsonl"),
                await self._close(batch, errors, ids[1], f"{batch.id}_error.jsonl"),
            )
            return Learnt(files=files, errors=damage)

    async def _tell(
        self, batch: Batch, ended: BatchState, told: InOrder, parts: tuple[_Part, _Part]
    ) -> None:
        answers, errors = parts
        async with aclosing(lines_of(self._rooms, batch, self._format.most_line_bytes)) as found:
            async for line in found:
                if line.is_blank:
                    continue
                item = await told.at(line.number)
                if item is not None and item.state is ItemState.COMPLETED:
                    await answers.write(self._answer(batch, line, item))
                else:
                    await errors.write(self._error(batch, line, item, ended))

    def _answer(self, batch: Batch, line: Line, item: Item) -> bytes:
        nobody = Principal(batch.scopes, weight=1, lanes=frozenset({Lane.BATCH}))
        try:
            read = self._format.read(line.content, item.place, batch.order.endpoint, nobody)
        except LineRefused as refused:  # by a version that is stricter than the one that ran it
            log = self._rooms.report.log
            log.error("batch_line_unreadable", request_id=item.place.call_id, error=str(refused))
            why = self._format.fault(InternalError("This version cannot read the line any more."))
            custom_id = self._format.custom_id(line.content)
            return self._format.faulty(custom_id, item.place, why)
        return self._format.answer(read, _decode_head(item.head), item.answer)

    def _error(self, batch: Batch, line: Line, item: Item | None, ended: BatchState) -> bytes:
        place, custom_id = Place(batch.id, line.number), self._format.custom_id(line.content)
        if item is not None and item.state is ItemState.FAILED:
            return self._format.faulty(custom_id, place, item.answer)
        return self._format.unrun(custom_id, place, ended)

    async def _close(self, batch: Batch, part: _Part, id: str, name: str) -> StoredFile | None:
        await part.flush()
        upload, now = part.upload, self._rooms.clock.now()
        if not upload.size_bytes:
            return None
        await upload.commit()
        ttl = batch.order.output_ttl_seconds or self._settings.file_ttl_seconds
        return StoredFile(
            id=id,
            organisation_id=batch.scopes.organisation_id,
            purpose=OUTPUT_PURPOSE,
            name=name,
            size_bytes=upload.size_bytes,
            sha256=upload.sha256,
            created_at=now,
            expires_at=now + ttl,
        )
