from __future__ import annotations

from typing import Any

import pytest

from forebay.core.errors import InvalidRequest
from forebay.gateway.expires_after import MAX_TTL_SECONDS, MIN_TTL_SECONDS, ttl_seconds


@pytest.mark.parametrize("seconds", [MIN_TTL_SECONDS, 4545, MAX_TTL_SECONDS])
def test_so_long_is_it_kept(seconds: int) -> None:
    assert ttl_seconds({"anchor": "created_at", "seconds": seconds, "more": 1}, "x") == seconds


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        (60, "expires_after", "invalid_type"),
        ([], "expires_after", "invalid_type"),
        ({}, "expires_after.anchor", "missing_required_parameter"),
        ({"seconds": 3600}, "expires_after.anchor", "missing_required_parameter"),
        ({"anchor": "last_used_at", "seconds": 3600}, "expires_after.anchor", "invalid_value"),
        ({"anchor": 1, "seconds": 3600}, "expires_after.anchor", "invalid_type"),
        ({"anchor": "created_at"}, "expires_after.seconds", "missing_required_parameter"),
        ({"anchor": "created_at", "seconds": "1h"}, "expires_after.seconds", "invalid_type"),
        ({"anchor": "created_at", "seconds": True}, "expires_after.seconds", "invalid_type"),
        ({"anchor": "created_at", "seconds": 3600.0}, "expires_after.seconds", "invalid_type"),
        ({"anchor": "created_at", "seconds": 3599}, "expires_after.seconds", "integer_below_min_value"),
        ({"anchor": "created_at", "seconds": 2592001}, "expires_after.seconds", "integer_above_max_value"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_its_place(value: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ttl_seconds(value, "expires_after")
    assert (refused.value.param, refused.value.code) == (param, code)
