"""What happens to a project while a change of it is under way."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from forebay.core.errors import InvalidKey, NotFound
from forebay.pipeline.admin_keys import KeyRequest
from forebay.pipeline.administration import Administration
from forebay.pipeline.desk import Desk
from forebay.tenancy.memory import MemoryTenancy
from forebay.testing.clock import FakeClock
from forebay.testing.desk import memory_desk


@pytest.fixture
def desk() -> Desk:
    return memory_desk(FakeClock())


@pytest.fixture
async def operator(desk: Desk) -> Administration:
    operator = Administration(desk)
    await operator.keys.create(KeyRequest(organisation="acme", project="web"))
    return operator


@pytest.fixture
async def project_id(desk: Desk, operator: Administration) -> str:
    return (await desk.tenancy.projects())[0].scopes.project_id


def before_its_plan_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Do this once in the midst of making a key."""
    plan = desk.tenancy.plan
    changes = [change]

    async def read(organisation):
        while changes:
            await changes.pop()()
        return await plan(organisation)

    monkeypatch.setattr(desk.tenancy, "plan", read)


async def test_a_key_stays_in_its_project_when_that_is_renamed(
    desk, operator, project_id, monkeypatch
):
    account = await operator.projects.create_account(project_id, "robot")
    before_its_plan_is_read(desk, monkeypatch, lambda: operator.projects.rename(project_id, "site"))
    made = await operator.projects.create_account_key(project_id, account.id, "", None)
    assert made["project"] == "site"
    [_, info] = await desk.tenancy.keys()
    assert info.scopes.project_id == project_id
    assert len(await desk.tenancy.projects()) == 1


async def test_no_key_outlives_the_service_account_that_it_is_made_for(
    desk, operator, project_id, monkeypatch
):
    account = await operator.projects.create_account(project_id, "robot")
    before_its_plan_is_read(
        desk, monkeypatch, lambda: operator.projects.delete_account(project_id, account.id)
    )
    with pytest.raises(NotFound, match="no such service account"):
        await operator.projects.create_account_key(project_id, account.id, "", None)
    assert len(await desk.tenancy.keys()) == 1


async def test_of_two_changes_of_a_limit_at_once_none_is_lost(
    desk, operator, project_id, monkeypatch
):
    read = MemoryTenancy.project_limits

    async def slowly(self, asked):
        found = await read(self, asked)
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(MemoryTenancy, "project_limits", slowly)
    limit = operator.projects.limit
    await asyncio.gather(
        limit(project_id, "smollm2", requests_per_minute=5),
        limit(project_id, "smollm2", tokens_per_minute=6),
        operator.projects.set_limits("acme", "web", {"batch_input_tokens_per_day": 7}, "smollm2"),
    )
    limits = (await desk.directory.project_limits(project_id)).models["smollm2"]
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (5, 6)
    assert limits.batch_input_tokens_per_day == 7


async def test_a_key_for_a_project_that_is_none_is_refused(operator):
    with pytest.raises(NotFound, match="no such project"):
        await operator.keys.create(replace(KeyRequest(organisation="acme"), project_id="proj_9"))


async def test_a_deleted_accounts_keys_are_refused(desk, operator, project_id):
    account = await operator.projects.create_account(project_id, "robot")
    made = await operator.projects.create_account_key(project_id, account.id, "", None)
    await operator.projects.delete_account(project_id, account.id)
    with pytest.raises(InvalidKey):
        await desk.tenancy.authenticate(made["key"])
