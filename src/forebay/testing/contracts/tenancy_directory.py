"""What every Tenancy with its Directory must do besides `tenancy.py`: limits of every scope,
rotation, archived projects, service accounts. Fixtures as there; `tenancy` is both contracts.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from forebay.core.errors import InvalidKey, InvalidRequest, NotFound
from forebay.core.job import Lane
from forebay.core.principal import UNLIMITED, RateLimits
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.tenancy import (
    HOUR_SECONDS,
    NOW,
    TRIAL_LIMITS,
    made,
    refusal_of,
    secret,
    spec,
)

LOW = RateLimits(requests_per_minute=5, tokens_per_minute=50)


async def on_trial(tenancy: Any, number: int = 1, **changes: Any) -> Any:
    """A key of an organisation whose plan, `trial`, has limits."""
    await tenancy.ensure("small", "default", plan="trial")
    return await tenancy.create_key(
        spec(f"key_{number}", organisation="small", **changes), secret(number)
    )


async def test_a_principal_carries_the_limits_of_its_plan(tenancy: Any) -> None:
    await on_trial(tenancy)
    principal = await tenancy.authenticate(secret(1))
    assert principal.organisation_limits == TRIAL_LIMITS
    assert principal.key_limits == principal.project_limits == UNLIMITED
    assert principal.model_limits == {}
    assert principal.max_output_tokens == 100


async def test_the_lowest_output_bound_holds(tenancy: Any) -> None:
    await on_trial(tenancy, 1, max_output_tokens=7)
    assert (await tenancy.authenticate(secret(1))).max_output_tokens == 7


async def test_an_organisation_s_plan_can_be_read(tenancy: Any) -> None:
    await on_trial(tenancy)
    plan = await tenancy.plan("small")
    assert (plan.name, plan.limits, plan.concurrent_calls) == ("trial", TRIAL_LIMITS, 4)
    assert plan.key_budget_nanos == 2_500_000_000
    with pytest.raises(InvalidRequest, match="no organisation 'nobody'"):
        await tenancy.plan("nobody")


@pytest.mark.parametrize(
    ("param", "value", "most"),
    [
        ("requests_per_minute", 61, 60),
        ("tokens_per_minute", 10_001, 10_000),
        ("batch_input_tokens_per_day", 5_001, 5_000),
        ("max_output_tokens", 101, 100),
    ],
)
async def test_a_key_may_be_lower_than_its_plan_and_never_higher(
    tenancy: Any, param: str, value: int, most: int
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await on_trial(tenancy, **{param: value})
    assert refused.value.param == param
    assert f"is {value}," in refused.value.message
    assert f"allows {most}" in refused.value.message
    assert await tenancy.keys() == []
    await on_trial(tenancy, **{param: most})


async def test_limits_of_a_project_and_of_its_models_hold_at_once(tenancy: Any) -> None:
    """Also for a key that was warm."""
    info = await made(tenancy)
    project = info.scopes.project_id
    await tenancy.authenticate(secret(1))
    await tenancy.set_limits(project, LOW)
    limits = await tenancy.set_limits(project, RateLimits(requests_per_minute=2), model="m")
    principal = await tenancy.authenticate(secret(1))
    assert principal.project_limits == LOW == limits.own
    assert principal.model_limits == {"m": RateLimits(requests_per_minute=2)} == limits.models
    await tenancy.set_limits(project, UNLIMITED, model="m")
    await tenancy.set_limits(project, UNLIMITED)
    principal = await tenancy.authenticate(secret(1))
    assert (principal.project_limits, principal.model_limits) == (UNLIMITED, {})
    assert await tenancy.project_limits(project) == replace(limits, own=UNLIMITED, models={})


async def test_l14_limits_of_a_project_are_its_own(tenancy: Any) -> None:
    """L14: a project of the same name in another organisation keeps its limits."""
    a = await made(tenancy, 1, organisation="a")
    b = await made(tenancy, 2, organisation="b")
    await tenancy.set_limits(a.scopes.project_id, LOW)
    await tenancy.set_limits(a.scopes.project_id, LOW, model="m")
    assert (await tenancy.project_limits(b.scopes.project_id)).own == UNLIMITED
    principal = await tenancy.authenticate(secret(2))
    assert (principal.project_limits, principal.model_limits) == (UNLIMITED, {})


async def test_a_project_may_not_have_more_than_its_plan(tenancy: Any) -> None:
    project = (await on_trial(tenancy)).scopes.project_id
    for model in (None, "m"):
        with pytest.raises(InvalidRequest, match="is 61, but the plan 'trial' allows 60"):
            await tenancy.set_limits(project, RateLimits(requests_per_minute=61), model=model)
    with pytest.raises(InvalidRequest, match="is 0, but must be between"):
        await tenancy.set_limits(project, RateLimits(tokens_per_minute=0))


async def test_another_plan_holds_for_the_next_call_of_that_organisation(tenancy: Any) -> None:
    """Also for a key that was warm, and without a look at the limits that it has of its own."""
    await made(tenancy, 1, organisation="a", requests_per_minute=600)
    await made(tenancy, 2, organisation="b")
    before = [await tenancy.authenticate(secret(number)) for number in (1, 2)]
    plan = await tenancy.set_plan("a", "trial")
    assert plan == await tenancy.plan("a")
    changed = await tenancy.authenticate(secret(1))
    assert changed.organisation_limits == plan.limits != before[0].organisation_limits
    assert changed.key_limits.requests_per_minute == 600
    assert await tenancy.authenticate(secret(2)) == before[1]
    assert [info.plan for info in await tenancy.projects()] == ["trial", "standard"]
    for organisation, name, words in (("c", "trial", "no organisation 'c'"), ("a", "x", "no plan")):
        with pytest.raises(InvalidRequest, match=words):
            await tenancy.set_plan(organisation, name)


async def test_a_rotated_key_has_two_secrets_until_the_overlap_ends(
    tenancy: Any, clock: FakeClock
) -> None:
    before = await made(tenancy, requests_per_minute=3)
    was = await tenancy.authenticate(secret(1))
    info = await tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=HOUR_SECONDS)
    ends = NOW + HOUR_SECONDS
    assert info == replace(before, redacted=info.redacted, rotated_until=ends)
    assert await tenancy.keys() == [info]
    assert info.redacted != before.redacted
    assert await tenancy.authenticate(secret(1)) == was == await tenancy.authenticate(secret(2))
    clock.advance(HOUR_SECONDS - 0.5)
    await tenancy.authenticate(secret(1))
    clock.advance(0.5)
    await refusal_of(tenancy, secret(1))
    assert await tenancy.authenticate(secret(2)) == was


async def test_without_an_overlap_the_old_secret_is_refused_at_once(tenancy: Any) -> None:
    await made(tenancy)
    await tenancy.authenticate(secret(1))
    await tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=0)
    await refusal_of(tenancy, secret(1))
    await tenancy.authenticate(secret(2))


async def test_a_secret_that_was_tried_before_works_once_it_is_rotated_in(tenancy: Any) -> None:
    await made(tenancy)
    await refusal_of(tenancy, secret(2))
    await tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=HOUR_SECONDS)
    await tenancy.authenticate(secret(2))


async def test_a_key_has_two_secrets_at_most(tenancy: Any) -> None:
    await made(tenancy)
    for number in (2, 3):
        await tenancy.authenticate(secret(number - 1))
        await tenancy.rotate_key("key_1", secret(number), at=NOW, overlap_seconds=HOUR_SECONDS)
    await refusal_of(tenancy, secret(1))
    await tenancy.authenticate(secret(2))
    await tenancy.authenticate(secret(3))


async def test_revoking_a_rotated_key_stops_both_secrets(tenancy: Any) -> None:
    await made(tenancy)
    await tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=HOUR_SECONDS)
    await tenancy.authenticate(secret(1))
    await tenancy.authenticate(secret(2))
    await tenancy.revoke_key("key_1", at=NOW)
    await refusal_of(tenancy, secret(1))
    await refusal_of(tenancy, secret(2))


async def test_an_expired_key_has_no_secret_that_works(tenancy: Any, clock: FakeClock) -> None:
    await made(tenancy, expires_at=NOW + 10)
    await tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=HOUR_SECONDS)
    clock.advance(10)
    await refusal_of(tenancy, secret(1))
    await refusal_of(tenancy, secret(2))


async def test_rotations_that_make_no_sense_are_refused(tenancy: Any) -> None:
    await made(tenancy, 1)
    await made(tenancy, 2)
    await tenancy.rotate_key("key_2", secret(3), at=NOW, overlap_seconds=HOUR_SECONDS)
    for overlap in (-1, 1e9):
        with pytest.raises(InvalidRequest, match="overlap_seconds is"):
            await tenancy.rotate_key("key_1", secret(4), at=NOW, overlap_seconds=overlap)
    for taken in (2, 3):
        with pytest.raises(ValueError, match="in use already"):
            await tenancy.rotate_key("key_1", secret(taken), at=NOW, overlap_seconds=0)
    with pytest.raises(ValueError, match="exists already"):
        await tenancy.create_key(spec("key_9"), secret(2))
    with pytest.raises(KeyError):
        await tenancy.rotate_key("key_9", secret(4), at=NOW, overlap_seconds=0)
    await tenancy.revoke_key("key_1", at=NOW)
    with pytest.raises(InvalidRequest, match="revoked or expired"):
        await tenancy.rotate_key("key_1", secret(4), at=NOW, overlap_seconds=0)


async def test_a_key_rotated_while_it_is_being_tried_ends_with_its_overlap(tenancy: Any) -> None:
    await made(tenancy)
    tries = [asyncio.ensure_future(tenancy.authenticate(secret(1))) for _ in range(20)]
    rotated = asyncio.ensure_future(
        tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=0)
    )
    more = [asyncio.ensure_future(tenancy.authenticate(secret(n % 2 + 1))) for n in range(20)]
    await asyncio.gather(*tries, rotated, *more, return_exceptions=True)
    await refusal_of(tenancy, secret(1))
    await tenancy.authenticate(secret(2))


async def test_the_keys_of_an_archived_project_are_refused_at_once(tenancy: Any) -> None:
    mine = await made(tenancy, 1)
    await made(tenancy, 2, project="other")
    await tenancy.authenticate(secret(1))
    info = await tenancy.archive_project(mine.scopes.project_id, at=NOW + 1)
    assert info.archived_at == NOW + 1
    assert await tenancy.archive_project(mine.scopes.project_id, at=NOW + 2) == info
    assert [each.archived_at for each in await tenancy.projects()] == [NOW + 1, None]
    await refusal_of(tenancy, secret(1))
    await tenancy.authenticate(secret(2))


async def test_an_archived_project_stays_as_it_is(tenancy: Any) -> None:
    project = (await made(tenancy)).scopes.project_id
    await tenancy.archive_project(project, at=NOW)
    changes = [
        tenancy.create_key(spec("key_2"), secret(2)),
        tenancy.rename_project(project, "new"),
        tenancy.set_limits(project, LOW),
        tenancy.create_service_account("svc_1", project, "robot", at=NOW),
    ]
    for change in changes:
        with pytest.raises(InvalidRequest, match="'default' is archived"):
            await change


async def outlived(tenancy: Any, key_id: str) -> None:
    """This key does not work any more for what it ordered."""
    with pytest.raises(InvalidKey, match=f"{key_id} that ordered this .* any more.*another key"):
        await tenancy.principal(key_id)


async def test_a_key_is_known_by_its_id_as_by_its_secret(tenancy: Any) -> None:
    """Whatever changes, also when it is warm."""
    key = await on_trial(tenancy, requests_per_minute=5, lanes=frozenset({Lane.BATCH}))
    project_id = key.scopes.project_id
    changes = [
        tenancy.set_limits(project_id, LOW),
        tenancy.set_limits(project_id, LOW, model="small"),
        tenancy.rename_project(project_id, "web"),
        tenancy.set_plan(key.organisation, "standard"),
    ]
    assert await tenancy.principal("key_1") == await tenancy.authenticate(secret(1))
    for change in changes:
        await change
        assert await tenancy.principal("key_1") == await tenancy.authenticate(secret(1))


async def test_l14_a_key_is_known_by_its_id_as_its_own_organisation_s(tenancy: Any) -> None:
    infos = [await made(tenancy, number, organisation=f"org {number}") for number in (1, 2)]
    for info in infos * 2:
        assert (await tenancy.principal(info.id)).scopes == info.scopes


async def test_a_key_that_is_not_live_has_ordered_in_vain(tenancy: Any, clock: FakeClock) -> None:
    """Unknown, revoked, of a deleted account, expired, of an archived project: at once."""
    await outlived(tenancy, "key_1")
    project_id = (await made(tenancy, 1)).scopes.project_id
    await tenancy.create_service_account("svc_1", project_id, "robot", at=NOW)
    await made(tenancy, 2, service_account_id="svc_1")
    await made(tenancy, 3, expires_at=NOW + 10)
    await made(tenancy, 4)

    async def expire() -> None:
        clock.advance(10)

    endings = [
        tenancy.revoke_key("key_1", at=NOW),
        tenancy.delete_service_account("svc_1", at=NOW),
        expire(),
        tenancy.archive_project(project_id, at=NOW),
    ]
    for number, ending in enumerate(endings, start=1):
        for _ in range(2):
            assert (await tenancy.principal(f"key_{number}")).scopes.key_id == f"key_{number}"
        await ending
        for _ in range(2):
            await outlived(tenancy, f"key_{number}")


async def test_a_key_that_gets_another_secret_has_ordered_what_it_ordered(tenancy: Any) -> None:
    await made(tenancy)
    before = await tenancy.principal("key_1")
    await tenancy.rotate_key("key_1", secret(2), at=NOW, overlap_seconds=0)
    assert await tenancy.principal("key_1") == before == await tenancy.authenticate(secret(2))


async def test_a_key_revoked_while_its_orders_run_is_refused_afterwards(tenancy: Any) -> None:
    await made(tenancy)
    calls = [asyncio.ensure_future(tenancy.principal("key_1")) for _ in range(20)]
    revoked = asyncio.ensure_future(tenancy.revoke_key("key_1", at=NOW))
    more = [asyncio.ensure_future(tenancy.principal("key_1")) for _ in range(20)]
    await asyncio.gather(*calls, revoked, *more, return_exceptions=True)
    await outlived(tenancy, "key_1")


async def test_a_project_is_renamed_and_keeps_its_keys(tenancy: Any) -> None:
    key = await made(tenancy)
    other = await made(tenancy, 2, project="other")
    project = key.scopes.project_id
    assert (await tenancy.rename_project(project, "web")).project == "web"
    assert (await tenancy.authenticate(secret(1))).scopes == key.scopes
    assert [each.project for each in await tenancy.keys()] == ["web", "other"]
    assert (await tenancy.ensure("default", "web", plan="standard")).project_id == project
    with pytest.raises(InvalidRequest, match="another project 'other'"):
        await tenancy.rename_project(project, "other")
    with pytest.raises(InvalidRequest, match="name must be"):
        await tenancy.rename_project(project, " ")
    assert await tenancy.rename_project(project, "web") == (await tenancy.projects())[0]
    assert (await tenancy.projects())[1].scopes.project_id == other.scopes.project_id


async def test_a_service_account_owns_keys_that_go_with_it(tenancy: Any) -> None:
    project = (await made(tenancy)).scopes.project_id
    account = await tenancy.create_service_account("svc_1", project, "robot", at=NOW)
    assert await tenancy.service_accounts() == [account]
    assert (account.name, account.scopes.project_id, account.created_at) == ("robot", project, NOW)
    key = await made(tenancy, 2, service_account_id="svc_1")
    assert key.service_account_id == "svc_1"
    await tenancy.authenticate(secret(2))
    renamed = await tenancy.rename_service_account("svc_1", "android")
    assert renamed == replace(account, name="android")
    deleted = await tenancy.delete_service_account("svc_1", at=NOW + 1)
    assert deleted == replace(renamed, deleted_at=NOW + 1)
    assert await tenancy.delete_service_account("svc_1", at=NOW + 2) == deleted
    assert await tenancy.service_accounts() == []
    await refusal_of(tenancy, secret(2))
    await tenancy.authenticate(secret(1))
    with pytest.raises(KeyError):
        await tenancy.rename_service_account("svc_1", "again")


async def test_a_key_belongs_to_a_service_account_of_its_project_that_is_there(
    tenancy: Any,
) -> None:
    project = (await made(tenancy)).scopes.project_id
    await made(tenancy, 2, project="other")
    await tenancy.create_service_account("svc_1", project, "robot", at=NOW)
    for wrong in (
        {"service_account_id": "svc_9"},
        {"service_account_id": "svc_1", "project": "other"},
    ):
        with pytest.raises(NotFound, match="no such service account"):
            await made(tenancy, 3, **wrong)
    await tenancy.delete_service_account("svc_1", at=NOW)
    with pytest.raises(NotFound, match="no such service account"):
        await made(tenancy, 3, service_account_id="svc_1")
    assert [each.id for each in await tenancy.keys()] == ["key_1", "key_2"]


async def test_a_key_is_of_the_project_of_this_id_whatever_its_name_is(tenancy: Any) -> None:
    project = (await made(tenancy)).scopes.project_id
    await tenancy.rename_project(project, "web")
    key = await tenancy.create_key(spec("key_2", project_id=project), secret(2))
    assert (key.project, key.scopes.project_id) == ("web", project)
    assert (await tenancy.authenticate(secret(2))).scopes == key.scopes
    with pytest.raises(InvalidRequest, match="no project"):
        await tenancy.create_key(spec("key_3", project_id="proj_9"), secret(3))


async def test_unknown_ids_are_key_errors(tenancy: Any) -> None:
    asked = [
        tenancy.rename_project("proj_9", "x"),
        tenancy.archive_project("proj_9", at=NOW),
        tenancy.project_limits("proj_9"),
        tenancy.set_limits("proj_9", LOW),
        tenancy.create_service_account("svc_1", "proj_9", "x", at=NOW),
        tenancy.rename_service_account("svc_9", "x"),
        tenancy.delete_service_account("svc_9", at=NOW),
    ]
    for each in asked:
        with pytest.raises(KeyError):
            await each


async def test_an_admin_key_is_no_api_key(tenancy: Any) -> None:
    with pytest.raises(InvalidKey, match="is an admin key"):
        await tenancy.authenticate(secret(1, admin=True))
    with pytest.raises(ValueError, match="make_key"):
        await made(tenancy)
        await tenancy.create_key(spec("key_2"), secret(2, admin=True))
