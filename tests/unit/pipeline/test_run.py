"""What one lease makes of an engine's deltas, with the scripted model's real decoder and engine."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from forebay.core.delta import EngineDelta, EngineRequest, FinishReason
from forebay.core.errors import EngineFault
from forebay.core.event import Delta, Started
from forebay.core.job import Flow, Job, Lane, Lease, Resume, Sampling
from forebay.core.usage import Timings
from forebay.engine.scripted import ScriptedEngine
from forebay.engine.settings import EngineSettings, ScriptedSettings
from forebay.pipeline.run import Interruption, Run
from forebay.testing.clock import CountingIds
from forebay.testing.loop import LoopClock, VirtualLoop
from forebay.tokens.hf import HuggingFaceTokens
from forebay.tokens.scripted import scripted_tokens

MODEL = "scripted"
TOKENS = HuggingFaceTokens({MODEL: scripted_tokens(CountingIds())})
PROMPT = tuple(b"[[script length=40]]")
ALIEN = 100_000
JOB = Job(
    id="req_1",
    attempt=3,
    owner="gw",
    pool=MODEL,
    model=MODEL,
    flow=Flow(Lane.INTERACTIVE, "org", "proj"),
    weight=1,
    prompt_ids=PROMPT,
    ceiling_tokens=100,
    sampling=Sampling(temperature=0.5),
    streamed=True,
    resumable=True,
)


def job_with(*, stop: tuple[str, ...] = (), ceiling_tokens: int = 100, choices: int = 1) -> Job:
    sampling = replace(JOB.sampling, stop=stop)
    return replace(JOB, sampling=sampling, ceiling_tokens=ceiling_tokens, choices=choices)


def run_of(job: Job = JOB, *, waited: float = 0.0, protected: float = 0.0, at: float = 0.0) -> Run:
    lease = Lease(job, "worker", 7, waited, protected)
    run = Run(lease, started_at=at, order=1)
    run.prepare(partial(TOKENS.decoder, MODEL, job.sampling.stop))
    return run


def says(
    text: str | bytes,
    finish: FinishReason | None = None,
    *,
    choice: int = 0,
    reported: int | None = None,
    cached: int | None = None,
) -> EngineDelta:
    data = text.encode() if isinstance(text, str) else text
    return EngineDelta(choice, tuple(data), "", finish, reported, cached)


def shown(*events: Delta | None) -> str:
    return "".join(event.text for event in events if event is not None)


# -- M


@pytest.mark.parametrize("sizes", [(8,), (5, 3), (4, 4), (1,) * 8])
def test_an_engine_that_goes_on_past_m_is_cut_there(sizes: tuple[int, ...]) -> None:
    """E3: what is beyond M is neither shown nor counted, however it arrives."""
    run, text, events = run_of(job_with(ceiling_tokens=5)), "abcdefgh", []
    for size in sizes:
        events.append(run.accept(says(text[:size]), 1.0))
        text = text[size:]
    assert shown(*events) == "abcde"
    assert run.choices[0].token_ids == list(b"abcde")
    assert run.finish_reasons == (FinishReason.LENGTH,)
    assert run.finished
    assert run.usage().output_tokens == 5
    assert (run.generated, run.ignored) == (5, 3)


def test_what_arrives_after_the_end_changes_nothing() -> None:
    """E3."""
    run = run_of(job_with(ceiling_tokens=3))
    run.accept(says("abc"), 1.0)
    before = (run.sequence, run.usage(), run.last_delta_at)
    assert run.accept(says("def", FinishReason.STOP, reported=6), 2.0) is None
    assert (run.generated, run.ignored) == (3, 3)
    assert (run.sequence, run.usage(), run.last_delta_at) == before


def test_at_m_the_text_that_waited_for_a_stop_string_is_shown() -> None:
    """E4: no stop string can follow any more."""
    run = run_of(job_with(stop=("xyz",), ceiling_tokens=4))
    assert run.accept(says("abxy"), 1.0) == Delta(1, 3, 0, tuple(b"abxy"), "abxy")


def test_a_stop_string_that_is_completed_by_the_last_token_of_m_is_a_stop() -> None:
    """E4."""
    run = run_of(job_with(stop=("xyz",), ceiling_tokens=5))
    assert shown(run.accept(says("abxyz"), 1.0)) == "ab"
    assert run.finish_reasons == (FinishReason.STOP,)


# -- ends


def test_a_stop_string_inside_a_delta_ends_there_and_its_own_tokens_count() -> None:
    """E4: they were made, so they are billed; what the engine made behind them is not."""
    run = run_of(job_with(stop=("STOP",)))
    assert run.accept(says("one STOP two", FinishReason.LENGTH, reported=12), 1.0) == Delta(
        1, 3, 0, tuple(b"one STOP"), "one "
    )
    assert run.finish_reasons == (FinishReason.STOP,)
    assert run.usage().output_tokens == len("one STOP")
    assert not run.mismatch


def test_a_stop_string_over_several_deltas_never_shows() -> None:
    """E4; the tokens of it are published all the same, with no text."""
    run = run_of(job_with(stop=("STOP",)))
    events = [run.accept(says(part), 1.0) for part in ("one ST", "O", "P!")]
    assert [event and event.text for event in events] == ["one ", "", ""]
    assert [event and bytes(event.token_ids) for event in events] == [b"one ST", b"O", b"P"]
    assert run.finished


def test_the_engine_s_end_brings_what_was_held_back() -> None:
    """E4: it was no stop string after all."""
    run = run_of(job_with(stop=("STOP",)))
    assert shown(run.accept(says("the ST"), 1.0)) == "the "
    assert run.accept(says("", FinishReason.STOP, reported=6), 2.0) == Delta(2, 3, 0, (), "ST")
    assert run.finish_reasons == (FinishReason.STOP,)


def test_an_end_with_nothing_held_back_is_no_event() -> None:
    run = run_of()
    run.accept(says("all"), 1.0)
    assert run.accept(says("", FinishReason.STOP), 2.0) is None
    assert run.finished
    assert run.sequence == 1


def test_an_end_within_a_character_drops_the_half_and_counts_its_token() -> None:
    """E5."""
    run = run_of()
    assert shown(run.accept(says(b"ab" + "é".encode()[:1], FinishReason.STOP), 1.0)) == "ab"
    assert run.usage().output_tokens == 3


def test_an_engine_that_stops_without_a_finish_reason_has_not_ended() -> None:
    """E9: out of memory must not look like an end."""
    run = run_of()
    run.accept(says("half of it"), 1.0)
    with pytest.raises(EngineFault, match="without a finish reason"):
        run.require_end()
    run.accept(says("", FinishReason.STOP), 2.0)
    run.require_end()


def test_each_choice_has_its_own_text_and_its_own_end() -> None:
    """E9 for two: one that has ended does not end the other. E3: M holds for each."""
    run = run_of(job_with(choices=2, ceiling_tokens=4, stop=("!",)))
    assert shown(run.accept(says("abcdef", choice=1), 1.0)) == "abcd"
    assert run.finish_reasons == (None, FinishReason.LENGTH)
    assert not run.finished
    with pytest.raises(EngineFault):
        run.require_end()
    assert shown(run.accept(says("x!y", choice=0), 2.0)) == "x"
    assert run.finish_reasons == (FinishReason.STOP, FinishReason.LENGTH)
    assert run.output_tokens == run.usage().output_tokens == 6
    assert run.request().choices == 2


# -- what may not be believed


def test_an_id_that_is_not_the_model_s_keeps_what_came_before_it() -> None:
    run = run_of()
    delta = EngineDelta(0, (*b"ab", ALIEN, *b"cd"), "", FinishReason.STOP, 5)
    assert run.accept(delta, 1.0) == Delta(1, 3, 0, tuple(b"ab"), "ab")
    assert isinstance(run.fault, EngineFault)
    assert str(ALIEN) in str(run.fault)
    assert run.finish_reasons == (None,), "a fault is never an end (E9)"
    assert run.usage().output_tokens == 2
    assert (run.generated, run.ignored) == (2, 3)
    assert run.resume(fault=True).token_ids == (tuple(b"ab"),)


def test_an_alien_id_alone_is_nothing_to_publish() -> None:
    run = run_of()
    assert run.accept(EngineDelta(0, (ALIEN,)), 1.0) is None
    assert run.fault is not None
    assert not run.published


@pytest.mark.parametrize(
    ("reported", "mismatch"), [(None, False), (5, False), (4, True), (6, True)]
)
def test_an_engine_that_miscounts_is_noticed_and_what_was_received_is_billed(
    reported: int | None, mismatch: bool
) -> None:
    """E2."""
    run = run_of()
    run.accept(says("abc"), 1.0)
    run.accept(says("de", FinishReason.STOP, reported=reported), 2.0)
    assert run.mismatch is mismatch
    assert run.usage().output_tokens == 5


@pytest.mark.parametrize(("reported", "mismatch"), [(2, False), (5, True)])
def test_an_engine_counts_only_its_own_lease(reported: int, mismatch: bool) -> None:
    """E2: it was given what earlier leases had published as a part of its prompt."""
    run = run_of(replace(JOB, resume=Resume(token_ids=(tuple(b"abc"),), sequence=2)))
    run.accept(says("de", FinishReason.STOP, reported=reported), 1.0)
    assert run.mismatch is mismatch
    assert run.usage().output_tokens == 5


# -- the next lease


def test_a_run_returns_with_what_it_published_and_the_next_one_asks_for_the_rest() -> None:
    """E8."""
    first = run_of(job_with(stop=("STOP",), ceiling_tokens=30))
    assert first.started() == Started(1, 3, 0)
    first.accept(says("one ST"), 1.0)
    resume = first.resume(preempted=True)
    assert resume.token_ids == (tuple(b"one ST"),)
    assert (resume.sequence, resume.preemptions, resume.faults) == (2, 1, 0)

    second = run_of(replace(first.job, resume=resume))
    assert second.request() == EngineRequest(
        id="req_1.7",
        prompt_ids=PROMPT + tuple(b"one ST"),
        max_tokens=24,
        sampling=Sampling(temperature=0.5),
    )
    assert second.published
    assert (second.output_tokens, second.generated) == (6, 0)
    assert second.started() == Started(3, 3, 0)
    assert second.accept(says("OP it"), 2.0) == Delta(4, 3, 0, tuple(b"OP"), "")
    assert second.finish_reasons == (FinishReason.STOP,)
    assert (second.output_tokens, second.generated) == (8, 2)


def test_wherever_a_run_is_broken_off_the_text_is_the_undisturbed_one() -> None:
    """E4, E5, E8: half a character and half a stop string survive the change of leases."""
    data = "größe ST, 発電 STO STOP more".encode()
    job = job_with(stop=("STOP",))
    whole = shown(run_of(job).accept(says(data), 1.0))
    assert whole == "größe ST, 発電 STO "
    for at in range(1, data.index(b"STOP") + 4):
        first = run_of(job)
        before = first.accept(says(data[:at]), 1.0)
        if first.finished:
            continue
        second = run_of(replace(job, resume=first.resume(preempted=True)))
        assert shown(before, second.accept(says(data[at:]), 2.0)) == whole, at
        assert second.finish_reasons == (FinishReason.STOP,)


def test_m_holds_over_all_leases_together() -> None:
    """E3."""
    first = run_of(job_with(ceiling_tokens=5))
    first.accept(says("abc"), 1.0)
    second = run_of(replace(first.job, resume=first.resume(fault=True)))
    assert second.request().max_tokens == 2
    assert shown(second.accept(says("defg"), 2.0)) == "de"
    assert second.usage().output_tokens == 5
    assert second.finish_reasons == (FinishReason.LENGTH,)


def test_a_run_that_published_nothing_begins_again_from_the_prompt() -> None:
    first = run_of(job_with(choices=2))
    first.started()
    resume = first.resume(fault=True)
    assert resume == Resume(sequence=1, faults=1, barren=1, queue_ms=0)
    request = run_of(replace(first.job, resume=resume)).request()
    assert (request.prompt_ids, request.max_tokens, request.choices) == (PROMPT, 100, 2)


def test_each_return_is_counted_with_its_reason() -> None:
    """Q7: after three preemptions a job is left alone."""
    job = JOB
    for returned in ("preempted", "preempted", "fault"):
        job = replace(job, resume=run_of(job).resume(**{returned: True}))
    assert (job.resume.preemptions, job.resume.faults) == (2, 1)
    assert run_of(job).resume() == job.resume


def test_a_fault_before_any_token_of_the_lease_is_counted_apart() -> None:
    """Of those it may be the reason; with a token it is most likely a bystander."""
    first = run_of(JOB)
    first.accept(says("a"), 1.0)
    second = run_of(replace(JOB, resume=first.resume(fault=True)))
    assert (second.job.resume.faults, second.job.resume.barren) == (1, 0)
    third = run_of(replace(JOB, resume=second.resume(fault=True)))
    assert (third.job.resume.faults, third.job.resume.barren) == (2, 1)
    assert third.resume(preempted=True).barren == 1


def test_an_engine_is_told_no_stop_strings() -> None:
    """E7, E4: they are matched here, over the joined text."""
    assert run_of(job_with(stop=("STOP",))).request().sampling.stop == ()


# -- interruptions


def test_the_first_interruption_holds_and_stops_the_engine_at_once() -> None:
    """E1: what had been received is still there; nothing more is made."""
    loop = VirtualLoop(1)
    engine = ScriptedEngine(EngineSettings(), ScriptedSettings(), clock=LoopClock(loop))
    run = run_of()

    async def story() -> None:
        await engine.start()
        run.generation = generation = engine.generate(run.request())
        async for delta in generation:
            run.accept(delta, loop.time())
            if run.output_tokens == 3:
                run.interrupt(Interruption.PREEMPTED)
                run.interrupt(Interruption.LEASE_LOST)
        await generation.aclose()

    loop.run_until_complete(story())
    loop.close()
    assert run.interruption is Interruption.PREEMPTED
    assert run.output_tokens == 3
    [made] = engine.journal.records.values()
    assert made.cancelled_at == made.made == 3


def test_a_run_may_be_interrupted_before_it_generates() -> None:
    run = run_of()
    run.interrupt(Interruption.LATE)
    run.interrupt(Interruption.ABANDONED)
    assert run.interruption is Interruption.LATE


@pytest.mark.parametrize(
    ("protected", "now", "expected"),
    [
        (0.0, 100.0, False),
        (10.0, 109.9, True),
        (10.0, 110.0, False),
        (math.inf, 1e9, True),
    ],
)
def test_a_lease_is_protected_for_as_long_as_it_says(
    protected: float, now: float, expected: bool
) -> None:
    """Q7."""
    assert run_of(protected=protected, at=100.0).protected(now) is expected


# -- times and usage


def test_times_count_from_when_the_job_was_enqueued() -> None:
    run = run_of(waited=1.5, at=100.0)
    assert run.started().queue_ms == run.queue_ms == 1500
    assert run.timings(101.0) == Timings(1500, None, 2500)
    run.accept(says(""), 102.0)
    assert run.ttft_ms is None, "a delta without a token is not the first token"
    run.accept(says("a"), 102.25)
    run.accept(says("b"), 103.0)
    assert run.last_delta_at == 103.0
    assert run.timings(104.0) == Timings(1500, 3750, 5500)


def test_a_later_lease_keeps_the_first_one_s_times() -> None:
    first = run_of(waited=1.5, at=100.0)
    first.accept(says("a"), 102.25)
    second = run_of(replace(JOB, resume=first.resume(preempted=True)), waited=10.0, at=108.5)
    second.accept(says("b"), 109.0)
    assert second.started().queue_ms == 1500
    assert second.timings(110.0) == Timings(1500, 3750, 11_500)


def test_the_first_token_may_come_in_a_later_lease() -> None:
    first = run_of(waited=1.5, at=100.0)
    second = run_of(replace(JOB, resume=first.resume(fault=True)), waited=10.0, at=108.5)
    assert second.ttft_ms is None
    second.accept(says("a"), 109.0)
    assert second.timings(110.0) == Timings(1500, 10_500, 11_500)


def test_usage_is_the_prompt_s_tokens_and_those_received_or_fewer() -> None:
    run = run_of()
    run.accept(says("ab", cached=16), 1.0)
    run.accept(says("cd"), 2.0)
    usage = run.usage()
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (
        len(PROMPT),
        16,
        4,
    )
    assert usage.finish_reasons == (None,)
    assert run.usage(output_tokens=2) == replace(usage, output_tokens=2)


@pytest.mark.parametrize("reported", [4, 6])
def test_a_wrong_count_is_noticed_also_of_an_answer_that_ends_at_m(reported: int) -> None:
    """E2."""
    run = run_of(job_with(ceiling_tokens=5))
    run.accept(EngineDelta(0, tuple(b"abcde"), "", FinishReason.LENGTH, reported), 1.0)
    assert run.mismatch


# -- log-probabilities


def sure(text: str, *logprobs: float, finish: FinishReason | None = None) -> EngineDelta:
    """One number for each byte."""
    return EngineDelta(0, tuple(text.encode()), "", finish, logprobs=logprobs)


def tokens(event: Delta | None) -> list[tuple[bytes, float]]:
    assert event is not None
    return [tuple(each) for each in event.logprobs]  # type: ignore[misc]


def test_log_probabilities_are_published_with_the_text_of_their_tokens() -> None:
    run = run_of(job_with(stop=("STOP",)))
    assert tokens(run.accept(sure("ab", -0.1, -0.2), 1.0)) == [(b"a", -0.1), (b"b", -0.2)]
    event = run.accept(sure("cST", -0.3, -0.4, -0.5), 1.0)
    assert (event and event.text, tokens(event)) == ("c", [(b"c", -0.3)])
    assert tokens(run.accept(sure("x", -0.6), 1.0)) == [(b"S", -0.4), (b"T", -0.5), (b"x", -0.6)]


def test_the_log_probabilities_of_a_stop_string_never_show() -> None:
    """E4."""
    run = run_of(job_with(stop=("STOP",)))
    event = run.accept(sure("aSTOPb", -0.1, -0.2, -0.3, -0.4, -0.5, -0.6), 1.0)
    assert (event and event.text, tokens(event)) == ("a", [(b"a", -0.1)])


@pytest.mark.parametrize("finish", [None, FinishReason.STOP])
def test_what_was_held_back_in_vain_is_shown_at_the_end(finish: FinishReason | None) -> None:
    """By the engine's end as by the maximum."""
    run = run_of(job_with(stop=("STOP",), ceiling_tokens=100 if finish else 3))
    event = run.accept(sure("aST", -0.1, -0.2, -0.3, finish=finish), 1.0)
    assert (event and event.text, len(tokens(event))) == ("aST", 3)


