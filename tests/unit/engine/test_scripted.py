"""The scripted stepper on a clock that the test moves."""

from __future__ import annotations

import pytest

from forebay.core.delta import FinishReason
from forebay.engine.frames import Output, Submit
from forebay.engine.journal import Journal
from forebay.engine.scripted import ScriptedStepper
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.engine.stepper import EngineCrash
from forebay.testing.clock import FakeClock

SIZES = EngineSettings(max_sequences=3, kv_tokens=256, max_batched_tokens=10, context_tokens=128)
SPEED = ScriptedSettings(step_seconds=0.5, prefill_tokens_per_second=20, block_tokens=16)


class Bench:
    """A stepper, its clock and its journal."""

    def __init__(self, scripted: ScriptedSettings = SPEED) -> None:
        self.clock = FakeClock()
        self.journal = Journal(keep=True, clock=self.clock)
        self.stepper = ScriptedStepper(SIZES, scripted, self.clock, self.journal)

    def submit(self, sequence: int, prompt_tokens: int = 2, max_tokens: int = 20) -> None:
        ids = tuple(range(1, prompt_tokens + 1))
        self.stepper.submit(
            Submit(sequence, f"req_{sequence}", 0, ids, max_tokens, 0.0, 1.0, None, 0, True)
        )

    def step(self) -> tuple[float, list[int]]:
        """How long the next step takes, and whose tokens it adds."""
        due = self.stepper.next_due()
        assert due is not None
        self.clock.advance(due)
        return round(due, 6), [output.sequence for output in self.stepper.step()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_there_is_nothing_to_do_until_something_is_submitted(bench: Bench) -> None:
    assert bench.stepper.next_due() is None
    assert bench.stepper.kv_use() == 0.0


def test_a_step_takes_its_time_and_that_of_the_prompt_tokens_in_it(bench: Bench) -> None:
    bench.submit(1, prompt_tokens=4)
    assert bench.step() == (0.7, [1])
    assert bench.step() == (0.5, [1])


def test_a_long_prompt_is_processed_in_chunks_while_others_go_on(bench: Bench) -> None:
    bench.submit(1)
    bench.step()
    bench.submit(2, prompt_tokens=25)
    assert bench.step() == (0.5, [1])  # it was planned before 2 came
    assert [bench.step() for _ in range(3)] == [(1.0, [1]), (1.0, [1]), (0.75, [1, 2])]
    assert bench.step() == (0.5, [1, 2])


def test_submissions_join_at_the_next_step_and_wait_while_all_places_are_taken(
    bench: Bench,
) -> None:
    for sequence in range(1, 6):
        bench.submit(sequence, max_tokens=2)
    assert bench.step()[1] == [1]
    assert bench.step()[1] == [1, 2, 3]
    assert bench.step()[1] == [2, 3, 4]
    assert bench.step()[1] == [4, 5]
    assert bench.step()[1] == [5]
    assert bench.stepper.next_due() is None


def test_a_late_driver_does_not_slow_the_engine_down(bench: Bench) -> None:
    bench.submit(1)
    bench.clock.advance(0.75)  # the step was due after 0.6
    bench.stepper.step()
    assert bench.stepper.next_due() == pytest.approx(0.35)
    bench.clock.advance(60)
    bench.stepper.step()
    assert bench.stepper.next_due() == 0.0


def test_a_cancelled_sequence_makes_nothing_more_and_frees_its_place(bench: Bench) -> None:
    """E1, from submissions in each state: running, waiting, unknown."""
    for sequence in range(1, 6):
        bench.submit(sequence)
    bench.step()
    bench.stepper.cancel(1)
    bench.stepper.cancel(5)
    bench.stepper.cancel(77)
    assert bench.step()[1] == [2, 3]
    assert bench.step()[1] == [2, 3, 4]
    assert bench.journal.records[1].cancelled_at == bench.journal.records[1].made == 1
    assert bench.journal.records[5].cancelled_at == 0
    for sequence in (2, 3, 4):
        bench.stepper.cancel(sequence)
    assert bench.stepper.next_due() is None


def test_what_does_not_fit_the_pool_by_its_reserve_is_a_fault_at_once(bench: Bench) -> None:
    """E9: 126 tokens are 8 blocks of 16; two of them fill the pool."""
    for sequence in (1, 2, 3):
        bench.submit(sequence, prompt_tokens=26, max_tokens=100)
    due = bench.stepper.next_due()
    assert due is not None
    faults = [output for _ in range(9) for output in bench.stepper.step() if output.fault]
    assert [output.sequence for output in faults] == [3]
    assert bench.journal.records[3].finished == "fault"
    assert 0 < bench.stepper.kv_use() < 1
    bench.stepper.cancel(1)
    bench.submit(4, prompt_tokens=26, max_tokens=100)
    outputs = [output for _ in range(9) for output in bench.stepper.step()]
    assert {output.sequence for output in outputs} == {2, 4}
    assert all(output.fault is None for output in outputs)


def test_an_engine_that_evicts_takes_more_than_the_pool_can_hold() -> None:
    bench = Bench(ScriptedSettings(evicts=True))
    for sequence in (1, 2, 3):
        bench.submit(sequence, prompt_tokens=28, max_tokens=100)
    for _ in range(200):
        outputs = bench.stepper.step()
        assert all(output.fault is None for output in outputs)
    assert [made.finished for made in bench.journal.records.values()] == ["length"] * 3


def test_limits_are_whole_blocks() -> None:
    limits = Bench(ScriptedSettings(block_tokens=100)).stepper.limits()
    assert (limits.kv_tokens, limits.block_tokens, limits.evicts) == (200, 100, False)


def test_a_crash_takes_the_whole_step_with_it() -> None:
    bench = Bench(ScriptedSettings(directive="crash_at=2"))
    bench.submit(1)
    bench.submit(2)
    assert [len(bench.stepper.step()) for _ in range(2)] == [1, 2]
    with pytest.raises(EngineCrash):
        bench.stepper.step()
    assert [made.made for made in bench.journal.records.values()] == [2, 1]


def test_a_frozen_engine_is_never_due_again() -> None:
    bench = Bench(ScriptedSettings(freeze_after_steps=2))
    bench.submit(1)
    bench.stepper.step()
    bench.stepper.step()
    bench.submit(2)
    assert bench.stepper.next_due() is None


def test_the_last_token_and_the_end_come_together_only_at_the_length_limit() -> None:
    """E2: the end of the text takes a step of its own, as with a real end token."""
    bench = Bench(ScriptedSettings(directive="text=ok"))
    ids = (1, 2)
    bench.stepper.submit(Submit(1, "req_1", 0, ids, 9, 0.0, 1.0, None, 0, False))
    bench.stepper.submit(Submit(2, "req_2", 0, ids, 2, 0.0, 1.0, None, 0, False))
    outputs = [output for _ in range(3) for output in bench.stepper.step()]
    assert [output for output in outputs if output.sequence == 1] == [
        Output(1, 0, (ord("o"),)),
        Output(1, 1, (ord("k"),)),
        Output(1, 2, (), FinishReason.STOP, 2),
    ]
    assert [output for output in outputs if output.sequence == 2][-1] == Output(
        2, 1, (ord("k"),), FinishReason.LENGTH, 2
    )
