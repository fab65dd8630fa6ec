"""One lease's progress: what the engine made of a job and what of it may be published.

Counts tokens, cuts at M, decodes, matches stop strings. Pure: no I/O, no clock reads.

Not here: what happens when it ends (`worker.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from forebay.core.delta import EngineDelta, EngineRequest, FinishReason, TokenLogprob
from forebay.core.dialogue import Item, Said, answer_id
from forebay.core.errors import EngineFault
from forebay.core.event import Abandonment, Delta, Started
from forebay.core.job import Lease, Resume
from forebay.core.usage import Timings, Usage
from forebay.engine import Generation
from forebay.pipeline.kept_answer import KeptChoice, encode_answer
from forebay.tokens import Decoder


class Interruption(StrEnum):
    """Why a worker stops a generation that has not ended by itself."""

    ABANDONED = "abandoned"
    PREEMPTED = "preempted"
    LEASE_LOST = "lease_lost"
    SILENT = "silent"
    LATE = "late"


@dataclass(slots=True)
class Choice:
    """One choice's output over all leases of the job: what was published, or is about to be.

    `text` and `logprobs` wait to be published. Log-probabilities of tokens of whose text something
    is held back are `unshown`, with the place where their text ends: they are shown when that place
    is, or never (E4).
    """

    token_ids: list[int]
    decoder: Decoder | None = None
    finish_reason: FinishReason | None = None
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    unshown: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    characters: int = 0  # that may be shown

    def push(self, decoder: Decoder, token_id: int, logprob: float | None, limit: int) -> None:
        """One more token, up to `limit` (E3) and to a completed stop string (E4). Raises EngineFault."""
        piece = decoder.push(token_id)
        self.token_ids.append(token_id)
        self._show(piece.text)
        if piece.stopped:
            self.finish_reason = FinishReason.STOP
            return
        if logprob is not None:
            end = self.characters + decoder.held
            self.unshown.append((end, TokenLogprob(decoder.token(token_id), logprob)))
            self._show("")
        if len(self.token_ids) >= limit:
            self.end(decoder, FinishReason.LENGTH)

    def replay(self, decoder: Decoder, limit: int) -> str:
        """Feed a new decoder the ids that were published; answers the text that was, with them."""
        pieces = [decoder.push(token_id) for token_id in self.token_ids]
        text = "".join(piece.text for piece in pieces)
        if any(piece.stopped for piece in pieces):
            self.finish_reason = FinishReason.STOP
        elif len(pieces) >= limit:
            self.finish_reason = FinishReason.LENGTH
            text += decoder.finish()
        return text

    def end(self, decoder: Decoder, reason: FinishReason) -> None:
        """It ends without a stop string: what was held back for one is text."""
        self.finish_reason = reason
        self._show(decoder.finish())
        self.logprobs += tuple(logprob for _, logprob in self.unshown)
        self.unshown.clear()

    def publish(self) -> tuple[str, tuple[TokenLogprob, ...]]:
        """What has become showable since the last time."""
        text, logprobs = self.text, self.logprobs
        self.text, self.logprobs = "", ()
        return text, logprobs

    def _show(self, text: str) -> None:
        self.text += text
        self.characters += len(text)
        while self.unshown and self.unshown[0][0] <= self.characters:
            self.logprobs += (self.unshown.pop(0)[1],)


class Run:
    """Used by the one task that generates, and read by its worker."""

    def __init__(self, lease: Lease, *, started_at: float, order: int) -> None:
        self.lease = lease
        self.job = lease.job
        self.order = order
        self.kv_tokens = 0
        self.generation: Generation | None = None
        self.interruption: Interruption | None = None
        self.abandonment: Abandonment | None = None
        self.on_interrupt: Callable[[], object] | None = None
        self.last_delta_at = started_at
        self.sequence = self.job.resume.sequence
        self.cached_input_tokens = 0
        self.mismatch = False
        self.ignored = 0  # tokens of this lease that came after a choice's end, or were no model's
        self._started_at = started_at
        self._first_at: float | None = None
        self._before = self.job.resume.output_tokens
        kept = self.job.resume.token_ids or ((),) * self.job.choices
        self.choices = [Choice(list(ids)) for ids in kept]
        self._shown: list[tuple[list[str], list[TokenLogprob]]] = [([], []) for _ in self.choices]
        self.fault: EngineFault | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens received for this job so far, over all choices and leases."""
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def generated(self) -> int:
        """Tokens received in this lease."""
        return self.output_tokens - self._before

    @property
    def published(self) -> bool:
        """Whether any output token of this job was ever published."""
        return self.output_tokens > 0 and not self.job.restartable

    @property
    def untouched(self) -> bool:
        """Whether no engine was ever given this job, in this lease or an earlier one."""
        before = self.job.resume.sequence > 0
        return not before and not (self.generation is not None and self.generation.submitted)

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def interrupt(self, why: Interruption) -> None:
        """Stop generating; what the engine has sent so far still counts. The first reason holds."""
        if self.interruption is None:
            self.interruption = why
            if self.generation is not None:
                self.generation.stop()
            if self.on_interrupt is not None:
                self.on_interrupt()

    def protected(self, now: float) -> bool:
        """Whether it must not be preempted (Q7)."""
        return now - self._started_at < self.lease.protected_seconds

    def started(self) -> Started:
        """The first event of this lease."""
        self.sequence += 1
        return Started(self.sequence, self.job.attempt, self.queue_ms)

    def prepare(self, decoder: Callable[[], Decoder]) -> None:
        """Bring every choice's decoder to where the last lease ended: fed the same ids, it is the
        same again. A choice that had come to its end, and was not settled, has ended."""
        for number, choice in enumerate(self.choices):
            choice.decoder = decoder()
            self._keep(number, choice.replay(choice.decoder, self.job.ceiling_tokens), ())

    def request(self) -> EngineRequest:
        """What the engine is asked: the prompt plus what was published, and the rest of M."""
        job = self.job
        kept = self.choices[0].token_ids  # a job with several choices is never resumed half-way
        return EngineRequest(
            id=f"{job.id}.{self.lease.fence}",
            prompt_ids=(*job.prompt_ids, *kept),
            max_tokens=job.ceiling_tokens - len(kept),
            sampling=replace(job.sampling, stop=()),
            choices=job.choices,
        )

    def accept(self, delta: EngineDelta, now: float) -> Delta | None:
        """Take what an engine step added; the event to publish, None if it ended nothing new."""
        choice = self.choices[delta.choice]
        decoder = choice.decoder
        if choice.finish_reason is not None or decoder is None:
            self.ignored += len(delta.token_ids)
            return None
        if self._first_at is None and delta.token_ids:
            self._first_at = now
        self.last_delta_at = now
        taken = self._take(choice, decoder, delta)
        self.ignored += len(delta.token_ids) - len(taken)
        if delta.finish_reason is not None and len(taken) == len(delta.token_ids):
            self._check(delta, len(choice.token_ids))
            if choice.finish_reason is None:
                choice.end(decoder, delta.finish_reason)
        if delta.cached_input_tokens is not None:
            self.cached_input_tokens = delta.cached_input_tokens
        text, logprobs = choice.publish()
        self._keep(delta.choice, text, logprobs)
        if not (taken or text or logprobs) or self.job.restartable:
            return None
        self.sequence += 1
        return Delta(self.sequence, self.job.attempt, delta.choice, taken, text, logprobs)

    def _keep(self, number: int, text: str, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Of a job whose answer is stored, remember what was shown as well."""
        if self.job.is_stored:
            texts, shown = self._shown[number]
            texts.append(text)
            shown.extend(logprobs)

    def kept_answer(self) -> bytes:
        """The whole answer of a kept job, to be stored with its settlement."""
        kept = [
            KeptChoice(choice.token_ids, "".join(texts), logprobs)
            for choice, (texts, logprobs) in zip(self.choices, self._shown, strict=True)
        ]
        return encode_answer(self.usage(), kept)

    def said(self, completed_at: float) -> Said:
        """The answer of a turn, at this Unix time; turns have one choice."""
        text = "".join(self._shown[0][0])
        complete = self.choices[0].finish_reason is not FinishReason.LENGTH
        output = Item(answer_id(self.job.id), "assistant", (text,), complete)
        return Said(output, self.usage(), completed_at)

    def _take(self, choice: Choice, decoder: Decoder, delta: EngineDelta) -> tuple[int, ...]:
        """Count and decode ids one by one until the choice ends; those that were taken.

        At an id that is not the model's, what came before it still counts and `fault` is set.
        """
        limit = self.job.ceiling_tokens
        logprobs = delta.logprobs or (None,) * len(delta.token_ids)
        for index, (token_id, logprob) in enumerate(zip(delta.token_ids, logprobs, strict=True)):
            try:
                choice.push(decoder, token_id, logprob, limit)
            except EngineFault as fault:
                self.fault = fault
                return delta.token_ids[:index]
            if choice.finish_reason is not None:
                return delta.token_ids[: index + 1]
        return delta.token_ids

    def _check(self, delta: EngineDelta, counted: int) -> None:
        reported = delta.reported_tokens
        if reported is not None and reported + self._before != counted:
            self.mismatch = True

    def require_end(self) -> None:
        """The engine's iterator is exhausted: that is only an end if it said so (E9)."""
        if not self.finished:
            raise EngineFault("the engine ended a generation without a finish reason")

    def resume(self, *, preempted: bool = False, fault: bool = False) -> Resume:
        """Where the next lease of this job starts."""
        before = self.job.resume
        ids = tuple(tuple(choice.token_ids) for choice in self.choices) if self.published else ()
        return Resume(
            token_ids=ids,
            sequence=self.sequence,
            preemptions=before.preemptions + preempted,
            faults=before.faults + fault,
            barren=before.barren + (fault and not self.generated),
            queue_ms=self.queue_ms,
            ttft_ms=self.ttft_ms,
            earlier_ms=before.earlier_ms,
        )

    def usage(self, output_tokens: int | None = None) -> Usage:
        """What is billable now; `output_tokens` where less than all received is."""
        return Usage(
            input_tokens=self.job.input_tokens,
            output_tokens=self.output_tokens if output_tokens is None else output_tokens,
            cached_input_tokens=self.cached_input_tokens,
            finish_reasons=self.finish_reasons,
        )

    @property
    def finish_reasons(self) -> tuple[FinishReason | None, ...]:
        """Per choice; None where it has not ended."""
        return tuple(choice.finish_reason for choice in self.choices)

    @property
    def queue_ms(self) -> int:
        """From enqueued to the job's first lease."""
        first = self.job.resume.queue_ms
        return first if first is not None else int(self.lease.waited_seconds * 1000)

    @property
    def ttft_ms(self) -> int | None:
        """From enqueued to the job's first token, None before it."""
        if self.job.resume.ttft_ms is not None or self._first_at is None:
            return self.job.resume.ttft_ms
        return self._since_enqueued_ms(self._first_at)

    def timings(self, now: float) -> Timings:
        """For the usage row."""
        return Timings(self.queue_ms, self.ttft_ms, self._since_enqueued_ms(now))

    def _since_enqueued_ms(self, now: float) -> int:
        """Since the call was first enqueued, earlier attempts included."""
        waited = self.lease.waited_seconds
        return self.job.resume.earlier_ms + int((waited + now - self._started_at) * 1000)
