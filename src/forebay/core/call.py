"""A call: what one HTTP request asks for, validated, in our own words (OpenAI's stop outside)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.core.batch import Place
from forebay.core.dialogue import Item
from forebay.core.job import Flow, Lane, Sampling
from forebay.core.principal import Principal
from forebay.core.usage import Kind


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue. `role` is system, user or assistant; content is plain text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """What the client asked for; None where it left the choice to the model's defaults."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: bool = False
    json_schema: str = ""


class Idempotency(NamedTuple):
    """The key that a client gave its request, and the SHA-256 of what it asks: the same key with
    another request is refused."""

    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Remembrance:
    """What a call goes on from, and what is to be remembered of it.

    `input` is what is new. It goes on from a conversation, from an earlier response, or from nothing
    (both None). `turn_id` names the turn that is stored of it; None: nothing is. `record` is what the
    API echoes of the request. `instructions` are a system message of this call alone. `fresh`: a
    conversation that is gone is begun anew; `cut`: a past that does not fit is cut (C3), not refused.
    `field` is the request's field with the new input.
    """

    input: tuple[Item, ...]
    turn_id: str | None = None
    conversation_id: str | None = None
    previous_id: str | None = None
    instructions: str = ""
    record: bytes = b""
    fresh: bool = False
    cut: bool = True
    field: str = "input"


@dataclass(frozen=True, slots=True)
class Call:
    """One accepted-for-processing request; its id names the call, its job, hold and usage row.

    It has `messages` (a chat), a `prompt` (text or token ids, to be completed as it is), or a
    `remembrance` (a chat whose earlier messages are here).
    `queue_deadline_seconds` is the longest that the client would have it wait in the queue. In the
    `background`, nobody waits for it: its turn, or the batch that has it at this `place`, is its owner
    of record; if it is `logged`, its events are stored and can be read. `text_organisation_id` is whose
    text it has, if that is not who pays.
    """

    id: str
    principal: Principal
    model: str
    lane: Lane
    streamed: bool
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] = ""
    max_output_tokens: int | None = None
    choices: int = 1
    sampling: SamplingWish = field(default_factory=SamplingWish)
    remembrance: Remembrance | None = None
    idempotency: Idempotency | None = None
    queue_deadline_seconds: float | None = None
    body_bytes: int = 0  # of its request
    background: bool = False
    logged: bool = False
    place: Place | None = None
    kind: Kind = Kind.CALL
    text_organisation_id: str = ""

    @property
    def flow(self) -> Flow:
        """Among which it waits."""
        scopes = self.principal.scopes
        return Flow(self.lane, scopes.organisation_id, scopes.project_id)

    @property
    def text_scope(self) -> str:
        """Whose remembered texts may save it work."""
        return self.text_organisation_id or self.principal.scopes.organisation_id

    @property
    def asks_with(self) -> str:
        """The field of its request that has the text."""
        if self.remembrance is not None:
            return self.remembrance.field
        return "messages" if self.messages else "prompt"


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes and on what terms: the answer of `catalog.choose`.

    `ceiling_tokens` is M₀, the output bound before the window is known; `asked` says whether the
    client named a maximum (a default may be lowered to what fits or what the balance affords, a
    wish never is). `pool_kv_tokens` is the KV memory of one engine of the pool: a call that needs more
    could never run (Q9). `pool_sequences` is the most that one engine runs at once. `vocabulary`
    changes when token ids may mean something else.
    """

    model: str
    pool: str
    lane: Lane
    price_version: int
    context_tokens: int
    ceiling_tokens: int
    asked: bool
    sampling: Sampling
    fingerprint: str
    pool_kv_tokens: int | None = None
    pool_sequences: int | None = None
    vocabulary: str = ""


class Capacity(NamedTuple):
    """What a model can take: prompts whose token ids mean this, so many tokens with the output, so
    many choices."""

    vocabulary: str
    tokens: int
    choices: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt: exactly the ids the engine gets, so `len(ids)` is P."""

    ids: tuple[int, ...]
