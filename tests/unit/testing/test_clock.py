"""The clock and the ids that tests use."""

from __future__ import annotations

import pytest

from forebay.testing.clock import CountingIds, FakeClock


def test_time_passes_on_both_clocks_and_only_when_told() -> None:
    clock = FakeClock(monotonic=5.0, now=100.0)
    assert (clock.monotonic(), clock.now()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.now()) == (7.5, 102.5)


def test_l10_a_jump_of_the_wall_clock_leaves_the_monotonic_clock_alone() -> None:
    clock = FakeClock()
    clock.jump_wall(-3600)
    assert (clock.monotonic(), clock.now()) == (0.0, 1_800_000_000.0 - 3600)


def test_time_cannot_pass_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)


def test_ids_count_sort_by_creation_and_have_the_length_of_real_ones() -> None:
    ids = CountingIds()
    made = [ids.new("req") for _ in range(20)]
    assert made[0] == "req_" + "1".rjust(32, "0")
    assert made == sorted(set(made))
    assert ids.new("key").endswith(f"{21:x}")


def test_bytes_are_the_same_for_the_same_seed_and_differ_otherwise() -> None:
    draws = [CountingIds(seed).random_bytes(50) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    ids = CountingIds()
    assert len(ids.random_bytes(3)) == 3
    assert ids.random_bytes(16) != ids.random_bytes(16)
