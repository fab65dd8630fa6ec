"""Budgets: what organisations, projects and keys may spend a day, a month or in all; prepaid credit.

Not here: that a budget holds (`forebay.ledger`).
"""

from __future__ import annotations

from typing import Any

from forebay.core.errors import InvalidRequest, NotAllowed, NotFound
from forebay.core.hold import Account, Balance, Period
from forebay.core.money import format_usd
from forebay.ledger import StartsAfresh
from forebay.pipeline.admin_keys import money
from forebay.pipeline.admin_names import (
    key_of,
    nanos_of,
    organisation_of,
    period_of,
    project_of,
)
from forebay.pipeline.desk import OPERATOR, Section, budgeted
from forebay.tenancy import ProjectInfo, require_open


class Budgets(Section):
    """Of the organisations that the actor may see."""

    async def set(
        self,
        budget_usd: str | None,
        organisation: str | None = None,
        project: str | None = None,
        key: str | None = None,
        period: str | None = None,
    ) -> dict[str, Any]:
        """Cap what an organisation, one of its projects, or a key may spend; None lifts it.

        The period is a day, a month (of UTC) or "total"; None leaves it as it is. A lowered cap
        refuses new calls at once and lets running ones finish (L2).
        """
        cap = None if budget_usd is None else nanos_of(budget_usd, param="budget_usd")
        named = None if period is None else period_of(period)
        row = await self._place(organisation, project, key)
        async with self._desk.changing:
            await self._cap(row, cap, named)
        return {**row, **money(await self._desk.ledger.balances(row["id"]))}

    async def top_up(self, organisation: str, amount_usd: str, id: str) -> dict[str, Any]:
        """Book prepaid credit of an organisation; the same id again books nothing more."""
        amount = nanos_of(amount_usd, param="amount_usd")
        if not id.strip():
            raise InvalidRequest("id must name the payment, so that it is booked once.", param="id")
        row = await self._place(organisation, None, None)
        async with self._desk.changing:
            try:
                booked = await self._book(row["id"], amount, id)
            except ValueError as fault:
                said = str(fault)
                for info in await self._projects():
                    said = said.replace(info.scopes.organisation_id, repr(info.organisation))
                raise InvalidRequest(f"Nothing was booked: {said}.", param="id") from None
        if booked:
            asked = {"top_up_usd": format_usd(amount), "payment": id}
            await self._record_budget(row, asked)
        return {**row, **money(await self._desk.ledger.balances(row["id"]))}

    async def list(self) -> list[dict[str, Any]]:
        """Organisations, each followed by its projects, with what each has spent in its period."""
        by_organisation: dict[str, list[ProjectInfo]] = {}
        for info in await self._projects():
            by_organisation.setdefault(info.organisation, []).append(info)
        rows = []
        for projects in by_organisation.values():
            for project in (None, *projects):
                row = _row(projects[0], project)
                rows.append({**row, **money(await self._desk.ledger.balances(row["id"]))})
        return rows

    async def limit(self, project_id: str | None) -> Balance:
        """The budget of a project, or of the actor's organisation. Raises NotFound if it has none."""
        balance = await self._desk.ledger.balances((await self._own(project_id))["id"])
        if balance.account.cap_nanos is None:
            raise NotFound("There is no spend limit.")
        return balance

    async def set_limit(self, project_id: str | None, cap_nanos: int | None) -> Balance:
        """Cap it a month, or lift the cap. Prepaid credit is the operator's: NotAllowed."""
        row = await self._own(project_id)
        async with self._desk.changing:
            if self._actor != OPERATOR:
                _require_no_credit((await self._desk.ledger.balances(row["id"])).account)
            await self._cap(row, cap_nanos, None if cap_nanos is None else Period.MONTH)
        return await self._desk.ledger.balances(row["id"])

    async def apply_plans(self) -> None:
        """Let every organisation have as many open calls as its plan says now."""
        seen: set[str] = set()
        for info in await self._desk.tenancy.projects():
            scope = info.scopes.organisation_id
            if scope in seen:
                continue
            seen.add(scope)
            try:
                most = (await self._desk.tenancy.plan(info.organisation)).concurrent_calls
            except NotAllowed:
                continue  # its keys are refused, each call with the reason
            await self._desk.books.open_account(budgeted(scope, most))
            if (await self._desk.ledger.balances(scope)).account.max_open_holds != most:
                await self._desk.books.set_max_open_holds(scope, most)

    async def _own(self, project_id: str | None) -> dict[str, Any]:
        if project_id is None:
            return _row(await self._home(), None)
        info = await self._project(project_id)
        return _row(info, info)

    async def _place(
        self, organisation: str | None, project: str | None, key: str | None
    ) -> dict[str, Any]:
        """The scope that these names mean, and whose it is."""
        projects = await self._projects()
        if key is not None:
            info = key_of(await self._keys(), key)
            home = next(p for p in projects if p.scopes.project_id == info.scopes.project_id)
            if organisation not in (None, home.organisation) or project not in (None, home.project):
                raise InvalidRequest(
                    f"The key {info.id} is of {home.organisation}/{home.project}.", param="key"
                )
            return {**_row(home, home), "key": info.name or info.redacted, "id": info.id}
        if organisation is None:
            raise InvalidRequest(
                "Name an organisation, a project of it, or a key.", param="organisation"
            )
        if project is None:
            return _row(organisation_of(projects, organisation)[0], None)
        info_ = project_of(projects, organisation, project)
        return _row(info_, info_)

    async def _book(self, scope: str, amount: int, id: str) -> bool:
        """False for a payment that was booked before."""
        # A start that was broken off may have left an organisation without its account.
        await self._desk.books.open_account(budgeted(scope))
        before = (await self._desk.ledger.balances(scope)).account
        try:
            return await self._desk.books.top_up(scope, amount, id) != before
        except StartsAfresh:
            if before.cap_nanos is not None:
                raise
        # Without a cap its period means nothing yet: prepaid credit is what was ever paid.
        await self._desk.books.set_cap(scope, None, Period.TOTAL)
        await self._desk.books.top_up(scope, amount, id)
        return True

    async def _cap(self, row: dict[str, Any], cap: int | None, period: Period | None) -> None:
        if row["project"] is not None:
            require_open(project_of(await self._projects(), row["organisation"], row["project"]))
        await self._desk.books.open_account(budgeted(row["id"]))  # as in _book
        await self._desk.books.set_cap(row["id"], cap, period)
        asked = {"budget_usd": None if cap is None else format_usd(cap)}
        await self._record_budget(row, asked if period is None else asked | {"period": period})

    async def _record_budget(self, row: dict[str, Any], asked: dict[str, Any]) -> None:
        projects = organisation_of(await self._projects(), row["organisation"])
        kind, home = "organization.updated", projects[0].scopes.organisation_id
        if row["project"] is not None:
            kind = "project.updated" if row["key"] is None else "api_key.updated"
            info = project_of(projects, row["organisation"], row["project"])
            await self._record(kind, row["id"], info, changes_requested=asked)
        else:
            await self._record(kind, row["id"], home, changes_requested=asked)


def _require_no_credit(account: Account) -> None:
    if account.cap_nanos is not None and account.period is Period.TOTAL:
        raise NotAllowed(
            f"The budget of {format_usd(account.cap_nanos)} USD in all is prepaid credit, which no "
            "admin key may change or lift. The operator may, at the machine: `forebay budgets`."
        )


def _row(home: ProjectInfo, project: ProjectInfo | None) -> dict[str, Any]:
    scope = home.scopes.organisation_id if project is None else project.scopes.project_id
    name = None if project is None else project.project
    return {"organisation": home.organisation, "project": name, "key": None, "id": scope}
