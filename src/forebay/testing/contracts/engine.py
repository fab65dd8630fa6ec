"""What every engine must do, as plain pytest functions.

Fixtures: `engine`, started and ready, with 4 sequences, 512 KV tokens in blocks of at most 32, and
a context of 1,024 tokens; `prompt`, a function from text to the ids of a prompt that ends with the
assistant's turn and is shorter than 100 tokens for texts under 60 characters; `text_of`, from ids of
the output to their text.

After each test the fixture's owner should find `engine.signals()` at zero, or the engine stopped.

Not here: scripted faults and supervision (they are about particular engines, not about all).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any

import jsonschema
import pytest

from forebay.core.delta import EngineDelta, EngineRequest, EngineSignals, EngineTally, FinishReason
from forebay.core.errors import EngineFault
from forebay.core.job import Sampling
from forebay.engine.contract import Engine, Generation
from forebay.testing.schemas import random_schema

Prompter = Callable[[str], tuple[int, ...]]
TextOf = Callable[[tuple[int, ...]], str]
PATIENCE_SECONDS = 30.0
SCHEMAS = 12
# What an engine's grammars were seen to confuse: alternatives that begin alike, counts of digits.
_WORDS = ("a", "ab", "abc", "abcd", "ab c", "a1", "a12", 1, 12, 123, 1234, "ß", "ße", "1", "12")
TRICKY: tuple[Any, ...] = (
    {"type": "array", "items": {"enum": list(_WORDS)}, "minItems": 9, "maxItems": 9},
    {"type": "array", "items": {"enum": list(_WORDS[3:9])}, "minItems": 9, "maxItems": 9},
    *(
        {"type": "array", "items": {"type": kind, **bounds}, "minItems": 3, "maxItems": 3}
        for kind in ("integer", "number")
        for bounds in ({"maximum": -270}, {"minimum": 95, "maximum": 1_205}, {"minimum": -7})
    ),
    {"properties": {name: {"type": "boolean"} for name in ("p", "p1", "p10", "p11", "p1a")}},
)


def ask(
    ids: tuple[int, ...],
    max_tokens: int,
    *,
    name: str = "req_1",
    choices: int = 1,
    ignore_eos: bool = True,
) -> EngineRequest:
    """A greedy request; with `ignore_eos` its length is known."""
    sampling = Sampling(temperature=0.0, ignore_eos=ignore_eos)
    return EngineRequest(name, ids, max_tokens, sampling, choices)


async def collect(engine: Engine, request: EngineRequest) -> list[EngineDelta]:
    """All deltas of a request, to its end."""
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(engine.generate(request)) as generation:
        return [delta async for delta in generation]


async def first(generation: Generation) -> EngineDelta:
    """The first delta; from here on the request runs."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await anext(generation)


def ids_of(deltas: list[EngineDelta], choice: int = 0) -> tuple[int, ...]:
    """The joined output of one choice."""
    return tuple(i for delta in deltas if delta.choice == choice for i in delta.token_ids)


def filler(engine: Engine, ids: tuple[int, ...], tokens: int) -> EngineRequest:
    """A request whose prompt and output together are this long, most of it output."""
    assert tokens <= engine.limits().kv_tokens
    return ask(ids, tokens - len(ids), name="filler")


