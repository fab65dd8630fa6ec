"""API keys as text, and the pepper's file."""

from __future__ import annotations

import hashlib
import hmac
import string
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.system import SystemIds
from forebay.tenancy.keys import (
    ADMIN_KEY,
    API_KEY,
    KEY_CHARACTERS,
    PEPPER_BYTES,
    PepperRefused,
    check,
    derive,
    digest,
    make_key,
    open_pepper,
    redact,
    refusal,
)
from forebay.testing.clock import CountingIds

BASE62 = set(string.digits + string.ascii_letters)
PEPPER = bytes(range(32))
KEY = make_key(CountingIds())


class FixedIds(CountingIds):
    """Random bytes that are all the same: the extremes of what a source can answer."""

    def __init__(self, byte: int) -> None:
        super().__init__()
        self._byte = byte

    def random_bytes(self, count: int) -> bytes:
        return bytes([self._byte]) * count


def test_a_key_is_a_prefix_32_characters_and_a_checksum() -> None:
    assert len(KEY) == KEY_CHARACTERS == 47
    assert KEY.startswith("fbk_live_")
    assert set(KEY.removeprefix("fbk_live_")) <= BASE62
    assert check(KEY)


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_the_extremes_of_randomness_still_make_a_key(byte: int) -> None:
    assert check(make_key(FixedIds(byte)))


def test_every_character_is_equally_likely() -> None:
    """Goal: no bias over the alphabet. Method: chi-square over 62,000 characters, 61 degrees.

    A fair source stays under 150 with a probability of 1 - 2e-9; the classic `byte % 62` scores
    about 470.
    """
    secrets = [make_key(CountingIds(seed=seed))[9:40] for seed in range(2000)]
    seen = Counter("".join(secrets))
    assert set(seen) == BASE62
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 150
    assert {secret[0] for secret in secrets} == {secret[-1] for secret in secrets} == BASE62


def test_keys_of_the_real_source_differ() -> None:
    keys = {make_key(SystemIds()) for _ in range(100)}
    assert len(keys) == 100
    assert all(check(key) for key in keys)


@given(position=st.integers(0, KEY_CHARACTERS - 1), character=st.characters())
def test_one_wrong_character_is_noticed(position: int, character: str) -> None:
    changed = KEY[:position] + character + KEY[position + 1 :]
    assert check(changed) == (changed == KEY)


@given(position=st.integers(9, KEY_CHARACTERS - 2))
def test_two_swapped_characters_are_noticed(position: int) -> None:
    a, b = KEY[position], KEY[position + 1]
    swapped = KEY[:position] + b + a + KEY[position + 2 :]
    assert check(swapped) == (a == b)


@given(st.text(max_size=80))
def test_garbage_is_no_key(text: str) -> None:
    assert not check(text)


@pytest.mark.parametrize(
    "text", [KEY + "\n", " " + KEY, KEY[:-1], KEY + "0", KEY.upper(), KEY.replace("live", "test")]
)
def test_almost_a_key_is_no_key(text: str) -> None:
    assert not check(text)


def test_redacted_keys_show_six_characters() -> None:
    assert redact(KEY) == f"fbk_live_{KEY[9:11]}…{KEY[-4:]}"


@settings(max_examples=50)
@given(st.text(max_size=100))
def test_nothing_is_shown_of_what_is_not_ours(text: str) -> None:
    assert redact(text) == ("(none)" if text == "" else "(not a Forebay key)")


def test_little_is_shown_of_a_mistyped_key() -> None:
    assert redact(KEY + "x") == f"fbk_live_{KEY[9:11]}…{(KEY + 'x')[-4:]}"
    assert redact("fbk_live_short") == "(not a Forebay key)"


def test_a_refusal_names_the_redacted_key_and_what_to_do() -> None:
    message = refusal(KEY).message
    assert KEY not in message
    assert redact(KEY) in message
    assert "forebay keys create" in message


def test_admin_keys_are_keys_of_another_kind() -> None:
    admin = make_key(CountingIds(), ADMIN_KEY)
    assert admin.startswith("fba_live_")
    assert len(admin) == KEY_CHARACTERS
    assert (check(admin, ADMIN_KEY), check(admin)) == (True, False)
    assert (check(KEY, ADMIN_KEY), check(KEY)) == (False, True)
    assert derive(PEPPER, ADMIN_KEY.purpose) != derive(PEPPER, API_KEY.purpose)
    assert redact(admin) == f"fba_live_{admin[9:11]}…{admin[-4:]}"


def test_a_key_of_the_other_kind_is_told_where_it_belongs() -> None:
    admin = make_key(CountingIds(), ADMIN_KEY)
    assert "is an admin key, which is for the admin listener" in refusal(admin).message
    assert "is an API key, which is for the API only" in refusal(KEY, ADMIN_KEY).message
    assert "forebay keys create-admin" in refusal(admin, ADMIN_KEY).message
    assert admin not in refusal(admin).message


def test_a_digest_is_an_hmac_under_a_key_of_its_own_purpose() -> None:
    expand = hmac.new(PEPPER, b"forebay:api-key-digest\x01", hashlib.sha256).digest()
    assert (
        digest(KEY, derive(PEPPER, API_KEY.purpose))
        == hmac.new(expand, KEY.encode(), hashlib.sha256).digest()
    )


def test_digests_differ_by_key_and_by_pepper() -> None:
    digests = {
        digest(KEY, PEPPER),
        digest(KEY, bytes(32)),
        digest(make_key(CountingIds(1)), PEPPER),
    }
    assert len(digests) == 3
    assert {len(value) for value in digests} == {32}


def test_each_purpose_has_its_own_key_and_none_is_the_pepper() -> None:
    derived = {derive(PEPPER, purpose) for purpose in ("api-key-digest", "cache-salt", "cursor")}
    assert len(derived) == 3
    assert PEPPER not in derived


def test_a_short_pepper_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 3"):
        derive(b"abc", API_KEY.purpose)


def test_a_pepper_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    pepper = open_pepper(path, CountingIds(1))
    assert len(pepper) == PEPPER_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert open_pepper(path, CountingIds(2)) == pepper
    assert [file.name for file in tmp_path.iterdir()] == ["pepper"]


def test_a_pepper_left_half_written_by_a_crash_is_no_pepper(tmp_path: Path) -> None:
    (tmp_path / "pepper.new").write_bytes(b"half")
    assert open_pepper(tmp_path / "pepper", CountingIds(1)) == CountingIds(1).random_bytes(32)
    assert not (tmp_path / "pepper.new").exists()


def test_a_pepper_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    open_pepper(path, CountingIds())
    path.chmod(0o644)
    with pytest.raises(PepperRefused, match="chmod 600"):
        open_pepper(path, CountingIds())


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_pepper_is_refused_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pepper"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(PepperRefused, match="backup"):
        open_pepper(path, CountingIds())
    assert path.read_bytes() == content


def test_a_pepper_that_is_a_folder_or_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PepperRefused, match="No such file"):
        open_pepper(tmp_path / "missing" / "pepper", CountingIds())
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises(PepperRefused, match="damaged"):
        open_pepper(tmp_path / "folder", CountingIds())
