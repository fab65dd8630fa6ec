"""One line of a batch, from its begin to its outcome: the walk of a call for which nobody waits.

A refusal that time may cure (an empty budget, a limit, a full store) is waited out; any other is the
line's outcome. A call that another process began is gone on with under its hold, whose id derives
from batch and line (B12).

Not here: which line is next (`batch.py`), the walk itself (`interactive.py`), how outcomes are written
(`batch_output.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Protocol, TypeVar

from forebay.batch import BatchSettings, Line
from forebay.core.batch import Answered, Batch, Place, Refused
from forebay.core.errors import (
    AlreadyResolved,
    CallerError,
    ForebayError,
    InsufficientQuota,
    InternalError,
    InvalidRequest,
    OverloadError,
    RateLimited,
    StoreUnavailable,
    UnknownHold,
)
from forebay.core.event import Admitted, Failed, Finished
from forebay.core.hold import Bill
from forebay.core.principal import Principal
from forebay.core.usage import Outcome, Usage, UsageRow
from forebay.pipeline.batch_lines import LineFormat, LineRefused
from forebay.pipeline.kept import Walk
from forebay.pipeline.kept_answer import encode_head
from forebay.pipeline.rooms import Rooms

# Between two tries of what has to wait; the first is short, for what another line's end may cure.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
# For so long a key that ordered a batch is believed to work on.
PRINCIPAL_SECONDS = 5.0
_REMEMBERED_KEYS = 1_000

T = TypeVar("T")


class Owner(Protocol):
    """The process that runs their calls."""

    process: str

    async def suspend(self, call_id: str) -> bool: ...
    def let_go(self, call_id: str) -> None: ...


class Course:
    """One batch whose lines are run here. `bounds` are whose calls it shares a number of open ones
    with. `clear`: nothing that time may cure is in the way of its lines; else one of them tries again
    now and then, and the others wait for that, or leave if it is money, which may take for ever."""

    def __init__(self, batch: Batch, bounds: Sequence[asyncio.Semaphore]) -> None:
        self.batch = batch
        self.bounds = bounds
        self.clear = asyncio.Event()
        self.clear.set()
        self.is_poor = False

    async def until_clear(self) -> None:
        """Wait until one of its lines has got through. Raises Left if money is in its way."""
        if self.is_poor:
            raise Left
        await self.clear.wait()


class Left(Exception):
    """A line has no outcome yet, and is come to again: by the next process, or once there is money."""


class _Ended(Exception):
    """A line's call failed, with this error."""

    def __init__(self, error: ForebayError) -> None:
        self.error = error
        super().__init__(error.message)


class _Running:
    """One line that is being run here. `waits`: it holds nothing, and will try again. `probes`: it is
    the one that tries for all of its batch."""

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.waits = False
        self.probes = False

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def admitted(self, course: Course) -> None:
        """What was in the way is not any more."""
        if self.probes:
            self.probes = course.is_poor = False
            course.clear.set()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.waits = True
        try:
            yield
        finally:
            self.waits = False


