"""The walk of a leased job, the mirror of `interactive.py`: lease, generate, publish, settle, finish.

A worker drives one engine. It takes no more than the engine can run now (late binding: the engine's
own line stays empty), so who is next is always the queue's fair choice.

Every run ends in exactly one of these ways; `_conclude` is the table.

    ended              settle all, Finished, ack
    abandoned          settle what was received (owner gone: what it had read), ack
    preempted          nack with the published ids; the hold and the attempt stay
    engine fault       nack if the rest can run again (E8), else release, Failed, ack
    too late           release, Failed, ack
    lease lost         nothing: the job is its owner's again

Not here: which waiting job is next (`forebay.queue`), what to do with free slots
(`forebay.scheduler`), the engine itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from forebay.core.batch import Place
from forebay.core.errors import (
    EngineFailed,
    EngineFault,
    EngineTimeout,
    ForebayError,
    LeaseLost,
    QueueDeadline,
    ReaderGone,
    Signal,
    StaleAttempt,
    StoreUnavailable,
)
from forebay.core.event import (
    Abandonment,
    AbandonReason,
    Delta,
    Failed,
    Finished,
    Started,
)
from forebay.core.hold import Bill
from forebay.core.job import Ask, Lane, Lease, Progress, Served
from forebay.core.usage import Outcome, UsageRow
from forebay.engine import Engine
from forebay.pipeline import outlook
from forebay.pipeline.patience import too_late, too_often
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.run import Interruption, Run
from forebay.pipeline.suspects import Suspects
from forebay.scheduler import Policy, Preempt, Snapshot, Take, Waiting, decide

LEASE_SECONDS = 10.0
BEAT_SECONDS = 1.0
PAUSED_SECONDS = 3 * BEAT_SECONDS
# No token for this long is a hang. The first one may wait for the prefill of long prompts.
SILENCE_SECONDS = 15.0
FIRST_TOKEN_SECONDS = 60.0
# An engine that has not come back for this long is not waited for any more.
ENGINE_AWAY_SECONDS = 60.0
# Between two tries of what nobody waits for.
LONGEST_PAUSE_SECONDS = 15.0


class Received(NamedTuple):
    """Output tokens that an engine yielded to a worker: for calls, and for nobody (past an end)."""

    tokens: int
    ignored: int


class EngineDown(EngineFault):
    """The engine has been away for too long to be waited for."""


class Worker:
    """Serves one pool with one engine. `run` is its life; `drain` ends it gracefully."""

    def __init__(
        self, rooms: Rooms, engine: Engine, *, name: str, pool: str, policy: Policy
    ) -> None:
        self.rooms = rooms
        self.engine = engine
        self.name = name
        self.pool = pool
        self.policy = policy
        self._runs: dict[str, Run] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._started = 0
        self._suspects = Suspects()
        self._received = self._ignored = 0
        self._ready_at = self._others_at = rooms.clock.monotonic()
        self._held_back = False  # batch jobs, by the reserve

    async def run(self) -> None:
        """Lease and serve until drained. The engine must have been started."""
        async with asyncio.TaskGroup() as group:
            attendants = [
                group.create_task(self._watch_arrivals()),
                group.create_task(self._beat_forever()),
            ]
            while not self._draining:
                await self._fill()
                await self._wake.wait()
                self._wake.clear()
            await self._idle.wait()
            for attendant in attendants:
                attendant.cancel()

    async def drain(self) -> None:
        """Lease no more and return when the running jobs have ended."""
        self._draining = True
        self._wake.set()
        await self._idle.wait()

    def let_go(self) -> None:
        """Stop what nobody waits for, without an ending: the next process goes on with it."""
        for run in self._runs.values():
            if run.job.background:
                run.interrupt(Interruption.LEASE_LOST)

    @property
    def running(self) -> int:
        """Jobs being generated or concluded now."""
        return len(self._runs)

    def received(self) -> Received:
        """What its engine yielded to all runs so far: those that ended and those that go on."""
        runs = self._runs.values()
        return Received(
            self._received + sum(run.generated for run in runs),
            self._ignored + sum(run.ignored for run in runs),
        )

    # -- what to do with free slots ---------------------------------------------------------------

    async def _watch_arrivals(self) -> None:
        seen = 0
        while True:
            seen = await self.rooms.queue.changed(self.pool, seen, timeout_seconds=1.0)
            self._wake.set()

    async def _fill(self) -> None:
        """Do what `decide` says until nothing more can be leased now.

        While the engine is away, jobs wait for it; if it stays away, they are told.
        """
        down = self._is_down()  # asked each time: it also notes that the engine is there
        if self.engine.state() != "ready" and not down:
            return
        self._held_back = False
        for decision in decide(await self._snapshot(), self.policy):
            if isinstance(decision, Take):
                self._held_back = decision.batch_slots < decision.slots
                for lease in await self._lease(decision):
                    self._start(lease)
            elif isinstance(decision, Preempt):
                run = self._runs.get(decision.job_id)
                if run is not None:  # it may have ended while others were leased
                    run.interrupt(Interruption.PREEMPTED)

    def _is_down(self) -> bool:
        now = self.rooms.clock.monotonic()
        if self.engine.state() in ("ready", "renewing"):
            self._ready_at = now
        return now - self._ready_at > ENGINE_AWAY_SECONDS

    async def _snapshot(self) -> Snapshot:
        limits = self.engine.limits()
        now = self.rooms.clock.monotonic()
        running = tuple(outlook.running(run, now) for run in self._runs.values())
        waiting: Mapping[Lane, Waiting] = {}
        if any(run.job.flow.lane in self.policy.victims for run in self._runs.values()):
            depths = await self.rooms.queue.depths(self.pool)
            waiting = outlook.waiting(depths, limits.block_tokens)
        used = sum(run.kv_tokens for run in self._runs.values())
        free_slots = limits.max_sequences - sum(run.slots for run in running)
        free_kv_tokens = limits.kv_tokens - used
        return Snapshot(waiting, running, free_slots, free_kv_tokens, now - self._others_at)

    async def _lease(self, take: Take) -> list[Lease]:
        limits = self.engine.limits()
        ask = Ask(
            pool=self.pool,
            slots=take.slots,
            kv_tokens=take.kv_tokens,
            lanes=take.lanes,
            batch_slots=take.batch_slots,
            block_tokens=limits.block_tokens,
            evicts=limits.evicts,
        )
        return await self.rooms.queue.lease(ask, worker=self.name, seconds=LEASE_SECONDS)

    def _start(self, lease: Lease) -> None:
        job = lease.job
        self._started += 1
        run = Run(lease, started_at=self.rooms.clock.monotonic(), order=self._started)
        run.kv_tokens = job.kv_tokens(self.engine.limits().block_tokens)
        if job.flow.lane is not Lane.BATCH:
            self._others_at = self.rooms.clock.monotonic()
        self.rooms.remember.serve(job)
        self._runs[job.id] = run
        self._idle.clear()
        self.rooms.spawn(self._serve(run), name=f"serve {job.id}")

    # -- one run ----------------------------------------------------------------------------------

    async def _serve(self, run: Run) -> None:
        """From lease to acknowledgement."""
        abandoned = self.rooms.stream.abandoned(run.job)
        abandoned.add_done_callback(partial(_abandoned, run))
        try:
            fault = await self._generate(run)
            await self._conclude(run, fault)
        finally:
            abandoned.cancel()
            self._received += run.generated
            self._ignored += run.ignored
            del self._runs[run.job.id]
            self.rooms.remember.served(run.job)
            self._wake.set()
            if not self._runs:
                self._idle.set()

    async def _generate(self, run: Run) -> Exception | None:
        """⑪ ⑫ until every choice has its finish reason, something fails or the run is interrupted.

        An interruption only stops the engine: what it had sent by then is still taken (and charged).
        """
        if too_late(run):
            run.interrupt(Interruption.LATE)
            return None
        if self._is_down():
            if not run.job.batch_id:
                return EngineDown()
            await self._until_up(run)
        if run.job.resume.barren:
            await self._suspects.turn(run)
            run.last_delta_at = self.rooms.clock.monotonic()
            if run.interruption is not None:
                return None
        try:
            sampling = run.job.sampling
            run.prepare(partial(self.rooms.tokens.decoder, run.job.model, sampling.stop))
            await self._publish(run, run.started())
            # One that has finished already had a worker with no time to settle it.
            if run.interruption is None and not run.finished:
                await self._ask(run)
        except Exception as fault:  # whatever an engine throws ends one call, not the worker
            return fault
        finally:
            self._suspects.cleared(run)
        return run.fault

    async def _until_up(self, run: Run) -> None:
        """A line of a batch has time: it is not told of an engine that is away, but waits for it."""
        while self._is_down() and run.interruption is None:  # noqa: ASYNC110
            await asyncio.sleep(BEAT_SECONDS)

    async def _ask(self, run: Run) -> None:
        """Let the engine generate, until all has ended or the run is interrupted. Raises what it does."""
        run.generation = generation = self.engine.generate(run.request())
        async with aclosing(generation):
            async for delta in generation:
                begun = run.generated > 0
                event = run.accept(delta, self.rooms.clock.monotonic())
                if run.generated:
                    self._suspects.cleared(run)
                    if not begun and run.job.flow.lane is Lane.BATCH:
                        self._wake.set()  # the next one may be started
                if event is not None:
                    await self._publish(run, event)
                if run.fault is not None or run.finished:
                    return
        if run.interruption is None:
            run.require_end()

    async def _publish(self, run: Run, event: Started | Delta) -> None:
        if run.abandonment is not None:
            return
        try:
            await self.rooms.stream.publish(run.job, run.job.attempt, [event])
        except ReaderGone:
            run.abandonment = await self.rooms.stream.abandoned(run.job)
            run.interrupt(Interruption.ABANDONED)

    async def _conclude(self, run: Run, fault: Exception | None) -> None:
        """The engine's work has ended; resolve the hold, tell the reader, return or remove the job."""
        if run.mismatch:
            self.rooms.report.metrics.usage_mismatch.labels(run.job.model).inc()
            self.rooms.report.log.warning("usage_mismatch", request_id=run.job.id)
        match run.interruption:
            case Interruption.LEASE_LOST:
                return  # the job, its hold and its reader are the owner's again
            case _ if run.abandonment is not None:
                await self._conclude_abandoned(run, run.abandonment)
            case Interruption.LATE:
                await self._conclude_late(run)
            case _ if run.finished:
                await self._conclude_ended(run)
            case Interruption.PREEMPTED if fault is None:
                self.rooms.report.metrics.preemptions.labels(run.job.model).inc()
                await self._return(run, preempted=True)
            case _:
                await self._conclude_fault(run, fault)

    async def _conclude_ended(self, run: Run) -> None:
        job, bill = run.job, self._bill(run, Outcome.COMPLETED, "ended")
        if job.kept:
            bill = replace(bill, answer=run.kept_answer())  # ⑬
        if job.batch_id:
            await self._conclude_line(run, bill)
            return
        if job.turn_id and not await self._keep_turn(run):
            return
        try:
            row = await self.rooms.resolve.settle(job.id, job.attempt, bill)  # ⑭
        except StoreUnavailable as error:
            await self._finish(run, Failed(run.sequence + 1, job.attempt, error))
        else:
            if row is not None:
                await self._finish(run, _terminal(run, row))  # ⑮
        await self._acknowledge(run)  # ⑯

    async def _conclude_line(self, run: Run, bill: Bill) -> None:
        """⑬ to ⑯ of a line of a batch: nobody waits for it, so a store that fails is waited for."""
        job, row = run.job, None
        place, pause = Place(job.batch_id, job.line), BEAT_SECONDS
        while run.interruption is not Interruption.LEASE_LOST:
            try:
                await self.rooms.batches.keep(place, job.attempt, run.kept_answer())
                row = await self.rooms.resolve.try_settle(job.id, job.attempt, bill)
                break
            except (StaleAttempt, KeyError):  # another attempt has it, or its batch has ended
                break
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        else:
            return
        if row is not None:
            await self._finish(run, _terminal(run, row))
        await self._acknowledge(run)

    async def _keep_turn(self, run: Run) -> bool:
        """⑬ of a dialogue. What cannot be remembered as promised has failed."""
        job = run.job
        try:
            await self.rooms.turns.keep(job.turn_id, job.attempt, run.said(self.rooms.clock.now()))
        except StoreUnavailable as error:
            await self._fail(run, Outcome.FAILED, "store_unavailable", error)
            return False
        return True

    async def _conclude_abandoned(self, run: Run, gone: Abandonment) -> None:
        """The client left: charge what was received, or nothing if no engine was asked. Its gateway
        died: what it had read, or nothing. It was our fault that nobody reads, or its batch does
        not want it any more: nothing."""
        job, resolve = run.job, self.rooms.resolve
        read = run.output_tokens
        if gone.reason is AbandonReason.OWNER_GONE:
            read = min(gone.confirmed_tokens, read) if job.streamed else 0
        ours = gone.reason in (AbandonReason.OWNER_FAILED, AbandonReason.SHUTDOWN)
        if job.background:  # its reader is our own: it was our store that was too slow
            ours |= gone.reason is AbandonReason.CLIENT_TOO_SLOW
        if ours or (gone.reason is AbandonReason.OWNER_GONE and read == 0):
            bill = self._bill(run, Outcome.FAILED, gone.reason.value)
            await resolve.release(job.id, job.attempt, bill)
        else:
            bill = self._bill(run, Outcome.CANCELLED, gone.reason.value, output_tokens=read)
            free = run.untouched or bool(job.batch_id)  # a line without an answer is free (B11)
            verb = resolve.release if free else resolve.settle_later
            await verb(job.id, job.attempt, bill)
        await self._acknowledge(run)

    async def _conclude_late(self, run: Run) -> None:
        seconds = run.job.deadline_seconds
        error = QueueDeadline(
            f"The call waited {run.lease.waited_seconds:.1f} s and was not started: the "
            f"{run.job.flow.lane} lane or its own deadline allows {seconds:g} s. Nothing was charged; "
            "retry later."
        )
        await self._fail(run, Outcome.EVICTED, "queue_deadline", error)

    async def _conclude_fault(self, run: Run, fault: Exception | None) -> None:
        """Run the rest elsewhere under the same hold where E8 allows, else end the call for free."""
        report, job = self.rooms.report, run.job
        report.metrics.engine_faults.labels(job.model).inc()
        why = "silent" if fault is None else str(fault)
        report.log.warning("engine_fault", request_id=job.id, fault=why, output=run.output_tokens)
        if fault is not None and not isinstance(fault, EngineFault | Signal):
            report.log.error("task_failed", task=f"generate {job.id}", exc_info=fault)
        again = job.resumable or not run.published
        pointless = run.fault is not None or isinstance(fault, EngineDown)
        often = too_often(job, job.resume.barren + (not run.generated), job.resume.faults + 1)
        if again and not pointless and not often:
            return await self._return(run, fault=True)
        error = EngineTimeout() if fault is None else EngineFailed()
        return await self._fail(run, Outcome.FAILED, "engine_fault", error)

    async def _fail(self, run: Run, outcome: Outcome, reason: str, error: ForebayError) -> None:
        bill = self._bill(run, outcome, reason)
        await self.rooms.resolve.release(run.job.id, run.job.attempt, bill)
        await self._finish(run, Failed(run.sequence + 1, run.job.attempt, error))
        await self._acknowledge(run)

    # -- the steps of an ending -------------------------------------------------------------------

    def _bill(
        self, run: Run, outcome: Outcome, reason: str, output_tokens: int | None = None
    ) -> Bill:
        timings = run.timings(self.rooms.clock.monotonic())
        return Bill(run.usage(output_tokens), outcome, reason, timings)

    async def _finish(self, run: Run, event: Finished | Failed) -> None:
        try:
            await self.rooms.stream.publish(run.job, run.job.attempt, [event])
        except ReaderGone:
            return  # it left between its last token and the end; the settlement stands

    async def _acknowledge(self, run: Run) -> None:
        served = Served(run.generated, run.cached_input_tokens)
        cost = self.rooms.queue.cost(run.job.input_tokens, run.generated)
        self.rooms.admission.served(self.pool, cost, busy=await self._is_busy(run))
        try:
            await self.rooms.queue.ack(run.lease, served=served)
        except LeaseLost:
            return  # reaped meanwhile; its owner finds the settlement

    async def _is_busy(self, run: Run) -> bool:
        """Whether jobs wait for room; those that are only held back say nothing about the pace."""
        ahead = await self.rooms.queue.ahead(self.pool, run.job.flow, 0)
        if not ahead.waiting or not self._held_back:
            return ahead.waiting > 0
        depths = await self.rooms.queue.depths(self.pool)
        return any(depth.waiting and flow.lane is not Lane.BATCH for flow, depth in depths.items())

    async def _return(self, run: Run, *, preempted: bool = False, fault: bool = False) -> None:
        """Back to the front of its flow with everything published so far (Q3, E8)."""
        served = Served(run.generated, run.cached_input_tokens)
        resume = run.resume(preempted=preempted, fault=fault)
        try:
            await self.rooms.queue.nack(run.lease, served=served, resume=resume)
        except LeaseLost:
            return  # reaped meanwhile; the owner decides

    # -- once a second ----------------------------------------------------------------------------

    async def _beat_forever(self) -> None:
        """Renew all leases in one call, notice lost ones and engines that went silent."""
        last = self.rooms.clock.monotonic()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = self.rooms.clock.monotonic()
            paused, last = now - last > PAUSED_SECONDS, now
            await self.rooms.stream.presence(self.name)
            progress = [Progress(run.lease, run.generated) for run in self._runs.values()]
            lost = await self.rooms.queue.extend(self.name, progress, seconds=LEASE_SECONDS)
            for job_id in lost:
                if (run := self._runs.get(job_id)) is not None:
                    run.interrupt(Interruption.LEASE_LOST)
            for run in list(self._runs.values()):
                if paused:  # it was us who were silent: what the engine sent has not been read yet
                    run.last_delta_at = now
                limit = SILENCE_SECONDS if run.generated else FIRST_TOKEN_SECONDS
                if run.generation is None:
                    continue  # no engine was asked yet
                if now - run.last_delta_at > limit:
                    run.interrupt(Interruption.SILENT)
            self._wake.set()  # an engine may have come back


def _abandoned(run: Run, future: asyncio.Future[Abandonment]) -> None:
    if not future.cancelled():
        run.abandonment = future.result()
        run.interrupt(Interruption.ABANDONED)


def _terminal(run: Run, row: UsageRow) -> Finished | Failed:
    """What the resolution says, also when somebody else had resolved the hold first."""
    sequence, attempt = run.sequence + 1, run.job.attempt
    if row.outcome is Outcome.COMPLETED:
        reasons = row.usage.finish_reasons
        return Finished(sequence, attempt, row.usage, row.amount_nanos, reasons)
    return Failed(sequence, attempt, EngineFailed())
