"""API keys and admin keys: making, rotating, listing, revoking.

Not here: what a key may do (`forebay.tenancy`), its money (`forebay.ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.hold import Account, Balance, Period
from forebay.core.money import format_usd
from forebay.core.principal import Scopes
from forebay.pipeline.admin_names import key_of, lane_of, nanos_of, organisation_of
from forebay.pipeline.desk import Section, budgeted
from forebay.tenancy import (
    ADMIN_KEY,
    STANDARD,
    AdminKeyInfo,
    KeyInfo,
    KeySpec,
    Plan,
    make_key,
    require_open,
)

DEFAULT = "default"
DAY_SECONDS = 86_400
MAX_DAYS = 36_500  # a hundred years: what is later is a slip
NO_BUDGET = "none"


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A key to create; None means no limit of its own, but for the budget: the plan's for new keys
    ("none": none). A plan is for an organisation that is made now (None: standard). A `project_id` is
    of a project that is there, whatever it is called by now."""

    name: str = ""
    organisation: str = DEFAULT
    project: str = DEFAULT
    plan: str | None = None
    monthly_budget_usd: str | None = None
    max_open_calls: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    batch_input_tokens_per_day: int | None = None
    max_output_tokens: int | None = None
    expires_in_days: float | None = None
    models: tuple[str, ...] | None = None
    lanes: tuple[str, ...] | None = None
    service_account_id: str | None = None
    project_id: str | None = None


