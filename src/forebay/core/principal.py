"""Who is calling: the result of authentication, immutable for the length of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.core.job import Lane


class Scopes(NamedTuple):
    """The accounts a call is charged to, outermost first; a hold takes all of them or none."""

    organisation_id: str
    project_id: str
    key_id: str


# Who pays for what serves all: accounts without a cap, outside of all organisations.
OPERATOR = Scopes("operator", "operator/summaries", "operator/summaries/key")


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one scope may use in a stretch of time (A2). None: no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    batch_input_tokens_per_day: int | None = None


UNLIMITED = RateLimits()


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated API key with what it may do.

    `weight` is the organisation's plan weight, shared by its active projects (Q8). None in
    `models` means every model. A call has to stay within the limits of its organisation, its
    project, its project's use of the model (`model_limits`, by model id) and its key, each for
    itself. `max_output_tokens` is the lowest that any of them allows for one call; None: no limit.
    """

    scopes: Scopes
    weight: int
    lanes: frozenset[Lane]
    models: frozenset[str] | None = None
    organisation_limits: RateLimits = UNLIMITED
    project_limits: RateLimits = UNLIMITED
    key_limits: RateLimits = UNLIMITED
    model_limits: Mapping[str, RateLimits] = field(default_factory=dict)
    max_output_tokens: int | None = None