def padded(ids: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """A prompt of exactly this length: mostly prompt is much faster than mostly output."""
    return (ids * tokens)[-tokens:]


async def idle(engine: Engine) -> None:
    """Wait until the engine knows of no work."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while engine.signals() != EngineSignals(0, 0, 0.0):  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.005)


async def test_a_started_engine_is_ready_and_says_what_it_can_hold(engine: Engine) -> None:
    limits = engine.limits()
    assert engine.state() == "ready"
    assert (limits.max_sequences, limits.kv_tokens, limits.context_tokens) == (4, 512, 1024)
    assert 1 <= limits.block_tokens <= 32
    assert engine.signals() == EngineSignals(0, 0, 0.0)


async def test_the_tokens_are_as_many_as_asked_for_and_as_reported(
    engine: Engine, prompt: Prompter
) -> None:
    """E2, E3."""
    deltas = await collect(engine, ask(prompt("count"), 24))
    assert len(ids_of(deltas)) == 24
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].reported_tokens in (None, 24)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert all(delta.choice == 0 and delta.token_ids for delta in deltas)


async def test_one_token_may_be_all_that_is_asked_for(engine: Engine, prompt: Prompter) -> None:
    """E3."""
    deltas = await collect(engine, ask(prompt("one"), 1))
    assert len(ids_of(deltas)) == 1
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_a_call_joins_while_another_runs_and_ends_before_it(
    engine: Engine, prompt: Prompter
) -> None:
    async with aclosing(engine.generate(filler(engine, prompt("long"), 384))) as long:
        await first(long)
        assert len(ids_of(await collect(engine, ask(prompt("short"), 4)))) == 4
        assert engine.signals().running == 1
        assert (await first(long)).finish_reason is None
    await idle(engine)


async def test_calls_beyond_the_sequence_limit_wait_their_turn(
    engine: Engine, prompt: Prompter
) -> None:
    """A3: never more at once than the engine may run; all of them end."""
    calls = [ask(prompt(f"call {n}"), 20, name=f"req_{n}") for n in range(7)]
    tasks = [asyncio.ensure_future(collect(engine, call)) for call in calls]
    await asyncio.sleep(0)
    assert (engine.signals().running, engine.signals().waiting) == (4, 3)
    assert [len(ids_of(deltas)) for deltas in await asyncio.gather(*tasks)] == [20] * 7
    await idle(engine)


async def test_stopping_a_call_ends_its_iteration_and_frees_its_place(
    engine: Engine, prompt: Prompter
) -> None:
    """E1: four hold the engine; one stops, and the fifth runs though the others never end."""
    holders = [engine.generate(filler(engine, prompt(f"hold {n}"), 120)) for n in range(4)]
    for holder in holders:
        await first(holder)
    fifth = asyncio.ensure_future(collect(engine, ask(prompt("fifth"), 4)))
    await asyncio.sleep(0)
    assert engine.signals().waiting == 1
    holders[0].stop()
    assert len(ids_of(await fifth)) == 4
    for holder in holders:
        await holder.aclose()
    await idle(engine)


async def test_what_was_received_before_the_stop_is_still_yielded(
    engine: Engine, prompt: Prompter
) -> None:
    """E1: the worker charges for it."""
    generation = engine.generate(filler(engine, prompt("slow reader"), 384))
    await first(generation)
    await collect(engine, ask(prompt("time passes"), 8))
    generation.stop()
    rest = [delta async for delta in generation]
    assert len(ids_of(rest)) >= 4
    assert all(delta.finish_reason is None for delta in rest)
    await generation.aclose()
    await idle(engine)


async def test_a_stop_wakes_a_reader_that_waits(engine: Engine, prompt: Prompter) -> None:
    """E1, for a call that never got a token: it waits behind four others."""
    holders = [engine.generate(filler(engine, prompt(f"hold {n}"), 128)) for n in range(4)]
    for holder in holders:
        await first(holder)
    waiting = engine.generate(ask(prompt("waits"), 8))
    reader = asyncio.ensure_future(anext(waiting, None))
    await asyncio.sleep(0)
    waiting.stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader is None
    assert engine.signals().waiting == 0
    for generation in (waiting, *holders):
        await generation.aclose()
    await idle(engine)


async def test_a_cancelled_task_that_closes_its_generation_leaves_no_work(
    engine: Engine, prompt: Prompter
) -> None:
    """E1."""
    started = asyncio.Event()

    async def serve() -> None:
        async with aclosing(engine.generate(filler(engine, prompt("leaves"), 384))) as generation:
            async for _ in generation:
                started.set()

    task = asyncio.ensure_future(serve())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(engine)


async def test_nothing_is_submitted_before_the_first_step_is_asked_for(
    engine: Engine, prompt: Prompter
) -> None:
    generation = engine.generate(ask(prompt("never read"), 8))
    await asyncio.sleep(0.02)
    assert engine.signals() == EngineSignals(0, 0, 0.0)
    assert not generation.submitted
    async with aclosing(engine.generate(ask(prompt("read"), 8))) as other:
        await first(other)
        assert other.submitted
    await generation.aclose()
    await generation.aclose()
    assert await anext(generation, None) is None


async def test_two_choices_are_generated_side_by_side(engine: Engine, prompt: Prompter) -> None:
    """E2, E3 per choice."""
    deltas = await collect(engine, ask(prompt("twice"), 12, choices=2))
    assert [len(ids_of(deltas, choice)) for choice in (0, 1)] == [12, 12]
    ends = [delta.choice for delta in deltas if delta.finish_reason is FinishReason.LENGTH]
    assert sorted(ends) == [0, 1]


async def test_log_probabilities_come_with_every_token_and_only_if_asked_for(
    engine: Engine, prompt: Prompter
) -> None:
    request = ask(prompt("how sure"), 12)
    plain = await collect(engine, request)
    assert all(delta.logprobs == () for delta in plain)
    sampling = replace(request.sampling, logprobs=True)
    deltas = await collect(engine, replace(request, id="req_2", sampling=sampling))
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    assert all(number <= 0 for delta in deltas for number in delta.logprobs)
    assert ids_of(deltas) == ids_of(plain)


async def test_penalties_are_taken_and_the_tokens_are_as_many_as_asked_for(
    engine: Engine, prompt: Prompter
) -> None:
    """E2, E3."""
    sampling = Sampling(
        temperature=0.5,
        seed=1,
        ignore_eos=True,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.3,
    )
    request = EngineRequest("req_1", prompt("again"), 12, sampling)
    assert len(ids_of(await collect(engine, request))) == 12


@pytest.mark.parametrize("temperature", [0.0, 2.0])
async def test_json_is_a_document_of_its_schema_and_ends_by_itself(
    engine: Engine, prompt: Prompter, text_of: TextOf, temperature: float
) -> None:
    """Also at a temperature at which every token that the grammar lets through is soon tried."""
    calls = []
    for number, schema in enumerate([*map(random_schema, map(Random, range(SCHEMAS))), *TRICKY]):
        sampling = Sampling(temperature=temperature, seed=number, json_schema=json.dumps(schema))
        calls.append(EngineRequest(f"req_{number}", prompt(f"json {number}"), 96, sampling))
    answers = await asyncio.gather(*(collect(engine, call) for call in calls))
    for call, deltas in zip(calls, answers, strict=True):
        if deltas[-1].finish_reason is FinishReason.STOP:
            document = json.loads(text_of(ids_of(deltas)))
            jsonschema.validate(document, json.loads(call.sampling.json_schema))
        else:  # cut at the maximum, which may happen to numbers and lists of a random model
            assert len(ids_of(deltas)) == 96


async def test_a_schema_that_should_never_have_come_so_far_is_that_requests_fault_alone(
    engine: Engine, prompt: Prompter
) -> None:
    bystander = asyncio.ensure_future(collect(engine, ask(prompt("bystander"), 24)))
    for schema in ('{"type":"nonsense"}', '{"$ref":"#/$defs/gone"}', "not JSON"):
        request = EngineRequest("req_2", prompt("bad"), 8, Sampling(json_schema=schema))
        with pytest.raises(EngineFault):
            await collect(engine, request)
    assert len(ids_of(await bystander)) == 24


class Reader:
    """Reads generations and checks at every delta that no token of the engine is unaccounted for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = engine.tally()
        self.received = 0

    def check(self) -> EngineTally:
        """What the engine counted since this reader came."""
        now, before = self._engine.tally(), self._before
        made, discarded = now.made - before.made, now.discarded - before.discarded
        assert made == self.received + discarded + now.queued - before.queued
        return EngineTally(now.boot - before.boot, made, discarded, now.queued)

    async def read(self, request: EngineRequest, *, most: int = 10_000) -> None:
        """Up to so many deltas, then close it, whatever there is still to come."""
        async with aclosing(self._engine.generate(request)) as generation:
            async for delta in generation:
                self.received += len(delta.token_ids)
                self.check()
                most -= 1
                if not most:
                    break
        self.check()


async def test_every_token_that_the_engine_counts_was_yielded_or_is_known_to_be_discarded(
    engine: Engine, prompt: Prompter
) -> None:
    """By its own counter, while calls end, are closed early, are cancelled and run out of memory."""
    reader = Reader(engine)
    calls = [ask(prompt(f"call {n}"), 20, name=f"req_{n}", choices=1 + n % 2) for n in range(6)]
    reading = [reader.read(call, most=(3, 10_000)[n % 3 > 0]) for n, call in enumerate(calls)]
    tasks = [asyncio.ensure_future(each) for each in reading]
    cancelled = asyncio.ensure_future(reader.read(filler(engine, prompt("cancelled"), 120)))
    await asyncio.gather(*tasks[:2])
    cancelled.cancel()
    await asyncio.gather(*tasks)
    unread = engine.generate(ask(prompt("unread"), 12))
    reader.received += len((await first(unread)).token_ids)
    await reader.read(ask(prompt("time passes"), 8))
    await unread.aclose()
    with pytest.raises(EngineFault):
        await reader.read(ask(padded(prompt("too much"), engine.limits().kv_tokens - 48), 80))
    await reader.read(ask(prompt("last"), 8))
    tally = reader.check()
    assert tally.made >= 4 * 20 + 8 + 8
    assert (tally.boot, tally.queued) == (0, 0)
    await idle(engine)


async def test_running_out_of_kv_memory_is_a_fault_and_never_an_end(
    engine: Engine, prompt: Prompter
) -> None:
    """E9 on a tiny pool; what fits it exactly ends as asked, before and after."""
    pool = engine.limits().kv_tokens
    ids = padded(prompt("fill the pool"), pool - 48)
    for _ in range(2):
        assert len(ids_of(await collect(engine, ask(ids, 48)))) == 48
        deltas: list[EngineDelta] = []
        with pytest.raises(EngineFault):
            async with aclosing(engine.generate(ask(ids, 80))) as generation:
                async for delta in generation:
                    deltas.append(delta)
        assert all(delta.finish_reason is None for delta in deltas)
    await idle(engine)


async def test_calls_that_fit_the_pool_together_all_end(engine: Engine, prompt: Prompter) -> None:
    """E9: leasing by ⌈(P + M)/block⌉·block up to the pool's tokens is enough."""
    share = engine.limits().kv_tokens // 4
    calls = [filler(engine, prompt(f"share {n}"), share) for n in range(4)]
    for deltas, call in zip(
        await asyncio.gather(*(collect(engine, call) for call in calls)), calls, strict=True
    ):
        assert len(ids_of(deltas)) == call.max_tokens


async def test_the_whole_pool_passes_from_stopped_calls_to_new_ones_at_once(
    engine: Engine, prompt: Prompter
) -> None:
    """E1, E9: a worker leases again the moment a call has stopped."""
    pool = engine.limits().kv_tokens
    large = padded(prompt("large"), pool - 8)
    for _ in range(2):
        holder = engine.generate(ask(large, 8))
        await first(holder)
        await holder.aclose()
        calls = [ask(padded(prompt(f"next {n}"), pool // 4 - 16), 16) for n in range(4)]
        answers = await asyncio.gather(*(collect(engine, call) for call in calls))
        assert [len(ids_of(a)) for a in answers] == [call.max_tokens for call in calls]
        holders = [engine.generate(call) for call in calls]
        for holder in holders:
            await first(holder)
        for holder in holders:
            await holder.aclose()
        assert len(ids_of(await collect(engine, ask(large, 8)))) == 8


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens"), [(0, 8), (8, 0), (8, -1), (1_000, 25), (8, 1_025)]
)
async def test_a_request_that_cannot_run_is_a_fault_of_that_request(
    engine: Engine, prompt: Prompter, prompt_tokens: int, max_tokens: int
) -> None:
    ids = padded(prompt("impossible"), prompt_tokens) if prompt_tokens else ()
    with pytest.raises(EngineFault):
        await collect(engine, ask(ids, max_tokens))
    assert len(ids_of(await collect(engine, ask(prompt("possible"), 2)))) == 2


async def test_isolation_lets_running_calls_end_and_new_ones_run_after_it(
    engine: Engine, prompt: Prompter
) -> None:
    """E6: no call that starts after `isolate` was called meets a shared prefix."""
    running = engine.generate(ask(prompt("before"), 16))
    deltas = [await first(running)]
    isolating = asyncio.ensure_future(engine.isolate())
    await asyncio.sleep(0)
    later = asyncio.ensure_future(collect(engine, ask(prompt("after"), 4)))
    deltas += [delta async for delta in running]
    assert len(ids_of(deltas)) == 16
    async with asyncio.timeout(PATIENCE_SECONDS):
        await isolating
    assert engine.state() == "ready"
    assert len(ids_of(await later)) == 4
    await engine.isolate()
    assert engine.state() == "ready"


async def test_closing_the_engine_fails_its_calls_and_refuses_new_ones(
    engine: Engine, prompt: Prompter
) -> None:
    running = engine.generate(filler(engine, prompt("interrupted"), 256))
    await first(running)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineFault):
        [delta async for delta in running]
    await running.aclose()
    with pytest.raises(EngineFault):
        await collect(engine, ask(prompt("too late"), 4))
    assert engine.state() == "stopped"
