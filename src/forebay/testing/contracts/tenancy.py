"""What every Tenancy must do. Fixtures: `clock` (a FakeClock) and `tenancy`, empty, made with
that clock, CountingIds and `PLANS`.

Besides the contract's unnumbered invariants this is L14 for keys: what is read for organisation A
never belongs to B.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from forebay.core.errors import InvalidKey, InvalidRequest
from forebay.core.job import Lane
from forebay.core.principal import RateLimits
from forebay.tenancy import (
    KeyInfo,
    KeySpec,
    PlanSettings,
    ProjectInfo,
    Tenancy,
    make_key,
    plans_by_name,
    redact,
)
from forebay.tenancy.keys import ADMIN_KEY, API_KEY
from forebay.testing.clock import CountingIds, FakeClock

TRIAL = PlanSettings(
    name="trial",
    requests_per_minute=60,
    tokens_per_minute=10_000,
    batch_input_tokens_per_day=5_000,
    concurrent_calls=4,
    max_output_tokens=100,
    key_budget_usd=Decimal("2.50"),
)
TRIAL_LIMITS = RateLimits(60, 10_000, 5_000)
PLANS = plans_by_name([PlanSettings(name="premium", weight=4, lanes=tuple(Lane)), TRIAL])
NOW = 1_800_000_000.0
HOUR_SECONDS = 3600.0


def secret(number: int, *, admin: bool = False) -> str:
    """The number-th of a fixed series of well-formed API keys, or admin keys."""
    return make_key(CountingIds(seed=number), ADMIN_KEY if admin else API_KEY)


def spec(key_id: str = "key_1", **changes: Any) -> KeySpec:
    """A key of the project `default` of the organisation `default`."""
    made = KeySpec(
        id=key_id, name="first", organisation="default", project="default", created_at=NOW
    )
    return replace(made, **changes)


async def made(tenancy: Tenancy, number: int = 1, **changes: Any) -> KeyInfo:
    """Create the number-th key, and its organisation and project (on `standard`) if missing."""
    wanted = spec(f"key_{number}", **changes)
    await tenancy.ensure(wanted.organisation, wanted.project, plan="standard")
    return await tenancy.create_key(wanted, secret(number))


async def refusal_of(tenancy: Tenancy, presented: str) -> str:
    """The message with which this secret is refused."""
    with pytest.raises(InvalidKey) as refused:
        await tenancy.authenticate(presented)
    return refused.value.message


async def test_a_created_key_authenticates_at_once(tenancy: Tenancy) -> None:
    info = await made(tenancy)
    principal = await tenancy.authenticate(secret(1))
    assert principal.scopes == info.scopes
    assert principal.scopes.key_id == "key_1"
    assert principal.weight == 1
    assert principal.lanes == {Lane.INTERACTIVE, Lane.BATCH}
    assert principal.models is None
    assert principal.key_limits == RateLimits()
    assert principal.max_output_tokens is None


async def test_a_warm_key_still_authenticates_as_the_same_principal(tenancy: Tenancy) -> None:
    await made(tenancy)
    assert await tenancy.authenticate(secret(1)) == await tenancy.authenticate(secret(1))


async def test_a_principal_carries_the_restrictions_of_its_key(tenancy: Tenancy) -> None:
    await made(
        tenancy,
        models=frozenset({"small", "large"}),
        lanes=frozenset({Lane.BATCH}),
        requests_per_minute=60,
        max_output_tokens=128,
    )
    principal = await tenancy.authenticate(secret(1))
    assert principal.models == frozenset({"small", "large"})
    assert principal.lanes == {Lane.BATCH}
    assert principal.key_limits.requests_per_minute == 60
    assert principal.max_output_tokens == 128


async def test_a_plan_gives_its_weight_and_lanes_to_the_keys_of_its_organisation(
    tenancy: Tenancy,
) -> None:
    await tenancy.ensure("acme", "default", plan="premium")
    await tenancy.create_key(spec(organisation="acme"), secret(1))
    principal = await tenancy.authenticate(secret(1))
    assert principal.weight == 4
    assert principal.lanes == set(Lane)


async def test_every_key_that_is_not_live_gets_the_same_error(
    tenancy: Tenancy, clock: FakeClock
) -> None:
    """Unknown, expired and revoked differ in nothing but the redacted key; nor does malformed."""
    await made(tenancy, 1, expires_at=NOW + HOUR_SECONDS)
    await made(tenancy, 2)
    await tenancy.revoke_key("key_2", at=NOW)
    clock.advance(HOUR_SECONDS)
    broken = secret(4)[:-1] + ("0" if secret(4)[-1] != "0" else "1")
    presented = [secret(1), secret(2), secret(3), broken]
    messages = {(await refusal_of(tenancy, key)).replace(redact(key), "") for key in presented}
    assert len(messages) == 1
    assert "forebay keys create" in messages.pop()


@pytest.mark.parametrize(
    "garbage",
    ["", " ", "sk-proj-0123456789abcdef", "fbk_live_", "fbk_live_\n", "ключ", "\ud800", "x" * 9000],
)
async def test_garbage_is_refused_and_not_repeated(tenancy: Tenancy, garbage: str) -> None:
    message = await refusal_of(tenancy, garbage)
    assert not garbage.strip() or garbage not in message
    assert message.isprintable()


async def test_a_refusal_never_contains_the_secret(tenancy: Tenancy) -> None:
    message = await refusal_of(tenancy, secret(1))
    assert secret(1) not in message
    assert redact(secret(1)) in message


async def test_an_unknown_key_works_once_it_is_created(tenancy: Tenancy) -> None:
    await refusal_of(tenancy, secret(1))
    await refusal_of(tenancy, secret(1))
    await made(tenancy)
    assert (await tenancy.authenticate(secret(1))).scopes.key_id == "key_1"


async def test_a_key_expires_to_the_second(tenancy: Tenancy, clock: FakeClock) -> None:
    await made(tenancy, expires_at=NOW + HOUR_SECONDS)
    clock.advance(HOUR_SECONDS - 0.5)
    await tenancy.authenticate(secret(1))
    clock.advance(0.5)
    await refusal_of(tenancy, secret(1))


async def test_expiry_follows_a_wall_clock_that_jumps(tenancy: Tenancy, clock: FakeClock) -> None:
    await made(tenancy, expires_at=NOW + HOUR_SECONDS)
    clock.jump_wall(2 * HOUR_SECONDS)
    await refusal_of(tenancy, secret(1))
    clock.jump_wall(-2 * HOUR_SECONDS)
    await tenancy.authenticate(secret(1))


async def test_a_revoked_key_is_refused_at_once_also_when_it_was_warm(tenancy: Tenancy) -> None:
    await made(tenancy)
    await tenancy.authenticate(secret(1))
    info = await tenancy.revoke_key("key_1", at=NOW + 5)
    assert info.revoked_at == NOW + 5
    await refusal_of(tenancy, secret(1))
    await refusal_of(tenancy, secret(1))


async def test_revoking_one_key_leaves_the_others_alone(tenancy: Tenancy) -> None:
    await made(tenancy, 1)
    await made(tenancy, 2)
    await tenancy.authenticate(secret(2))
    await tenancy.revoke_key("key_1", at=NOW)
    assert (await tenancy.authenticate(secret(2))).scopes.key_id == "key_2"


async def test_revoking_twice_keeps_the_first_time(tenancy: Tenancy) -> None:
    await made(tenancy)
    first = await tenancy.revoke_key("key_1", at=NOW + 1)
    assert await tenancy.revoke_key("key_1", at=NOW + 2) == first


async def test_revoking_an_unknown_key_is_a_key_error(tenancy: Tenancy) -> None:
    with pytest.raises(KeyError):
        await tenancy.revoke_key("key_9", at=NOW)


async def test_ensure_answers_the_same_ids_every_time(tenancy: Tenancy) -> None:
    first = await tenancy.ensure("acme", "web", plan="standard")
    assert first.key_id == ""
    assert await tenancy.ensure("acme", "web", plan="standard") == first
    other = await tenancy.ensure("acme", "mobile", plan="standard")
    assert other.organisation_id == first.organisation_id
    assert other.project_id != first.project_id


async def test_ensure_leaves_the_plan_of_an_organisation_that_exists(tenancy: Tenancy) -> None:
    await tenancy.ensure("acme", "web", plan="premium")
    await tenancy.ensure("acme", "mobile", plan="standard")
    await tenancy.create_key(spec(organisation="acme", project="mobile"), secret(1))
    assert (await tenancy.authenticate(secret(1))).weight == 4


async def test_ensure_refuses_a_plan_that_is_not_configured(tenancy: Tenancy) -> None:
    with pytest.raises(InvalidRequest, match="premium, standard, trial") as refused:
        await tenancy.ensure("acme", "web", plan="gold")
    assert refused.value.param == "plan"
    assert await tenancy.organisations() == []


@pytest.mark.parametrize("name", ["", " ", " acme", "a\nb", "a\x1b[31m", "x" * 101])
async def test_names_that_would_hurt_a_terminal_are_refused(tenancy: Tenancy, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await tenancy.ensure(name, "web", plan="standard")
    with pytest.raises(InvalidRequest):
        await tenancy.ensure("acme", name, plan="standard")
    if name:
        with pytest.raises(InvalidRequest):
            await made(tenancy, name=name)


async def test_a_key_needs_no_name(tenancy: Tenancy) -> None:
    assert (await made(tenancy, name="")).name == ""


async def test_l14_projects_of_one_name_belong_to_their_own_organisations(
    tenancy: Tenancy,
) -> None:
    """L14: the same project name in two organisations is two projects, and keys stay apart."""
    a = await made(tenancy, 1, organisation="a")
    b = await made(tenancy, 2, organisation="b")
    assert a.project == b.project
    assert a.scopes.project_id != b.scopes.project_id
    assert (await tenancy.authenticate(secret(1))).scopes == a.scopes
    assert (await tenancy.authenticate(secret(2))).scopes == b.scopes
    assert a.scopes.organisation_id != b.scopes.organisation_id


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"organisation": "nobody"}, "project"),
        ({"project": "nothing"}, "project"),
        ({"expires_at": NOW}, "expires_at"),
        ({"models": frozenset()}, "models"),
        ({"models": frozenset({""})}, "models"),
        ({"lanes": frozenset()}, "lanes"),
        ({"lanes": frozenset({Lane.PREMIUM})}, "lanes"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": -5}, "tokens_per_minute"),
        ({"batch_input_tokens_per_day": 2**31}, "batch_input_tokens_per_day"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
    ],
)
async def test_a_key_that_could_never_work_is_not_created(
    tenancy: Tenancy, changes: dict[str, Any], param: str
) -> None:
    await tenancy.ensure("default", "default", plan="standard")
    with pytest.raises(InvalidRequest) as refused:
        await tenancy.create_key(spec(**changes), secret(1))
    assert refused.value.param == param
    assert await tenancy.keys() == []
    await refusal_of(tenancy, secret(1))


async def test_a_secret_that_is_no_key_is_not_stored(tenancy: Tenancy) -> None:
    await tenancy.ensure("default", "default", plan="standard")
    with pytest.raises(ValueError, match="make_key"):
        await tenancy.create_key(spec(), "password")
    assert await tenancy.keys() == []


async def test_an_id_or_a_secret_is_used_once(tenancy: Tenancy) -> None:
    first = await made(tenancy)
    for again in (spec("key_1"), spec("key_2")):
        with pytest.raises(ValueError, match="exists already"):
            await tenancy.create_key(again, secret(1 if again.id == "key_2" else 2))
    assert await tenancy.keys() == [first]
    await refusal_of(tenancy, secret(2))


async def test_keys_are_listed_oldest_first_with_all_they_were_made_with(tenancy: Tenancy) -> None:
    full = await made(
        tenancy,
        1,
        name="für Zoë",
        expires_at=NOW + 0.25,
        models=frozenset({"b", "a"}),
        lanes=frozenset({Lane.INTERACTIVE}),
        requests_per_minute=1,
        max_output_tokens=2,
    )
    plain = await made(tenancy, 2, created_at=NOW - 10)
    assert await tenancy.keys() == [full, plain]
    assert full.redacted == redact(secret(1))
    assert (full.name, full.expires_at, full.revoked_at) == ("für Zoë", NOW + 0.25, None)
    assert (full.models, full.lanes) == (
        frozenset({"a", "b"}),
        frozenset({Lane.INTERACTIVE}),
    )
    assert (plain.models, plain.lanes, plain.limits) == (None, None, RateLimits())
    assert plain.created_at == NOW - 10
    assert secret(1) not in repr(full)


async def test_organisations_are_listed_oldest_first(tenancy: Tenancy) -> None:
    for name in ("zebra", "ant", "zebra"):
        await tenancy.ensure(name, "default", plan="standard")
    assert await tenancy.organisations() == ["zebra", "ant"]


async def test_l14_projects_are_listed_oldest_first_with_the_ids_of_their_own_organisations(
    tenancy: Tenancy,
) -> None:
    """L14: two projects of one name are listed apart, each under its organisation."""
    assert await tenancy.projects() == []
    expected = []
    for organisation, project in (("b", "web"), ("a", "web"), ("b", "mobile"), ("b", "web")):
        scopes = await tenancy.ensure(organisation, project, plan="standard")
        expected.append(ProjectInfo(organisation, project, scopes, NOW, "standard"))
    assert await tenancy.projects() == expected[:3]


async def test_a_key_made_while_it_is_being_tried_works_afterwards(tenancy: Tenancy) -> None:
    """A look-up that began before the creation must not be remembered after it."""
    await tenancy.ensure("default", "default", plan="standard")
    tries = [asyncio.ensure_future(tenancy.authenticate(secret(1))) for _ in range(20)]
    created = asyncio.ensure_future(tenancy.create_key(spec(), secret(1)))
    more = [asyncio.ensure_future(tenancy.authenticate(secret(1))) for _ in range(20)]
    await asyncio.gather(*tries, created, *more, return_exceptions=True)
    assert (await tenancy.authenticate(secret(1))).scopes.key_id == "key_1"


async def test_a_key_revoked_while_it_is_being_tried_is_refused_afterwards(
    tenancy: Tenancy,
) -> None:
    await made(tenancy)
    tries = [asyncio.ensure_future(tenancy.authenticate(secret(1))) for _ in range(20)]
    revoked = asyncio.ensure_future(tenancy.revoke_key("key_1", at=NOW))
    more = [asyncio.ensure_future(tenancy.authenticate(secret(1))) for _ in range(20)]
    await asyncio.gather(*tries, revoked, *more, return_exceptions=True)
    await refusal_of(tenancy, secret(1))


async def test_many_callers_at_once_each_get_their_own_answer(tenancy: Tenancy) -> None:
    infos = {number: await made(tenancy, number) for number in range(1, 6)}
    numbers = [*range(1, 40)] * 2
    answers = await asyncio.gather(
        *(tenancy.authenticate(secret(number)) for number in numbers), return_exceptions=True
    )
    for number, answer in zip(numbers, answers, strict=True):
        if number in infos:
            assert not isinstance(answer, BaseException)
            assert answer.scopes == infos[number].scopes
        else:
            assert isinstance(answer, InvalidKey)
