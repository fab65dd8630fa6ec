"""GET /v1/usage/me: what a key has used, what limits it and what it may still spend.

For the key's holder, about that key; of its project and organisation only what can refuse its calls.
Nothing can be changed here, or anywhere with an API key.

Not here: the sums (`forebay.pipeline`); what is left of the minute is in the `x-ratelimit-…` headers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.types import Receive, Scope, Send

from forebay.core.hold import Balance
from forebay.core.money import format_usd
from forebay.core.principal import Principal, RateLimits
from forebay.core.usage import UsageTotal
from forebay.gateway.meter import enter
from forebay.gateway.respond import Responder
from forebay.gateway.services import Services
from forebay.pipeline.admin_reports import OwnUsage


class WireTotal(msgspec.Struct, frozen=True):
    """What calls used; free ones are counted too."""

    calls: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_usd: str


class WireDay(WireTotal, frozen=True):
    """The same of a day of UTC."""

    date: str


class WireLimits(msgspec.Struct, frozen=True):
    """What one scope may use; null: no limit of its own."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    batch_input_tokens_per_day: int | None
    concurrent_calls: int | None = None


class WireScopes(msgspec.Struct, frozen=True):
    """A call has to stay within all of these, each for itself; models by their id."""

    key: WireLimits
    project: WireLimits
    organization: WireLimits
    models: dict[str, WireLimits]
    max_output_tokens: int | None


class WireBudget(msgspec.Struct, frozen=True):
    """What may still be spent in the current period, open calls taken off; null: no budget."""

    period: Literal["day", "month", "total"]
    left_usd: str | None


class WireKeyBudget(WireBudget, frozen=True):
    """The same of the key, with all of its sum."""

    budget_usd: str | None
    spent_usd: str
    pending_usd: str
    open_calls: int


class WireBudgets(msgspec.Struct, frozen=True):
    """Of every scope that a call is charged to."""

    key: WireKeyBudget
    project: WireBudget
    organization: WireBudget


class WireOwnUsage(msgspec.Struct, frozen=True):
    """Of the key that asks. `current_period` is that of its budget."""

    key_id: str
    project_id: str
    organization_id: str
    current_period: WireTotal
    days: list[WireDay]
    limits: WireScopes
    budget: WireBudgets
    object: Literal["usage"] = "usage"


class ShowOwnUsage:
    """The only verb."""

    def __init__(self, services: Services, responder: Responder) -> None:
        self._services = services
        self._responder = responder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = await enter(scope, self._services)
        found = await self._services.administration.reports.own(principal)
        await self._responder.json(scope, send, wire(principal, found))


def wire(principal: Principal, found: OwnUsage) -> WireOwnUsage:
    """The answer."""
    organisation_id, project_id, key_id = principal.scopes
    return WireOwnUsage(
        key_id=key_id,
        project_id=project_id,
        organization_id=organisation_id,
        current_period=WireTotal(**_total(found.total)),
        days=[WireDay(**_total(day), date=day.group) for day in found.days],
        limits=WireScopes(
            key=_limits(principal.key_limits, found.key),
            project=_limits(principal.project_limits, found.project),
            organization=_limits(principal.organisation_limits, found.organisation),
            models={name: _limits(each) for name, each in principal.model_limits.items()},
            max_output_tokens=principal.max_output_tokens,
        ),
        budget=WireBudgets(
            key=_key_budget(found.key),
            project=WireBudget(found.project.account.period.value, _left(found.project)),
            organization=WireBudget(
                found.organisation.account.period.value, _left(found.organisation)
            ),
        ),
    )


def _total(total: UsageTotal) -> dict[str, Any]:
    return {
        "calls": total.calls,
        "input_tokens": total.input_tokens,
        "cached_input_tokens": total.cached_input_tokens,
        "output_tokens": total.output_tokens,
        "cost_usd": format_usd(total.amount_nanos),
    }


def _limits(limits: RateLimits, balance: Balance | None = None) -> WireLimits:
    return WireLimits(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        batch_input_tokens_per_day=limits.batch_input_tokens_per_day,
        concurrent_calls=None if balance is None else balance.account.max_open_holds,
    )


def _key_budget(balance: Balance) -> WireKeyBudget:
    cap = balance.account.cap_nanos
    return WireKeyBudget(
        period=balance.account.period.value,
        left_usd=_left(balance),
        budget_usd=None if cap is None else format_usd(cap),
        spent_usd=format_usd(balance.posted_nanos),
        pending_usd=format_usd(balance.pending_nanos),
        open_calls=balance.open_holds,
    )


def _left(balance: Balance) -> str | None:
    cap = balance.account.cap_nanos
    if cap is None:
        return None
    return format_usd(max(0, cap - balance.posted_nanos - balance.pending_nanos))
