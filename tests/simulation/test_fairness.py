"""Who goes first: fairness between projects, lanes and preemption, through the real pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forebay.admission import AdmissionSettings
from forebay.core.call import Message
from forebay.core.job import Lane
from forebay.queue import QueueSettings
from forebay.testing.plans import Plan, Scenario
from forebay.testing.watched import peek
from forebay.testing.world import MODEL, Topology, World

PATIENT = AdmissionSettings(premium_deadline_seconds=3600, interactive_deadline_seconds=3600)
ROOMY = QueueSettings(batch_reserve_percent=0)  # batch jobs fill the engine


def live(plans: Sequence[Plan], seed: int) -> World:
    scenario = Scenario(plans, fate=False, max_open_calls=None, queue=ROOMY, admission=PATIENT)
    return World(seed, Topology.MACHINE, scenario).run()


def started_order(world: World) -> list[str]:
    """Call ids in the order in which the engine got them."""
    [engine] = world.engines.values()
    return [made.request_id.split(".")[0] for made in engine.journal.records.values()]


@pytest.mark.parametrize("schedule", range(10))
def test_another_project_is_served_at_the_next_release(schedule: int) -> None:
    """Four slots, 68 calls of one project; a call of another one waits for one release only (Q8)."""
    greedy = [
        Plan(f"req_a{n:02d}", 0, 0.6, f"a{n}", max_tokens=512 // 8, ignore_eos=True, streamed=False)
        for n in range(68)
    ]
    polite = Plan("req_b", 1, 0.9, "b", max_tokens=8, ignore_eos=True)
    order = started_order(live([*greedy, polite], schedule))
    assert order.index("req_b") <= 4 + 4  # at most one release of all four slots ran before it


@pytest.mark.parametrize("schedule", range(10))
def test_batch_gives_way_to_an_interactive_call_and_loses_nothing(schedule: int) -> None:
    """E8: the victim's second prompt is its prompt plus what it had published; one bill, same text."""
    batch = [
        Plan(f"req_c{n:02d}", 0, 0.6, f"c{n}", lane=Lane.BATCH, max_tokens=200, ignore_eos=True)
        for n in range(24)
    ]
    urgent = Plan("req_u", 1, 2.0, "u", max_tokens=8, ignore_eos=True)
    world = live([*batch, urgent], schedule)
    [row] = [r for r in world.ledger.rows.values() if r.call_id == "req_u"]
    assert row.timings.ttft_ms is not None
    assert row.timings.ttft_ms <= 250
    victims = [seen for seen in world.seen if len(world.requests(seen.plan.id)) > 1]
    assert len(victims) == 1
    [victim] = victims
    first, second = world.requests(victim.plan.id)
    prompt = peek(world.tokens.render(MODEL.id, [Message("user", victim.plan.prompt)]))
    assert second.prompt_ids == prompt.ids + tuple(victim.token_ids[: first.made])
    assert second.max_tokens == 200 - first.made
    assert first.made + second.made == 200 == victim.tokens
    bill = world.ledger.rows[victim.plan.id]
    undisturbed = live([victim.plan], schedule)
    assert undisturbed.seen[0].text == victim.text
    assert undisturbed.ledger.rows[victim.plan.id].amount_nanos == bill.amount_nanos


def test_a_greedy_project_does_not_slow_a_polite_one() -> None:
    """Twenty seconds of a project that always has twenty calls waiting, beside one call a second."""
    greedy = [
        Plan(f"req_g{n:03d}", 0, 0.6 + n * 0.02, f"g{n}", max_tokens=40, ignore_eos=True)
        for n in range(200)
    ]
    polite = [
        Plan(f"req_p{n:03d}", 1, 1.0 + n, f"p{n}", max_tokens=10, ignore_eos=True)
        for n in range(10)
    ]
    world = live([*greedy, *polite], 3)
    waits = [world.ledger.rows[plan.id].timings.queue_ms or 0 for plan in polite]
    assert max(waits) < 1000  # a slot is released every 0.2 s
    late = [world.ledger.rows[plan.id].timings.queue_ms or 0 for plan in greedy]
    assert max(late) > 5000
