"""The arithmetic that jobs carry with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.job import Flow, Job, Lane, Resume, Sampling

JOB = Job(
    id="req_1",
    attempt=1,
    owner="gw",
    pool="pool",
    model="model",
    flow=Flow(Lane.BATCH, "org", "proj"),
    weight=1,
    prompt_ids=tuple(range(10)),
    ceiling_tokens=6,
    sampling=Sampling(),
    streamed=True,
    resumable=True,
)


def test_lanes_are_ranked_premium_interactive_batch() -> None:
    """Q7."""
    by_rank = sorted(Lane, key=lambda lane: lane.rank)
    assert by_rank == [Lane.PREMIUM, Lane.INTERACTIVE, Lane.BATCH] == list(Lane)
    assert [lane.rank for lane in by_rank] == [0, 1, 2]


def test_a_job_that_never_ran_has_published_nothing() -> None:
    assert JOB.resume == Resume()
    assert JOB.resume.output_tokens == 0


def test_published_tokens_are_counted_over_all_choices() -> None:
    assert Resume(token_ids=((1, 2, 3), (), (4,))).output_tokens == 4


def test_the_prompt_s_ids_are_the_input() -> None:
    assert JOB.input_tokens == 10


@pytest.mark.parametrize(
    ("block_tokens", "choices", "kv_tokens"),
    [(1, 1, 16), (16, 1, 16), (15, 1, 30), (17, 1, 17), (8, 3, 48), (5, 2, 40)],
)
def test_each_choice_reserves_whole_blocks_for_prompt_and_output(
    block_tokens: int, choices: int, kv_tokens: int
) -> None:
    """E9: n·⌈(P + M)/block⌉·block."""
    assert replace(JOB, choices=choices).kv_tokens(block_tokens) == kv_tokens


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 256), st.integers(1, 8))
def test_a_reservation_is_enough_and_wastes_less_than_a_block_a_choice(
    input_tokens: int, ceiling_tokens: int, block_tokens: int, choices: int
) -> None:
    """E9."""
    job = replace(
        JOB, prompt_ids=(0,) * input_tokens, ceiling_tokens=ceiling_tokens, choices=choices
    )
    each, rest = divmod(job.kv_tokens(block_tokens), choices)
    assert rest == 0
    assert each % block_tokens == 0
    assert 0 <= each - input_tokens - ceiling_tokens < block_tokens


def test_what_a_prompt_has_published_does_not_change_what_it_reserves() -> None:
    """E9: a resumed job's prompt grows by what is left less of M."""
    resumed = replace(JOB, resume=Resume(token_ids=((1, 2, 3),), sequence=4))
    assert resumed.kv_tokens(16) == JOB.kv_tokens(16)
