"""Keyed calls: one walk however often it is asked for, and how long it lives without readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.core.call import Call, Idempotency
from forebay.core.errors import (
    ForebayError,
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    InsufficientQuota,
)
from forebay.core.event import Admitted, CallEvent, Delta, Finished
from forebay.core.hold import Claim, Remembered
from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes
from forebay.core.usage import Usage
from forebay.pipeline.kept import IdempotencySettings, KeptCalls
from forebay.pipeline.kept_answer import KeptChoice, encode_answer, encode_head
from forebay.system import Tasks

ASKED = Idempotency("key", b"a" * 32)


def call(number: int, asked: Idempotency = ASKED, organisation: str = "org") -> Call:
    who = Principal(Scopes(organisation, "proj", "key_1"), 1, frozenset(Lane))
    return Call(f"req_{number}", who, "tiny", Lane.INTERACTIVE, streamed=True, idempotency=asked)


class Walk:
    """A walk whose calls make a token each time they are let."""

    def __init__(self) -> None:
        self.rooms = SimpleNamespace(ledger=self, spawn=Tasks())
        self.remembered: dict[tuple[str, str], Remembered] = {}
        self.started: list[str] = []
        self.left: list[str] = []
        self.go = asyncio.Event()
        self.refusal: ForebayError | None = None

    async def recall(self, organisation_id: str, key: str) -> Remembered | None:
        await asyncio.sleep(0)
        return self.remembered.get((organisation_id, key))

    async def run(self, call: Call) -> AsyncGenerator[list[CallEvent], None]:
        self.started.append(call.id)
        if self.refusal is not None:
            raise self.refusal
        try:
            yield [Admitted(call.id, 5.0, "tiny", Lane.INTERACTIVE, "fp", 3)]
            yield [Delta(1, 1, 0, (7,), "Hello")]
            await self.go.wait()
            yield [Finished(2, 1, Usage(3, 1), 99, ())]
        except BaseException:
            await asyncio.sleep(0.01)  # it takes a while to leave
            self.left.append(call.id)
            raise


@pytest.fixture
def walk() -> Walk:
    return Walk()


def kept_calls(walk: Walk, detach_seconds: float = 30.0) -> KeptCalls:
    rooms: Any = walk.rooms
    return KeptCalls(rooms, walk.run, IdempotencySettings(detach_seconds))


def _claim(asked: Call) -> Claim:
    assert asked.idempotency is not None
    return Claim(*asked.idempotency)


async def read(kept: KeptCalls, asked: Call, *, upto: int | None = None) -> list[CallEvent]:
    """The call's events, or so many of them; then the client leaves."""
    seen: list[CallEvent] = []
    async with aclosing(kept.run(asked, _claim(asked))) as bunches:
        async for bunch in bunches:
            seen += bunch
            if upto is not None and len(seen) >= upto:
                break
    return seen


async def started(*readers: Any) -> list[asyncio.Future[list[CallEvent]]]:
    futures = [asyncio.ensure_future(each) for each in readers]
    await asyncio.sleep(0.01)
    return futures


async def test_requests_with_the_same_key_share_one_walk(walk: Walk) -> None:
    kept = kept_calls(walk)
    first, second, third = await started(*(read(kept, call(n)) for n in (1, 2, 3)))
    walk.go.set()
    mine, *others = await first, await second, await third
    assert walk.started == ["req_1"], "L9"
    assert [type(event) for event in mine] == [Admitted, Delta, Finished]
    assert not mine[0].replayed  # type: ignore[union-attr]
    for events in others:
        assert events[0] == replace(mine[0], replayed=True)
        assert events[1] == mine[1]
        assert events[2] == replace(mine[2], amount_nanos=0)  # type: ignore[call-overload]


async def test_a_client_that_left_comes_back_and_reads_from_the_beginning(walk: Walk) -> None:
    kept = kept_calls(walk)
    assert len(await read(kept, call(1), upto=2)) == 2
    (again,) = await started(read(kept, call(2)))
    walk.go.set()
    assert [type(event) for event in await again] == [Admitted, Delta, Finished]
    assert walk.started == ["req_1"]
    assert walk.left == []


