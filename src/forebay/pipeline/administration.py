"""What an operator may do: keys, budgets, usage, models, state. One function per verb.

The control socket of a running server, and the command line when no server runs, call the same
functions. Arguments and answers are plain data (JSON), so that both ends stay dumb.

Not here: how a verb travels (`forebay.gateway.control`), its wording on a terminal (`forebay.cli`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.core.clock import Clock, IdSource
from forebay.core.errors import InvalidRequest
from forebay.core.hold import Account, Balance, Period, UsageQuery
from forebay.core.job import Lane
from forebay.core.money import format_usd, nanos_from_usd
from forebay.core.usage import UsageRow
from forebay.engine import Engine
from forebay.ledger import Books, Ledger, Records
from forebay.pipeline.bookkeeping import Bookkeeping
from forebay.tenancy import KeyInfo, KeySpec, ProjectInfo, Tenancy, make_key

DEFAULT = "default"
GROUPS = ("key", "project", "organisation", "model", "day")
DAY_SECONDS = 86_400
MAX_DAYS = 36_500  # a hundred years: what is later is a slip
# Ids end in random hexadecimal digits: six of them tell 4,000 keys apart, if not always.
LEAST_ENDING = 6
MOST_NAMED = 20


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
    records: Records
    engines: Sequence[Engine]
    models: Callable[[], list[dict[str, Any]]]
    status: Callable[[], Awaitable[dict[str, Any]]]
    activity: Callable[[], Awaitable[dict[str, Any]]]
    clock: Clock
    ids: IdSource


class Administration:
    """One per data directory, used by whoever holds its lock."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.bookkeeping = Bookkeeping(desk.records, desk.clock)

    async def create_key(self, request: KeyRequest) -> dict[str, Any]:
        """Make a key; the secret is in the answer and nowhere else afterwards.

        Its accounts exist before it works, so no call ever meets a scope without one. A second
        organisation stops prefix sharing in the engines before its first key works (E6).
        """
        desk = self._desk
        budget = _budget(request.monthly_budget_usd)
        spec = self._spec(request)
        scopes = await desk.tenancy.ensure(request.organisation, request.project, plan=request.plan)
        if len(await desk.tenancy.organisations()) > 1:
            for engine in desk.engines:
                await engine.isolate()  # idempotent; never skipped because another call began it
        await desk.books.open_account(_budgeted(scopes.organisation_id))
        await desk.books.open_account(_budgeted(scopes.project_id))
        await desk.books.open_account(
            Account(spec.id, budget, Period.MONTH, max_open_holds=request.max_open_calls)
        )
        secret = make_key(desk.ids)
        info = await desk.tenancy.create_key(spec, secret)
        return {**_key(info), "key": secret, "monthly_budget_usd": request.monthly_budget_usd}

    def _spec(self, request: KeyRequest) -> KeySpec:
        now = self._desk.clock.now()
        days, calls = request.expires_in_days, request.max_open_calls
        if days is not None and not 0 < days <= MAX_DAYS:
            raise InvalidRequest(
                f"expires_in_days is {days:g}, but must be above 0 and at most {MAX_DAYS}.",
                param="expires_in_days",
            )
        if calls is not None and not 1 <= calls < 2**31:
            raise InvalidRequest(
                "max_open_calls must be at least 1, or absent.", param="max_open_calls"
            )
        return KeySpec(
            id=self._desk.ids.new("key"),
            name=request.name,
            organisation=request.organisation,
            project=request.project,
            created_at=now,
            expires_at=None if days is None else now + days * DAY_SECONDS,
            models=None if request.models is None else self._model_ids(request.models),
            lanes=None if request.lanes is None else frozenset(map(_lane, request.lanes)),
            calls_per_minute=request.calls_per_minute,
            max_output_tokens=request.max_output_tokens,
        )

    def _model_ids(self, names: Sequence[str]) -> frozenset[str]:
        """The ids of these models, so that an alias that moves later moves no permission."""
        known = {
            name: row["id"] for row in self._desk.models() for name in (row["id"], *row["aliases"])
        }
        for name in names:
            if name not in known:
                raise InvalidRequest(
                    f"There is no model {name!r} here; there are: {', '.join(known)}.",
                    param="models",
                )
        return frozenset(known[name] for name in names)

    async def list_keys(self) -> list[dict[str, Any]]:
        """All keys, oldest first, with what each has spent in its current month."""
        rows = []
        for info in await self._desk.tenancy.keys():
            balance = await self._desk.ledger.balances(info.id)
            rows.append({**_key(info), **_money(balance)})
        return rows

    async def revoke_key(self, key_id: str) -> dict[str, Any]:
        """From now on the key is refused; running calls finish.

        Besides the id, its end (as `forebay usage` shows it), its name or its redacted form will
        do, if they are one key's only.
        """
        found = _named(await self._desk.tenancy.keys(), key_id)
        info = await self._desk.tenancy.revoke_key(found.id, at=self._desk.clock.now())
        return _key(info)

    async def set_budget(
        self, organisation: str, monthly_budget_usd: str | None, project: str | None = None
    ) -> dict[str, Any]:
        """Cap what an organisation, or one of its projects, may spend a month; None lifts it.

        A lowered cap refuses new calls at once and lets running ones finish (L2).
        """
        cap = _budget(monthly_budget_usd)
        scope = _scope(await self._desk.tenancy.projects(), organisation, project)
        # A start that was broken off may have left an organisation without its account.
        await self._desk.books.open_account(_budgeted(scope))
        await self._desk.books.set_cap(scope, cap)
        return await self._budget_row(scope, organisation, project)

    async def list_budgets(self) -> list[dict[str, Any]]:
        """Organisations, each followed by its projects, with what each has spent this month."""
        by_organisation: dict[str, list[ProjectInfo]] = {}
        for info in await self._desk.tenancy.projects():
            by_organisation.setdefault(info.organisation, []).append(info)
        rows = []
        for organisation, projects in by_organisation.items():
            owner = projects[0].scopes.organisation_id
            rows.append(await self._budget_row(owner, organisation, None))
            for info in projects:
                row = await self._budget_row(info.scopes.project_id, organisation, info.project)
                rows.append(row)
        return rows

    async def _budget_row(
        self, scope: str, organisation: str, project: str | None
    ) -> dict[str, Any]:
        balance = await self._desk.ledger.balances(scope)
        return {"organisation": organisation, "project": project, "id": scope, **_money(balance)}

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

    async def _names(self, by: str) -> dict[str, str] | None:
        """What people call the groups, by id; None for groups that have no ids."""
        if by == "key":
            return {info.id: info.name for info in await self._desk.tenancy.keys()}
        if by not in ("project", "organisation"):
            return None
        projects = await self._desk.tenancy.projects()
        if by == "project":
            return {
                info.scopes.project_id: f"{info.organisation}/{info.project}" for info in projects
            }
        return {info.scopes.organisation_id: info.organisation for info in projects}

    async def models(self) -> list[dict[str, Any]]:
        """The catalogue with prices."""
        return self._desk.models()

    async def status(self) -> dict[str, Any]:
        """What `forebay doctor` shows of a running server."""
        return await self._desk.status()

    async def activity(self) -> dict[str, Any]:
        """What `forebay top` shows: what the server is doing now, by names, and what it earns.

        `spent_today_usd` is that of the calls that began today (UTC).
        """
        desk = self._desk
        doing = await desk.activity()
        names = await self._names("project") or {}
        calls = [_named_project(call, names) for call in doing.pop("calls", [])]
        per_hour = format_usd(doing.pop("nanos_per_hour", 0))
        now = desk.clock.now()
        today = UsageQuery(since=now - now % DAY_SECONDS)
        spent = sum(each.amount_nanos for each in await desk.books.totals(today, by="model"))
        money = {"spent_today_usd": format_usd(spent), "usd_per_hour": per_hour}
        return {**doing, **money, "calls": calls}


