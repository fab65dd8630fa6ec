"""What a worker does next: a table of cases in tests/golden/schedule, and properties."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.job import Lane
from forebay.scheduler import (
    Decision,
    Policy,
    Preempt,
    Running,
    Snapshot,
    Take,
    Wait,
    Waiting,
    decide,
)

CASES = sorted((Path(__file__).parents[2] / "golden" / "schedule").glob("*.toml"))


def _running(table: dict[str, Any]) -> Running:
    plain = {"output_tokens": 5, "resumable": True, "published": True, "protected": False}
    return Running(**(plain | table | {"lane": Lane(table["lane"])}))


def _decision(table: dict[str, Any]) -> Decision:
    if "preempt" in table:
        return Preempt(table["preempt"])
    if "take_slots" in table:
        slots = table["take_slots"]
        batch_slots = table.get("take_batch_slots", slots)
        return Take(slots, table["take_kv_tokens"], frozenset(Lane), batch_slots)
    assert table == {"wait": True}
    return Wait()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_case_decides_as_its_file_says(path: Path) -> None:
    case = tomllib.loads(path.read_text())
    assert case["why"].endswith(".")
    snapshot = Snapshot(
        {Lane(lane): Waiting(**table) for lane, table in case.get("waiting", {}).items()},
        tuple(map(_running, case.get("running", []))),
        case["free_slots"],
        case["free_kv_tokens"],
        case.get("quiet_seconds", 0.0),
    )
    policy = Policy(**case.get("policy", {}))
    if "victims" in case:
        policy = replace(policy, victims=frozenset(map(Lane, case["victims"])))
    assert decide(snapshot, policy) == list(map(_decision, case["decisions"]))


def test_there_are_at_least_twelve_cases() -> None:
    assert len(CASES) >= 12


lanes = st.sampled_from(Lane)
runs = st.builds(
    Running,
    job_id=st.uuids().map(str),
    lane=lanes,
    order=st.integers(0, 1000),
    output_tokens=st.integers(0, 9),
    resumable=st.booleans(),
    published=st.booleans(),
    protected=st.booleans(),
    kv_tokens=st.integers(1, 200),
    leaving=st.booleans(),
    slots=st.integers(1, 3),
    begun=st.booleans(),
)
snapshots = st.builds(
    Snapshot,
    waiting=st.dictionaries(
        lanes, st.builds(Waiting, st.integers(0, 5), st.integers(1, 300), st.integers(1, 3))
    ),
    running=st.lists(
        runs, max_size=8, unique_by=(lambda run: run.job_id, lambda run: run.order)
    ).map(tuple),
    free_slots=st.integers(0, 4),
    free_kv_tokens=st.integers(0, 500),
    quiet_seconds=st.sampled_from((0.0, 10.0)),
)
policies = st.builds(
    Policy,
    st.frozensets(lanes),
    st.integers(0, 100),
    st.sampled_from((5.0, 20.0)),
    st.none() | st.integers(1, 3),
)


def victims(decisions: list[Decision]) -> list[str]:
    return [each.job_id for each in decisions if isinstance(each, Preempt)]


@given(snapshots, policies)
def test_free_room_is_always_offered_to_every_lane(snapshot: Snapshot, policy: Policy) -> None:
    """Work conservation (Q9): as long as there is a slot and memory, the queue is asked."""
    takes = [each for each in decide(snapshot, policy) if isinstance(each, Take)]
    room = snapshot.free_slots > 0 and snapshot.free_kv_tokens > 0
    expected = Take(snapshot.free_slots, snapshot.free_kv_tokens, frozenset(Lane), 0)
    assert [replace(each, batch_slots=0) for each in takes] == ([expected] if room else [])


@given(snapshots, policies)
def test_q9_batch_jobs_leave_the_reserve_but_an_empty_engine_takes_one(
    snapshot: Snapshot, policy: Policy
) -> None:
    all_slots = snapshot.free_slots + sum(run.slots for run in snapshot.running)
    for take in (each for each in decide(snapshot, policy) if isinstance(each, Take)):
        assert 0 <= take.batch_slots <= take.slots
        left = snapshot.free_slots - take.batch_slots
        quiet = snapshot.quiet_seconds > policy.batch_reserve_seconds
        reserved = 0 if quiet else all_slots * policy.batch_reserve_percent // 100
        assert not take.batch_slots or left >= min(reserved, all_slots - 1)
        assert snapshot.running or take.batch_slots > 0


@given(snapshots, policies)
def test_q9_no_more_batch_jobs_begin_at_once_than_the_policy_says(
    snapshot: Snapshot, policy: Policy
) -> None:
    new = [run for run in snapshot.running if not run.begun and not run.leaving]
    beginning = sum(run.slots for run in new if run.lane is Lane.BATCH)
    for take in (each for each in decide(snapshot, policy) if isinstance(each, Take)):
        starts = policy.batch_starts
        if starts is None:
            reserve_alone = decide(snapshot, replace(policy, batch_starts=10**6))
            assert take in reserve_alone
        else:
            assert not take.batch_slots or beginning + take.batch_slots <= starts


@given(snapshots, policies)
def test_q7_there_are_no_more_victims_than_waiting_jobs_of_higher_lanes_that_do_not_fit(
    snapshot: Snapshot, policy: Policy
) -> None:
    by_id = {run.job_id: run for run in snapshot.running}
    preempted = [by_id[job_id] for job_id in victims(decide(snapshot, policy))]
    slots, kv_tokens, unfit = snapshot.free_slots, snapshot.free_kv_tokens, 0
    lowest = max((run.lane.rank for run in preempted), default=0)
    for lane in sorted(snapshot.waiting, key=lambda lane: lane.rank):
        for _ in range(snapshot.waiting[lane].jobs):
            waiting = snapshot.waiting[lane]
            fits = slots >= waiting.next_slots and kv_tokens >= waiting.next_kv_tokens
            slots, kv_tokens = slots - waiting.next_slots, kv_tokens - waiting.next_kv_tokens
            unfit += not fits and lane.rank < lowest
    assert len(preempted) <= unfit


@given(snapshots, policies)
def test_q7_e8_only_lanes_below_a_waiting_one_lose_jobs_and_never_protected_or_lost_ones(
    snapshot: Snapshot, policy: Policy
) -> None:
    by_id = {run.job_id: run for run in snapshot.running}
    highest = min(
        (lane.rank for lane, waiting in snapshot.waiting.items() if waiting.jobs), default=9
    )
    ids = victims(decide(snapshot, policy))
    assert len(set(ids)) == len(ids)
    for victim in map(by_id.__getitem__, ids):
        assert victim.lane in policy.victims
        assert victim.lane.rank > highest
        assert not victim.protected
        assert not victim.leaving
        assert victim.resumable or not victim.published


@given(snapshots)
def test_q7_within_a_lane_the_newest_resumable_job_goes_first(snapshot: Snapshot) -> None:
    by_id = {run.job_id: run for run in snapshot.running}
    chosen = [by_id[job_id] for job_id in victims(decide(snapshot, Policy()))]
    precedence = [(run.resumable, run.order) for run in chosen]
    assert precedence == sorted(precedence, reverse=True)
    spared = [
        run
        for run in snapshot.running
        if run.lane is Lane.BATCH and run not in chosen and not run.protected and not run.leaving
    ]
    for run in spared:
        if chosen and (run.resumable or not run.published):
            assert (run.resumable, run.order) < min(precedence)


@given(snapshots, policies)
def test_waiting_is_the_only_decision_when_there_is_no_other(
    snapshot: Snapshot, policy: Policy
) -> None:
    decisions = decide(snapshot, policy)
    assert decisions
    assert (Wait() in decisions) == (decisions == [Wait()])
