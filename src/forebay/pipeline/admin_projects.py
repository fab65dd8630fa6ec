"""Projects, what each may use of each model, and their service accounts.

Not here: their keys (`admin_keys.py`), their budgets (`admin_budgets.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from forebay.core.errors import InvalidRequest, NotFound
from forebay.core.principal import RateLimits
from forebay.pipeline.admin_keys import DAY_SECONDS, KeyRequest, Keys
from forebay.pipeline.admin_names import organisation_of, project_of
from forebay.pipeline.desk import Section, budgeted
from forebay.tenancy import ProjectInfo, ServiceAccount, require_name


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a project may use of a model: `own` was set for it, `effective` is the lowest of that,
    the project's and the plan's."""

    model: str
    own: RateLimits
    effective: RateLimits


class Projects(Section):
    """Of the organisations that the actor may see. An id that is none of theirs: NotFound."""

    async def list(self, *, archived: bool = False) -> Sequence[ProjectInfo]:
        """Oldest first; archived ones if they are asked for."""
        found = await self._projects()
        return [info for info in found if archived or info.archived_at is None]

    async def list_limits(self) -> Sequence[dict[str, Any]]:
        """Every project with its own limits, and those of its models, as plain data."""
        rows = []
        for info in await self._projects():
            found = await self._desk.directory.project_limits(info.scopes.project_id)
            rows.append({**_described(info), **asdict(found.own), "model": None})
            for model, limits in sorted(found.models.items()):
                rows.append({**_described(info), **asdict(limits), "model": model})
        return rows

    async def set_limits(
        self, organisation: str, project: str, limits: dict[str, int | None], model: str = ""
    ) -> dict[str, Any]:
        """Change these of a project's limits (None lifts one), or of its limits of a model."""
        home = project_of(await self._projects(), organisation, project)
        project_id = home.scopes.project_id
        named = self._model_id(model) if model else None
        if unknown := limits.keys() - {field.name for field in fields(RateLimits)}:
            raise InvalidRequest(f"There is no limit {unknown.pop()!r}.", param="limits")
        wanted = await self._limit(project_id, named, limits)
        asked = {"model": named, **limits}
        await self._record("rate_limit.updated", named or project_id, home, changes_requested=asked)
        return {**_described(home), **asdict(wanted), "model": named}

    async def _limit(
        self, project_id: str, model: str | None, changes: Mapping[str, int | None]
    ) -> RateLimits:
        async with self._desk.changing:
            found = await self._desk.directory.project_limits(project_id)
            before = found.own if model is None else found.models.get(model, RateLimits())
            wanted = replace(before, **changes)
            await self._desk.directory.set_limits(project_id, wanted, model=model)
        return wanted

    async def set_plan(self, organisation: str, plan: str) -> dict[str, Any]:
        """Give an organisation another plan, which holds for its next call."""
        home = organisation_of(await self._projects(), organisation)[0]
        scope = home.scopes.organisation_id
        most = (await self._desk.directory.set_plan(organisation, plan)).concurrent_calls
        await self._desk.books.open_account(budgeted(scope, most))
        await self._desk.books.set_max_open_holds(scope, most)
        await self._record("organization.updated", scope, scope, changes_requested={"plan": plan})
        return {"id": scope, "organisation": organisation, "plan": plan}

    async def archive_named(self, organisation: str, project: str) -> dict[str, Any]:
        """`archive` for people, who know names."""
        home = project_of(await self._projects(), organisation, project)
        return _described(await self.archive(home.scopes.project_id))

    def _model_id(self, name: str) -> str:
        known = {
            each: row["id"] for row in self._desk.models() for each in (row["id"], *row["aliases"])
        }
        if name not in known:
            raise InvalidRequest(
                f"There is no model {name!r} here; there are: {', '.join(known)}.", param="model"
            )
        return str(known[name])

    async def one(self, project_id: str) -> ProjectInfo:
        return await self._project(project_id)

    async def create(self, name: str) -> ProjectInfo:
        """One more in the actor's organisation."""
        require_name(name, param="name")
        home = await self._home()
        if any(info.project == name for info in await self._projects()):
            raise InvalidRequest(
                f"{home.organisation!r} has a project {name!r} already (archived ones keep their "
                "names).",
                param="name",
            )
        plan = await self._desk.tenancy.plan(home.organisation)
        scopes = await self._desk.tenancy.ensure(home.organisation, name, plan=plan.name)
        await self._desk.books.open_account(budgeted(scopes.project_id))
        info = await self._project(scopes.project_id)
        await self._record("project.created", scopes.project_id, info, data={"name": name})
        return info

    async def rename(self, project_id: str, name: str) -> ProjectInfo:
        await self._project(project_id)
        info = await self._desk.directory.rename_project(project_id, name)
        await self._record("project.updated", project_id, info, changes_requested={"name": name})
        return info

    async def archive(self, project_id: str) -> ProjectInfo:
        """Its keys are refused from now on; for good."""
        before = await self._project(project_id)
        info = await self._desk.directory.archive_project(project_id, at=self._desk.clock.now())
        if before.archived_at is None:
            await self._record("project.archived", project_id, info)
        return info

    async def limits(self, project_id: str) -> Sequence[ModelLimits]:
        """Of every model that there is, in the order of the catalogue."""
        info = await self._project(project_id)
        plan = await self._desk.tenancy.plan(info.organisation)
        found = await self._desk.directory.project_limits(project_id)
        rows = []
        for row in self._desk.models():
            own = found.models.get(row["id"], RateLimits())
            effective = _lowest(own, found.own, plan.limits)
            rows.append(ModelLimits(row["id"], own, effective))
        return rows

    async def limit(self, project_id: str, model: str, **changes: int | None) -> ModelLimits:
        """Change some of a model's limits, named as in RateLimits; None lifts one."""
        if all(row.model != model for row in await self.limits(project_id)):
            raise NotFound("There is no such rate limit.")
        await self._limit(project_id, model, changes)
        home = await self._project(project_id)
        asked = {"model": model, **changes}
        await self._record("rate_limit.updated", model, home, changes_requested=asked)
        return next(row for row in await self.limits(project_id) if row.model == model)

    async def accounts(self, project_id: str) -> Sequence[ServiceAccount]:
        """Service accounts, oldest first."""
        await self._project(project_id)
        found = await self._desk.directory.service_accounts()
        return [account for account in found if account.scopes.project_id == project_id]

    async def account(self, project_id: str, account_id: str) -> ServiceAccount:
        for account in await self.accounts(project_id):
            if account.id == account_id:
                return account
        raise NotFound("There is no such service account.")

    async def create_account(self, project_id: str, name: str) -> ServiceAccount:
        """One without a key."""
        home = await self._project(project_id)
        account = await self._desk.directory.create_service_account(
            self._desk.ids.new("svc"), project_id, name, at=self._desk.clock.now()
        )
        await self._record("service_account.created", account.id, home, data={"name": name})
        return account

    async def create_account_key(
        self, project_id: str, account_id: str, name: str, expires_in_seconds: int | None
    ) -> dict[str, Any]:
        """A key of this service account; the secret is in the answer, once."""
        home = await self._project(project_id)
        account = await self.account(project_id, account_id)
        days = None if expires_in_seconds is None else expires_in_seconds / DAY_SECONDS
        request = KeyRequest(
            name=name or account.name,
            organisation=home.organisation,
            project=home.project,
            expires_in_days=days,
            service_account_id=account_id,
            project_id=project_id,
        )
        return await Keys(self._desk, self._actor).create(request)

    async def rename_account(self, project_id: str, account_id: str, name: str) -> ServiceAccount:
        home = await self._project(project_id)
        await self.account(project_id, account_id)
        account = await self._desk.directory.rename_service_account(account_id, name)
        asked = {"name": name}
        await self._record("service_account.updated", account_id, home, changes_requested=asked)
        return account

    async def delete_account(self, project_id: str, account_id: str) -> None:
        """Its keys are refused from now on."""
        home = await self._project(project_id)
        await self.account(project_id, account_id)
        await self._desk.directory.delete_service_account(account_id, at=self._desk.clock.now())
        await self._record("service_account.deleted", account_id, home)


def _described(info: ProjectInfo) -> dict[str, Any]:
    return {
        "id": info.scopes.project_id,
        "organisation": info.organisation,
        "project": info.project,
        "plan": info.plan,
        "created_at": info.created_at,
        "archived_at": info.archived_at,
    }


def _lowest(*limits: RateLimits) -> RateLimits:
    def least(name: str) -> int | None:
        found = [getattr(each, name) for each in limits]
        return min((value for value in found if value is not None), default=None)

    return RateLimits(**{field.name: least(field.name) for field in fields(RateLimits)})
