"""Plans: what an organisation may do by default, and what its keys make of it. Pure.

The configuration names the plans; `standard` is always there. An organisation stores the name of
its plan only, so a plan that is changed in the configuration changes for everyone who has it.

Not here: money (accounts and prices are the ledger's).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal

from forebay.core.errors import InvalidRequest, NotAllowed, NotFound
from forebay.core.job import Lane
from forebay.core.money import nanos_from_usd
from forebay.core.principal import UNLIMITED, Principal, RateLimits
from forebay.tenancy.contract import (
    KeyInfo,
    KeySpec,
    Plan,
    ProjectInfo,
    ProjectLimits,
    ServiceAccount,
)

MAX_NAME_CHARACTERS = 100
MAX_WEIGHT = 1_000
MAX_LIMIT = 2**31 - 1
MAX_OVERLAP_SECONDS = 30 * 86_400.0


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
    requests_per_minute: int | None = field(
        default=None, metadata={"help": "Most calls a minute of an organisation; none: no limit."}
    )
    tokens_per_minute: int | None = field(
        default=None,
        metadata={"help": "Most tokens a minute of an organisation, input and reserved output."},
    )
    batch_input_tokens_per_day: int | None = field(
        default=None, metadata={"help": "Most input tokens a day in the batch lane."}
    )
    concurrent_calls: int | None = field(
        default=None, metadata={"help": "Most calls of an organisation at once."}
    )
    max_output_tokens: int | None = field(
        default=None, metadata={"help": "Output bound of each call."}
    )
    key_budget_usd: Decimal | None = field(
        default=None,
        metadata={"help": "Monthly budget of a new key that is made without one of its own."},
    )

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise ValueError(f"name must be 1 to {MAX_NAME_CHARACTERS} printable characters")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight must be between 1 and {MAX_WEIGHT}, not {self.weight}")
        if not self.lanes:
            raise ValueError("lanes must name at least one lane")
        for name in _LIMITS:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_LIMIT:
                raise ValueError(f"{name} must be between 1 and {MAX_LIMIT}, not {value}")
        if self.key_budget_usd is not None:
            try:
                nanos_from_usd(self.key_budget_usd)
            except ValueError as fault:
                raise ValueError(f"key_budget_usd: {fault}") from None


_RATES = tuple(rate.name for rate in fields(RateLimits))
_LIMITS = (*_RATES, "concurrent_calls", "max_output_tokens")
STANDARD = PlanSettings()


def plans_by_name(settings: Iterable[PlanSettings]) -> dict[str, Plan]:
    """The plans that exist: these and `standard`, unless they redefine it."""
    chosen = {plan.name: plan for plan in (STANDARD, *settings)}
    return {
        name: Plan(
            name=name,
            weight=plan.weight,
            lanes=frozenset(plan.lanes),
            limits=RateLimits(**{rate: getattr(plan, rate) for rate in _RATES}),
            concurrent_calls=plan.concurrent_calls,
            max_output_tokens=plan.max_output_tokens,
            key_budget_nanos=(
                None if plan.key_budget_usd is None else nanos_from_usd(plan.key_budget_usd)
            ),
        )
        for name, plan in chosen.items()
    }


def find_plan(plans: Mapping[str, Plan], name: str) -> Plan:
    """The plan of this name. Raises InvalidRequest naming those that exist."""
    if (plan := plans.get(name)) is None:
        known = ", ".join(sorted(plans))
        raise InvalidRequest(f"There is no plan {name!r}; there are: {known}.", param="plan")
    return plan


def granted_plan(plans: Mapping[str, Plan], name: str) -> Plan:
    """The plan that an organisation has. Raises NotAllowed when it has left the configuration:
    guessing another one would give away capacity, or take it away, without anybody having decided
    so.
    """
    if (plan := plans.get(name)) is None:
        raise NotAllowed(
            f"The plan {name!r} of this key's organisation is not configured on this server.",
            code="plan_not_configured",
        )
    return plan


def grant(info: KeyInfo, plan: Plan, project: ProjectLimits) -> Principal:
    """What a live key may do now: its own restrictions within its project's and its plan's."""
    bounds = [b for b in (info.max_output_tokens, plan.max_output_tokens) if b is not None]
    return Principal(
        scopes=info.scopes,
        weight=plan.weight,
        lanes=plan.lanes if info.lanes is None else info.lanes & plan.lanes,
        models=info.models,
        organisation_limits=plan.limits,
        project_limits=project.own,
        key_limits=info.limits,
        model_limits=project.models,
        max_output_tokens=min(bounds, default=None),
    )


def describe(spec: KeySpec, home: ProjectInfo, redacted: str) -> KeyInfo:
    """A key just made to this specification."""
    return KeyInfo(
        id=spec.id,
        name=spec.name,
        redacted=redacted,
        organisation=home.organisation,
        project=home.project,
        scopes=home.scopes._replace(key_id=spec.id),
        created_at=spec.created_at,
        expires_at=spec.expires_at,
        revoked_at=None,
        models=spec.models,
        lanes=spec.lanes,
        limits=spec.limits,
        max_output_tokens=spec.max_output_tokens,
        service_account_id=spec.service_account_id,
    )


def limits_of(project: ProjectLimits, model: str | None) -> RateLimits:
    """A project's own limits, or those of its use of a model."""
    return project.own if model is None else project.models.get(model, UNLIMITED)