class Keys(Section):
    """Of the organisations that the actor may see."""

    async def create(self, request: KeyRequest) -> dict[str, Any]:
        """Make a key; the secret is in the answer and nowhere else afterwards.

        Its accounts exist before it works, so no call ever meets a scope without one. A second
        organisation stops prefix sharing in the engines before its first key works (E6).
        """
        desk = self._desk
        asked = request.monthly_budget_usd
        if asked is not None and asked != NO_BUDGET:
            nanos_of(asked, param="monthly_budget_usd")
        spec = self._spec(request)
        scopes = await self._ensure(request)
        spec = replace(spec, project_id=scopes.project_id)
        plan = await desk.tenancy.plan(request.organisation)
        _require_calls(request.max_open_calls, plan)
        if len(await desk.tenancy.organisations()) > 1:
            for engine in desk.engines:
                await engine.isolate()  # idempotent; never skipped because another call began it
        await desk.books.open_account(budgeted(scopes.organisation_id, plan.concurrent_calls))
        await desk.books.open_account(budgeted(scopes.project_id))
        account = Account(
            spec.id, _first_budget(asked, plan), Period.MONTH, max_open_holds=request.max_open_calls
        )
        await desk.books.open_account(account)
        secret = make_key(desk.ids)
        info = await desk.tenancy.create_key(spec, secret)
        home = await self._project(scopes.project_id)
        await self._record("api_key.created", info.id, home, data={"name": info.name})
        return {**describe(info), "key": secret, **_budget(account)}

    async def rotate(self, key_id: str, overlap_seconds: float = DAY_SECONDS) -> dict[str, Any]:
        """Give a key (named as for `revoke`) another secret, which is in the answer; the one that
        it has works on for the overlap, one that was on its way out stops at once: a key has two
        at most. Everything else about the key stays."""
        found = key_of(await self._keys(), key_id)
        home = await self._project(found.scopes.project_id)
        require_open(home)
        secret, now = make_key(self._desk.ids), self._desk.clock.now()
        info = await self._desk.tenancy.rotate_key(
            found.id, secret, at=now, overlap_seconds=overlap_seconds
        )
        asked = {"overlap_seconds": overlap_seconds}
        await self._record("api_key.updated", info.id, home, changes_requested=asked)
        ends = [end for end in (info.rotated_until, info.expires_at) if end is not None]
        return {
            **describe(info),
            "key": secret,
            "old_works_until": min(ends),
            "older_secret_stopped": found.rotated_until is not None and now < found.rotated_until,
        }

    async def list_admin(self) -> list[dict[str, Any]]:
        """All admin keys, oldest first."""
        return [asdict(info) for info in await self.admin_keys()]

    async def list(self) -> list[dict[str, Any]]:
        """All keys, oldest first, with what each has spent in its current period."""
        archived = {info.scopes.project_id: info.archived_at for info in await self._projects()}
        rows = []
        for info in await self._keys():
            balance = money(await self._desk.ledger.balances(info.id))
            since = archived[info.scopes.project_id]
            rows.append({**describe(info), "project_archived_at": since, **balance})
        return rows

    async def revoke(self, key_id: str) -> dict[str, Any]:
        """From now on the key is refused; running calls finish.

        Besides the id, its end (as `forebay usage` shows it), its name or its redacted form will
        do, if they are one key's only.
        """
        return describe(await self._revoke(key_of(await self._keys(), key_id)))

    async def of_project(self, project_id: str) -> Sequence[KeyInfo]:
        """Those that are not revoked. Raises NotFound."""
        await self._project(project_id)
        return [
            info
            for info in await self._keys()
            if info.scopes.project_id == project_id and info.revoked_at is None
        ]

    async def one(self, project_id: str, key_id: str) -> KeyInfo:
        """The key of this id. Raises NotFound, also for a revoked one."""
        for info in await self.of_project(project_id):
            if info.id == key_id:
                return info
        raise NotFound("There is no such API key.")

    async def delete(self, project_id: str, key_id: str) -> None:
        """Revoke it. Raises NotFound."""
        await self._revoke(await self.one(project_id, key_id))

    async def create_admin(
        self, organisation: str, name: str, expires_in_seconds: int | None = None
    ) -> dict[str, Any]:
        """Make a key that administers this organisation; the secret is in the answer, once."""
        desk, now = self._desk, self._desk.clock.now()
        home = organisation_of(await self._projects(), organisation)[0]
        if expires_in_seconds is not None and not 0 < expires_in_seconds <= MAX_DAYS * DAY_SECONDS:
            raise InvalidRequest(
                f"expires_in_seconds is {expires_in_seconds}, but must be above 0 and at most "
                f"{MAX_DAYS * DAY_SECONDS}.",
                param="expires_in_seconds",
            )
        secret = make_key(desk.ids, ADMIN_KEY)
        made = await desk.admin_keys.create(
            AdminKeyInfo(
                id=desk.ids.new("admin_key"),
                name=name,
                redacted="",
                organisation=organisation,
                organisation_id=home.scopes.organisation_id,
                created_at=now,
                expires_at=None if expires_in_seconds is None else now + expires_in_seconds,
            ),
            secret,
        )
        await self._record(
            "api_key.created", made.id, made.organisation_id, data={"name": name, "admin": True}
        )
        return {**asdict(made), "key": secret}

    async def create_own_admin(self, name: str, expires_in_seconds: int | None) -> dict[str, Any]:
        """The same for the actor's organisation."""
        home = await self._home()
        return await self.create_admin(home.organisation, name, expires_in_seconds)

    async def admin_keys(self) -> Sequence[AdminKeyInfo]:
        """Those of the actor's organisation, or all."""
        mine = self._actor.organisation_id
        found = await self._desk.admin_keys.keys()
        return [info for info in found if mine in (None, info.organisation_id)]

    async def revoke_admin(self, key_id: str) -> dict[str, Any]:
        """From now on the admin key is refused. Raises NotFound for an unknown id.

        None revokes itself: a slip must not lock its holder out.
        """
        for info in await self.admin_keys():
            if info.id == key_id == self._actor.key_id:
                raise InvalidRequest(
                    "An admin key cannot revoke itself: create another one and use that.",
                    param="key_id",
                )
            if info.id == key_id:
                done = await self._desk.admin_keys.delete(key_id, at=self._desk.clock.now())
                await self._record("api_key.deleted", key_id, info.organisation_id)
                return asdict(done)
        raise NotFound("There is no such admin key.")

    async def _revoke(self, found: KeyInfo) -> KeyInfo:
        info = await self._desk.tenancy.revoke_key(found.id, at=self._desk.clock.now())
        if found.revoked_at is None:
            home = await self._project(info.scopes.project_id)
            await self._record("api_key.deleted", info.id, home)
        return info

    async def _ensure(self, request: KeyRequest) -> Scopes:
        """The project, made if it is not there."""
        if request.project_id is not None:
            return (await self._project(request.project_id)).scopes
        tenancy = self._desk.tenancy
        before = await tenancy.projects()
        plans = {info.organisation: info.plan for info in before}
        has = plans.get(request.organisation)
        if has is not None and request.plan not in (None, has):
            raise InvalidRequest(
                f"{request.organisation!r} has the plan {has!r}, not {request.plan!r}. "
                "`forebay projects plan` gives it another one.",
                param="plan",
            )
        plan = STANDARD.name if request.plan is None else request.plan
        scopes = await tenancy.ensure(request.organisation, request.project, plan=plan)
        if scopes.project_id not in {info.scopes.project_id for info in before}:
            home = await self._project(scopes.project_id)
            await self._record(
                "project.created", scopes.project_id, home, data={"name": request.project}
            )
        return scopes

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
                f"max_open_calls is {calls}, but must be between 1 and {2**31 - 1}, or absent.",
                param="max_open_calls",
            )
        return KeySpec(
            id=self._desk.ids.new("key"),
            name=request.name,
            organisation=request.organisation,
            project=request.project,
            created_at=now,
            expires_at=None if days is None else now + days * DAY_SECONDS,
            models=None if request.models is None else self._model_ids(request.models),
            lanes=None if request.lanes is None else frozenset(map(lane_of, request.lanes)),
            requests_per_minute=request.requests_per_minute,
            tokens_per_minute=request.tokens_per_minute,
            batch_input_tokens_per_day=request.batch_input_tokens_per_day,
            max_output_tokens=request.max_output_tokens,
            service_account_id=request.service_account_id,
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


def describe(info: KeyInfo) -> dict[str, Any]:
    """A key as plain data."""
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
        **asdict(info.limits),
        "max_output_tokens": info.max_output_tokens,
    }


def money(balance: Balance) -> dict[str, Any]:
    """A budget and what has become of it, as plain data."""
    return {
        **_budget(balance.account),
        "spent_usd": format_usd(balance.posted_nanos),
        "pending_usd": format_usd(balance.pending_nanos),
        "open_calls": balance.open_holds,
    }


def _budget(account: Account) -> dict[str, Any]:
    cap = account.cap_nanos
    return {
        "budget_usd": None if cap is None else format_usd(cap),
        "period": account.period.value,
        "max_open_calls": account.max_open_holds,
    }


def _first_budget(asked: str | None, plan: Plan) -> int | None:
    if asked is None:
        return plan.key_budget_nanos
    return None if asked == NO_BUDGET else nanos_of(asked, param="monthly_budget_usd")


def _require_calls(calls: int | None, plan: Plan) -> None:
    most = plan.concurrent_calls
    if calls is not None and most is not None and calls > most:
        raise InvalidRequest(
            f"max_open_calls is {calls}, but the plan {plan.name!r} allows {most}: a limit may be "
            "lower than the plan's, never higher.",
            param="max_open_calls",
        )
