"""From an engine's outputs to the generations of its callers, with every check of what it says.

An engine implementation delivers the outputs of each step to its `Intake`; each caller iterates its
`Mail`. There is no task and no queue hop per output: a deque and one waiter per caller.

Invariants
- E1 Stopping or closing a generation cancels what of it still runs, at once.
- E2 The engine's own count is passed on as it is; what was received is the tokens of the deltas.
- E3 A choice is cut at `max_tokens` and ends there with LENGTH; the engine is told to stop.
- E7 `Submit` is built here, field by field, from an `EngineRequest`.
- E9 An output with a fault raises; it never looks like an end.
- Every token that was delivered is yielded, discarded or queued, and counted as that (`tally`).
- An output that does not begin where the last one ended (a repeat, a gap) is an EngineFault.

Not here: where outputs come from (`scripted.py`, `process.py`), what a wrong count means (the worker).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from forebay.core.delta import (
    EngineDelta,
    EngineLimits,
    EngineRequest,
    EngineSignals,
    EngineTally,
    FinishReason,
)
from forebay.core.errors import EngineFault
from forebay.engine.contract import Generation
from forebay.engine.frames import Output, Submit
from forebay.observe.log import get_logger

_SEED_MASK = (1 << 63) - 1
_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbouring choices get far-apart seeds

_log = get_logger("forebay")


class Link(Protocol):
    """The way to the engine; neither verb waits."""

    def submit(self, work: Submit) -> None: ...
    def cancel(self, sequence: int) -> None: ...


class _Choice:
    """One submission in flight: how far it is and whose it is."""

    __slots__ = ("count", "index", "mail", "max_tokens")

    def __init__(self, mail: Mail, index: int, max_tokens: int) -> None:
        self.mail = mail
        self.index = index
        self.max_tokens = max_tokens
        self.count = 0


class Mail(Generation):
    """The deltas of one request on their way to the one task that iterates them.

    Bounded by the request: at most one item per token, and a fault.
    """

    def __init__(self, intake: Intake, gate: Gate, request: EngineRequest) -> None:
        self._intake = intake
        self._gate = gate
        self._request = request
        self.request_id = request.id
        self._items: deque[EngineDelta | EngineFault] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._begun = self._stopped = self._submitted = False
        self.live: set[int] = set()

    async def __anext__(self) -> EngineDelta:
        if not self._begun:
            await self._begin()
        while not self._items:
            if not self.live:
                raise StopAsyncIteration
            await self._wait(asyncio.get_running_loop().create_future())
        item = self._items.popleft()
        if isinstance(item, EngineFault):
            raise item
        self._intake.queued -= len(item.token_ids)
        return item

    @property
    def submitted(self) -> bool:
        return self._submitted

    def stop(self) -> None:
        self._stopped = True
        for sequence in list(self.live):
            self._intake.drop(sequence)
        self._wake()

    async def aclose(self) -> None:
        self.stop()
        for item in self._items:
            if isinstance(item, EngineDelta):
                self._intake.leave_unread(len(item.token_ids))
        self._items.clear()

    def push(self, item: EngineDelta | EngineFault) -> None:
        """For the intake: one more thing to yield, or to raise."""
        self._items.append(item)
        self._wake()

    async def _begin(self) -> None:
        self._begun = True
        while not self._stopped and not self._gate.is_open():
            await self._wait(self._gate.waiter())
        if not self._stopped:
            self._submitted = True
            self._intake.begin(self._request, self)

    async def _wait(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = waiter
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Intake:
    """All generations of one engine. Sequences are numbered over its whole life."""

    def __init__(self, link: Link, seed: Callable[[], int]) -> None:
        self._limits: EngineLimits | None = None
        self._link = link
        self._seed = seed
        self._choices: dict[int, _Choice] = {}
        self._last = 0
        self._drained: asyncio.Future[None] | None = None
        self.queued = 0
        self._discarded = 0
        self._boot = 0
        self._made = self._made_before = 0

    @property
    def open(self) -> int:
        """Sequences that the engine has been given and that have not ended."""
        return len(self._choices)

    @property
    def limits(self) -> EngineLimits:
        """What the engine said at its first start. Raises EngineFault before that."""
        if self._limits is None:
            raise EngineFault("the engine was not started")
        return self._limits

    @limits.setter
    def limits(self, limits: EngineLimits) -> None:
        self._limits = limits

    def signals(self, kv_use: float) -> EngineSignals:
        """Exact without asking: an engine runs as many of its sequences as it may."""
        running = min(self.open, self.limits.max_sequences) if self.open else 0
        return EngineSignals(running, self.open - running, kv_use if self.open else 0.0)

    def tally(self) -> EngineTally:
        """What became of all tokens since the first start."""
        return EngineTally(self._boot, self._made, self._discarded, self.queued)

    def renew(self) -> None:
        """An engine that has just been started serves from now on: it counts from zero."""
        self._boot += 1
        self._made_before = self._made

    def begin(self, request: EngineRequest, mail: Mail) -> None:
        """Submit every choice of the request. Raises EngineFault for one that cannot run at all."""
        if not request.prompt_ids or request.max_tokens < 1 or request.choices < 1:
            raise EngineFault("an engine request needs a prompt, a token to make and a choice")
        context_tokens = self.limits.context_tokens
        if len(request.prompt_ids) + request.max_tokens > context_tokens:
            raise EngineFault(f"prompt and output do not fit {context_tokens} context tokens")
        seed = request.sampling.seed if request.sampling.seed is not None else self._seed()
        for index in range(request.choices):
            self._last += 1
            self._choices[self._last] = _Choice(mail, index, request.max_tokens)
            mail.live.add(self._last)
            self._link.submit(_submission(request, self._last, index, seed))

    def deliver(self, outputs: Iterable[Output], made: int) -> None:
        """Hand one step's outputs on; those for sequences that were dropped are ignored.

        `made` is the engine's count since its start.
        """
        self._made = self._made_before + made
        for output in outputs:
            choice = self._choices.get(output.sequence)
            if choice is not None:
                self._accept(choice, output)
            else:
                self._discarded += len(output.token_ids)

    def leave_unread(self, tokens: int) -> None:
        """These were queued, and nobody will ask for them any more."""
        self.queued -= tokens
        self._discarded += tokens

    def drop(self, sequence: int) -> None:
        """Forget a sequence and tell the engine to stop it."""
        choice = self._choices.get(sequence)
        if choice is not None:
            request_id = choice.mail.request_id
            _log.debug("generation_stopped", request_id=request_id, received=choice.count)
        self._forget(sequence)
        self._link.cancel(sequence)

    def fail_all(self, reason: str) -> None:
        """The engine lost everything: every generation raises after what it has received."""
        for sequence, choice in list(self._choices.items()):
            self._forget(sequence)
            choice.mail.push(EngineFault(reason))

    async def drained(self) -> None:
        """Return when nothing runs."""
        while self._choices:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _accept(self, choice: _Choice, output: Output) -> None:
        if output.fault is not None:
            self._fail(choice, output, output.fault)
            return
        if output.position != choice.count:
            reason = f"the engine sent token {output.position} where {choice.count} was due"
            self._fail(choice, output, reason)
            return
        ids, finish, reported = output.token_ids, output.finish, output.reported
        if output.logprobs and len(output.logprobs) != len(ids):
            self._fail(choice, output, "the engine sent logprobs for other tokens than it made")
            return
        room = choice.max_tokens - choice.count
        cut = len(ids) > room or (len(ids) == room and finish is None)
        if cut:  # E3; what the engine would have reported is about more than was taken
            self._discarded += len(ids) - room
            ids, finish, reported = ids[:room], FinishReason.LENGTH, None
        choice.count += len(ids)
        self.queued += len(ids)
        if finish is not None:
            (self.drop if cut else self._forget)(output.sequence)
        if ids or finish is not None:
            logprobs = output.logprobs[: len(ids)]
            delta = EngineDelta(choice.index, ids, "", finish, reported, output.cached, logprobs)
            choice.mail.push(delta)

    def _fail(self, choice: _Choice, output: Output, reason: str) -> None:
        self._discarded += len(output.token_ids)
        self.drop(output.sequence)
        choice.mail.push(EngineFault(reason))

    def _forget(self, sequence: int) -> None:
        choice = self._choices.pop(sequence, None)
        if choice is not None:
            choice.mail.live.discard(sequence)
        if not self._choices and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None


class Gate:
    """Where callers wait while an engine restarts."""

    def __init__(self) -> None:
        self._stopped: str | None = "the engine was not started"
        self._open = False
        self._waiters: list[asyncio.Future[None]] = []

    def is_open(self) -> bool:
        """Whether calls may be submitted now. Raises EngineFault if the engine is stopped."""
        if self._stopped is not None:
            raise EngineFault(self._stopped)
        return self._open

    def waiter(self) -> asyncio.Future[None]:
        """Done when the gate opens; fails when a start of the engine failed or it was stopped."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters = [w for w in self._waiters if not w.done()]
        self._waiters.append(waiter)
        return waiter

    async def wait(self) -> None:
        """Return when open. Raises EngineFault."""
        while not self.is_open():
            await self.waiter()

    def open(self) -> None:
        """Let everyone in."""
        self._stopped, self._open = None, True
        self._release(None)

    def shut(self) -> None:
        """New callers wait from now on."""
        self._stopped, self._open = None, False

    def fail(self, reason: str) -> None:
        """A start failed: those who wait fail too; later ones wait for the next try."""
        self._release(reason)

    def stop(self, reason: str) -> None:
        """Nobody gets in any more."""
        self._stopped, self._open = reason, False
        self._release(reason)

    def _release(self, reason: str | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if reason is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(EngineFault(reason))


def _submission(request: EngineRequest, sequence: int, index: int, seed: int) -> Submit:
    """The allow-list (E7). Stop strings are not in it: they are matched over the joined text (E4)."""
    sampling = request.sampling
    return Submit(
        sequence=sequence,
        request_id=request.id,
        choice=index,
        prompt_ids=request.prompt_ids,
        max_tokens=request.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=(seed + index * _SEED_STRIDE) & _SEED_MASK,
        ignore_eos=sampling.ignore_eos,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logprobs=sampling.logprobs,
        json_schema=sampling.json_schema,
    )
