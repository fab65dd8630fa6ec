"""What an operator may do: keys, budgets, usage, models, state. One function per verb.

The control socket of a running server, and the command line when no server runs, call the same
functions. Arguments and answers are plain data (JSON), so that both ends stay dumb.

Not here: how a verb travels (`forebay.gateway.control`), its wording on a terminal (`forebay.cli`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.core.clock import Clock, IdSource
from forebay.core.errors import InvalidRequest
from forebay.core.hold import Account, Period, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import format_usd, nanos_from_usd
from forebay.core.usage import UsageRow
from forebay.engine import Engine
from forebay.ledger import Books, Ledger
from forebay.tenancy import KeyInfo, KeySpec, Tenancy, make_key

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key to create; None means no limit of its own."""

    name: str = ""
    organisation: str = DEFAULT
    project: str = DEFAULT
    plan: str = "standard"
    monthly_budget_usd: str | None = None
    max_open_calls: int | None = None
    calls_per_minute: int | None = None
    max_output_tokens: int | None = None
    expires_in_days: float | None = None
    models: tuple[str, ...] | None = None
    lanes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Desk:
    """What administration works on."""

    tenancy: Tenancy
    ledger: Ledger
    books: Books
    engines: Sequence[Engine]
    models: Callable[[], list[dict[str, Any]]]
    status: Callable[[], Awaitable[dict[str, Any]]]
    clock: Clock
    ids: IdSource


class Administration:
    """One per data directory, used by whoever holds its lock."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def create_key(self, request: KeyRequest) -> dict[str, Any]:
        """Make a key; the secret is in the answer and nowhere else afterwards.

        Its accounts exist before it works, so no call ever meets a scope without one. A second
        organisation stops prefix sharing in the engines before its first key works (E6).
        """
        desk = self._desk
        budget = _budget(request.monthly_budget_usd)
        scopes = await desk.tenancy.ensure(request.organisation, request.project, plan=request.plan)
        if len(await desk.tenancy.organisations()) > 1:
            for (
                engine
            ) in desk.engines:  # idempotent, and never skipped because another call began it
                await engine.isolate()
        await desk.books.open_account(Account(scopes.organisation_id))
        await desk.books.open_account(Account(scopes.project_id))
        spec = self._spec(request)
        await desk.books.open_account(
            Account(spec.id, budget, Period.MONTH, max_open_holds=request.max_open_calls)
        )
        secret = make_key(desk.ids)
        info = await desk.tenancy.create_key(spec, secret)
        return {**_key(info), "key": secret, "monthly_budget_usd": request.monthly_budget_usd}

    def _spec(self, request: KeyRequest) -> KeySpec:
        now = self._desk.clock.now()
        days = request.expires_in_days
        if days is not None and days <= 0:
            raise InvalidRequest(
                f"expires_in_days is {days:g}, but must be above 0.", param="expires_in_days"
            )
        return KeySpec(
            id=self._desk.ids.new("key"),
            name=request.name,
            organisation=request.organisation,
            project=request.project,
            created_at=now,
            expires_at=None if days is None else now + days * 86_400,
            models=None if request.models is None else frozenset(request.models),
            lanes=None if request.lanes is None else frozenset(map(_lane, request.lanes)),
            calls_per_minute=request.calls_per_minute,
            max_output_tokens=request.max_output_tokens,
        )

    async def list_keys(self) -> list[dict[str, Any]]:
        """All keys, oldest first, with what each has spent in its current month."""
        rows = []
        for info in await self._desk.tenancy.keys():
            balance = await self._desk.ledger.balances(info.id)
            cap = balance.account.cap_nanos
            rows.append(
                {
                    **_key(info),
                    "monthly_budget_usd": None if cap is None else format_usd(cap),
                    "spent_usd": format_usd(balance.posted_nanos),
                    "pending_usd": format_usd(balance.pending_nanos),
                    "open_calls": balance.open_holds,
                }
            )
        return rows

    async def revoke_key(self, key_id: str) -> dict[str, Any]:
        """From now on the key is refused; running calls finish."""
        try:
            info = await self._desk.tenancy.revoke_key(key_id, at=self._desk.clock.now())
        except KeyError:
            raise InvalidRequest(
                f"There is no key {key_id!r}. `forebay keys list` shows the ids.", param="key_id"
            ) from None
        return _key(info)

    async def usage(self, limit: int = 100, call_id: str | None = None) -> list[dict[str, Any]]:
        """The newest calls, one row each; or the one call of this id."""
        query = UsageQuery(limit=limit, call_id=call_id)
        return [_row(row) for row in await self._desk.ledger.usage(query)]

    async def usage_totals(self, by: str) -> list[dict[str, Any]]:
        """Sums by "key", "model" or "day"."""
        if by not in ("key", "model", "day"):
            raise InvalidRequest(f"Cannot group by {by!r}: choose key, model or day.", param="by")
        totals = await self._desk.books.totals(UsageQuery(), by=by)
        return [
            {
                by: total.group,
                "calls": total.calls,
                "input_tokens": total.input_tokens,
                "cached_input_tokens": total.cached_input_tokens,
                "output_tokens": total.output_tokens,
                "amount_usd": format_usd(total.amount_nanos),
            }
            for total in totals
        ]

    async def models(self) -> list[dict[str, Any]]:
        """The catalogue with prices."""
        return self._desk.models()

    async def status(self) -> dict[str, Any]:
        """What `forebay doctor` shows of a running server."""
        return await self._desk.status()


def _budget(text: str | None) -> int | None:
    try:
        return None if text is None else nanos_from_usd(text)
    except ValueError as fault:
        raise InvalidRequest(f"The monthly budget {fault}.", param="monthly_budget_usd") from None


def _lane(name: str) -> Lane:
    try:
        return Lane(name)
    except ValueError:
        names = ", ".join(Lane)
        raise InvalidRequest(f"There is no lane {name!r}: use {names}.", param="lanes") from None


def _key(info: KeyInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "redacted": info.redacted,
        "organisation": info.organisation,
        "project": info.project,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "revoked_at": info.revoked_at,
        "models": None if info.models is None else sorted(info.models),
        "lanes": None if info.lanes is None else sorted(info.lanes),
        "calls_per_minute": info.calls_per_minute,
        "max_output_tokens": info.max_output_tokens,
    }


def _row(row: UsageRow) -> dict[str, Any]:
    usage, timings = row.usage, row.timings
    return {
        "sequence": row.sequence,
        "call_id": row.call_id,
        "at": row.resolved_at,
        "key_id": row.key_id,
        "project_id": row.project_id,
        "organisation_id": row.organisation_id,
        "model": row.model,
        "lane": row.lane.value,
        "outcome": row.outcome.value,
        "reason": row.reason,
        "attempt": row.attempt,
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "finish_reasons": [None if r is None else r.value for r in usage.finish_reasons],
        "counted": usage.counted,
        "queue_ms": timings.queue_ms,
        "ttft_ms": timings.ttft_ms,
        "duration_ms": timings.duration_ms,
        "price_version": row.price_version,
        "amount_usd": format_usd(row.amount_nanos),
        "amount_nanos": row.amount_nanos,
    }
