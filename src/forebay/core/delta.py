"""What goes to an engine and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from forebay.core.job import Sampling


class FinishReason(StrEnum):
    """Why a choice ended. Cancelled and failed calls have none."""

    STOP = "stop"
    LENGTH = "length"


class TokenLogprob(NamedTuple):
    """A generated token: the bytes it stands for and the natural logarithm of its probability, as
    the model gave it (before temperature and penalties)."""

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation, built from an allow-list (E7): nothing else ever reaches an engine.

    `prompt_ids` is the prompt plus, for a resumed job, the ids already published; `max_tokens` is
    what is left of M per choice. `cache_salt` keys the prefix cache to one organisation where the
    engine has one (E6).
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    choices: int = 1
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """New output of one choice since the last delta.

    `text` stays empty for engines that are given and report token ids (the worker decodes those).
    The last delta of a choice has a `finish_reason`; `reported_tokens`, where an engine says it,
    is the engine's own count of the choice's output (E2). `logprobs`, if asked for, has one
    number for each of `token_ids`.
    """

    choice: int
    token_ids: tuple[int, ...]
    text: str = ""
    finish_reason: FinishReason | None = None
    reported_tokens: int | None = None
    cached_input_tokens: int | None = None
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSignals:
    """Load as the engine sees it: sequences running and waiting, share of KV memory in use 0..1."""

    running: int
    waiting: int
    kv_use: float


class EngineTally(NamedTuple):
    """Output tokens since the engine was first started, whatever became of them.

    `made` is the engine's own count, the others are ours. At every moment between two callbacks of
    the event loop: made = tokens yielded + discarded + queued. `boot` is new for each start of the
    engine: what a lost one made and never sent is in no count.
    """

    boot: int
    made: int
    discarded: int  # for calls that were stopped, past their end, left unread, or with a fault
    queued: int  # delivered, not yet yielded


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine can hold. `evicts` False: it cannot free KV memory of a running call (E9)."""

    max_sequences: int
    kv_tokens: int
    block_tokens: int
    context_tokens: int
    evicts: bool
