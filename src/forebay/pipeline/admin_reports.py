"""What was used, and what the server is doing: the questions that change nothing.

Not here: how rows are summed (`forebay.ledger`), how they are shown (`forebay.cli`, the gateway).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from forebay.core.errors import InvalidRequest
from forebay.core.hold import Balance, Period, UsageQuery
from forebay.core.money import format_usd
from forebay.core.principal import OPERATOR, Principal
from forebay.core.usage import UsageRow, UsageSlice, UsageTotal
from forebay.pipeline.desk import Section
from forebay.tenancy import Change, ChangeQuery, KeyInfo

GROUPS = ("key", "project", "organisation", "model", "day")
DAY_SECONDS = 86_400
OWN_DAYS = 7
_OPERATORS_KEY = "(summaries)"


@dataclass(frozen=True, slots=True)
class OwnUsage:
    """What a key used in its budget's current period, day by day lately, and what is left."""

    total: UsageTotal
    days: Sequence[UsageTotal]
    key: Balance
    project: Balance
    organisation: Balance


class Reports(Section):
    """Of all organisations, but for what says otherwise."""

    async def usage(
        self,
        limit: int = 100,
        call_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> list[dict[str, Any]]:
        """The newest calls that began in [since, until), one row each; or the one of this id."""
        query = UsageQuery(limit=limit, call_id=call_id, since=since, until=until)
        rows = await self._desk.ledger.usage(query)
        keys = {info.id: info for info in await self._desk.tenancy.keys()} if rows else {}
        return [_row(row, keys.get(row.key_id)) for row in rows]

    async def usage_totals(
        self, by: str, since: float | None = None, until: float | None = None
    ) -> list[dict[str, Any]]:
        """Sums by "key", "project", "organisation", "model" or "day"; scopes also by their name.

        `since` and `until` are Unix seconds, half-open: calls that began in [since, until).
        """
        if by not in GROUPS:
            raise InvalidRequest(
                f"Cannot group by {by!r}: choose one of {', '.join(GROUPS)}.", param="by"
            )
        totals = await self._desk.books.totals(UsageQuery(since=since, until=until), by=by)
        names = await self._names(by)
        return [
            {
                by: total.group,
                **({} if names is None else {"name": names.get(total.group, "")}),
                "calls": total.calls,
                "input_tokens": total.input_tokens,
                "cached_input_tokens": total.cached_input_tokens,
                "output_tokens": total.output_tokens,
                "amount_usd": format_usd(total.amount_nanos),
            }
            for total in totals
        ]

    async def slices(
        self,
        since: float,
        until: float,
        *,
        width_seconds: int,
        project_id: str | None = None,
        key_id: str | None = None,
    ) -> Sequence[UsageSlice]:
        """What the actor's organisation used from `since` until before `until`."""
        query = UsageQuery(
            organisation_id=self._actor.organisation_id,
            project_id=project_id,
            key_id=key_id,
            since=since,
            until=until,
        )
        return await self._desk.books.slices(query, width_seconds=width_seconds)

    async def own(self, principal: Principal) -> OwnUsage:
        """For the holder of a key, about that key alone."""
        books, ledger, now = self._desk.books, self._desk.ledger, self._desk.clock.now()
        organisation_id, project_id, key_id = principal.scopes
        balance = await ledger.balances(key_id)
        since = _start(balance.account.period, now)
        totals = await books.totals(UsageQuery(key_id=key_id, since=since), by="key")
        recent = UsageQuery(
            key_id=key_id, since=now - now % DAY_SECONDS - (OWN_DAYS - 1) * DAY_SECONDS
        )
        days = await books.totals(recent, by="day")
        return OwnUsage(
            total=totals[0] if totals else UsageTotal(key_id, 0, 0, 0, 0, 0),
            days=_each_day(days, now),
            key=balance,
            project=await ledger.balances(project_id),
            organisation=await ledger.balances(organisation_id),
        )

    async def changes(self, **asked: Any) -> Sequence[Change]:
        """What was changed in the actor's organisation, newest first; see ChangeQuery."""
        organisation_id = self._actor.organisation_id or ""
        return await self._desk.journal.changes(ChangeQuery(organisation_id, **asked))

    async def _names(self, by: str) -> dict[str, str] | None:
        """What people call the groups, by id; None for groups that have no ids."""
        if by == "key":
            keys = {info.id: info.name for info in await self._desk.tenancy.keys()}
            return keys | {OPERATOR.key_id: _OPERATORS_KEY}
        if by not in ("project", "organisation"):
            return None
        projects = await self._desk.tenancy.projects()
        operators = {
            OPERATOR.organisation_id: "operator",
            OPERATOR.project_id: "operator/summaries",
        }
        if by == "project":
            return operators | {
                info.scopes.project_id: f"{info.organisation}/{info.project}" for info in projects
            }
        return operators | {info.scopes.organisation_id: info.organisation for info in projects}

    async def models(self) -> list[dict[str, Any]]:
        """The catalogue with prices."""
        return self._desk.models()

    async def status(self) -> dict[str, Any]:
        """What `forebay doctor` shows of a running server."""
        return await self._desk.status()

    async def activity(self) -> dict[str, Any]:
        """What `forebay top` shows: what the server is doing now, by names, and what it earns.

        `spent_today_usd` is that of the calls that began today (UTC), but for those that the
        operator pays for.
        """
        desk = self._desk
        doing = await desk.activity()
        names = await self._names("project") or {}
        calls = [_named_project(call, names) for call in doing.pop("calls", [])]
        per_hour = format_usd(doing.pop("nanos_per_hour", 0))
        now = desk.clock.now()
        today = UsageQuery(since=now - now % DAY_SECONDS)
        spent = await self._posted(today)
        spent -= await self._posted(replace(today, organisation_id=OPERATOR.organisation_id))
        money = {"spent_today_usd": format_usd(spent), "usd_per_hour": per_hour}
        return {**doing, **money, "calls": calls}

    async def _posted(self, query: UsageQuery) -> int:
        return sum(each.amount_nanos for each in await self._desk.books.totals(query, by="model"))


def _each_day(days: Sequence[UsageTotal], now: float) -> list[UsageTotal]:
    """The last OWN_DAYS, newest first, with those on which nothing was used."""
    found = {day.group: day for day in days}
    moments = (datetime.fromtimestamp(now - ago * DAY_SECONDS, UTC) for ago in range(OWN_DAYS))
    dates = [f"{moment:%Y-%m-%d}" for moment in moments]
    return [found.get(date, UsageTotal(date, 0, 0, 0, 0, 0)) for date in dates]


def _start(period: Period, now: float) -> float | None:
    """When the period began that it is now; None: there was no beginning."""
    if period is Period.TOTAL:
        return None
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (day if period is Period.DAY else day.replace(day=1)).timestamp()


def _named_project(call: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    project_id = call["project_id"]
    return {**call, "project": names.get(project_id, project_id)}


def _row(row: UsageRow, key: KeyInfo | None) -> dict[str, Any]:
    usage, timings = row.usage, row.timings
    name = _OPERATORS_KEY if row.key_id == OPERATOR.key_id else ""
    return {
        "sequence": row.sequence,
        "call_id": row.call_id,
        "kind": row.kind.value,
        "at": row.resolved_at,
        "key_id": row.key_id,
        "key_name": name if key is None else key.name,
        "key_redacted": "" if key is None else key.redacted,
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
