"""Calls for which nobody waits: `background: true` of the Responses API.

The turn of such a call is its owner of record. It is stored with its job before that is enqueued, and
whichever process finds it pending at its start adopts its hold and has the job enqueued again.

       start                Finished, settled
    ─────────▶ RUNNING ───────────────────────▶ its turn is SHOWN
                │  ▲        failed, or cancelled
                │  │ adopt  ────────────────────▶ FAILED, CANCELLED
      the process dies, or stops before it runs

- Of a call that is streamed, every part of its output is stored before anybody is shown it. So a reader
  that comes again, also after a crash, is told the same events, and then the rest; the next attempt
  goes on behind them (E8), or the call fails.
- Of one that is not, nothing is shown before its end, and the next attempt begins anew.
- Whoever reads may leave; the call ends when it has ended, or is cancelled: then what was generated is
  charged.
- A stop that waits lets running ones end, and leaves waiting ones to the next process.

Not here: the walk itself (`interactive.py`), what is stored (`background_log.py`), HTTP
(`forebay.gateway`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from forebay.core.call import Call
from forebay.core.dialogue import Ending, Turn, TurnState
from forebay.core.errors import (
    AlreadyResolved,
    CallCancelled,
    EngineFailed,
    ForebayError,
    InternalError,
    QueueDeadline,
    ShuttingDown,
    StoreUnavailable,
    UnknownHold,
)
from forebay.core.event import Admitted, CallEvent, Delta, Failed, Finished, Started
from forebay.core.hold import Bill, Claim
from forebay.core.job import Job
from forebay.core.usage import Outcome, Usage
from forebay.pipeline.background_log import (
    Unreadable,
    conclusion,
    decode_job,
    decode_parts,
    encode_part,
    goes_on,
)
from forebay.pipeline.kept import Walk
from forebay.pipeline.kept_answer import key_refusal
from forebay.pipeline.rooms import Rooms
from forebay.stream import EventLog

# A job that was begun so often may be what kills its processes.
MOST_ADOPTIONS = 10
# A part of a log that the store refuses is tried again after these.
LOG_DELAYS_SECONDS = (0.25, 0.5, 1.0, 2.0)
# A call that was cancelled has ended after an engine step; whoever cancelled waits for that, but not longer.
END_SECONDS = 10.0
_LOOK_SECONDS = 0.05

Again = Callable[[Job], AsyncGenerator[list[CallEvent], None]]


class Hopeless(Exception):
    """A call that cannot go on; the message is why, in a word."""


class Owner(Protocol):
    """The process that runs them."""

    process: str

    async def suspend(self, call_id: str) -> bool: ...


class _Running:
    """One of this process."""

    def __init__(self, turn_id: str, call_id: str, *, logged: bool, parts: int = 0) -> None:
        self.turn_id = turn_id
        self.call_id = call_id
        self.logged = logged
        self.parts = parts  # of its log that are stored
        self.log = EventLog()
        self.begun = False
        self.admitted = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None


class BackgroundCalls:
    """Those of one process; `walk` is the walk of any call, `again` its second half."""

    def __init__(self, rooms: Rooms, owner: Owner, walk: Walk, again: Again) -> None:
        self._rooms = rooms
        self._owner = owner
        self._walk = walk
        self._again = again
        self._running: dict[str, _Running] = {}

    async def start(self, call: Call, *, logged: bool) -> Admitted:
        """Begin it and answer when it has its place in the queue; raises what refuses it."""
        wish = call.remembrance
        if wish is None or wish.turn_id is None:
            raise InternalError("A call in the background has a turn that is stored.")
        running = _Running(wish.turn_id, call.id, logged=logged)
        self._begin(running, self._walk(call))
        admitted: Admitted = await asyncio.shield(running.admitted)
        return admitted

    async def begun_before(self, call: Call) -> str | None:
        """The id of the call that has this one's idempotency key. Raises IdempotencyKeyReused if that
        asked for something else."""
        keyed = call.idempotency
        if keyed is None:
            return None
        organisation_id = call.principal.scopes.organisation_id
        remembered = await self._rooms.ledger.recall(organisation_id, keyed.key)
        if remembered is None:
            return None
        if remembered.claim.fingerprint != keyed.fingerprint:
            raise key_refusal(remembered.claim, Claim(*keyed))
        return remembered.call_id

    def is_begun(self, turn: Turn) -> bool:
        """Whether a worker has it, or had it."""
        running = self._running.get(turn.id)
        return running is not None and running.begun

    async def is_logged(self, turn: Turn) -> bool:
        """Whether its events can be read."""
        running = self._running.get(turn.id)
        return running.logged if running else bool(await self._rooms.logs.read(turn.id))

    async def read(self, turn: Turn) -> AsyncGenerator[list[CallEvent], None]:
        """All events of a call that is logged, from the first on, as they come."""
        told = 0
        if (running := self._running.get(turn.id)) is not None:
            async with aclosing(running.log.read()) as bunches:
                async for bunch in bunches:
                    yield bunch
                    if any(isinstance(event, Finished | Failed) for event in bunch):
                        return
                    told += sum(isinstance(event, Admitted | Delta) for event in bunch)
        turn = await self._ended(turn)
        events = decode_parts(await self._rooms.logs.read(turn.id))
        yield events[told:]  # more may be stored than this process came to tell
        if turn.state is TurnState.SHOWN and turn.said is not None:
            yield conclusion(turn.said, events)
        else:
            yield [Failed(len(events) + 1, 1, failure(turn))]

    async def cancel(self, turn: Turn) -> Turn:
        """End it, if it has not ended; answers it as it is then. Raises KeyError if it is gone."""
        await self._stop(self._running.get(turn.id))
        return await self._ended(turn)

    async def adopt(self) -> None:
        """At start, before anybody resolves what earlier processes left behind: go on with it."""
        turns = await self._rooms.logs.unfinished()
        mine = [self._adopt(turn) for turn in turns if turn.id not in self._running]
        faults = await asyncio.gather(*mine, return_exceptions=True)
        for fault in filter(None, faults):
            raise fault

    async def drain(self) -> None:
        """Wait for those that run; those that wait in the queue are left to the next process."""
        for running in list(self._running.values()):
            if await self._owner.suspend(running.call_id):
                await self._stop(running)
        while tasks := [each.task for each in self._running.values() if each.task is not None]:
            await asyncio.wait(tasks)

    def let_go(self) -> None:
        """Stop reading all of them; a process that stops like this leaves them as a crash would."""
        for running in self._running.values():
            if running.task is not None:
                running.task.cancel()

    # -- one call ---------------------------------------------------------------------------------

    def _begin(self, running: _Running, bunches: AsyncGenerator[list[CallEvent], None]) -> None:
        self._running[running.turn_id] = running
        attending = self._attend(running, bunches)
        running.task = self._rooms.spawn(attending, name=f"background {running.call_id}")

    async def _attend(
        self, running: _Running, bunches: AsyncGenerator[list[CallEvent], None]
    ) -> None:
        """Read its events for whoever wants them. Cancelled: it is not to go on."""
        fault: Exception | None = None
        try:
            async with aclosing(bunches):
                async for bunch in bunches:
                    await self._took(running, bunch)
        except KeyError:
            pass  # its turn was deleted
        except Exception as refusal:
            fault = refusal
            if running.admitted.done():  # else it is told to who began it
                log = self._rooms.report.log
                log.error("background_failed", request_id=running.call_id, exc_info=refusal)
        finally:
            del self._running[running.turn_id]
            running.log.end(fault)
            if not running.admitted.done():
                running.admitted.set_exception(fault or InternalError())
                running.admitted.exception()  # who began it may have left

    async def _took(self, running: _Running, bunch: Sequence[CallEvent]) -> None:
        if running.logged:
            await self._store(running, encode_part(bunch))
            running.log.append(bunch)
        for event in bunch:
            if isinstance(event, Started | Delta):
                running.begun = True
            elif isinstance(event, Admitted):
                running.admitted.set_result(event)

    async def _store(self, running: _Running, part: bytes) -> None:
        """Durable before it is shown. Raises StoreUnavailable after some tries, KeyError."""
        if not part:
            return
        for delay in (*LOG_DELAYS_SECONDS, None):
            try:
                await self._rooms.logs.append(running.turn_id, running.parts, part)
                break
            except StoreUnavailable:
                if delay is None:
                    raise
                await asyncio.sleep(delay)
        running.parts += 1

    @staticmethod
    async def _stop(running: _Running | None) -> None:
        if running is not None and running.task is not None:
            running.task.cancel()
            await asyncio.wait([running.task])

    async def _ended(self, turn: Turn) -> Turn:
        """The turn once it is not pending, for a while. Raises KeyError if it is gone."""
        remember, clock = self._rooms.remember, self._rooms.clock
        give_up_at = clock.monotonic() + END_SECONDS
        while turn.state.is_pending and clock.monotonic() < give_up_at:
            turn = await remember.find(turn.organisation_id, turn.id)
            if turn.state.is_pending:
                await asyncio.sleep(_LOOK_SECONDS)
        return turn

    # -- one that another process began ---------------------------------------------------------------

    async def _adopt(self, turn: Turn) -> None:
        rooms = self._rooms
        try:
            attempt = await rooms.ledger.adopt(turn.call_id, self._owner.process)
        except AlreadyResolved as done:
            await rooms.remember.tell(turn.id, done.row)
            return
        except UnknownHold:
            await rooms.turns.drop(turn.id, Ending(TurnState.FAILED, "owner_died"))
            return
        rooms.remember.adopt(turn)
        parts = await rooms.logs.read(turn.id)
        try:
            job, events = decode_job(turn.job), decode_parts(parts)
            self._require_hope(job, events, attempt)
        except (Unreadable, Hopeless) as why:
            bill = Bill(Usage(0, 0), Outcome.FAILED, str(why) or "job_unreadable")
            await rooms.resolve.release(turn.call_id, attempt, bill)
            return
        running = _Running(turn.id, turn.call_id, logged=bool(parts), parts=len(parts))
        if events:
            running.log.append(events)
        running.admitted.cancel()  # nobody waits for that
        next_job = replace(job, attempt=attempt, owner=self._owner.process)
        self._begin(running, self._again(goes_on(next_job, events)))

    def _require_hope(self, job: Job, events: Sequence[CallEvent], attempt: int) -> None:
        if attempt > MOST_ADOPTIONS:
            raise Hopeless("too_many_attempts")
        if not job.resumable and any(isinstance(event, Delta) for event in events):
            raise Hopeless("not_resumable")
        if not self._rooms.catalog.serves(job.model):
            raise Hopeless("model_gone")


def failure(turn: Turn) -> ForebayError:
    """Why it has no answer."""
    if turn.state is TurnState.CANCELLED:
        return CallCancelled()
    return _FAILURES.get(turn.reason, EngineFailed)()


_FAILURES: dict[str, type[ForebayError]] = {
    "queue_deadline": QueueDeadline,
    "server_shutdown": ShuttingDown,
    "store_unavailable": StoreUnavailable,
}
