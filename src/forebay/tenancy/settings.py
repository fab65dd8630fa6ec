"""Plans: what an organisation may do by default, and what its keys make of it. Pure.

The configuration names the plans; `standard` is always there. An organisation stores the name of
its plan only, so a plan that is changed in the configuration changes for everyone who has it.

Not here: money (accounts and prices are the ledger's).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.core.errors import InvalidRequest, NotAllowed
from forebay.core.job import Lane
from forebay.core.principal import Principal, RateLimits
from forebay.tenancy.contract import KeyInfo, KeySpec, Plan

MAX_NAME_CHARACTERS = 100
MAX_WEIGHT = 1_000


def _is_name(name: str) -> bool:
    return name == name.strip() and name.isprintable() and 0 < len(name) <= MAX_NAME_CHARACTERS


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """One plan as the configuration names it."""

    name: str = field(default="standard", metadata={"help": "Name of the plan."})
    weight: int = field(
        default=1,
        metadata={"help": "Weight of an organisation in the fair queue, shared by its projects."},
    )
    lanes: tuple[Lane, ...] = field(
        default=(Lane.INTERACTIVE, Lane.BATCH),
        metadata={"help": "Lanes that keys of this plan may use."},
    )

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise ValueError(f"name must be 1 to {MAX_NAME_CHARACTERS} printable characters")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight must be between 1 and {MAX_WEIGHT}, not {self.weight}")
        if not self.lanes:
            raise ValueError("lanes must name at least one lane")


STANDARD = PlanSettings()


def plans_by_name(settings: Iterable[PlanSettings]) -> dict[str, Plan]:
    """The plans that exist: these and `standard`, unless they redefine it."""
    chosen = {plan.name: plan for plan in (STANDARD, *settings)}
    return {
        name: Plan(name=name, weight=plan.weight, lanes=frozenset(plan.lanes))
        for name, plan in chosen.items()
    }


def find_plan(plans: Mapping[str, Plan], name: str) -> Plan:
    """The plan of this name. Raises InvalidRequest naming those that exist."""
    if (plan := plans.get(name)) is None:
        known = ", ".join(sorted(plans))
        raise InvalidRequest(f"There is no plan {name!r}; there are: {known}.", param="plan")
    return plan


def grant(info: KeyInfo, plan_name: str, plans: Mapping[str, Plan]) -> Principal:
    """What a live key may do now: its own restrictions within its organisation's plan.

    Raises NotAllowed when the plan has left the configuration: guessing another one would give
    away capacity, or take it away, without anybody having decided so.
    """
    if (plan := plans.get(plan_name)) is None:
        raise NotAllowed(
            f"The plan {plan_name!r} of this key's organisation is not configured on this server.",
            code="plan_not_configured",
        )
    return Principal(
        scopes=info.scopes,
        weight=plan.weight,
        lanes=plan.lanes if info.lanes is None else info.lanes & plan.lanes,
        models=info.models,
        key_limits=RateLimits(requests_per_minute=info.calls_per_minute),
        max_output_tokens=info.max_output_tokens,
    )


def require_name(name: str, *, param: str) -> None:
    """Raises InvalidRequest unless this can name something that people read in a terminal."""
    if not _is_name(name):
        raise InvalidRequest(
            f"{param} must be 1 to {MAX_NAME_CHARACTERS} printable characters without spaces at "
            "the ends.",
            param=param,
        )


def require_sound(spec: KeySpec, plan: Plan) -> None:
    """Raises InvalidRequest for a key that could never be used as its creator means it."""
    if spec.name:
        require_name(spec.name, param="name")
    if spec.expires_at is not None and spec.expires_at <= spec.created_at:
        raise InvalidRequest("The key would have expired before it exists.", param="expires_at")
    if spec.models is not None and not (spec.models and all(spec.models)):
        raise InvalidRequest(
            "Name at least one model, or none at all to allow every model.", param="models"
        )
    if spec.lanes is not None:
        _require_lanes(spec.lanes, plan)
    for param, value in (
        ("calls_per_minute", spec.calls_per_minute),
        ("max_output_tokens", spec.max_output_tokens),
    ):
        if value is not None and not 1 <= value < 2**31:
            raise InvalidRequest(f"{param} must be at least 1, or absent.", param=param)


def _require_lanes(lanes: frozenset[Lane], plan: Plan) -> None:
    if not lanes:
        raise InvalidRequest("Name at least one lane, or none to have the plan's.", param="lanes")
    if beyond := [lane for lane in Lane if lane in lanes - plan.lanes]:
        allowed = ", ".join(lane for lane in Lane if lane in plan.lanes)
        raise InvalidRequest(
            f"The plan {plan.name!r} does not include the lane {beyond[0]}, but: {allowed}.",
            param="lanes",
        )