class Items:
    """The lines that this process runs."""

    def __init__(
        self, rooms: Rooms, owner: Owner, walk: Walk, format: LineFormat, settings: BatchSettings
    ) -> None:
        self._rooms = rooms
        self._owner = owner
        self._walk = walk
        self._format = format
        self._settings = settings
        self._running: dict[Place, _Running] = {}
        self._principals: dict[str, tuple[float, Principal]] = {}
        self._stopping = False

    async def run(self, course: Course, line: Line) -> None:
        """To its outcome. Cancelled: it has none yet, and its call is withdrawn, or let go. Nothing
        else leaves it, for its neighbours would be cancelled."""
        place = Place(course.batch.id, line.number)
        running = self._running[place] = _Running()
        try:
            await self._stored(lambda: self._rooms.batches.open([place]))
            outcome = await self._outcome(course, line, place, running)
            await self._stored(lambda: self._tell(place, outcome))
        except Left:
            return
        except Exception as fault:
            self._report_bug(place, fault)
        finally:
            running.admitted(course)  # if it was the one that tries, another one does
            del self._running[place]

    def runs(self, batch_id: str) -> bool:
        """Whether a line of this batch is being run here."""
        return any(place.batch_id == batch_id for place in self._running)

    async def suspend(self) -> None:
        """Leave what waits, in the queue or for anything else, to the next process."""
        self._stopping = True
        for place, running in list(self._running.items()):
            if running.waits or await self._owner.suspend(place.call_id):
                running.cancel()

    def let_go(self) -> None:
        """Stop all; the next process goes on with them, as after a crash."""
        self._stopping = True
        for place, running in self._running.items():
            self._owner.let_go(place.call_id)
            running.cancel()

    async def adopt(self, place: Place) -> bool:
        """Have the hold that somebody left; false if there is none, or none any more."""
        try:
            await self._rooms.ledger.adopt(place.call_id, self._owner.process)
            return True
        except UnknownHold:
            return False
        except AlreadyResolved as done:
            if done.row.outcome is not Outcome.CANCELLED:
                await self._tell(place, self._by_row(done.row))
            return False

    async def withdraw(self, place: Place) -> None:
        """Its batch is at its end: what is not settled yet is not wanted, and costs nothing (B14).

        Raises StoreUnavailable if that cannot be stored just now.
        """
        row = await self._resolved(place, "batch_ended")
        if row is not None and row.outcome is not Outcome.CANCELLED:
            await self._tell(place, self._by_row(row))

    # -- one line -----------------------------------------------------------------------------------

    async def _outcome(
        self, course: Course, line: Line, place: Place, running: _Running
    ) -> Answered | Refused:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with self._room(course, running):
                    return await self._walked(course, line, place, running)
            except Exception as fault:
                seconds = self._seconds_until_again(fault, place)
                if seconds is None:
                    return await self._refused(fault, place)
                course.is_poor |= isinstance(fault, InsufficientQuota)
            if course.clear.is_set():
                course.clear.clear()
                running.probes = True
            if running.probes:
                with running.waiting():
                    await asyncio.sleep(max(pause, min(seconds, LONGEST_PAUSE_SECONDS)))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    @asynccontextmanager
    async def _room(self, course: Course, running: _Running) -> AsyncIterator[None]:
        """Its place among the calls that its scopes may have open, and among all lines."""
        async with AsyncExitStack() as places:
            with running.waiting():
                if not running.probes:
                    await course.until_clear()
                for bound in course.bounds:
                    await places.enter_async_context(bound)
            if self._stopping:
                raise Left
            yield

    async def _walked(
        self, course: Course, line: Line, place: Place, running: _Running
    ) -> Answered:
        batch, head = course.batch, b""
        principal = await self._principal(batch.scopes.key_id)
        read = self._format.read(line.content, place, batch.order.endpoint, principal)
        async with aclosing(self._walk(read.call)) as bunches:
            async for bunch in bunches:
                for event in bunch:
                    if isinstance(event, Admitted):
                        head = encode_head(event)
                        running.admitted(course)
                    elif isinstance(event, Finished):
                        return Answered(event.usage, event.amount_nanos, head)
                    elif isinstance(event, Failed):
                        raise _Ended(event.error)
        raise InternalError("A call ended without an end.")

    def _seconds_until_again(self, fault: Exception, place: Place) -> float | None:
        """When this may be cured; None: never, it is the line's outcome."""
        match fault:
            case Left():
                raise fault
            case InsufficientQuota():
                return 0.0 if self._settings.without_budget == "wait" else None
            case RateLimited():
                return fault.retry_after_seconds
            case OverloadError() | StoreUnavailable():
                return 0.0
            case CallerError() | LineRefused() | AlreadyResolved() | _Ended():
                return None
        self._report_bug(place, fault)
        return None

    def _report_bug(self, place: Place, fault: Exception) -> None:
        log = self._rooms.report.log
        log.error("batch_line_failed", request_id=place.call_id, exc_info=fault)

    async def _refused(self, fault: Exception, place: Place) -> Answered | Refused:
        """The outcome of a line that is not run (on), unless the ledger knows better: a hold that it
        had is let go."""
        row = await self._stored(lambda: self._resolved(place, "batch_line_refused"))
        if row is not None and row.outcome is Outcome.COMPLETED:
            return self._by_row(row)
        match fault:
            case AlreadyResolved():
                return self._by_row(fault.row)
            case LineRefused(error=bad):  # by a version that is stricter than the one that read it
                error: ForebayError = InvalidRequest(bad.message, param=bad.param, code=bad.code)
            case _Ended():
                error = fault.error
            case CallerError():
                error = fault
            case _:
                error = InternalError()
        return Refused(self._format.fault(error))

    async def _resolved(self, place: Place, reason: str) -> UsageRow | None:
        """How its call ended; one that had not ends now, for free. None: it never held anything."""
        try:
            attempt = await self._rooms.ledger.adopt(place.call_id, self._owner.process)
        except UnknownHold:
            return None
        except AlreadyResolved as done:
            return done.row
        bill = Bill(Usage(0, 0), Outcome.CANCELLED, reason)
        row = await self._rooms.resolve.release(place.call_id, attempt, bill)
        if row is None:
            raise StoreUnavailable("The ledger cannot be written.")
        return row

    def _by_row(self, row: UsageRow) -> Answered | Refused:
        """How a call ended of whose end nobody here was told."""
        if row.outcome is not Outcome.COMPLETED:
            message = (
                f"The call of this line ended as {row.outcome} ({row.reason}); it costs nothing."
            )
            return Refused(self._format.fault(InternalError(message)))
        head = Admitted(
            call_id=row.call_id,
            created_at=row.created_at,
            model=row.model,
            lane=row.lane,
            fingerprint="",
            input_tokens=row.usage.input_tokens,
        )
        return Answered(row.usage, row.amount_nanos, encode_head(head))

    async def _tell(self, place: Place, outcome: Answered | Refused) -> None:
        batches, lines = self._rooms.batches, self._rooms.report.metrics.batch_lines
        try:
            if await batches.tell(place, outcome):
                lines.labels("completed" if isinstance(outcome, Answered) else "failed").inc()
        except KeyError:
            # An answer that was settled and not kept: its store was put back to an earlier state.
            self._rooms.report.log.error("batch_answer_lost", request_id=place.call_id)
            lost = Refused(self._format.fault(InternalError("The answer of this line was lost.")))
            if await batches.tell(place, lost):
                lines.labels("failed").inc()

    async def _stored(self, verb: Callable[[], Awaitable[T]]) -> T:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await verb()
            except StoreUnavailable as fault:
                self._rooms.report.log.error("batch_store_failed", error=str(fault))
            if self._stopping:
                raise Left
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _principal(self, key_id: str) -> Principal:
        """Raises InvalidKey once the key does not work any more."""
        now = self._rooms.clock.monotonic()
        remembered = self._principals.get(key_id)
        if remembered is None or now - remembered[0] > PRINCIPAL_SECONDS:
            remembered = now, await self._rooms.tenancy.principal(key_id)
            self._principals.pop(key_id, None)
            self._principals[key_id] = remembered
            while len(self._principals) > _REMEMBERED_KEYS:
                del self._principals[next(iter(self._principals))]
        return remembered[1]
