"""Which model, lane and output bound a call gets: pure.

- A model that a key may not use looks like one that does not exist.
- M₀ = min(client's maximum or the model's default, key's cap, model's cap).

Not here: fitting M₀ to the context and to the balances (`forebay.pipeline`, `forebay.ledger`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from forebay.catalog.settings import ModelSettings
from forebay.core.errors import ModelNotFound, NotAllowed
from forebay.core.job import Lane
from forebay.core.principal import Principal

# Longer names are cut in messages and not compared: comparing is quadratic.
_SHOWN_CHARACTERS = 64
_SUGGESTIONS = 3


def index(models: Iterable[ModelSettings]) -> dict[str, ModelSettings]:
    """Every name and alias. Raises ValueError when two models share one."""
    names: dict[str, ModelSettings] = {}
    for model in models:
        for name in model.names():
            if name in names:
                raise ValueError(f"models: {name!r} names both {names[name].id} and {model.id}")
            names[name] = model
    return names


def allowed(principal: Principal, model: ModelSettings) -> bool:
    """Whether the key's allow-list, which may hold ids and aliases, has this model."""
    return principal.models is None or any(name in principal.models for name in model.names())


def resolve(names: Mapping[str, ModelSettings], principal: Principal, name: str) -> ModelSettings:
    """The model of a name or alias. Raises ModelNotFound, also for models this key may not use."""
    model = names.get(name)
    if model is not None and allowed(principal, model):
        return model
    usable = [known for known, settings in names.items() if allowed(principal, settings)]
    raise ModelNotFound(_unknown(name, usable), param="model")


def _unknown(name: str, usable: list[str]) -> str:
    shown = name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "…"
    message = f"The model {shown!r} does not exist or this API key may not use it."
    if not usable:
        return f"{message} This key may use no model."
    near = difflib.get_close_matches(name[:_SHOWN_CHARACTERS], usable, _SUGGESTIONS, cutoff=0.5)
    if near:
        return f"{message} Did you mean {_listed(near)}?"
    return f"{message} Models this key may use: {_listed(usable[:_SUGGESTIONS])}."


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def require_lane(principal: Principal, lane: Lane) -> None:
    """Raises NotAllowed for a lane outside the plan or the key's permission."""
    if lane not in principal.lanes:
        lanes = sorted(principal.lanes, key=lambda lane: lane.rank)
        listed = ", ".join(lanes) or "none"
        raise NotAllowed(
            f"This API key may not use the {lane} lane. Its lanes: {listed}. Lanes come with the "
            "plan of the key's organisation, and a key can be limited to some of them: ask whoever "
            f"runs this server for a plan and a key that have {lane}, or use another lane.",
            param="service_tier",
            code="lane_not_allowed",
        )


def output_bound(
    model: ModelSettings, principal: Principal, max_output_tokens: int | None
) -> tuple[int, bool]:
    """M₀ and whether the client named a maximum."""
    asked = max_output_tokens is not None
    wish = model.default_output_tokens if max_output_tokens is None else max_output_tokens
    key_cap = principal.max_output_tokens
    bound = min(wish, model.max_output_tokens)
    return (bound if key_cap is None else min(bound, key_cap)), asked
