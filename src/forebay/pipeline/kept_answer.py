"""What is stored of a keyed call, as bytes: its head with the hold, its answer with the settlement.

The ledger keeps both without looking inside (`Claim.head`, `Bill.answer`). From the two, the call's
events can be told again, to a client that streams as well as to one that does not.

Not here: when a call is kept and who may read it (`kept.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from forebay.core.call import Call
from forebay.core.delta import TokenLogprob
from forebay.core.errors import CallerError, IdempotencyKeyInUse, IdempotencyKeyReused
from forebay.core.event import Admitted, CallEvent, Delta, Finished
from forebay.core.hold import Claim, Remembered
from forebay.core.usage import Usage


class KeptChoice(msgspec.Struct, array_like=True):
    """One choice's whole output."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob]


class _Answer(msgspec.Struct, array_like=True):
    usage: Usage
    choices: Sequence[KeptChoice]


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Admitted).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode

encode_head = _encode


def claim_of(call: Call, head: bytes = b"") -> Claim | None:
    """What a keyed call claims with its hold (L9); `head`: what its answer is told again with."""
    keyed = call.idempotency
    return None if keyed is None else Claim(keyed.key, keyed.fingerprint, head)


def encode_answer(usage: Usage, choices: Sequence[KeptChoice]) -> bytes:
    """What is kept with the settlement of this usage."""
    return _encode(_Answer(usage, choices))


def key_refusal(claimed: Claim, wanted: Claim | None) -> CallerError:
    """Why a request does not get the key that another call has."""
    if wanted is None or claimed.fingerprint == wanted.fingerprint:
        return IdempotencyKeyInUse()
    return IdempotencyKeyReused(
        f"The Idempotency-Key {wanted.key!r:.80} was used for a different request within the last "
        "24 hours. Send a new key with a new request, and the same key only with the same request.",
        param="Idempotency-Key",
    )


def told_again(remembered: Remembered, answer: bytes) -> list[CallEvent]:
    """The events of a call that was answered before; hearing them again costs nothing."""
    head = replace(_decode_head(remembered.claim.head), replayed=True)
    return [head, *events_of(answer)]


def events_of(answer: bytes) -> list[CallEvent]:
    """What was kept, as a delta for each choice and the end."""
    kept = _decode_answer(answer)
    deltas = [
        Delta(number + 1, 1, number, tuple(each.token_ids), each.text, tuple(each.logprobs))
        for number, each in enumerate(kept.choices)
    ]
    last = Finished(len(deltas) + 1, 1, kept.usage, 0, kept.usage.finish_reasons)
    return [*deltas, last]
