"""What is stored of a keyed call tells its events again."""

from __future__ import annotations

from forebay.core.delta import FinishReason, TokenLogprob
from forebay.core.errors import IdempotencyKeyInUse, IdempotencyKeyReused
from forebay.core.event import Admitted, Delta, Finished
from forebay.core.hold import Claim, Remembered
from forebay.core.job import Lane
from forebay.core.usage import Usage
from forebay.pipeline.kept_answer import (
    KeptChoice,
    encode_answer,
    encode_head,
    key_refusal,
    told_again,
)

HEAD = Admitted("req_1", 1_800_000_000.25, "org/tiny", Lane.PREMIUM, "fp_1", 12)


def test_everything_that_a_client_sees_comes_back() -> None:
    usage = Usage(12, 3, 4, (FinishReason.STOP, FinishReason.LENGTH))
    logprobs = [TokenLogprob("é".encode(), -0.5), TokenLogprob(b"\xff", -2.0)]
    choices = [KeptChoice([1, 2], "é\ud7ff", logprobs), KeptChoice([3], "", [])]
    claim = Claim("key", b"f" * 32, encode_head(HEAD))
    answer = encode_answer(usage, choices)
    head, first, second, last = told_again(Remembered("req_1", claim, 0.0, answer), answer)
    assert isinstance(head, Admitted)
    assert head.replayed
    assert (head.call_id, head.created_at, head.model) == ("req_1", 1_800_000_000.25, "org/tiny")
    assert (head.lane, head.fingerprint, head.input_tokens) == (Lane.PREMIUM, "fp_1", 12)
    assert first == Delta(1, 1, 0, (1, 2), "é\ud7ff", tuple(logprobs))
    assert isinstance(first, Delta)
    assert isinstance(first.logprobs[0], TokenLogprob)
    assert second == Delta(2, 1, 1, (3,), "")
    assert last == Finished(3, 1, usage, 0, usage.finish_reasons)


def test_the_same_request_is_told_to_wait_and_another_one_to_take_a_key_of_its_own() -> None:
    claimed = Claim("key", b"f" * 32)
    assert isinstance(key_refusal(claimed, Claim("key", b"f" * 32)), IdempotencyKeyInUse)
    assert isinstance(key_refusal(claimed, Claim("key", b"g" * 32)), IdempotencyKeyReused)
