from __future__ import annotations

import pytest

from forebay.core.errors import InvalidKey
from forebay.gateway.auth import bearer


@pytest.mark.parametrize("value", [b"Bearer abc", b"bearer abc", b"BEARER  abc ", b" Bearer abc"])
def test_the_scheme_is_case_insensitive(value):
    assert bearer([(b"host", b"x"), (b"authorization", value)]) == "abc"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([], "did not provide an API key"),
        ([b"Bearer a", b"Bearer a"], "2 Authorization headers"),
        ([b"Basic abc"], "does not say 'Bearer'"),
        ([b"fbk_live_secret"], "does not say 'Bearer'"),
        ([b"Bearer"], "no API key after"),
        ([b"Bearer  "], "no API key after"),
        ([b"Bearer a b"], "is not an API key"),
        ([b"Bearer \xc3\xa9"], "is not an API key"),
        ([b"Bearer " + b"x" * 513], "is not an API key"),
    ],
)
def test_what_is_missing_or_malformed_is_said_without_repeating_it(headers, says):
    with pytest.raises(InvalidKey) as caught:
        bearer([(b"authorization", value) for value in headers])
    assert says in caught.value.message
    assert "fbk_live_secret" not in caught.value.message
    assert "Authorization" in caught.value.message


@pytest.mark.parametrize("name", [b"x-api-key", b"api-key"])
def test_a_key_in_another_services_header_is_not_read_but_its_owner_is_told_where_it_belongs(name):
    elsewhere = [(b"host", b"x"), (name, b"fbk_live_secret")]
    with pytest.raises(InvalidKey) as caught:
        bearer(elsewhere)
    assert f"in the header {name.decode()} is not read" in caught.value.message
    assert "Authorization: Bearer" in caught.value.message
    assert "secret" not in caught.value.message
    assert bearer([*elsewhere, (b"authorization", b"Bearer abc")]) == "abc"
