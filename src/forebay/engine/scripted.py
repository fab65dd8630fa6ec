"""A deterministic engine: the same steps, limits and faults as a real one, without a model.

`ScriptedStepper` is the engine itself; behind the child's frames it serves tests, demos and load
tests. `ScriptedEngine` drives one with timers of the running event loop, without a task, so that a
simulation with virtual time owns all of it.

A step begins when there is work and ends `step_seconds` (and its prefill time) later; its tokens
are made at its end. Submissions join at the next step, cancelled ones leave at once.

Invariants
- E1 A cancelled sequence makes nothing more; the log tells how much it had made.
- E9 With `evicts` off, every running sequence reserves ⌈(P + M)/block⌉ blocks, and one that does not
  fit is a fault at once. (A real engine fails only when the memory is used up; being stricter here
  shows a worker that leases too much.)

Not here: what is said (`script.py`), the log (`journal.py`), iterators (`mailbox.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from forebay.core.clock import Clock
from forebay.core.delta import (
    EngineLimits,
    EngineRequest,
    EngineSignals,
    EngineTally,
    FinishReason,
)
from forebay.core.errors import InvalidRequest
from forebay.engine.contract import Engine
from forebay.engine.frames import Output, Submit
from forebay.engine.journal import Journal
from forebay.engine.mailbox import Gate, Intake, Mail
from forebay.engine.script import Performance
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.engine.stepper import EngineCrash, Stepper

# As long as a supervised child is left alone after its first crash.
_RESTART_SECONDS = 0.1


class _Sequence:
    """One submission on its way through the engine."""

    __slots__ = ("made", "performance", "prefill", "work")

    def __init__(self, work: Submit, performance: Performance) -> None:
        self.work = work
        self.performance = performance
        self.prefill = len(work.prompt_ids)
        self.made = 0

    @property
    def position(self) -> int:
        """How far the output is, counted from the original prompt."""
        return self.performance.start + self.made

    @property
    def reserve(self) -> int:
        return len(self.work.prompt_ids) + self.work.max_tokens


class ScriptedStepper(Stepper):
    """The scripted model. Its time comes from a clock; it never waits itself."""

    def __init__(
        self, settings: EngineSettings, scripted: ScriptedSettings, clock: Clock, journal: Journal
    ) -> None:
        self._settings = settings
        self._scripted = scripted
        self._clock = clock
        self._journal = journal
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}
        self._chunks: dict[int, int] = {}  # prompt tokens that the present step processes
        self._refused: list[Output] = []
        self._due: float | None = None
        self._steps = 0
        self._made = 0
        block = scripted.block_tokens
        self._limits = EngineLimits(
            max_sequences=settings.max_sequences,
            kv_tokens=settings.kv_tokens // block * block,
            block_tokens=block,
            context_tokens=settings.context_tokens,
            evicts=scripted.evicts,
        )

    def submit(self, work: Submit) -> None:
        self._journal.submitted(work)
        try:
            directive = self._scripted.directive
            performance = Performance(work.prompt_ids, directive, work.json_schema)
            sequence = _Sequence(work, performance)
        except (ValueError, InvalidRequest) as error:
            self._refused.append(Output(work.sequence, 0, fault=str(error)))
        else:
            self._waiting.append(sequence)
        if self._due is None:
            self._begin(self._clock.monotonic())

    def cancel(self, sequence: int) -> None:
        self._journal.cancelled(sequence)
        if sequence in self._running and self._running[sequence].performance.script.deaf:
            return
        self._running.pop(sequence, None)
        self._waiting = deque(w for w in self._waiting if w.work.sequence != sequence)
        if not self._running and not self._waiting and not self._refused:
            self._due = None

    def next_due(self) -> float | None:
        if self._due is None:
            return None
        return max(0.0, self._due - self._clock.monotonic())

    def step(self) -> list[Output]:
        outputs, self._refused = self._refused, []
        present = [self._running[s] for s in self._chunks if s in self._running]
        for sequence in present:
            if sequence.prefill <= self._chunks[sequence.work.sequence]:
                self._crash_if_scripted(sequence)
        for sequence in present:
            sequence.prefill -= self._chunks[sequence.work.sequence]
            if sequence.prefill <= 0:
                outputs += self._advance(sequence)
        self._journal.stepped([(s.work.sequence, s.made) for s in present])
        for output in outputs:
            if output.finish is not None or output.fault is not None:
                self._running.pop(output.sequence, None)
                self._journal.ended(output)
        self._steps += 1
        self._begin(self._due)
        return outputs

    @property
    def made(self) -> int:
        return self._made

    def limits(self) -> EngineLimits:
        return self._limits

    def kv_use(self) -> float:
        used = sum(
            self._blocks(len(s.work.prompt_ids) - max(0, s.prefill) + s.made)
            for s in self._running.values()
        )
        return min(1.0, used / self._limits.kv_tokens)

    def close(self) -> None:
        self._journal.close()

    def _begin(self, ended: float | None) -> None:
        """Plan the next step: who takes part, how much of whose prompt, when it ends."""
        self._admit()
        self._chunks = {}
        now = self._clock.monotonic()
        frozen = self._steps == self._scripted.freeze_after_steps
        if frozen or not (self._running or self._refused):
            self._due = None
            return
        budget = self._settings.max_batched_tokens
        prefilled = 0
        for number, sequence in self._running.items():
            chunk = max(0, min(sequence.prefill, budget - prefilled))
            if chunk or sequence.prefill <= 0:
                self._chunks[number] = chunk
            prefilled += chunk
        rate = self._scripted.prefill_tokens_per_second
        seconds = self._scripted.step_seconds + (prefilled / rate if rate else 0.0)
        # From the end of the last step, not from now: a driver that is late does not slow it down.
        self._due = max(now, (now if ended is None else ended) + seconds)

    def _admit(self) -> None:
        free = self._settings.max_sequences - len(self._running)
        while self._waiting and free > 0:
            sequence = self._waiting.popleft()
            reserved = sum(self._blocks(s.reserve) for s in self._running.values())
            need = self._blocks(sequence.reserve)
            if not self._scripted.evicts and reserved + need > self._limits.kv_tokens:
                reason = f"out of KV memory: {reserved} + {need} of {self._limits.kv_tokens} tokens"
                self._refused.append(Output(sequence.work.sequence, 0, fault=reason))
                continue
            self._running[sequence.work.sequence] = sequence
            free -= 1

    def _blocks(self, tokens: int) -> int:
        block = self._scripted.block_tokens
        return -(-tokens // block) * block

    def _crash_if_scripted(self, sequence: _Sequence) -> None:
        performance = sequence.performance
        if performance.strikes(performance.script.crash_at, sequence.position):
            raise EngineCrash(f"scripted at token {sequence.position}")

    def _advance(self, sequence: _Sequence) -> list[Output]:
        """What one step makes of a sequence whose prompt is processed: a token, an end, a fault."""
        work, performance, script = sequence.work, sequence.performance, sequence.performance.script
        here = sequence.position
        if performance.strikes(script.hang_at, here):
            return []
        if performance.strikes(script.kv_exhausted_at, here):
            return [Output(work.sequence, sequence.made, fault="out of KV memory (scripted)")]
        if performance.strikes(script.duplicate_at, here) and sequence.made:
            self._made += 1
            return [_output(sequence, sequence.made - 1, performance.token(here - 1))]
        reported = None if script.drop_usage else sequence.made
        length = performance.length + work.choice * script.choice_step
        if here >= length and not work.ignore_eos and not script.overlong:
            return [Output(work.sequence, sequence.made, (), FinishReason.STOP, reported)]
        sequence.made += 1
        self._made += 1 + script.miscount
        last = sequence.made >= work.max_tokens + script.overlong
        finish = FinishReason.LENGTH if last else None
        reported = sequence.made if last and not script.drop_usage else None
        return [_output(sequence, sequence.made - 1, performance.token(here), finish, reported)]


def _output(
    sequence: _Sequence,
    position: int,
    token_id: int,
    finish: FinishReason | None = None,
    reported: int | None = None,
) -> Output:
    """One token; the less common its id, the less probable it is."""
    work = sequence.work
    logprobs = (-(1 + token_id) / 256,) if work.logprobs else ()
    return Output(work.sequence, position, (token_id,), finish, reported, logprobs=logprobs)


class ScriptedEngine(Engine):
    """The scripted model in this process, driven by the running loop's timers.

    A scripted crash fails every running generation and starts the engine again, as supervision
    does with a child. It caches no prefixes, so isolation has nothing to do (E6).
    """

    def __init__(
        self, settings: EngineSettings, scripted: ScriptedSettings, *, clock: Clock
    ) -> None:
        self.journal = Journal(scripted.log_path, keep=True, clock=clock)
        self.restarts = 0
        self._settings = settings
        self._scripted = scripted
        self._clock = clock
        self._gate = Gate()
        self._intake = Intake(self, lambda: 0)
        self._stepper: ScriptedStepper | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._state = "stopped"

    async def start(self) -> None:
        self._state = "starting"
        self._gate.shut()
        await asyncio.sleep(self._scripted.start_seconds)
        if self._state == "starting":
            self._serve()

    def generate(self, request: EngineRequest) -> Mail:
        return Mail(self._intake, self._gate, request)

    def signals(self) -> EngineSignals:
        return self._intake.signals(self._stepper.kv_use() if self._stepper else 0.0)

    def tally(self) -> EngineTally:
        return self._intake.tally()

    def limits(self) -> EngineLimits:
        return self._intake.limits

    def state(self) -> str:
        return self._state

    async def isolate(self) -> None:
        """Nothing is shared."""

    async def close(self) -> None:
        self._state = "stopped"
        self._disarm()
        self._stepper = None
        self._gate.stop("the engine was closed")
        self._intake.fail_all("the engine was closed")
        self.journal.close()

    def submit(self, work: Submit) -> None:
        """For the intake."""
        if self._stepper is not None:
            self._stepper.submit(work)
            self._arm()

    def cancel(self, sequence: int) -> None:
        """For the intake."""
        if self._stepper is not None:
            self._stepper.cancel(sequence)
            if self._stepper.next_due() is None:
                self._disarm()

    def _serve(self) -> None:
        self._stepper = ScriptedStepper(self._settings, self._scripted, self._clock, self.journal)
        self._intake.renew()
        self._intake.limits = self._stepper.limits()
        self._state = "ready"
        self._gate.open()

    def _arm(self) -> None:
        due = self._stepper.next_due() if self._stepper else None
        if self._timer is None and due is not None:
            self._timer = asyncio.get_running_loop().call_later(due, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if self._stepper is None:
            return
        try:
            outputs = self._stepper.step()
        except EngineCrash:
            self._crash()
            return
        self._intake.deliver(outputs, self._stepper.made)
        self._arm()

    def _crash(self) -> None:
        self._stepper = None
        self._state = "restarting"
        self.restarts += 1
        self._gate.shut()
        self._intake.fail_all("the engine died")
        self._timer = asyncio.get_running_loop().call_later(
            _RESTART_SECONDS + self._scripted.start_seconds, self._serve_again
        )

    def _serve_again(self) -> None:
        self._timer = None
        self._serve()
