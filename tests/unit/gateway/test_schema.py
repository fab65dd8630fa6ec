from __future__ import annotations

import msgspec

from forebay.core.job import Lane
from forebay.core.usage import Usage
from forebay.gateway.schema import LANES, TIERS, settled_usage


def test_rule_54_every_number_of_usage_is_an_integer():
    usage = msgspec.to_builtins(settled_usage(Usage(10, 4, 3)))
    details = [usage.pop("prompt_tokens_details"), usage.pop("completion_tokens_details")]
    assert usage == {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    assert details[0] == {"cached_tokens": 3, "audio_tokens": 0, "cache_write_tokens": 0}
    assert all(type(value) is int for part in details for value in part.values())


def test_every_lane_has_a_tier_that_asks_for_it():
    assert set(TIERS) == set(Lane)
    assert all(LANES[tier] is lane for lane, tier in TIERS.items())