async def test_a_call_to_which_nobody_comes_back_is_stopped_and_its_key_is_as_new(
    walk: Walk,
) -> None:
    kept = kept_calls(walk, detach_seconds=0.01)
    await read(kept, call(1), upto=2)
    await kept.drain()
    assert walk.left == ["req_1"]
    walk.go.set()
    await read(kept, call(2))
    assert walk.started == ["req_1", "req_2"]


async def test_who_comes_while_a_call_is_being_stopped_gets_a_new_one(walk: Walk) -> None:
    kept = kept_calls(walk, detach_seconds=0.0)
    await read(kept, call(1), upto=2)
    walk.go.set()
    while walk.left == [] and len(walk.started) == 1:
        await asyncio.sleep(0)
        (again,) = await started(read(kept, call(2)))
    assert [type(event) for event in await again] == [Admitted, Delta, Finished]


async def test_another_reader_keeps_a_call_alive(walk: Walk) -> None:
    kept = kept_calls(walk, detach_seconds=0.0)
    (stays,) = await started(read(kept, call(1)))
    await read(kept, call(2), upto=1)
    await asyncio.sleep(0.02)
    walk.go.set()
    assert len(await stays) == 3
    assert walk.left == []


async def test_a_refusal_reaches_all_who_asked_and_is_not_remembered(walk: Walk) -> None:
    walk.refusal = InsufficientQuota()
    kept = kept_calls(walk)
    for reader in await started(read(kept, call(1)), read(kept, call(2))):
        with pytest.raises(InsufficientQuota):
            await reader
    assert walk.started == ["req_1"]
    walk.refusal = None
    walk.go.set()
    assert len(await read(kept, call(3))) == 3


async def test_another_request_with_the_key_of_a_running_call_is_refused(walk: Walk) -> None:
    kept = kept_calls(walk)
    (running,) = await started(read(kept, call(1)))
    with pytest.raises(IdempotencyKeyReused, match="'key'") as refused:
        await read(kept, call(2, Idempotency("key", b"b" * 32)))
    assert refused.value.param == "Idempotency-Key"
    walk.go.set()
    await running


async def test_the_same_key_of_another_organisation_is_another_key(walk: Walk) -> None:
    walk.go.set()
    kept = kept_calls(walk)
    await asyncio.gather(read(kept, call(1)), read(kept, call(2, organisation="other")))
    assert sorted(walk.started) == ["req_1", "req_2"]


def remembered(answer: bytes | None) -> Remembered:
    head = encode_head(Admitted("req_0", 5.0, "tiny", Lane.INTERACTIVE, "fp", 3))
    return Remembered("req_0", Claim("key", ASKED.fingerprint, head), 5.0, answer)


async def test_a_stored_answer_is_told_again_without_a_walk(walk: Walk) -> None:
    answer = encode_answer(Usage(3, 2), [KeptChoice([7, 8], "Hello you", [])])
    walk.remembered["org", "key"] = remembered(answer)
    events = await read(kept_calls(walk), call(1))
    assert events == [
        Admitted("req_0", 5.0, "tiny", Lane.INTERACTIVE, "fp", 3, replayed=True),
        Delta(1, 1, 0, (7, 8), "Hello you"),
        Finished(2, 1, Usage(3, 2), 0, (None,)),
    ]
    assert walk.started == []


async def test_a_stored_key_is_refused_to_another_request(walk: Walk) -> None:
    walk.remembered["org", "key"] = remembered(b"")
    with pytest.raises(IdempotencyKeyReused):
        await read(kept_calls(walk), call(1, Idempotency("key", b"b" * 32)))


async def test_a_call_that_runs_in_another_process_is_a_conflict_that_goes_away(
    walk: Walk,
) -> None:
    walk.remembered["org", "key"] = remembered(None)
    with pytest.raises(IdempotencyKeyInUse):
        await read(kept_calls(walk), call(1))


@pytest.mark.parametrize("values", [{"detach_seconds": -1.0}, {"kept_bytes": -1}])
def test_settings_that_mean_nothing_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"idempotency\.{next(iter(values))}"):
        IdempotencySettings(**values)
