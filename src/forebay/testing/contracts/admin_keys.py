"""What every AdminKeys must do. Fixtures: `clock` (a FakeClock) and `admin_keys`, empty, made with
that clock, with the organisations org_1 ("one") and org_2 ("two") in its store.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.core.errors import InvalidKey, InvalidRequest
from forebay.tenancy import AdminKeyInfo, AdminKeys, redact
from forebay.testing.clock import FakeClock
from forebay.testing.contracts.tenancy import HOUR_SECONDS, NOW, secret

ONE = AdminKeyInfo("adm_1", "mine", "", "one", "org_1", NOW)
TWO = AdminKeyInfo("adm_2", "theirs", "", "two", "org_2", NOW + 1, expires_at=NOW + HOUR_SECONDS)


async def test_an_admin_key_says_which_organisation_it_administers(admin_keys: AdminKeys) -> None:
    one = await admin_keys.create(ONE, secret(1, admin=True))
    two = await admin_keys.create(TWO, secret(2, admin=True))
    assert one == replace(ONE, redacted=redact(secret(1, admin=True)))
    assert await admin_keys.authenticate(secret(1, admin=True)) == one
    assert await admin_keys.authenticate(secret(2, admin=True)) == two
    assert await admin_keys.keys() == [one, two]


async def test_keys_of_the_other_kind_unknown_and_mistyped_ones_are_refused(
    admin_keys: AdminKeys,
) -> None:
    await admin_keys.create(ONE, secret(1, admin=True))
    for presented in ("", "sk-123", secret(1), secret(2, admin=True), secret(1, admin=True) + "0"):
        with pytest.raises(InvalidKey) as refused:
            await admin_keys.authenticate(presented)
        assert not presented or presented not in refused.value.message


async def test_a_deleted_admin_key_is_refused_at_once(admin_keys: AdminKeys) -> None:
    info = await admin_keys.create(ONE, secret(1, admin=True))
    await admin_keys.authenticate(secret(1, admin=True))
    deleted = await admin_keys.delete("adm_1", at=NOW + 1)
    assert deleted == replace(info, deleted_at=NOW + 1)
    assert await admin_keys.delete("adm_1", at=NOW + 2) == deleted
    assert await admin_keys.keys() == []
    with pytest.raises(InvalidKey, match="unknown, expired or revoked"):
        await admin_keys.authenticate(secret(1, admin=True))
    with pytest.raises(KeyError):
        await admin_keys.delete("adm_9", at=NOW)


async def test_an_admin_key_expires(admin_keys: AdminKeys, clock: FakeClock) -> None:
    await admin_keys.create(TWO, secret(2, admin=True))
    clock.advance(HOUR_SECONDS - 1)
    await admin_keys.authenticate(secret(2, admin=True))
    clock.advance(1)
    with pytest.raises(InvalidKey):
        await admin_keys.authenticate(secret(2, admin=True))


async def test_an_admin_key_that_makes_no_sense_is_not_stored(admin_keys: AdminKeys) -> None:
    await admin_keys.create(ONE, secret(1, admin=True))
    with pytest.raises(ValueError, match="make_key"):
        await admin_keys.create(TWO, secret(2))
    with pytest.raises(ValueError, match="exists already"):
        await admin_keys.create(TWO, secret(1, admin=True))
    with pytest.raises(ValueError, match="exists already"):
        await admin_keys.create(ONE, secret(2, admin=True))
    with pytest.raises(InvalidRequest, match="name"):
        await admin_keys.create(replace(TWO, name=""), secret(2, admin=True))
    assert len(await admin_keys.keys()) == 1
