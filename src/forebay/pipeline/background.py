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
- A stop that waits lets running ones end, and leaves waiting ones to the next process. Their readers'
  streams break off, without an end.

Not here: the walk itself (`interactive.py`), what is stored (`background_log.py`), HTTP
(`forebay.gateway`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple, Protocol

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

# A job that was adopted so often may be what kills its processes.
MOST_ADOPTIONS = 20
# A part of a log that the store refuses is tried again after these.
LOG_DELAYS_SECONDS = (0.25, 0.5, 1.0, 2.0)
# A call that was cancelled has ended after an engine step; whoever cancelled waits for that, but not longer.
END_SECONDS = 10.0
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.05, 1.0

Again = Callable[[Job], AsyncGenerator[list[CallEvent], None]]


class Hopeless(Exception):
    """A call that cannot go on; the message is why, in a word."""


class Deleted(Exception):
    """A turn that is not wanted any more."""


class Owner(Protocol):
    """The process that runs them."""

    process: str

    async def suspend(self, call_id: str) -> bool: ...
    def blame(self, call_id: str) -> None: ...


class Begun(NamedTuple):
    """A response that has its place in the queue."""

    admitted: Admitted
    turn: Turn


class _Running:
    """One of this process. `parts` of its log are stored."""

    def __init__(
        self,
        turn_id: str,
        call_id: str,
        conversation_id: str | None,
        *,
        logged: bool,
        parts: int = 0,
    ) -> None:
        self.turn_id, self.call_id = turn_id, call_id
        self.conversation_id = conversation_id
        self.logged, self.parts = logged, parts
        self.log = EventLog()
        self.begun = False
        self.fault: Exception | None = None
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
        self._stopping = False

    async def start(self, call: Call) -> Begun:
        """Begin it and answer when it has its place in the queue; raises what refuses it."""
        wish = call.remembrance
        if wish is None or wish.turn_id is None:
            raise InternalError("A call in the background has a turn that is stored.")
        running = _Running(wish.turn_id, call.id, wish.conversation_id, logged=call.logged)
        self._begin(running, self._walk(call))
        admitted: Admitted = await asyncio.shield(running.admitted)
        return Begun(admitted, self._rooms.remember.turn_of(call, admitted))

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
        if (running := self._running.get(turn.id)) is not None:
            return running.logged
        try:
            return bool(decode_parts(await self._rooms.logs.read(turn.id)))
        except Unreadable:
            return False

    async def read(self, turn: Turn) -> AsyncGenerator[list[CallEvent], None]:
        """All events of a call that is logged, from the first on, as they come. They end without a
        terminal one if this process stops before the call ends."""
        told = 0
        if (running := self._running.get(turn.id)) is not None:
            async with aclosing(running.log.read()) as bunches:
                async for bunch in bunches:
                    yield bunch
                    told += sum(isinstance(event, Admitted | Delta) for event in bunch)
        try:
            turn, events = await self._end_of(turn)
        except (KeyError, ShuttingDown):
            return
        yield events[told:]  # more may be stored than this process came to tell
        if turn.state is TurnState.SHOWN and turn.said is not None:
            yield conclusion(turn.said, events)
        else:
            yield [Failed(len(events) + 1, 1, failure(turn))]

    async def cancel(self, turn: Turn) -> Turn:
        """End it, if it has not ended; answers it as it is then. Raises KeyError if it is gone,
        StoreUnavailable if its end cannot be stored just now."""
        await self._stop(self._running.get(turn.id))
        give_up_at = self._rooms.clock.monotonic() + END_SECONDS
        while turn.state.is_pending:
            turn = await self._rooms.remember.find(turn.organisation_id, turn.id)
            if turn.state.is_pending:
                if self._rooms.clock.monotonic() > give_up_at:
                    raise StoreUnavailable("How this response ends cannot be stored just now.")
                await asyncio.sleep(_LOOK_SECONDS)
        return turn

    async def forget(self, conversation_id: str) -> None:
        """The conversation was deleted: what is made in it is not wanted any more."""
        for running in list(self._running.values()):
            if running.conversation_id == conversation_id:
                await self._stop(running)

    async def adopt(self) -> None:
        """At start, before anybody resolves what earlier processes left behind: go on with it."""
        turns = await self._rooms.logs.unfinished()
        mine = [self._adopt(turn) for turn in turns if turn.id not in self._running]
        faults = await asyncio.gather(*mine, return_exceptions=True)
        for fault in filter(None, faults):
            raise fault

    async def suspend(self) -> None:
        """Leave those that wait in the queue to the next process; this one begins no others."""
        self._stopping = True
        for running in list(self._running.values()):
            if await self._owner.suspend(running.call_id):
                await self._stop(running)

    async def drain(self) -> None:
        """Wait for those that run."""
        await self.suspend()
        while tasks := [each.task for each in self._running.values() if each.task is not None]:
            await asyncio.wait(tasks)

    def let_go(self) -> None:
        """Stop reading all of them; a process that stops like this leaves them as a crash would."""
        self._stopping = True
        for running in self._running.values():
            if running.task is not None:
                running.task.cancel()

    # -- one call ---------------------------------------------------------------------------------

    def _begin(self, running: _Running, bunches: AsyncGenerator[list[CallEvent], None]) -> None:
        self._running[running.turn_id] = running
        attending = self._attend(running, bunches)
        running.task = self._rooms.spawn(attending, name=f"background {running.call_id}")
        # Not a `finally` of its own: a task that is cancelled before its first step has none.
        running.task.add_done_callback(lambda _: self._left(running))

    async def _attend(
        self, running: _Running, bunches: AsyncGenerator[list[CallEvent], None]
    ) -> None:
        """Store its events for whoever reads them. Cancelled: it is not to go on."""
        try:
            async with aclosing(bunches):
                async for bunch in bunches:
                    await self._took(running, bunch)
        except Deleted:
            return
        except Exception as fault:
            running.fault = fault
            if running.admitted.done():  # else it is told to who began it
                log = self._rooms.report.log
                log.error("background_failed", request_id=running.call_id, exc_info=fault)

    def _left(self, running: _Running) -> None:
        del self._running[running.turn_id]
        running.log.end()  # how it ended, its turn says
        if not running.admitted.done():
            running.admitted.set_exception(running.fault or ShuttingDown())
            running.admitted.exception()  # who began it may have left

    async def _took(self, running: _Running, bunch: Sequence[CallEvent]) -> None:
        if running.logged:
            try:
                await self._store(running, encode_part(bunch))
            except StoreUnavailable:
                self._owner.blame(running.call_id)
                raise
            running.log.append([each for each in bunch if not isinstance(each, Finished | Failed)])
        for event in bunch:
            if isinstance(event, Started | Delta):
                running.begun = True
            elif isinstance(event, Admitted):
                if event.window is not None:  # a conversation that was gone is begun anew
                    running.conversation_id = event.window.conversation_id
                running.admitted.set_result(event)

    async def _store(self, running: _Running, part: bytes) -> None:
        """Durable before it is shown. Raises StoreUnavailable after some tries, Deleted."""
        if not part:
            return
        for delay in (*LOG_DELAYS_SECONDS, None):
            try:
                await self._rooms.logs.append(running.turn_id, running.parts, part)
                break
            except KeyError:
                raise Deleted from None
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

    async def _end_of(self, turn: Turn) -> tuple[Turn, list[CallEvent]]:
        """The turn once it is not pending, and its log. Raises KeyError if it is gone, ShuttingDown if
        nobody here will see its end."""
        delay = _LOOK_SECONDS
        while True:
            try:
                turn = await self._rooms.remember.find(turn.organisation_id, turn.id)
                if not turn.state.is_pending:
                    return turn, decode_parts(await self._rooms.logs.read(turn.id))
            except StoreUnavailable:
                pass  # whoever reads has time
            if self._stopping and turn.id not in self._running:
                raise ShuttingDown
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_LOOK_SECONDS)

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
            (job, admitted), events = decode_job(turn.job), decode_parts(parts)
            self._require_hope(job, events, attempt)
        except (Unreadable, Hopeless) as why:
            bill = Bill(Usage(0, 0), Outcome.FAILED, str(why) or "job_unreadable")
            await rooms.resolve.release(turn.call_id, attempt, bill)
            return
        names = turn.id, turn.call_id, turn.conversation_id
        running = _Running(*names, logged=admitted is not None, parts=len(parts))
        if admitted is not None and not events:
            await self._store(running, encode_part([admitted]))
            events = [admitted]
        if events:
            running.log.append(events)
        running.begun = any(isinstance(event, Delta) for event in events)
        running.admitted.cancel()  # nobody waits for that
        next_job = replace(job, attempt=attempt, owner=self._owner.process)
        self._begin(running, self._again(goes_on(next_job, events)))

    def _require_hope(self, job: Job, events: Sequence[CallEvent], attempt: int) -> None:
        now = self._rooms.catalog.capacity(job.model)
        if attempt > MOST_ADOPTIONS:
            raise Hopeless("too_many_attempts")
        if not job.resumable and any(isinstance(event, Delta) for event in events):
            raise Hopeless("not_resumable")
        if now is None or now.vocabulary != job.vocabulary:
            raise Hopeless("model_gone")
        tokens = job.choices * (job.input_tokens + job.ceiling_tokens)
        if tokens > now.tokens or job.choices > now.choices:
            raise Hopeless("model_too_small")


def failure(turn: Turn) -> ForebayError:
    """Why it has no answer."""
    if turn.state is TurnState.CANCELLED:
        return CallCancelled()
    if (why := _REASONS.get(turn.reason)) is not None:
        return InternalError(f"{why} It costs nothing.")
    return _FAULTS.get(turn.reason, EngineFailed)()


_FAULTS: dict[str, type[ForebayError]] = {
    "queue_deadline": QueueDeadline,
    "server_shutdown": ShuttingDown,
    "store_unavailable": StoreUnavailable,
}
_RESTARTED = "The server was restarted while this response was made,"
_REASONS = {
    "job_unreadable": f"{_RESTARTED} and the new version cannot go on with it.",
    "model_gone": f"{_RESTARTED} and its model is not served any more, or was replaced.",
    "model_too_small": f"{_RESTARTED} and its model has no room for it any more.",
    "not_resumable": f"{_RESTARTED} and one with a seed, penalties, JSON or log-probabilities cannot go on "
    "from the middle of its text.",
    "owner_died": "The process that made this response died.",
    "owner_failed": "What was generated could not be stored.",
    "too_many_attempts": f"{_RESTARTED} again and again.",
    "worker_died": "The processes that generated this response died.",
}