def with_limits(before: ProjectLimits, limits: RateLimits, model: str | None) -> ProjectLimits:
    """These limits of a project with one row changed; a row without a limit is none."""
    if model is None:
        return replace(before, own=limits)
    models = {name: each for name, each in before.models.items() if name != model}
    if limits != UNLIMITED:
        models[model] = limits
    return replace(before, models=models)


def no_organisation(name: str) -> InvalidRequest:
    return InvalidRequest(f"There is no organisation {name!r}.", param="organisation")


def no_project(spec: KeySpec) -> InvalidRequest:
    return InvalidRequest(
        f"There is no project {spec.project!r} in an organisation {spec.organisation!r}.",
        param="project",
    )


def name_taken(name: str, organisation: str) -> InvalidRequest:
    return InvalidRequest(
        f"{organisation!r} has another project {name!r}: choose another name.", param="name"
    )


def require_open(project: ProjectInfo) -> None:
    """Raises InvalidRequest for an archived project: it stays as it is."""
    if project.archived_at is not None:
        raise InvalidRequest(
            f"The project {project.project!r} is archived: nothing can be added or changed in it.",
            param="project",
        )


def require_account(account: ServiceAccount | None, home: ProjectInfo) -> None:
    """Raises NotFound unless it is there, and of this project."""
    if account is None or account.deleted_at is not None or account.scopes != home.scopes:
        raise NotFound("There is no such service account.")


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
    require_limits(spec.limits, plan)
    _require_limit("max_output_tokens", spec.max_output_tokens, plan.max_output_tokens, plan.name)


def require_limits(limits: RateLimits, plan: Plan, before: RateLimits = UNLIMITED) -> None:
    """Raises InvalidRequest for a changed limit that is none, or is above the plan's."""
    for rate in _RATES:
        if getattr(limits, rate) == getattr(before, rate):
            continue
        _require_limit(rate, getattr(limits, rate), getattr(plan.limits, rate), plan.name)


def _require_limit(param: str, value: int | None, most: int | None, plan: str) -> None:
    if value is None:
        return
    if not 1 <= value <= MAX_LIMIT:
        raise InvalidRequest(
            f"{param} is {value}, but must be between 1 and {MAX_LIMIT}, or absent.", param=param
        )
    if most is not None and value > most:
        raise InvalidRequest(
            f"{param} is {value}, but the plan {plan!r} allows {most}: a limit may be lower than the "
            "plan's, never higher.",
            param=param,
        )


def require_rotation(info: KeyInfo, at: float, overlap_seconds: float) -> None:
    """Raises InvalidRequest for a key that does not work any more, or an overlap without end."""
    if info.revoked_at is not None or (info.expires_at is not None and info.expires_at <= at):
        raise InvalidRequest(
            f"The key {info.id} is revoked or expired: make another one.", param="key_id"
        )
    if not 0 <= overlap_seconds <= MAX_OVERLAP_SECONDS:
        raise InvalidRequest(
            f"overlap_seconds is {overlap_seconds:g}, but must be between 0 and "
            f"{MAX_OVERLAP_SECONDS:g} (30 days).",
            param="overlap_seconds",
        )


def _require_lanes(lanes: frozenset[Lane], plan: Plan) -> None:
    if not lanes:
        raise InvalidRequest("Name at least one lane, or none to have the plan's.", param="lanes")
    if beyond := [lane for lane in Lane if lane in lanes - plan.lanes]:
        allowed = ", ".join(lane for lane in Lane if lane in plan.lanes)
        raise InvalidRequest(
            f"The plan {plan.name!r} does not include the lane {beyond[0]}, but: {allowed}.",
            param="lanes",
        )