def test_half_a_character_keeps_its_log_probability_until_it_is_whole() -> None:
    """E5."""
    run = run_of()
    first = run.accept(EngineDelta(0, (0xC3,), logprobs=(-0.1,)), 1.0)
    assert (first and first.text, tokens(first)) == ("", [])
    second = run.accept(EngineDelta(0, (0xA9,), logprobs=(-0.2,)), 1.0)
    assert (second and second.text, tokens(second)) == ("é", [(b"\xc3", -0.1), (b"\xa9", -0.2)])


# -- who was asked


def test_a_run_is_untouched_until_an_engine_is_given_its_job() -> None:
    """Whose client leaves before that pays nothing."""
    asked = type("Asked", (), {"submitted": False})()
    run = run_of()
    assert run.untouched
    run.generation = asked  # type: ignore[assignment]
    assert run.untouched
    asked.submitted = True
    assert not run.untouched
    returned = run_of(replace(JOB, resume=Resume(sequence=1)))
    assert not returned.untouched


@pytest.mark.parametrize(
    ("job", "text", "reason", "said"),
    [
        (job_with(stop=("STOP",)), "one STOP", FinishReason.STOP, "one "),
        (job_with(ceiling_tokens=4), "over", FinishReason.LENGTH, "over"),
        (job_with(ceiling_tokens=6, stop=("STOP",)), "one ST", FinishReason.LENGTH, "one ST"),
    ],
)
def test_one_that_had_ended_and_was_not_settled_is_not_generated_further(
    job: Job, text: str, reason: FinishReason, said: str
) -> None:
    """Its worker died in between; the engine is not asked for text behind a stop string."""
    job = replace(job, turn_id="turn_1")
    first = run_of(job)
    assert shown(first.accept(says(text), 1.0)) == said
    assert first.finish_reasons == (reason,)
    second = run_of(replace(job, resume=first.resume(fault=True)))
    assert second.finished
    assert second.finish_reasons == (reason,)
    assert second.said(9.5) == first.said(9.5)
