"""Several choices and JSON in a virtual-time world: one bill, whole documents, whatever happens."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from forebay.core.delta import FinishReason
from forebay.core.job import Lane
from forebay.core.json_schema import read
from forebay.core.usage import Outcome
from forebay.engine.document import document
from forebay.testing.plans import Plan, Scenario
from forebay.testing.world import Topology, World

SCHEMA = {
    "type": "object",
    "properties": {"note": {"type": "string", "minLength": 120}, "n": {"type": "integer"}},
    "required": ["note", "n"],
}
JSON = json.dumps(SCHEMA)


def live(plans: list[Plan], seed: int, topology: Topology = Topology.MACHINE) -> World:
    return World(seed, topology, Scenario(plans, fate=False)).run()


def json_plan(number: int, script: str = "", lane: Lane = Lane.INTERACTIVE) -> Plan:
    prompt = f"document {number} [[script length=1{script}]]"
    return Plan(f"req_j{number}", 0, 0.6, prompt, lane, max_tokens=300, json_schema=JSON)


@pytest.mark.parametrize("schedule", range(10))
def test_choices_that_end_differently_are_one_bill_with_the_prompt_once(schedule: int) -> None:
    """10, 40 and 45 tokens; the last one is cut at 45."""
    script = "[[script length=10 choice_step=30]]"
    world = live([Plan("req_n", 0, 0.6, script, max_tokens=45, choices=3)], schedule)
    [seen] = world.seen
    assert seen.finished is not None
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert seen.finished.finish_reasons == (stop, stop, length)
    assert {choice: len(ids) for choice, ids in seen.ids.items()} == {0: 10, 1: 40, 2: 45}
    row = world.ledger.rows["req_n"]
    price = world.ledger.holds["req_n"].price.terms
    prompt_tokens = row.usage.input_tokens
    assert row.usage.output_tokens == 95
    assert row.amount_nanos == prompt_tokens * price.input_nanos + 95 * price.output_nanos
    assert prompt_tokens == len(world.requests("req_n")[0].prompt_ids)


@pytest.mark.parametrize("schedule", range(10))
def test_a_client_that_leaves_stops_all_choices_and_pays_for_what_all_of_them_made(
    schedule: int,
) -> None:
    plan = Plan("req_n", 0, 0.6, "n", max_tokens=200, choices=3, ignore_eos=True)
    world = live([replace(plan, leaves_after_tokens=30)], schedule)
    row = world.ledger.rows["req_n"]
    assert row.outcome is Outcome.CANCELLED
    made = [each.made for each in world.requests("req_n")]
    assert len(made) == 3
    assert 30 <= row.usage.output_tokens <= sum(made) < 60


@pytest.mark.parametrize("schedule", range(10))
@pytest.mark.parametrize("lane", [Lane.BATCH, Lane.INTERACTIVE])
def test_a_json_call_is_not_corrupted_when_others_press(schedule: int, lane: Lane) -> None:
    """E8: once it has shown output, it is not sent back; before that, it starts again."""
    documents = [json_plan(n, lane=lane) for n in range(4)]
    urgent = [
        Plan(f"req_u{n}", 1, at, "u", lane=Lane.PREMIUM, max_tokens=5, ignore_eos=True)
        for n, at in enumerate((0.605, 0.62, 0.7, 1.0, 1.5))
    ]
    world = live([*documents, *urgent], schedule)
    for seen in world.seen:
        assert seen.finished is not None, seen.plan.id
        if seen.plan.json_schema:
            jsonschema.validate(json.loads(seen.text), SCHEMA)
            assert (
                seen.tokens == len(seen.text) == world.ledger.rows[seen.plan.id].usage.output_tokens
            )


@pytest.mark.parametrize("schedule", range(5))
@pytest.mark.parametrize("crash_at", [0, 1, 50, 120])
@pytest.mark.parametrize("topology", Topology)
def test_an_engine_that_fails_in_a_json_call_ends_it_for_free_or_it_starts_again(
    schedule: int, crash_at: int, topology: Topology
) -> None:
    """What was shown is never continued by the beginning of another document."""
    bystander = json_plan(1)
    world = live([json_plan(0, f" crash_at={crash_at}"), bystander], schedule, topology)
    for seen in world.seen:
        row = world.ledger.rows[seen.plan.id]
        if seen.finished is not None:
            jsonschema.validate(json.loads(seen.text), SCHEMA)
        else:
            assert seen.failed is not None
            assert row.amount_nanos == 0
    struck = next(seen for seen in world.seen if seen.plan.id == "req_j0")
    assert struck.failed is not None  # its script strikes whenever it starts again
    whole = document(read(SCHEMA, path="schema"))
    assert all(whole.startswith(seen.text) for seen in world.seen)
