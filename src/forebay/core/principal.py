"""Who is calling: the result of authentication, immutable for the length of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forebay.core.job import Lane


class Scopes(NamedTuple):
    """The accounts a call is charged to, outermost first; a hold takes all of them or none."""

    organisation_id: str
    project_id: str
    key_id: str


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated API key with what it may do.

    `weight` is the organisation's plan weight, shared by its active projects (Q8). None in
    `models` means every model; `calls_per_minute` and `max_output_tokens` None mean no limit of
    the key's own.
    """

    scopes: Scopes
    weight: int
    lanes: frozenset[Lane]
    models: frozenset[str] | None = None
    calls_per_minute: int | None = None
    max_output_tokens: int | None = None
