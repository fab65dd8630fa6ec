"""The walk of one interactive call. Read this file first; `worker.py` is its mirror.

Ownership: until `enqueue` returns, this walk owns the hold and must resolve it. Afterwards the job
carries it, this process is the job's owner of record, and ARCHITECTURE.md ("Who owns what") says who
resolves it when a process dies. So every hold is resolved exactly once, also when we are killed
between two lines.

Not here: HTTP (`forebay.gateway`), the guard step of the walk (not built yet).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

from forebay.admission import Need, Permit, Place, Standing
from forebay.core.call import Call, Prompt, Route
from forebay.core.dialogue import Window
from forebay.core.errors import (
    AlreadyResolved,
    FlowFull,
    ForebayError,
    KeyClaimed,
    LaneFull,
    QueueDeadline,
    ShuttingDown,
)
from forebay.core.event import (
    AbandonReason,
    Admitted,
    CallEvent,
    LeaseExpired,
    StreamEvent,
)
from forebay.core.hold import Bill, Hold, HoldRequest
from forebay.core.job import Flow, Job, Removal, Resume
from forebay.core.principal import Principal
from forebay.core.usage import Outcome, Usage
from forebay.pipeline.background import BackgroundCalls
from forebay.pipeline.background_log import encode_job
from forebay.pipeline.fitting import Fitting
from forebay.pipeline.kept import IdempotencySettings, KeptCalls
from forebay.pipeline.kept_answer import claim_of, encode_head, key_refusal
from forebay.pipeline.live import LiveCall
from forebay.pipeline.rooms import Rooms
from forebay.pipeline.summaries import Summariser
from forebay.pipeline.terms import (
    LEAST_OUTPUT_TOKENS,
    fit,
    require_choices,
    sampling_of,
)

BEAT_SECONDS = 1.0
# A job whose workers died this often is not handed to a third one: it may be what kills them.
MOST_ATTEMPTS = 3
# How long a call that was let in before waits for a place in a full queue.
FULL_SECONDS = 1.0


class InteractivePipeline:
    """Owner of record of the calls it runs. One per gateway process, any number of tasks."""

    def __init__(
        self, rooms: Rooms, *, process: str, idempotency: IdempotencySettings | None = None
    ) -> None:
        self.rooms = rooms
        self.process = process
        self.kept = KeptCalls(rooms, self._walk, idempotency or IdempotencySettings())
        self.background = BackgroundCalls(rooms, self, self._walk, self._again)
        self.summaries = Summariser(rooms, self.run)
        self._fitting = Fitting(rooms)
        self.finished_calls = 0
        self.broken_off_calls = 0
        self._live: dict[str, LiveCall] = {}
        self._breaking_off = False

    async def knock(self, principal: Principal) -> None:
        """② the cheapest refusal, once ① is known; before the request's body is even read."""
        await self.rooms.admission.knock(principal)

    async def weigh(self, principal: Principal, body_bytes: int) -> None:
        """② again, once the body's size is known and before anybody looks into it."""
        await self.rooms.admission.weigh(principal, body_bytes)

    def standing(self, principal: Principal, model: str | None = None) -> Standing:
        """What is left of the caller's limits; `model`: the name or alias that it asked for."""
        if model is not None and principal.model_limits:
            cards = self.rooms.catalog.models(principal)
            model = next((c.id for c in cards if model in (c.id, *c.aliases)), None)
        return self.rooms.admission.standing(principal, model)

    def run(self, call: Call) -> AsyncGenerator[list[CallEvent], None]:
        """Yield Admitted, then the call's events up to Finished or Failed, as they become ready.

        Refusals are raised before Admitted. Closing the generator is how a client leaves; a call with
        an idempotency key does not end with that (`kept.py`), and for one in the background nobody
        waits (`background.py`).
        """
        claim = claim_of(call)
        return self._walk(call) if claim is None else self.kept.run(call, claim)

    async def _walk(self, call: Call) -> AsyncGenerator[list[CallEvent], None]:
        """The walk itself, from ③ on."""
        rooms = self.rooms
        if call.idempotency is not None:  # only now is it known that this is no repetition
            await self.weigh(call.principal, call.body_bytes)
        lane, wish = call.lane, call.max_output_tokens
        route = rooms.catalog.choose(call.principal, call.model, lane, wish)  # ③
        require_choices(call, route)
        # The wait that ⑦ would refuse, before anything is spent on the prompt: its answer alone.
        await rooms.admission.foresee(await self._place(call, route, 0))
        recalled = None
        if call.remembrance is not None:
            recalled = await rooms.remember.recall_free(call, call.remembrance)  # ④
        prompt, window = await self._fitting.count(call, route, recalled)  # ⑤ exact P
        due = self.summaries.due(call, route, recalled, prompt, window)
        route = fit(route, len(prompt.ids), call)
        admitted = self._admitted(call, route, len(prompt.ids), window)
        permit, hold = await self._reserve(call, route, admitted)  # ⑦ ⑧ M is final
        job = self._job(call, route, prompt, hold)
        live = LiveCall(job, rooms.stream.read(job), rooms.clock, permit)
        live.due = due
        async with self._living(live):
            if recalled is not None:
                shown = admitted if call.logged else None
                stored = encode_job(job, shown) if job.background and job.turn_id else b""
                await rooms.remember.begin(call, recalled, admitted, job=stored)
                recalled = None  # the past is large, and the answer may take long
            await self._enqueue(live)  # ⑨ the job carries the hold from here
            yield [admitted]
            while not live.ended:
                yield await self._next(live)

    async def _again(self, job: Job) -> AsyncGenerator[list[CallEvent], None]:
        """The rest of a call in the background, whose hold this process has adopted."""
        rooms = self.rooms
        live = LiveCall(job, rooms.stream.read(job), rooms.clock)
        async with self._living(live):
            live.enqueued = True  # it is not to be refused any more
            await self._enqueue(live)
            while not live.ended:
                yield await self._next(live)

    async def _enqueue(self, live: LiveCall) -> None:
        if not live.enqueued:
            self._refuse_if_breaking_off()
            live.refused_for = "queue_full"
        while True:
            try:
                await self.rooms.queue.enqueue(live.job)
                break
            except (FlowFull, LaneFull):
                if not live.enqueued:
                    raise
                await asyncio.sleep(FULL_SECONDS)
        live.enqueued = True
        self._start_deadline(live)

    @asynccontextmanager
    async def _living(self, live: LiveCall) -> AsyncIterator[None]:
        """From here on the hold is resolved by whoever has the job, however this ends."""
        self._live[live.job.id] = live
        try:
            yield
        except Exception:
            live.failed = True  # it is not the client that leaves
            raise
        finally:
            if live.ended:
                self._forget(live)
                await live.reader.aclose()
            else:
                leaving = self._leave(live)
                await asyncio.shield(self.rooms.spawn(leaving, name=f"leave {live.job.id}"))

    async def _next(self, live: LiveCall) -> list[CallEvent]:
        """At least one event, and all that are ready behind it (written by worker.py)."""
        bunch: list[CallEvent] = []
        while not bunch:
            sent: StreamEvent | None = await anext(live.reader)
            while sent is not None:
                event = (
                    await self._lease_expired(live, sent) if type(sent) is LeaseExpired else sent
                )
                if event is not None and not isinstance(event, LeaseExpired):
                    live.took(event)
                    bunch.append(event)
                sent = None if live.ended else live.reader.ready()
        if live.ended:
            self._settle_permit(live)  # the answer's headers tell of it
        return bunch

    async def beat_forever(self) -> None:
        """Once a second into the ledger: this much of each stream was read (watermarks)."""
        counter = 0
        while True:
            counter += 1
            try:
                await self.rooms.ledger.beat(self.process, counter, self.progress())
            except ForebayError as fault:
                self.rooms.report.log.error("beat_failed", error=str(fault))
            await asyncio.sleep(BEAT_SECONDS)

    async def be_present_forever(self) -> None:
        """Once a second to the workers: this process reads. It must never wait for a store."""
        while True:
            await self.rooms.stream.presence(self.process)
            await asyncio.sleep(BEAT_SECONDS)

    async def break_off(self, *, seconds: float) -> None:
        """End every call now, for free: a stop that does not wait is ours, not the clients'. Those in
        the background are left to their turns.

        A call whose charge is being stored at this moment still ends as it should. The ledger gets
        `seconds` to answer; who is not released by then is told all the same, and released later.
        """
        self._breaking_off = True
        self.background.let_go()
        waited_for = [live for live in self._live.values() if not live.job.background]
        calls = [self._break_off(live) for live in waited_for]
        ends = [self.rooms.spawn(call, name="break off") for call in calls]
        if ends:
            await asyncio.wait(ends, timeout=seconds)
        for live in waited_for:
            if not live.settled:
                await self.rooms.stream.abandon(live.job.id, AbandonReason.SHUTDOWN)

    async def _break_off(self, live: LiveCall) -> None:
        job = live.job
        bill = _nothing(Outcome.FAILED, AbandonReason.SHUTDOWN.value)
        row = await self.rooms.resolve.release(job.id, job.attempt, bill)
        live.settled = row is not None and row.outcome is Outcome.COMPLETED
        if not live.settled:
            await self.rooms.queue.remove(job.id)
            await self.rooms.stream.abandon(job.id, AbandonReason.SHUTDOWN)

    def _refuse_if_breaking_off(self) -> None:
        if self._breaking_off:
            raise ShuttingDown

    def progress(self) -> dict[str, int]:
        """Output tokens read so far of each streamed call."""
        return {
            id_: live.output_tokens
            for id_, live in self._live.items()
            if live.job.streamed and live.output_tokens
        }

    @property
    def open_calls(self) -> int:
        """Calls being answered now."""
        return len(self._live)

    @property
    def live_calls(self) -> Collection[LiveCall]:
        """The same, to look at."""
        return self._live.values()

    async def count(self, call: Call) -> int:
        """The tokens of the prompt that this call would have. Nothing is run or charged."""
        route = self.rooms.catalog.choose(
            call.principal, call.model, call.lane, call.max_output_tokens
        )
        if call.idempotency is not None:
            await self.weigh(call.principal, call.body_bytes)
        wish = call.remembrance
        recalled = await self.rooms.remember.recall(call, wish) if wish is not None else None
        prompt, _ = await self._fitting.count(call, route, recalled)
        return len(prompt.ids)

    async def _place(self, call: Call, route: Route, input_tokens: int) -> Place:
        flow, queue = call.flow, self.rooms.queue
        cost = queue.cost(input_tokens, route.ceiling_tokens * call.choices)
        ahead = await queue.ahead(route.pool, flow, cost)
        return Place(route.pool, flow, ahead, call.queue_deadline_seconds)

    async def _reserve(self, call: Call, route: Route, admitted: Admitted) -> tuple[Permit, Hold]:
        """⑦ tokens, ⑧ money. Who is refused the money has its tokens back (A4)."""
        admission = self.rooms.admission
        most = route.ceiling_tokens * call.choices
        need = Need(route.model, admitted.input_tokens, most, of_batch=call.place is not None)
        place = await self._place(call, route, admitted.input_tokens)
        permit = await admission.admit(call.principal, need, place)
        try:
            self._refuse_if_breaking_off()
            return permit, await self._hold(call, route, admitted)
        except BaseException:
            admission.settle(permit, 0)
            raise

    def _settle_permit(self, live: LiveCall) -> None:
        permit, live.permit = live.permit, None
        if permit is not None:
            self.rooms.admission.settle(permit, live.used_tokens)

    def _admitted(
        self, call: Call, route: Route, input_tokens: int, window: Window | None
    ) -> Admitted:
        return Admitted(
            call.id,
            self.rooms.clock.now(),
            route.model,
            route.lane,
            route.fingerprint,
            input_tokens,
            window=window,
        )

    async def _hold(self, call: Call, route: Route, admitted: Admitted) -> Hold:
        """Reserve the most this call can cost. A client that leaves meanwhile leaves no hold."""
        floor = route.ceiling_tokens if route.asked else LEAST_OUTPUT_TOKENS
        request = HoldRequest(
            id=call.id,
            scopes=call.principal.scopes,
            model=route.model,
            lane=route.lane,
            price_version=route.price_version,
            input_tokens=admitted.input_tokens,
            ceiling_tokens=route.ceiling_tokens,
            floor_tokens=min(floor, route.ceiling_tokens),
            choices=call.choices,
            streamed=call.streamed,
            owner=self.process,
            created_at=admitted.created_at,
            claim=claim_of(call, encode_head(admitted)),
            kind=call.kind,
        )
        try:
            return await self.rooms.ledger.hold(request)
        except KeyClaimed as taken:
            raise key_refusal(taken.remembered.claim, request.claim) from None
        except asyncio.CancelledError:
            if call.place is None:  # else the batch knows of it
                # It may commit all the same; verbs commit in the order in which they were called.
                bill = _nothing(Outcome.CANCELLED, "client_gone")
                undo = self.rooms.resolve.release(call.id, 1, bill)
                self.rooms.spawn(undo, name=f"undo {call.id}")
            raise

    def _job(self, call: Call, route: Route, prompt: Prompt, hold: Hold) -> Job:
        flow = call.flow
        sampling = sampling_of(route.sampling, call.sampling)
        return Job(
            id=call.id,
            attempt=hold.attempt,
            owner=self.process,
            pool=route.pool,
            model=route.model,
            flow=flow,
            weight=call.principal.weight,
            prompt_ids=prompt.ids,
            ceiling_tokens=hold.ceiling_tokens,
            sampling=sampling,
            streamed=call.streamed,
            resumable=call.choices == 1 and sampling.resumable,
            choices=call.choices,
            deadline_seconds=self._deadline_seconds(call, flow),
            # The answer to one in the background is its turn, and is deleted with it.
            kept=call.idempotency is not None and not call.background,
            turn_id=(call.remembrance and call.remembrance.turn_id) or "",
            batch_id=call.place.batch_id if call.place else "",
            line=call.place.line if call.place else 0,
            background=call.background,
            vocabulary=route.vocabulary,
        )

    def _deadline_seconds(self, call: Call, flow: Flow) -> float | None:
        """One that was let in and for which nobody waits does not come too late."""
        wish = call.queue_deadline_seconds
        return wish if call.background else self.rooms.admission.deadline_seconds(flow, wish)

    def _start_deadline(self, live: LiveCall) -> None:
        seconds = live.job.deadline_seconds
        if seconds is not None:
            name = f"deadline {live.job.id}"
            evict = self._evict
            spawn = self.rooms.spawn
            loop = asyncio.get_running_loop()
            live.deadline = loop.call_later(seconds, lambda: spawn(evict(live), name=name))

    async def _evict(self, live: LiveCall) -> None:
        """The lane's deadline passed. A leased job is its worker's business (it checks as well)."""
        job = live.job
        if await self.rooms.queue.remove(job.id) is Removal.WAS_WAITING:
            bill = _nothing(Outcome.EVICTED, "queue_deadline")
            await self.rooms.resolve.release(job.id, job.attempt, bill)
            error = QueueDeadline(
                f"The call waited {job.deadline_seconds:g} s, the longest that the {job.flow.lane} "
                "lane or its own deadline allows, and was not started. Nothing was charged; retry "
                "later."
            )
            await self.rooms.stream.fail(job.id, error)

    async def _lease_expired(self, live: LiveCall, event: LeaseExpired) -> CallEvent | None:
        """A worker is gone: run the rest elsewhere under the same hold, or end the call for free.

        Answers the terminal event to show, or None when another attempt was enqueued.
        """
        job = live.job
        if event.attempt != job.attempt:
            return None
        attempt = job.attempt + 1
        often = attempt - live.first_attempt >= MOST_ATTEMPTS
        if (live.output_tokens and not job.resumable) or often:
            bill = _nothing(Outcome.FAILED, "worker_died")
            row = await self.rooms.resolve.release(job.id, job.attempt, bill)
            return live.terminal(row)
        live.dispatching = True
        try:
            await self.rooms.ledger.dispatch(job.id, attempt)
        except AlreadyResolved as done:
            return live.terminal(done.row)
        resume = Resume(
            token_ids=live.received(),
            sequence=live.sequence,
            preemptions=job.resume.preemptions,
            faults=job.resume.faults + 1,
            queue_ms=live.queue_ms,
            ttft_ms=live.ttft_ms,
            earlier_ms=live.elapsed_ms(),
        )
        live.job = replace(job, attempt=attempt, resume=resume)
        live.dispatching = False
        await self.rooms.queue.enqueue(live.job)
        return None

    async def _leave(self, live: LiveCall) -> None:
        """The call ends before its end. Resolves the hold unless a worker has it."""
        job = live.job
        if live.suspended or (job.background and live.enqueued and self._breaking_off):
            return self._forget(live)  # its turn has it enqueued again, by the next process
        if self._breaking_off:
            live.broken_off = True
            await self.rooms.stream.abandon(job.id, AbandonReason.SHUTDOWN)
        elif live.failed:
            await self.rooms.stream.abandon(job.id, AbandonReason.OWNER_FAILED)
        elif job.batch_id:
            await self.rooms.stream.abandon(job.id, AbandonReason.WITHDRAWN)
        await live.reader.aclose()  # this abandons the job
        try:
            if await self.rooms.queue.remove(job.id) is Removal.WAS_LEASED:
                live.ran = True
                return None  # its worker was woken by the abandonment and resolves
            # Waiting, never enqueued, or taken from a dead worker whose owner (we) now leaves.
            await self._resolve_left(live)
        finally:
            self._forget(live)

    def let_go(self, call_id: str) -> None:
        """Once the iteration of this call is closed, the next process goes on with it: a batch owns it."""
        if (live := self._live.get(call_id)) is not None:
            live.suspended = True

    def blame(self, call_id: str) -> None:
        """If this call ends now, it is our fault and not its client's."""
        if (live := self._live.get(call_id)) is not None:
            live.failed = True

    async def suspend(self, call_id: str) -> bool:
        """Take a call in the background out of the queue, for the next process to go on with, once
        its iteration is closed. False if it is not waiting there."""
        live = self._live.get(call_id)
        if live is None or not live.enqueued:
            return False
        live.suspended = await self.rooms.queue.remove(call_id) is Removal.WAS_WAITING
        return live.suspended

    async def _resolve_left(self, live: LiveCall) -> None:
        """A client that leaves pays for what it was given; nobody pays for anything else."""
        job, resolve = live.job, self.rooms.resolve
        outcome, reason = live.ending()
        usage = Usage(job.input_tokens, live.output_tokens)
        bill = Bill(usage, outcome, reason, live.timings())
        charged = outcome is Outcome.CANCELLED and live.output_tokens > 0 and not job.batch_id
        verb = resolve.settle_later if charged else resolve.release
        if await verb(job.id, job.attempt, bill) is None and live.dispatching:
            # We were cancelled while our own dispatch of the next attempt was being committed.
            await verb(job.id, job.attempt + 1, bill)

    def _forget(self, live: LiveCall) -> None:
        self._settle_permit(live)
        self.rooms.remember.forget(live.job.id)
        if live.deadline is not None:
            live.deadline.cancel()
        if live.finished:
            self.finished_calls += 1
            if live.due is not None:
                self.summaries.begin(live.due)
        elif self._breaking_off and not live.job.background:
            self.broken_off_calls += 1
        del self._live[live.job.id]


def _nothing(outcome: Outcome, reason: str) -> Bill:
    return Bill(Usage(0, 0), outcome, reason)