def _named_project(call: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    project_id = call["project_id"]
    return {**call, "project": names.get(project_id, project_id)}


def _budget(text: str | None) -> int | None:
    try:
        return None if text is None else nanos_from_usd(text)
    except ValueError as fault:
        raise InvalidRequest(f"The monthly budget {fault}.", param="monthly_budget_usd") from None


def _budgeted(scope: str) -> Account:
    """An account whose budget, once it has one, is a month's."""
    return Account(scope, None, Period.MONTH)


def _money(balance: Balance) -> dict[str, Any]:
    cap = balance.account.cap_nanos
    return {
        "monthly_budget_usd": None if cap is None else format_usd(cap),
        "spent_usd": format_usd(balance.posted_nanos),
        "pending_usd": format_usd(balance.pending_nanos),
        "open_calls": balance.open_holds,
    }


def _scope(projects: Sequence[ProjectInfo], organisation: str, project: str | None) -> str:
    """The id that these names mean. Raises InvalidRequest naming those that exist."""
    mine = [info for info in projects if info.organisation == organisation]
    if not mine:
        names = dict.fromkeys(info.organisation for info in projects)
        raise InvalidRequest(
            f"There is no organisation {organisation!r}; {_there_are(names)}",
            param="organisation",
        )
    if project is None:
        return mine[0].scopes.organisation_id
    for info in mine:
        if info.project == project:
            return info.scopes.project_id
    raise InvalidRequest(
        f"There is no project {project!r} in {organisation!r}; "
        f"{_there_are(info.project for info in mine)}",
        param="project",
    )


def _there_are(names: Iterable[str]) -> str:
    shown = list(names)
    if not shown:
        return "there are none yet: `forebay keys create` makes them."
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return f"there are: {', '.join(shown[:MOST_NAMED])}{more}."


def _named(keys: Sequence[KeyInfo], text: str) -> KeyInfo:
    """The one key that this means: an id, or an end, a name or a redacted form that is unique."""
    for info in keys:
        if info.id == text:
            return info
    end = text.removeprefix("…")
    found = [
        info
        for info in keys
        if (text and text in (info.name, info.redacted))
        or (len(end) >= LEAST_ENDING and info.id.endswith(end))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidRequest(
            f"There is no key {text!r}. `forebay keys list` shows them; use an id, its last "
            f"{LEAST_ENDING} characters or more, or a name.",
            param="key_id",
        )
    listed = _there_are(f"{info.id} ({info.name or info.redacted})" for info in found)
    raise InvalidRequest(f"{text!r} means several keys; {listed} Use an id.", param="key_id")


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


def _row(row: UsageRow, key: KeyInfo | None) -> dict[str, Any]:
    usage, timings = row.usage, row.timings
    return {
        "sequence": row.sequence,
        "call_id": row.call_id,
        "at": row.resolved_at,
        "key_id": row.key_id,
        "key_name": "" if key is None else key.name,
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
