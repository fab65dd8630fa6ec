"""The walk of a batch: its file is checked, its lines are run, its output is written.

    VALIDATING ── check the whole file ──▶ IN_PROGRESS ── run its lines ──▶ FINALIZING ── write ──▶ COMPLETED

What is to be done next is read from the batch's row alone, so whoever finds it there goes on with it:
the next process, after a crash, or this one, after a store has failed. A cancel moves the row and has
its walk begun anew from there.

Lines enter the queue through a window (B13), in the order of the file, as calls of their project in the
batch lane: with which others of the lane they share it fairly (Q8), and whom they give way to (Q7), is the
queue's business. The batch is their owner of record: `adopt` is called before anybody resolves what an
earlier process left behind.

Not here: one line (`batch_items.py`), the check (`batch_check.py`), the output (`batch_output.py`), what
clients may ask (`batches.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial

from forebay.batch import BatchSettings, Learnt, WrongWay
from forebay.core.batch import Batch, BatchState, LineError
from forebay.core.errors import FileDamaged, InvalidKey, StoreUnavailable
from forebay.core.hold import Balance
from forebay.pipeline.batch_check import Check, Terms
from forebay.pipeline.batch_items import Course, Items, Owner
from forebay.pipeline.batch_lines import LineFormat
from forebay.pipeline.batch_output import InOrder, Output, lines_of
from forebay.pipeline.kept import Walk
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.weights import Weights

SWEEP_SECONDS = 10.0
# Files that are checked at once: it takes CPU time from those who wait for an answer.
CHECKS_AT_ONCE = 2
# Lines of all batches together in the queue or running: single calls of the lane find room beside them.
LINES_IN_FLIGHT = 1_000
# And so many bytes of lines are held, of all batches together.
BYTES_IN_FLIGHT = 64 * 1024 * 1024
# What runs at a stop is looked at so often.
DRAIN_SECONDS = 0.5
_SWEPT_AT_ONCE = 200
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 0.5, 60.0


class _Attended:
    """The walk of one batch here, and the step that it is in."""

    def __init__(self, state: BatchState) -> None:
        self.state = state
        self.task: asyncio.Task[None] | None = None
        self.interrupted = False

    def interrupt(self) -> None:
        """Begin it anew, from where the row is by now."""
        self.interrupted = True
        self.cancel()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class BatchLane:
    """The batches of one process, which must be the only one that has a lane."""

    def __init__(
        self, rooms: Rooms, owner: Owner, walk: Walk, format: LineFormat, settings: BatchSettings
    ) -> None:
        self._rooms = rooms
        self._format = format
        self._settings = settings
        self._items = Items(rooms, owner, walk, format, settings)
        self._output = Output(rooms, format, settings)
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._shares: dict[str, tuple[int, asyncio.Semaphore]] = {}
        self._lines = asyncio.Semaphore(LINES_IN_FLIGHT)
        self._bytes = Weights(BYTES_IN_FLIGHT)
        self._attended: dict[str, _Attended] = {}
        self._stopping = False

    async def adopt(self) -> None:
        """At start, before anybody resolves what earlier processes left behind."""
        await self._adopt_all()
        known = set(await self._rooms.files.ids())
        if unknown := [id_ for id_ in await self._rooms.blobs.ids() if id_ not in known]:
            self._rooms.report.log.warning("files_unknown", count=len(unknown), first=unknown[0])

    async def run(self) -> None:
        """Attend to all that have not ended, for ever, and forget what has expired."""
        while True:
            try:
                for batch in await self._rooms.batches.unfinished():
                    self._look(batch)
                await self._sweep()
            except StoreUnavailable as fault:
                self._rooms.report.log.error("batch_sweep_failed", error=str(fault))
            await asyncio.sleep(SWEEP_SECONDS)

    def begin(self, batch: Batch) -> None:
        """Go on with it from where it stands."""
        if self._stopping or batch.id in self._attended:
            return
        attended = self._attended[batch.id] = _Attended(batch.state)
        attended.task = self._rooms.spawn(self._attend(batch, attended), name=f"batch {batch.id}")
        attended.task.add_done_callback(lambda _: self._left(batch, attended))

    async def cancel(self, batch: Batch) -> Batch:
        """Stop it and keep what is done; answers it as it is then. Raises WrongWay."""
        now = self._rooms.clock.now()
        moved = await self._rooms.batches.advance(batch.id, BatchState.CANCELLING, now)
        self._look(moved)
        return moved

    @property
    def attending(self) -> list[asyncio.Task[None]]:
        """The walks of batches that go on here."""
        return [each.task for each in self._attended.values() if each.task is not None]

    async def suspend(self) -> None:
        """Begin no more lines; those that wait are left to the next process."""
        self._stopping = True
        await self._items.suspend()

    async def drain(self) -> None:
        """Wait for the lines that run."""
        while self._attended:
            await self.suspend()  # again: what was about to be queued waits there by now
            for batch_id, attended in self._attended.items():
                if not self._items.runs(batch_id):
                    attended.cancel()  # it checks a file, writes one, or waits for its turn
            await asyncio.wait(self.attending, timeout=DRAIN_SECONDS)

    def let_go(self) -> None:
        """Stop now; the next process goes on, as after a crash."""
        self._stopping = True
        self._items.let_go()
        for attended in self._attended.values():
            attended.cancel()

    async def left(self) -> int:
        """How many calls of lines hold money for the next process; asked once this one has stopped."""
        return await self._adopt_all()

    # -- one batch ----------------------------------------------------------------------------------

    def _look(self, batch: Batch) -> None:
        """Its walk goes on here, and from where the row is."""
        attended = self._attended.get(batch.id)
        if attended is None:
            self.begin(batch)
        elif batch.state is BatchState.CANCELLING and attended.state is not batch.state:
            attended.interrupt()

    def _left(self, batch: Batch, attended: _Attended) -> None:
        del self._attended[batch.id]
        if attended.interrupted:
            self.begin(batch)

    async def _attend(self, batch: Batch, attended: _Attended) -> None:
        """Until it has ended, or this process stops."""
        delay = _FIRST_DELAY_SECONDS
        while not self._stopping:
            try:
                batch = await self._find(batch)
                if batch.state.is_ended:
                    return
                attended.state = batch.state
                await self._step(batch)
                delay = _FIRST_DELAY_SECONDS
            except WrongWay:
                continue  # it was cancelled meanwhile
            except StoreUnavailable as fault:
                self._rooms.report.log.error("batch_waits", batch_id=batch.id, error=str(fault))
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LAST_DELAY_SECONDS)

    async def _find(self, batch: Batch) -> Batch:
        return await self._rooms.batches.find(batch.scopes.organisation_id, batch.id)

    async def _step(self, batch: Batch) -> None:
        match batch.state:
            case BatchState.VALIDATING:
                async with self._checks:
                    await self._check(batch)
            case BatchState.IN_PROGRESS:
                await self._run(batch)
            case BatchState.FINALIZING:
                await self._finish(batch, cancelled=False)
            case BatchState.CANCELLING:
                await self._finish(batch, cancelled=True)

    def _tell_end(self, batch: Batch) -> None:
        self._rooms.report.metrics.batches_ended.labels(batch.state.value).inc()
        self._rooms.report.log.info(
            "batch_ended",
            batch_id=batch.id,
            state=batch.state.value,
            total=batch.counts.total,
            completed=batch.counts.completed,
            failed=batch.counts.failed,
            amount_nanos=batch.spent.amount_nanos,
        )

    # -- its file is checked ------------------------------------------------------------------------

    async def _check(self, batch: Batch) -> None:
        learnt = await self._checked(batch)
        to = BatchState.FAILED if learnt.errors else BatchState.IN_PROGRESS
        moved = await self._rooms.batches.advance(batch.id, to, self._rooms.clock.now(), learnt)
        if learnt.errors:
            self._tell_end(moved)

    async def _checked(self, batch: Batch) -> Learnt:
        rooms = self._rooms
        try:
            principal = await rooms.tenancy.principal(batch.scopes.key_id)
            check = Check(Terms(batch, principal, self._format, rooms.catalog, self._settings))
            async with aclosing(lines_of(rooms, batch, self._format.most_line_bytes)) as found:
                async for line in found:
                    if not check.line(line):
                        break
        except InvalidKey as refusal:
            return _refused("invalid_api_key", refusal.message)
        except KeyError:
            return _refused(
                "invalid_request",
                f"Cannot find file {batch.order.input_file_id}, or this organisation does not have "
                "access to it.",
                param="input_file_id",
            )
        except FileDamaged as damage:
            return _refused("file_damaged", damage.message, param="input_file_id")
        except StoreUnavailable:
            if rooms.clock.now() < batch.expires_at:
                raise
            return _refused("batch_expired", "The file could not be read before the batch expired.")
        if errors := check.errors(await self._balances(batch)):
            return Learnt(check.model, errors=tuple(errors))
        return Learnt(check.model, check.total)

    async def _balances(self, batch: Batch) -> list[Balance]:
        return [await self._rooms.ledger.balances(scope) for scope in batch.scopes]

    # -- its lines are run --------------------------------------------------------------------------

    async def _run(self, batch: Batch) -> None:
        """All its lines to their outcomes, as long as it has time."""
        clock = self._rooms.clock
        try:
            async with (
                asyncio.timeout(max(0.0, batch.expires_at - clock.now())),
                self._gate(batch.scopes.key_id),
            ):
                await self._run_all(batch)
        except (TimeoutError, FileDamaged) as end:
            self._rooms.report.log.warning("batch_cut_short", batch_id=batch.id, why=repr(end))
        if not self._stopping:
            await self._rooms.batches.advance(batch.id, BatchState.FINALIZING, clock.now())

    async def _run_all(self, batch: Batch) -> None:
        """Walk through its file until no line is without an outcome."""
        left, pause = batch.counts.left, _FIRST_DELAY_SECONDS
        while left and not self._stopping:
            await self._run_lines(batch)
            before, left = left, (await self._find(batch)).counts.left
            if left:
                pause = (
                    _FIRST_DELAY_SECONDS if left < before else min(2 * pause, _LAST_DELAY_SECONDS)
                )
                await asyncio.sleep(pause)

    def _gate(self, key_id: str) -> asyncio.Semaphore:
        at_once = self._settings.running_per_key
        return self._gates.setdefault(key_id, asyncio.Semaphore(at_once))

    async def _run_lines(self, batch: Batch) -> None:
        """Each that has no outcome. Raises StoreUnavailable, once those that were begun have theirs."""
        course = Course(batch, await self._bounds(batch))
        unreadable: StoreUnavailable | None = None
        async with asyncio.TaskGroup() as group:
            try:
                await self._begin_lines(course, group)
            except StoreUnavailable as fault:
                unreadable = fault
        if unreadable is not None:
            raise unreadable

    async def _begin_lines(self, course: Course, group: asyncio.TaskGroup) -> None:
        batch, window = course.batch, Weights(self._settings.window_items)
        told = InOrder(self._rooms.batches, batch.id)
        async with aclosing(lines_of(self._rooms, batch, self._format.most_line_bytes)) as found:
            async for line in found:
                item = None if line.is_blank else await told.at(line.number)
                if line.is_blank or (item is not None and item.state.has_outcome):
                    continue
                if course.is_poor:
                    await course.clear.wait()
                await window.take(1)
                await self._bytes.take(len(line.content))
                if self._stopping:
                    self._bytes.give_back(len(line.content))
                    return
                task = group.create_task(self._items.run(course, line))
                task.add_done_callback(partial(self._done, window, len(line.content)))

    def _done(self, window: Weights, size_bytes: int, _: asyncio.Task[None]) -> None:
        window.give_back(1)
        self._bytes.give_back(size_bytes)

    async def _bounds(self, batch: Batch) -> list[asyncio.Semaphore]:
        """Half of the calls that each of its scopes may have open (L15) is for lines of batches."""
        bounds = []
        for scope, balance in zip(batch.scopes, await self._balances(batch), strict=True):
            most = balance.account.max_open_holds
            if most is not None:
                known = self._shares.get(scope)
                if known is None or known[0] != most:
                    known = self._shares[scope] = most, asyncio.Semaphore(max(1, most // 2))
                bounds.append(known[1])
        return [*bounds, self._lines]

    # -- its output is written ----------------------------------------------------------------------

    async def _finish(self, batch: Batch, *, cancelled: bool) -> None:
        rooms = self._rooms
        places = [each for each in await rooms.batches.pending() if each.batch_id == batch.id]
        await asyncio.gather(*map(self._items.withdraw, places))
        batch = await self._find(batch)  # one of them may have been settled at the last moment
        whole = BatchState.EXPIRED if batch.counts.left else BatchState.COMPLETED
        ended = BatchState.CANCELLED if cancelled else whole
        learnt = await self._output.write(batch, ended)
        self._tell_end(await rooms.batches.advance(batch.id, ended, rooms.clock.now(), learnt))

    # -- what is left behind ------------------------------------------------------------------------

    async def _adopt_all(self) -> int:
        places = await self._rooms.batches.pending()
        return sum(await asyncio.gather(*map(self._items.adopt, places)))

    async def _sweep(self) -> None:
        """Forget what has expired, and the items of batches that have ended."""
        for id_ in await self._rooms.files.sweep(_SWEPT_AT_ONCE):
            await self._rooms.blobs.delete(id_)
        forgotten = _SWEPT_AT_ONCE
        while forgotten == _SWEPT_AT_ONCE:
            forgotten = await self._rooms.batches.forget_items(_SWEPT_AT_ONCE)


def _refused(code: str, message: str, *, param: str | None = None) -> Learnt:
    """What becomes known of a batch whose file is refused."""
    return Learnt(errors=(LineError(code, message, param=param),))
