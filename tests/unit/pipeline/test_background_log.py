"""What is stored of a call in the background is told again as it was told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.core.delta import FinishReason, TokenLogprob
from forebay.core.dialogue import Item, Said, Window
from forebay.core.event import Admitted, Delta, Finished, Started
from forebay.core.job import Flow, Job, Lane, Resume, Sampling
from forebay.core.usage import Usage
from forebay.pipeline.background_log import (
    Unreadable,
    conclusion,
    decode_job,
    decode_parts,
    encode_job,
    encode_part,
    goes_on,
)

JOB = Job(
    "req_1", 1, "gw_1", "tiny", "tiny", Flow(Lane.BATCH, "org_1", "proj_1"), 2, (1, 2, 3), 40,
    Sampling(0.5, stop=("x",), seed=7), streamed=False, resumable=False, turn_id="resp_1",
    background=True,
)  # fmt: skip
ADMITTED = Admitted(
    "req_1", 1.5, "tiny", Lane.BATCH, "fp_1", 3, window=Window(2, 1, conversation_id="conv_1")
)
DELTAS = [
    Delta(2, 1, 0, (7, 8), "Hé", (TokenLogprob(b"H", -0.5), TokenLogprob(b"\xc3\xa9", -1.0))),
    Delta(3, 1, 0, (9,), ""),
    Delta(5, 2, 0, (10,), "llo"),
]
USAGE = Usage(3, 4, finish_reasons=(FinishReason.STOP,))


def test_a_job_is_the_same_again() -> None:
    for admitted in (None, ADMITTED):
        assert decode_job(encode_job(JOB, admitted)) == (JOB, admitted)


@pytest.mark.parametrize(
    "stored", [b"", b"\x00", b"\x81\xa2id\xa1x", b"\xff" * 9, b"\x93\x02\xc0\x90"]
)
def test_what_another_version_stored_is_unreadable(stored: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_job(stored)
    with pytest.raises(Unreadable):
        decode_parts([encode_part([ADMITTED]), stored])


def test_a_log_has_what_is_to_be_told_again() -> None:
    parts = [
        encode_part([ADMITTED]),
        encode_part([Started(1, 1, 3), *DELTAS[:2]]),
        encode_part([DELTAS[2], Finished(6, 2, USAGE, 9, USAGE.finish_reasons)]),
    ]
    assert decode_parts(parts) == [ADMITTED, *DELTAS]
    assert encode_part([Started(1, 1, 3)]) == b""


def test_the_next_attempt_begins_behind_the_log() -> None:
    assert goes_on(JOB, [ADMITTED]) == JOB
    resume = Resume(token_ids=((7, 8, 9, 10),), sequence=5)
    assert goes_on(JOB, [ADMITTED, *DELTAS]) == replace(JOB, resume=resume)
    silent = [Delta(2, 1, 0, (), "")]
    assert goes_on(JOB, silent).resume == Resume(sequence=2)


@pytest.mark.parametrize(("logged", "rest"), [(0, "Héllo!"), (2, "llo!"), (3, "!"), (4, "")])
def test_what_was_not_logged_of_an_answer_is_told_at_its_end(logged: int, rest: str) -> None:
    said = Said(Item("msg_1", "assistant", ("Héllo!",)), USAGE, 9.5)
    events = [ADMITTED, *DELTAS, Delta(6, 2, 0, (), "!")][: logged + 1]
    *deltas, last = conclusion(said, events)
    assert "".join(delta.text for delta in deltas) == rest
    assert len(deltas) == (rest != "")
    assert (last.usage, last.finish_reasons) == (USAGE, USAGE.finish_reasons)
    assert last.completed_at == 9.5
