"""Jobs, leases and flows: what the queue, the scheduler and the pipeline exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple


class Lane(StrEnum):
    """Priority lanes in order, first served first (Q7)."""

    PREMIUM = "premium"
    INTERACTIVE = "interactive"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return _RANKS[self]


_RANKS = {Lane.PREMIUM: 0, Lane.INTERACTIVE: 1, Lane.BATCH: 2}


@dataclass(frozen=True, slots=True)
class Flow:
    """What fairness compares: the jobs of one project in one lane."""

    lane: Lane
    organisation_id: str
    project_id: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens, fully decided: no defaults are left to an engine."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: bool = False
    json_schema: str = ""  # JSON text of an accepted schema that the output is a document of

    @property
    def resumable(self) -> bool:
        """E8: a prefix of token ids carries all decoding state.

        Not that of a random generator, of penalties, of a grammar, nor log-probabilities that are
        held back together with half a stop string.
        """
        unseeded = self.seed is None or self.temperature == 0
        neutral = not self.presence_penalty and not self.frequency_penalty
        plain = self.repetition_penalty == 1 and not self.logprobs and not self.json_schema
        return unseeded and neutral and plain


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the next lease of a job starts.

    `token_ids` per choice were published by earlier leases (empty: nothing was), `sequence` is
    the last published event's number; the next prompt is the job's prompt plus these ids (E8).
    `faults` are those of engines and workers, `barren` those of them before any token of that lease.
    `queue_ms` and `ttft_ms` are the first lease's, `earlier_ms` the time that earlier attempts took,
    for the usage row.
    """

    token_ids: tuple[tuple[int, ...], ...] = ()
    sequence: int = 0
    preemptions: int = 0
    faults: int = 0
    barren: int = 0
    queue_ms: int | None = None
    ttft_ms: int | None = None
    earlier_ms: int = 0

    @property
    def output_tokens(self) -> int:
        """Tokens published so far, over all choices."""
        return sum(map(len, self.token_ids))


@dataclass(frozen=True, slots=True)
class Job:
    """The queued unit of one call. It carries the hold of the same id.

    `owner` is the process that may enqueue it (the owner of record), `weight` the plan weight of
    its organisation, `deadline_seconds` the longest it may wait before its first lease.
    `resumable` is E8's verdict: a prefix of its output carries all decoding state. `kept`: the
    answer is stored with the settlement; `turn_id`: and as this turn of a dialogue; `batch_id`: and as
    that of this `line` of a batch. In the `background`, turn or batch have it enqueued again after the
    owner's death. `vocabulary` says what its token ids mean (`Route`).
    """

    id: str
    attempt: int
    owner: str
    pool: str
    model: str
    flow: Flow
    weight: int
    prompt_ids: tuple[int, ...]
    ceiling_tokens: int
    sampling: Sampling
    streamed: bool
    resumable: bool
    choices: int = 1
    deadline_seconds: float | None = None
    kept: bool = False
    turn_id: str = ""
    batch_id: str = ""
    line: int = 0
    background: bool = False
    vocabulary: str = ""
    resume: Resume = field(default_factory=Resume)

    @property
    def input_tokens(self) -> int:
        """P, exact."""
        return len(self.prompt_ids)

    @property
    def is_stored(self) -> bool:
        """Whether its answer is stored before it is settled."""
        return bool(self.kept or self.turn_id or self.batch_id)

    @property
    def restartable(self) -> bool:
        """E8 where nothing is shown before the end: what cannot be resumed begins anew."""
        return bool(self.batch_id) and not self.resumable

    def kv_tokens(self, block_tokens: int) -> int:
        """KV-cache tokens that a non-evicting engine must reserve: n·⌈(P + M)/block⌉·block (E9)."""
        blocks = -(-(self.input_tokens + self.ceiling_tokens) // block_tokens)
        return self.choices * blocks * block_tokens


class Ahead(NamedTuple):
    """What stands before a new job: how many jobs wait in its pool at all, and the cost (Q8) that is
    served before it."""

    waiting: int
    cost: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker can take now: `slots` sequences (a job takes one for each choice) and KV memory.

    `batch_slots`: how many of the sequences the batch lane may take unless it is owed (Q9).
    `evicts`: the engine can evict KV, so P + n·E is reserved (Q9).
    """

    pool: str
    slots: int
    kv_tokens: int
    lanes: frozenset[Lane]
    batch_slots: int
    block_tokens: int = 1
    evicts: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """The time-bounded right of one worker to run one job.

    `fence` grows with every lease of the queue (Q2). `protected_seconds` is how long from now the
    job must not be preempted (Q7; infinity after three preemptions).
    """

    job: Job
    worker: str
    fence: int
    waited_seconds: float
    protected_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Output tokens that a lease has generated since it was granted."""

    lease: Lease
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """What a finished lease consumed: it sets the flow's charge (Q8)."""

    output_tokens: int
    cached_input_tokens: int = 0


class Removal(Enum):
    """Where `remove` found the job."""

    WAS_WAITING = "waiting"
    WAS_LEASED = "leased"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Depth:
    """One flow's state. `waiting_cost` is in the unit of Q8's cost; `next_kv_tokens` is what the
    flow's first waiting job needs on a non-evicting engine with one-token blocks, `next_slots` its
    sequences."""

    waiting: int
    leased: int
    waiting_cost: int
    oldest_wait_seconds: float
    next_kv_tokens: int
    next_slots: int = 1
