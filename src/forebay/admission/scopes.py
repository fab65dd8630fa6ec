"""Which limits a call has to stay within, and how a refusal names them. Pure.

A scope is a key, a project, an organisation, or a project's use of one model. Where several refuse,
the one to wait longest for is named.

Not here: how a limit is kept (`limits.py`), and its state (`memory.py`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from forebay.admission.limits import DAY_MICROS, MINUTE_MICROS
from forebay.core.errors import RateLimited
from forebay.core.principal import Principal

# A body with more bytes than this for each token that is left is refused before it is tokenised.
BODY_BYTES_PER_TOKEN = 16

BucketName = tuple[str, str, str]


class Dimension(Enum):
    """What is counted: its name, its field in RateLimits, the period, and the words for all that."""

    REQUESTS = ("requests", "requests_per_minute", MINUTE_MICROS, "calls a minute")
    TOKENS = ("tokens", "tokens_per_minute", MINUTE_MICROS, "tokens a minute")
    BATCH_INPUT = (
        "batch_input",
        "batch_input_tokens_per_day",
        DAY_MICROS,
        "input tokens a day in the batch lane",
    )

    def __init__(self, label: str, field: str, period_micros: int, words: str) -> None:
        self.label = label
        self.field = field
        self.period_micros = period_micros
        self.words = words


class Limit(NamedTuple):
    """One limit that applies to a call; `name` is its bucket's."""

    dimension: Dimension
    scope: str
    name: BucketName
    permits: int


def scoped(principal: Principal, dimension: Dimension, model: str | None = None) -> list[Limit]:
    """The limits of the key, its project and its organisation; with `model`, that model's too."""
    scopes, label, field = principal.scopes, dimension.label, dimension.field
    found = []
    for kind, id_, limits in (
        ("key", scopes.key_id, principal.key_limits),
        ("project", scopes.project_id, principal.project_limits),
        ("organisation", scopes.organisation_id, principal.organisation_limits),
    ):
        permits = getattr(limits, field)
        if permits is not None:
            found.append(Limit(dimension, kind, (label, kind, id_), permits))
    return found + model_limits(principal, dimension, model) if model else found


def model_limits(principal: Principal, dimension: Dimension, model: str) -> list[Limit]:
    """The limit of the project's use of this model, if there is one."""
    limits = principal.model_limits.get(model)
    permits = None if limits is None else getattr(limits, dimension.field)
    if permits is None:
        return []
    name = (dimension.label, "model", f"{principal.scopes.project_id}/{model}")
    return [Limit(dimension, f"project's use of {model}", name, permits)]


def duration(seconds: float) -> str:
    """For people: 3.2 s, 12 min, 3 h 12 min; never less than it is."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = -int(-seconds // 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def refused_call(limit: Limit, needs: str, left: int, wait_micros: int | None) -> RateLimited:
    """The answer to a call that this limit does not let pass now, or ever. `needs`: what it asks."""
    permits, words = limit.permits, limit.dimension.words
    if permits == 1:
        words = words.replace("calls", "call").replace("tokens", "token")
    verb = "make" if limit.dimension is Dimension.REQUESTS else "use"
    allowed = f"This {limit.scope} may {verb} {permits} {words}"
    if wait_micros is None:
        if not permits:
            return RateLimited(f"{allowed}: none at all.", retry_after_seconds=None)
        return RateLimited(
            f"{allowed}, and {needs}: waiting does not help. Send less, or lower the maximum number "
            "of output tokens.",
            retry_after_seconds=None,
        )
    seconds = wait_micros / 1_000_000
    if limit.dimension is Dimension.REQUESTS:
        message = f"{allowed}; the next is possible in {duration(seconds)}."
    else:
        message = f"{allowed}; {left} are left now, and {needs}. Possible in {duration(seconds)}."
    return RateLimited(message, retry_after_seconds=seconds)
