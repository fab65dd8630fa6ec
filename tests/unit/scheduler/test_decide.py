"""What a worker does next: a table of cases in tests/golden/schedule, and properties."""

from __future__ import annotations

import tomllib
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
        return Take(table["take_slots"], table["take_kv_tokens"], frozenset(Lane))
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
    )
    policy = Policy()
    if "victims" in case:
        policy = Policy(frozenset(map(Lane, case["victims"])))
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
)
policies = st.builds(Policy, st.frozensets(lanes))


def victims(decisions: list[Decision]) -> list[str]:
    return [each.job_id for each in decisions if isinstance(each, Preempt)]


@given(snapshots, policies)
def test_free_room_is_always_offered_to_every_lane(snapshot: Snapshot, policy: Policy) -> None:
    """Work conservation (Q9): as long as there is a slot and memory, the queue is asked."""
    takes = [each for each in decide(snapshot, policy) if isinstance(each, Take)]
    room = snapshot.free_slots > 0 and snapshot.free_kv_tokens > 0
    expected = Take(snapshot.free_slots, snapshot.free_kv_tokens, frozenset(Lane))
    assert takes == ([expected] if room else [])


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
