"""Limits in random lives of whole installations: never exceeded, and every permit comes back.

`WatchedAdmission` asserts A2 at each take and that no permit is settled twice; `World` asserts at the
end that none is left open (A4).
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from forebay.core.errors import RateLimited
from forebay.core.job import Lane
from forebay.core.principal import RateLimits
from forebay.testing.plans import Plan, Scenario
from forebay.testing.world import Topology, World


def some_plans(random: Random) -> list[Plan]:
    """A dozen calls of two keys: some leave, some fail, some never start."""
    return [
        Plan(
            id=f"req_{number:03d}",
            tenant=random.randrange(2),
            at=random.choice((0.6, 0.6, random.uniform(0.6, 40))),
            prompt=f"[[script length={random.choice((1, 10, 60))}{random.choice(FAULTS)}]]",
            lane=random.choice(tuple(Lane)),
            max_tokens=random.choice((None, 5, 40)),
            streamed=random.random() < 0.7,
            leaves_after_tokens=3 if random.random() < 0.2 else None,
            patience_seconds=random.uniform(0.001, 3) if random.random() < 0.2 else 1e6,
            choices=random.choice((1, 1, 1, 2)),
        )
        for number in range(12)
    ]


FAULTS = ("", "", "", " crash_at=0", " crash_at=5", " hang_at=2")


def lived(seed: int, *, fate: bool, store_failures: float = 0.0) -> World:
    random = Random(seed)
    limits = RateLimits(
        requests_per_minute=random.choice((2, 5, None)),
        tokens_per_minute=random.choice((100, 600, 1500)),
        batch_input_tokens_per_day=random.choice((200, None)),
    )
    topology = random.choice(tuple(Topology))
    scenario = Scenario(
        some_plans(random),
        fate=fate,
        store_failures=store_failures,
        limits=limits,
        max_open_calls=random.choice((2, None)),
    )
    return World(seed, topology, scenario).run()


def test_a2_a4_limits_hold_and_permits_return_while_processes_die(seed: int) -> None:
    """With stores that fail now and then, too. Whatever refuses a call, its permits are back."""
    lived(seed, fate=True, store_failures=0.1 if seed % 3 == 0 else 0.0)


def test_a4_what_a_call_keeps_is_its_prompt_and_what_was_read_of_its_answer(seed: int) -> None:
    world = lived(seed, fate=False)
    kept = Counter(world.fabric.admission.used_tokens)
    billed = [world.ledger.rows[seen.plan.id].usage for seen in world.seen if seen.finished]
    assert Counter(usage.input_tokens + usage.output_tokens for usage in billed) <= kept
    ran = {seen.plan.id for seen in world.seen if world.requests(seen.plan.id)}
    assert kept[0] >= sum(kept.values()) - len(ran), "who never ran keeps nothing"


def test_the_lives_are_eventful_enough_to_mean_something() -> None:
    """Every limit refuses, that of tokens also for good, and calls run beside the refused ones."""
    said: Counter[str] = Counter()
    ran = 0
    for seed in range(60):
        world = lived(seed, fate=False)
        for seen in world.seen:
            if type(seen.refused) is RateLimited:
                for words in ("calls a minute", "tokens a minute", "input tokens a day"):
                    for_good = seen.refused.retry_after_seconds is None
                    said[f"{words} {for_good}"] += words in seen.refused.message
        ran += sum(used > 0 for used in world.fabric.admission.used_tokens)
    assert set(+said) >= {
        "calls a minute False",
        "tokens a minute False",
        "tokens a minute True",
        "input tokens a day False",
    }
    assert ran > 60


@pytest.mark.parametrize("topology", Topology)
def test_a4_returned_permits_let_others_through(topology: Topology) -> None:
    """Ten calls, one after another, that reserve 300 tokens of answer each and make one."""

    def ten(tokens_per_minute: int | None) -> World:
        script = "[[script length=1]]"
        plans = [
            Plan(f"req_{n}", 0, 0.6 + n / 2, script, max_tokens=300, streamed=n % 2 == 0)
            for n in range(10)
        ]
        limits = RateLimits(tokens_per_minute=tokens_per_minute)
        return World(1, topology, Scenario(plans, fate=False, limits=limits)).run()

    prompt = ten(None).ledger.rows["req_0"].usage.input_tokens
    limit = prompt + 300 + 9 * (prompt + 1)
    assert 10 * (prompt + 300) > limit * (1 + 5 / 60), "or there would be nothing to see"
    assert all(seen.finished for seen in ten(limit).seen)
    assert any(isinstance(seen.refused, RateLimited) for seen in ten(limit // 2).seen)
