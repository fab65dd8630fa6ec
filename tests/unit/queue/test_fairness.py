"""The arithmetic of Q7 and Q8, with no queue around it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.job import Flow, Job, Lane, Resume, Sampling, Served
from forebay.queue.fairness import (
    COUNTER_SCALE,
    Charge,
    FlowCounters,
    LaneShares,
    QueueSettings,
    cost_ahead,
    served_cost,
)

SETTINGS = QueueSettings()
W_IN, W_OUT = SETTINGS.w_in, SETTINGS.w_out


def a_flow(name: str, *, organisation: str = "", lane: Lane = Lane.INTERACTIVE) -> Flow:
    return Flow(lane, organisation or f"org_{name}", f"proj_{name}")


def a_job(flow: Flow, *, ceiling: int = 100, choices: int = 1, done: int = 0) -> Job:
    return Job(
        "job", 1, "gw", "pool", "m", flow, 1, (1,) * 10, ceiling, Sampling(), True, True,
        choices=choices, resume=Resume(((7,) * done,) if done else ()),
    )  # fmt: skip


def a_charge(flow: Flow, *, parts: int = 1, weight: int = 1, second: int = 0) -> Charge:
    return Charge(flow, 10, 0, parts, weight, tuple(Lane), second)


def counters_with(*flows: Flow, idle_flows: int = 100) -> FlowCounters:
    counters = FlowCounters(idle_flows=idle_flows)
    for flow in flows:
        counters.begin(flow)
        counters.wait(flow)
    return counters


def serve(counters: FlowCounters, flow: Flow, cost: int) -> Charge:
    """Lease one job of the flow, which goes on waiting."""
    counters.served(flow)
    charge = a_charge(flow)
    counters.settle(charge, cost)
    return charge


A, B, C = a_flow("a"), a_flow("b"), a_flow("c")


# -- the bound of Q8 ----------------------------------------------------------------------------------


@dataclass
class Run:
    """A leased job of the little pool below."""

    flow: Flow
    charge: Charge
    output: int
    generated: int = 0


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    slots=st.integers(1, 6),
    jobs=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=20),
)
def test_q8_two_flows_that_always_wait_differ_by_no_more_than_the_bound(
    weights: list[int], slots: int, jobs: list[tuple[int, int]]
) -> None:
    """2·max(w_in·P_max, w_out·K)/min(weight) over any interval; E = 0; K = tokens in flight."""
    flows = [a_flow(str(n)) for n in range(len(weights))]
    weight_of = dict(zip(flows, weights, strict=True))
    counters = counters_with(*flows)
    p_max = max(prompt for prompt, _ in jobs)
    k = slots * (p_max + max(output for _, output in jobs))
    bound = 2 * max(W_IN * p_max, W_OUT * k) * COUNTER_SCALE // min(weights)
    running: list[Run] = []
    extremes = {(f, g): [0, 0] for f in flows for g in flows if f != g}
    job = 0
    for _ in range(250):
        while len(running) < slots:
            flow = counters.choose(lambda flow: (0, flows.index(flow)))
            prompt, output = jobs[job % len(jobs)]
            job += 1
            charge = Charge(flow, prompt, 0, 1, weight_of[flow], (), 0)
            counters.served(flow)
            counters.settle(charge, SETTINGS.input_cost(prompt))
            running.append(Run(flow, charge, output))
        for run in running:
            run.generated += 1
            prefill = SETTINGS.input_cost(run.charge.input_tokens)
            counters.settle(run.charge, prefill + SETTINGS.output_cost(run.generated))
        running = [run for run in running if run.generated < run.output]
        for (f, g), (low, high) in extremes.items():
            apart = counters.counter(f) - counters.counter(g)
            extremes[f, g] = [min(low, apart), max(high, apart)]
    # Each lease rounds its part of a counter down, by less than one unit.
    assert all(high - low <= bound + 2 * job for low, high in extremes.values())


@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_q8_long_run_service_is_proportional_to_the_weights(weights: list[int]) -> None:
    flows = [a_flow(str(n)) for n in range(len(weights))]
    counters = counters_with(*flows)
    served: Counter[Flow] = Counter()
    for _ in range(40 * sum(weights)):
        flow = counters.choose(lambda flow: (0, flows.index(flow)))
        counters.served(flow)
        weight = weights[flows.index(flow)]
        counters.settle(a_charge(flow, weight=weight), 1000)
        served[flow] += 1
    for flow, weight in zip(flows, weights, strict=True):
        assert abs(served[flow] - 40 * weight) <= len(weights)


@given(st.data())
def test_q8_somebody_is_chosen_whenever_somebody_waits(data: st.DataObject) -> None:
    """Work conservation: whatever happened before, `choose` answers a flow that waits."""
    flows = [a_flow(str(n), organisation=f"org_{n % 2}") for n in range(5)]
    counters, waiting = FlowCounters(idle_flows=2), set[Flow]()
    for _ in range(30):
        flow = data.draw(st.sampled_from(flows))
        if flow not in waiting:
            counters.begin(flow)
            counters.wait(flow)
            waiting.add(flow)
        elif data.draw(st.booleans()):
            charge = serve(counters, flow, data.draw(st.integers(0, 500)))
            counters.settle(charge, data.draw(st.integers(0, 500)))
        else:
            counters.unwait(flow)
            counters.end(flow)
            waiting.remove(flow)
        if waiting:
            chosen = counters.choose(lambda flow: (0, flows.index(flow)))
            assert chosen in waiting
            assert counters.counter(chosen) == min(map(counters.counter, waiting))


# -- lift, virtual time, ties -------------------------------------------------------------------------


def test_q8_a_newcomer_is_lifted_to_the_smallest_counter_that_waits() -> None:
    counters = counters_with(A, B)
    serve(counters, A, 500)
    serve(counters, B, 300)
    counters.begin(C)
    counters.wait(C)
    assert counters.counter(C) == 300 * COUNTER_SCALE


def test_q8_when_nobody_waits_a_newcomer_is_lifted_to_the_flow_served_last() -> None:
    counters = counters_with(A)
    serve(counters, A, 500)
    counters.unwait(A)
    counters.begin(B)
    counters.wait(B)
    assert counters.counter(B) == 500 * COUNTER_SCALE


def test_q8_a_flow_ahead_of_virtual_time_is_not_pulled_back() -> None:
    counters = counters_with(A, B)
    serve(counters, A, 500)
    counters.unwait(A)
    counters.wait(A)
    assert counters.counter(A) == 500 * COUNTER_SCALE


def test_q8_who_comes_is_lifted_to_where_the_others_are_not_to_where_they_were_thought_to_be() -> (
    None
):
    """A was charged far too much, and refunded, while it waited: B is not behind it for that."""
    counters = counters_with(A)
    charge = serve(counters, A, 500)
    assert counters.virtual_time == 0
    counters.unwait(A)
    counters.wait(A)
    assert counters.virtual_time == 500 * COUNTER_SCALE
    counters.settle(charge, 10)
    counters.begin(B)
    counters.wait(B)
    assert counters.counter(B) == counters.counter(A) == 10 * COUNTER_SCALE


def test_q8_equal_counters_go_to_the_flow_leased_least_recently_then_to_the_first_arrival() -> None:
    counters = counters_with(A, B, C)
    arrivals = {A: (1, 3), B: (1, 2), C: (1, 1)}
    served = []
    for _ in range(5):
        flow = counters.choose(arrivals.__getitem__)
        serve(counters, flow, 0)
        served.append(flow)
    assert served == [C, B, A, C, B]


def test_q8_by_arrival_the_oldest_job_goes_first_whatever_its_flow_was_served() -> None:
    counters = FlowCounters(order="arrival")
    for flow in (A, B):
        counters.begin(flow)
        counters.wait(flow)
    arrivals = {A: (1, 1), B: (1, 3)}
    for _ in range(2):
        assert counters.choose(arrivals.__getitem__) == A
        serve(counters, A, 1_000)
    arrivals[A] = (1, 4)
    assert counters.choose(arrivals.__getitem__) == B
    arrivals[A] = (0, 4)
    assert counters.choose(arrivals.__getitem__) == A, "a returned job had its place before"


def test_q8_the_projects_of_an_organisation_share_its_weight_while_they_are_active() -> None:
    one, two = a_flow("1", organisation="o"), a_flow("2", organisation="o")
    counters = counters_with(one, two, A)
    assert [counters.parts(flow) for flow in (one, two, A)] == [2, 2, 1]
    charge = a_charge(one, parts=counters.parts(one), weight=4)
    counters.served(one)
    counters.settle(charge, 100)
    assert counters.counter(one) == 100 * COUNTER_SCALE * 2 // 4
    counters.unwait(two)
    counters.end(two)
    assert counters.parts(one) == 1
    counters.settle(charge, 0)
    assert counters.counter(one) == 0, "a lease is refunded at the weight at which it was charged"


# -- charges and estimates ----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10_000), min_size=1), st.integers(1, 50), st.integers(1, 5))
def test_q8_only_the_last_word_about_a_lease_counts(
    costs: list[int], weight: int, parts: int
) -> None:
    """Up or down, in any number of steps, without any rounding left behind."""
    counters = counters_with(A)
    counters.served(A)
    charge = a_charge(A, weight=weight, parts=parts)
    differences = [counters.settle(charge, cost) for cost in costs]
    assert counters.counter(A) == costs[-1] * COUNTER_SCALE * parts // weight
    assert sum(differences) == costs[-1] == charge.cost


def test_q8_the_estimate_is_n_times_m_until_the_flow_has_finished_a_call() -> None:
    counters = counters_with(A)
    assert counters.estimate(a_job(A, ceiling=100, choices=3)) == 300
    assert counters.estimate(a_job(A, ceiling=100, done=30)) == 70
    assert counters.estimate(a_job(B)) == 100, "a flow nobody has heard of"
    counters.finished(A, 0)
    assert counters.estimate(a_job(A, ceiling=100)) == 100, "a call without output says nothing"


def test_q8_the_estimate_follows_the_moving_average_but_never_exceeds_what_is_left() -> None:
    counters = counters_with(A)
    counters.finished(A, 40)
    assert counters.estimate(a_job(A, ceiling=100)) == 40
    assert counters.estimate(a_job(A, ceiling=100, done=90)) == 10
    assert counters.estimate(a_job(A, ceiling=20)) == 20
    for _ in range(100):
        counters.finished(A, 8)
    assert counters.estimate(a_job(A, ceiling=100)) in (8, 9)


def test_q8_cached_input_is_cheap_and_never_more_than_the_input() -> None:
    charge = a_charge(A)
    assert served_cost(SETTINGS, charge, Served(3)) == 10 * W_IN + 3 * W_OUT
    assert served_cost(SETTINGS, charge, Served(3, 4)) == 6 * W_IN + 4 * 1 + 3 * W_OUT
    assert served_cost(SETTINGS, charge, Served(0, 99)) == 10 * 1


def test_idle_flows_are_forgotten_when_there_are_too_many() -> None:
    """Memory is bounded; who was idle longest goes first, and a flow with jobs never does."""
    counters = counters_with(A, idle_flows=2)
    flows = [a_flow(str(n)) for n in range(4)]
    for flow in flows:
        counters.begin(flow)
        counters.wait(flow)
        serve(counters, flow, 100)
        counters.finished(flow, 50 if flow is flows[0] else 5)
        counters.unwait(flow)
        counters.end(flow)
    kept = [flow for flow in flows if counters.counter(flow)]
    assert kept == flows[2:]
    assert counters.estimate(a_job(flows[3])) == 5
    assert 5 < counters.estimate(a_job(flows[0])) < 50  # what is usual in the lane
    counters.begin(flows[2])
    assert counters.counter(flows[2]) == 100 * COUNTER_SCALE


def test_of_a_flow_of_which_nothing_is_known_what_is_usual_is_expected() -> None:
    """Else its first jobs would be charged all that they may be, and it would wait for others whose
    jobs are not any smaller."""
    counters = counters_with(A, B)
    assert counters.estimate(a_job(A)) == 100
    serve(counters, A, 100)
    counters.finished(A, 20)
    assert counters.estimate(a_job(B)) == 20
    serve(counters, B, 100)
    counters.finished(B, 84)
    assert counters.estimate(a_job(A)) == 20
    assert counters.estimate(a_job(B)) == 84
    assert counters.estimate(a_job(a_flow("c"))) == 21


# -- lane shares --------------------------------------------------------------------------------------


def saturate(shares: LaneShares, seconds: int, *, costs: dict[Lane, int]) -> Counter[Lane]:
    """One lease a second while these lanes wait; answers the cost served to each."""
    served: Counter[Lane] = Counter()
    for second in range(seconds):
        lane, _ = shares.choose(costs, second)
        charge = Charge(a_flow("a", lane=lane), 0, 0, 1, 1, tuple(costs), second)
        shares.add(charge, costs[lane], second, tuple(costs))
        if second >= seconds - SETTINGS.window_seconds:
            served[lane] += costs[lane]
    return served


@given(st.tuples(*[st.integers(1, 1000)] * 3))
def test_q7_every_waiting_lane_gets_its_share_of_the_window(costs: tuple[int, int, int]) -> None:
    """Each at least its share less one job, whatever the jobs cost; premium has the rest."""
    by_lane = dict(zip(Lane, costs, strict=True))
    served = saturate(LaneShares(SETTINGS), 300, costs=by_lane)
    total = sum(served.values())
    for lane, share in ((Lane.INTERACTIVE, 20), (Lane.BATCH, 5)):
        assert served[lane] + 2 * max(costs) >= total * share // 100


def test_q7_shares_are_exact_for_equal_jobs() -> None:
    served = saturate(LaneShares(SETTINGS), 300, costs=dict.fromkeys(Lane, 100))
    assert served == {Lane.PREMIUM: 4500, Lane.INTERACTIVE: 1200, Lane.BATCH: 300}


def test_q7_without_shares_the_highest_lane_has_everything() -> None:
    shares = LaneShares(QueueSettings(interactive_share_percent=0, batch_share_percent=0))
    served = saturate(shares, 100, costs=dict.fromkeys(Lane, 100))
    assert set(served) == {Lane.PREMIUM}


def test_q7_a_lane_is_owed_nothing_for_a_time_in_which_it_did_not_wait() -> None:
    shares = LaneShares(SETTINGS)
    charge = Charge(a_flow("a"), 0, 0, 1, 1, (Lane.INTERACTIVE,), 0)
    shares.add(charge, 1000, 0, (Lane.INTERACTIVE,))
    assert shares.choose({Lane.INTERACTIVE, Lane.BATCH}, 1) == (Lane.INTERACTIVE, False)
    shares.add(charge, 1, 1, (Lane.INTERACTIVE, Lane.BATCH))
    assert shares.choose({Lane.INTERACTIVE, Lane.BATCH}, 1) == (Lane.BATCH, True)


def test_q7_a_refund_takes_back_the_lanes_share_and_what_others_watched() -> None:
    """A batch job that was sent back has not been served."""
    shares, both = LaneShares(SETTINGS), (Lane.INTERACTIVE, Lane.BATCH)
    batch = Charge(a_flow("a", lane=Lane.BATCH), 0, 0, 1, 1, both, 0)
    shares.add(batch, 1000, 0, both)
    interactive = Charge(a_flow("a"), 0, 0, 1, 1, both, 1)
    shares.add(interactive, 1000, 1, both)
    assert shares.choose(both, 1) == (Lane.INTERACTIVE, False)
    shares.add(batch, -1000, 2, ())
    assert shares.choose(both, 2) == (Lane.BATCH, True)
    shares.add(interactive, -1000, 2, ())
    assert shares.choose(both, 2) == (Lane.INTERACTIVE, False)


def test_q7_a_refund_takes_back_no_more_than_was_served_in_its_second() -> None:
    """A worker that reports less at the end than on the way does not put its lane in debt."""
    shares, both = LaneShares(SETTINGS), (Lane.INTERACTIVE, Lane.BATCH)
    batch = Charge(a_flow("a", lane=Lane.BATCH), 0, 0, 1, 1, both, 0)
    shares.add(batch, 100, 0, both)
    shares.add(batch, -1000, 1, ())
    shares.add(batch, 100, 1, both)
    shares.add(Charge(a_flow("a"), 0, 0, 1, 1, both, 1), 1000, 1, both)
    assert shares.choose(both, 1) == (Lane.INTERACTIVE, False)


def test_q7_a_refund_after_the_window_changes_nothing() -> None:
    shares, both = LaneShares(SETTINGS), (Lane.INTERACTIVE, Lane.BATCH)
    old = Charge(a_flow("a", lane=Lane.BATCH), 0, 0, 1, 1, both, 0)
    shares.add(old, 1000, 0, both)
    new = Charge(a_flow("a", lane=Lane.BATCH), 0, 0, 1, 1, both, 61)
    shares.add(new, 100, 61, both)
    shares.add(old, -1000, 61, both)
    interactive = Charge(a_flow("a"), 0, 0, 1, 1, both, 61)
    shares.add(interactive, 1800, 61, both)
    assert shares.choose(both, 61) == (Lane.INTERACTIVE, False), "100 of 1900 is above 5 %"
    shares.add(interactive, 200, 61, both)
    assert shares.choose(both, 61) == (Lane.BATCH, True)


# -- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"flow_jobs": 0}, "flow_jobs"),
        ({"lane_jobs": 0}, "lane_jobs"),
        ({"window_seconds": 0}, "window_seconds"),
        ({"w_out": -1}, "w_out"),
        ({"batch_reserve_percent": -1}, "batch_reserve_percent"),
        ({"batch_reserve_percent": 101}, "batch_reserve_percent"),
        ({"batch_reserve_seconds": -1}, "batch_reserve_seconds"),
        ({"batch_starts": 0}, "batch_starts"),
        ({"protect_seconds": -1}, "protect_seconds"),
        ({"order": "random"}, "order"),
        ({"interactive_share_percent": 96}, "interactive_share_percent"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        QueueSettings(**wrong)


def test_every_setting_has_a_help_sentence() -> None:
    for name, each in QueueSettings.__dataclass_fields__.items():
        assert each.metadata["help"].endswith("."), name


@pytest.mark.parametrize(
    ("own", "others", "higher", "ahead"),
    [
        (0, [], [], 0),
        (50, [], [], 50),
        (0, [500], [], 10),  # another flow gets one turn of the same size before a job of cost 10
        (50, [500], [], 50 + 60),
        (50, [20, 500], [], 50 + 20 + 60),
        (0, [], [1000], 1000),
    ],
)
def test_what_goes_before_a_job_of_cost_ten(
    own: int, others: list[int], higher: list[int], ahead: int
) -> None:
    lane = [own, *others] if own else others
    assert cost_ahead(own, 10, lane, higher) == ahead


@given(
    own=st.integers(0, 10**6),
    others=st.lists(st.integers(0, 10**6)),
    higher=st.lists(st.integers(0, 10**6)),
    cost=st.integers(0, 10**5),
)
def test_no_more_than_everything_not_below_goes_before(
    own: int, others: list[int], higher: list[int], cost: int
) -> None:
    lane = [own, *others]
    ahead = cost_ahead(own, cost, lane, higher)
    assert own + sum(higher) <= ahead <= sum(lane) + sum(higher)
    assert cost_ahead(own, cost + 1, lane, higher) >= ahead
