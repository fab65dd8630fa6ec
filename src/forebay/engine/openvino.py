"""OpenVINO GenAI's continuous batching on the CPU, as a stepper (in the child process only).

What its API does not say, and was found by trying (2026.4): it runs more sequences than
`max_num_seqs`, so they wait here; the blocks of a cancelled sequence are freed by the next step,
and a prompt added before that step can be refused for lack of memory, so nothing is added then;
`read` returns one token, so it is called until there is no more; the end-of-sequence token is in
the output and is taken off here, unless it was to be ignored; a grammar that does not compile
throws in `step`, which loses the engine, so only grammars of accepted schemas get here; the first
grammar costs a second (it is part of the warm-up), later ones tens of milliseconds in a step.

Invariants
- E1 A cancelled sequence takes no part in the next step.
- E6 The prefix cache has no salt: `prefix_cache` is decided by the parent for the process's life.
- E9 A sequence that ends without a finish reason (status IGNORED: out of KV memory) is a fault.

Sampling: a temperature under 0.01 or a top_p of 0 is greedy. The random generator is shared by all
sequences and set by each request's seed, so a seed repeats a text only on an idle engine.

Not here: process, frames (`child.py`), which cached-token counts there are (none in its API).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
import openvino
import openvino_genai as genai

from forebay.core.delta import EngineLimits, FinishReason
from forebay.core.json_schema import read
from forebay.engine.frames import Output, Submit
from forebay.engine.grammar import ebnf
from forebay.engine.settings import EngineSettings
from forebay.engine.stepper import Stepper

# The CPU plugin's KV block; a pool of n blocks was seen to hold exactly 32·n tokens.
BLOCK_TOKENS = 32
_GREEDY_BELOW = 0.01
# With its two threads pinned, the one that shares a core with the gateway holds up every step.
_PROPERTIES = {"ENABLE_CPU_PINNING": False}
_FINISH = {
    genai.GenerationFinishReason.STOP: FinishReason.STOP,
    genai.GenerationFinishReason.LENGTH: FinishReason.LENGTH,
}


@dataclass(slots=True)
class _Sequence:
    work: Submit
    handle: Any
    made: int = 0


class OpenVinoStepper(Stepper):
    """One pipeline with its weights. Loads and warms up in the constructor."""

    def __init__(self, weights: str, settings: EngineSettings, *, prefix_cache: bool) -> None:
        self._settings = settings
        self._blocks = settings.kv_tokens // BLOCK_TOKENS
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = self._blocks
        scheduler.cache_size = 0
        scheduler.max_num_batched_tokens = settings.max_batched_tokens
        scheduler.max_num_seqs = settings.max_sequences
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = prefix_cache
        self._pipe = genai.ContinuousBatchingPipeline(weights, scheduler, "CPU", _PROPERTIES)
        config = self._pipe.get_config()
        self._ends = {int(config.eos_token_id), *map(int, config.stop_token_ids)} - {-1}
        self._waiting: deque[Submit] = deque()
        self._running: dict[int, _Sequence] = {}
        self._grammars: set[int] = set()  # hashes of the schemas that were compiled
        self._cancelled: list[Any] = []  # handles: one that is dropped early cancels itself
        self._made = 0
        self._warm_up()
        self._made = 0

    def submit(self, work: Submit) -> None:
        self._waiting.append(work)

    def cancel(self, sequence: int) -> None:
        running = self._running.pop(sequence, None)
        if running is not None:
            running.handle.cancel()
            self._cancelled.append(running.handle)
        else:
            self._waiting = deque(w for w in self._waiting if w.sequence != sequence)

    def next_due(self) -> float | None:
        return 0.0 if self._running or self._waiting or self._cancelled else None

    def step(self) -> list[Output]:
        outputs: list[Output] = []
        if self._cancelled:
            self._pipe.step()
            self._cancelled.clear()
        else:
            outputs += self._admit()
            if self._running:
                self._pipe.step()
        for sequence in list(self._running.values()):
            output = self._read(sequence)
            if output is not None:
                outputs.append(output)
        return outputs

    @property
    def made(self) -> int:
        return self._made

    def limits(self) -> EngineLimits:
        return EngineLimits(
            max_sequences=self._settings.max_sequences,
            kv_tokens=self._blocks * BLOCK_TOKENS,
            block_tokens=BLOCK_TOKENS,
            context_tokens=self._settings.context_tokens,
            evicts=False,
        )

    def kv_use(self) -> float:
        return min(1.0, float(self._pipe.get_metrics().cache_usage) / 100)

    def close(self) -> None:
        for sequence in list(self._running):
            self.cancel(sequence)
        self._waiting.clear()

    def _admit(self) -> list[Output]:
        """Add what may run now; a request that the pipeline refuses is that request's fault.

        One new grammar a step: each is compiled inside a step, while all others wait.
        """
        refused: list[Output] = []
        new_grammar = False
        while self._waiting and len(self._running) < self._settings.max_sequences:
            if self._has_new_grammar(self._waiting[0]):
                if new_grammar:
                    break
                new_grammar = True
            work = self._waiting.popleft()
            try:
                handle = self._pipe.add_request(
                    work.sequence, openvino.Tensor([work.prompt_ids]), self._config(work)
                )
            except Exception as error:  # whatever it is, it is about this request alone
                refused.append(Output(work.sequence, 0, fault=f"refused: {error}"))
            else:
                self._running[work.sequence] = _Sequence(work, handle)
        return refused

    def _has_new_grammar(self, work: Submit) -> bool:
        return bool(work.json_schema) and hash(work.json_schema) not in self._grammars

    def _config(self, work: Submit) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = work.max_tokens
        config.ignore_eos = work.ignore_eos
        if not work.ignore_eos:
            config.stop_token_ids = self._ends
        if work.temperature >= _GREEDY_BELOW and work.top_p > 0:
            config.do_sample = True
            config.temperature = work.temperature
            config.top_p = work.top_p
            config.rng_seed = work.seed
            if work.top_k:
                config.top_k = work.top_k
        config.presence_penalty = work.presence_penalty
        config.frequency_penalty = work.frequency_penalty
        config.repetition_penalty = work.repetition_penalty
        config.logprobs = int(work.logprobs)
        if work.json_schema:
            self._grammars.add(hash(work.json_schema))
            grammar = ebnf(read(msgspec.json.decode(work.json_schema), path="schema"))
            config.structured_output_config = genai.StructuredOutputConfig(grammar=grammar)
        return config

    def _read(self, sequence: _Sequence) -> Output | None:
        """What the last step added to one sequence; None if nothing."""
        work, handle, position = sequence.work, sequence.handle, sequence.made
        ids: list[int] = []
        logprobs: list[float] = []
        finish: FinishReason | None = None
        while handle.can_read():
            for generated in handle.read().values():
                ids += generated.generated_ids
                logprobs += generated.generated_log_probs
                finish = _FINISH.get(generated.finish_reason, finish)
        if finish is FinishReason.STOP and not work.ignore_eos and ids and ids[-1] in self._ends:
            ids.pop()
        sequence.made += len(ids)
        self._made += len(ids)
        shown = tuple(logprobs[: len(ids)]) if work.logprobs else ()
        if finish is not None:
            del self._running[work.sequence]
            made = sequence.made
            return Output(work.sequence, position, tuple(ids), finish, made, logprobs=shown)
        status = handle.get_status()
        if status != genai.GenerationStatus.RUNNING:
            del self._running[work.sequence]
            reason = (
                f"the engine gave up at token {sequence.made} ({status.name}: out of KV memory)"
            )
            return Output(work.sequence, position, tuple(ids), fault=reason)
        return Output(work.sequence, position, tuple(ids), logprobs=shown) if ids else None

    def _warm_up(self) -> None:
        """The first steps compile kernels, the first grammar reads the vocabulary: a long prompt and a
        few sequences at once, then it is fast."""
        size = min(self._settings.max_batched_tokens + 8, self._settings.kv_tokens // 4)
        prompts = [tuple(range(100, 100 + n)) for n in (size, 4, 5, 6)]
        for sequence, prompt in enumerate(prompts[: self._settings.max_sequences]):
            work = Submit(sequence, "warm-up", 0, prompt, 4, 0.0, 1.0, None, 0, True)
            self.submit(work if sequence else msgspec.structs.replace(work, json_schema="{}"))
        while self.next_due() is not None:
            for output in self.step():
                if output.fault is not None:
                    raise RuntimeError(f"warm-up: {output.fault}")
