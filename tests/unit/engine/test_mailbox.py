"""The checks of what an engine says, with outputs made by hand."""

from __future__ import annotations

import asyncio

import pytest

from forebay.core.delta import EngineDelta, EngineLimits, EngineRequest, FinishReason
from forebay.core.errors import EngineFault
from forebay.core.job import Sampling
from forebay.engine.frames import Output, Submit
from forebay.engine.mailbox import Gate, Intake, Mail

LIMITS = EngineLimits(2, 512, 32, 128, False)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


class Desk:
    """An intake whose engine is this test: it records what the engine was told."""

    def __init__(self) -> None:
        self.submitted: list[Submit] = []
        self.cancelled: list[int] = []
        self.intake = Intake(self, lambda: 99)
        self.intake.limits = LIMITS
        self.gate = Gate()
        self.gate.open()
        self.made = 0

    def submit(self, work: Submit) -> None:
        self.submitted.append(work)

    def cancel(self, sequence: int) -> None:
        self.cancelled.append(sequence)

    def deliver(self, outputs: list[Output]) -> None:
        """One step of an engine that counts what it sends."""
        self.made += sum(len(output.token_ids) for output in outputs)
        self.intake.deliver(outputs, self.made)

    def mail(self, max_tokens: int = 8, choices: int = 1, seed: int | None = None) -> Mail:
        sampling = Sampling(0.5, 0.9, 40, seed, ("stop",))
        return Mail(
            self.intake, self.gate, EngineRequest("req_1", (1, 2), max_tokens, sampling, choices)
        )

    async def begun(self, max_tokens: int = 8, choices: int = 1) -> Mail:
        """A generation that was submitted: its reader waits for the first delta."""
        mail = self.mail(max_tokens, choices)
        task = asyncio.ensure_future(anext(mail))
        await asyncio.sleep(0)
        self.deliver([Output(self.submitted[-choices].sequence, 0, (1,))])
        assert await task == EngineDelta(0, (1,))
        return mail


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def rest(mail: Mail) -> list[EngineDelta]:
    return [delta async for delta in mail]


async def test_outputs_become_deltas_and_the_engines_count_is_passed_on(desk: Desk) -> None:
    """E2: also a wrong one, which is the worker's to judge."""
    mail = await desk.begun()
    desk.deliver([Output(1, 1, (2, 3)), Output(1, 3, (), STOP, 5, 2)])
    assert await rest(mail) == [
        EngineDelta(0, (2, 3)),
        EngineDelta(0, (), "", STOP, 5, 2),
    ]
    assert (desk.intake.open, desk.cancelled) == (0, [])


@pytest.mark.parametrize("position", [0, 2, 7])
async def test_a_repeat_or_a_gap_is_a_fault_after_what_came_before(
    desk: Desk, position: int
) -> None:
    mail = await desk.begun()
    desk.deliver([Output(1, 1, (2,))])
    desk.deliver([Output(1, position if position != 2 else 1, (3,))])
    assert await anext(mail) == EngineDelta(0, (2,))
    with pytest.raises(EngineFault, match="where 2 was due"):
        await anext(mail)
    assert desk.cancelled == [1]
    assert await rest(mail) == []


@pytest.mark.parametrize(
    ("outputs", "ids", "cancelled"),
    [
        ([Output(1, 1, (2, 3, 4, 5))], (2, 3), True),  # more than fits, in one chunk
        ([Output(1, 1, (2,)), Output(1, 2, (3,)), Output(1, 3, (4,))], (2, 3), True),
        ([Output(1, 1, (2, 3, 4), LENGTH, 4)], (2, 3), True),
        ([Output(1, 1, (2, 3), STOP, 3)], (2, 3), False),  # exactly what was asked for
    ],
)
async def test_output_is_cut_at_what_was_asked_for(
    desk: Desk, outputs: list[Output], ids: tuple[int, ...], cancelled: bool
) -> None:
    """E3."""
    mail = await desk.begun(max_tokens=3)
    desk.deliver(outputs)
    deltas = await rest(mail)
    assert tuple(i for delta in deltas for i in delta.token_ids) == ids
    assert deltas[-1].finish_reason is (LENGTH if cancelled else STOP)
    assert deltas[-1].reported_tokens == (None if cancelled else 3)
    assert desk.cancelled == ([1] if cancelled else [])


async def test_a_fault_output_raises_even_with_tokens_still_unread(desk: Desk) -> None:
    """E9."""
    mail = await desk.begun()
    desk.deliver([Output(1, 1, (2,)), Output(1, 2, fault="out of KV memory")])
    assert await anext(mail) == EngineDelta(0, (2,))
    with pytest.raises(EngineFault, match="KV memory"):
        await anext(mail)


async def test_late_outputs_of_a_stopped_call_are_ignored(desk: Desk) -> None:
    """E1: also by a later submission of the same request, which has another sequence."""
    mail = await desk.begun()
    await mail.aclose()
    again = await desk.begun()
    desk.deliver([Output(1, 1, (66,)), Output(2, 1, (2,), STOP, 2)])
    assert await rest(again) == [EngineDelta(0, (2,), "", STOP, 2)]
    assert [work.sequence for work in desk.submitted] == [1, 2]
    assert {work.request_id for work in desk.submitted} == {"req_1"}


async def test_choices_have_seeds_of_their_own_that_follow_from_the_requests(desk: Desk) -> None:
    """E7: everything else is the request's, field by field."""
    for seed in (5, 5, -1, None):
        mail = desk.mail(choices=3, seed=seed)
        task = asyncio.ensure_future(anext(mail, None))
        await asyncio.sleep(0)
        mail.stop()
        await task
    first, second, negative, unseeded = (desk.submitted[n : n + 3] for n in (0, 3, 6, 9))
    assert [w.seed for w in first] == [w.seed for w in second]
    assert len({w.seed for w in (*first, *negative, *unseeded)}) == 9
    assert unseeded[0].seed == 99
    assert all(0 <= work.seed < 2**63 for work in desk.submitted)
    assert [work.choice for work in first] == [0, 1, 2]
    assert first[0] == Submit(1, "req_1", 0, (1, 2), 8, 0.5, 0.9, 40, 5, False)


async def test_one_failed_choice_fails_the_request_and_closing_stops_the_others(
    desk: Desk,
) -> None:
    """E1."""
    mail = await desk.begun(choices=2)
    desk.deliver([Output(2, 0, fault="broken")])
    with pytest.raises(EngineFault, match="broken"):
        await anext(mail)
    await mail.aclose()
    assert desk.cancelled == [2, 1]
    assert desk.intake.open == 0


async def test_signals_count_what_was_submitted_up_to_what_may_run(desk: Desk) -> None:
    mails = [await desk.begun() for _ in range(3)]
    signals = desk.intake.signals(0.25)
    assert (signals.running, signals.waiting, signals.kv_use) == (2, 1, 0.25)
    for mail in mails:
        await mail.aclose()
    assert desk.intake.signals(0.25).kv_use == 0.0


async def test_a_token_is_queued_until_it_is_yielded_and_discarded_if_nobody_gets_it(
    desk: Desk,
) -> None:
    """(made, discarded, queued): what is left of `made` was yielded."""
    desk.intake.renew()
    mail = await desk.begun(max_tokens=4)
    assert desk.intake.tally() == (1, 1, 0, 0)
    desk.deliver([Output(1, 1, (2, 3)), Output(77, 0, (1, 2))])  # 77 was dropped, or never was
    assert desk.intake.tally() == (1, 5, 2, 2)
    await anext(mail)
    assert desk.intake.tally() == (1, 5, 2, 0)
    desk.deliver([Output(1, 3, (4, 5, 6))])  # two beyond what was asked for
    assert desk.intake.tally() == (1, 8, 4, 1)
    mail.stop()
    assert desk.intake.tally().queued == 1
    await mail.aclose()
    await mail.aclose()
    assert desk.intake.tally() == (1, 8, 5, 0)


async def test_tokens_that_come_with_a_fault_are_discarded(desk: Desk) -> None:
    for sequence, fault in enumerate(
        (
            Output(1, 1, (2, 3), fault="out of KV memory"),
            Output(2, 7, (2, 3)),
            Output(3, 1, (2, 3), logprobs=(-1.0,)),
        ),
        start=1,
    ):
        mail = await desk.begun()
        desk.deliver([fault])
        with pytest.raises(EngineFault):
            await anext(mail)
        assert desk.intake.tally() == (0, 3 * sequence, 2 * sequence, 0)


async def test_an_engine_that_is_started_again_goes_on_where_the_last_one_stopped_counting(
    desk: Desk,
) -> None:
    desk.intake.renew()
    mail = await desk.begun()
    desk.deliver([Output(1, 1, (2,))])
    desk.intake.fail_all("the engine died")
    desk.intake.renew()
    desk.made = 0
    await desk.begun()
    assert desk.intake.tally() == (2, 3, 0, 1)
    assert await anext(mail) == EngineDelta(0, (2,))  # received from the one that died
    assert desk.intake.tally() == (2, 3, 0, 0)


async def test_a_call_waits_at_a_shut_gate_and_goes_in_when_it_opens(desk: Desk) -> None:
    desk.gate.shut()
    mail = desk.mail()
    task = asyncio.ensure_future(anext(mail))
    await asyncio.sleep(0)
    assert desk.submitted == []
    desk.gate.open()
    await asyncio.sleep(0)
    desk.deliver([Output(1, 0, (1,), LENGTH, 1)])
    assert (await task).token_ids == (1,)


async def test_a_stop_wakes_a_call_at_the_gate_and_it_is_never_submitted(desk: Desk) -> None:
    """E1."""
    desk.gate.shut()
    mail = desk.mail()
    task = asyncio.ensure_future(anext(mail, None))
    await asyncio.sleep(0)
    mail.stop()
    assert await task is None
    desk.gate.open()
    assert await rest(mail) == []
    assert desk.submitted == []


async def test_a_failed_start_fails_those_who_wait_and_a_stop_everyone(desk: Desk) -> None:
    desk.gate.shut()
    tasks = [asyncio.ensure_future(anext(desk.mail())) for _ in range(2)]
    await asyncio.sleep(0)
    desk.gate.fail("no weights")
    for task in tasks:
        with pytest.raises(EngineFault, match="no weights"):
            await task
    later = asyncio.ensure_future(anext(desk.mail()))
    await asyncio.sleep(0)
    assert not later.done()
    desk.gate.stop("closed")
    with pytest.raises(EngineFault, match="closed"):
        await later
    with pytest.raises(EngineFault, match="closed"):
        await anext(desk.mail())


async def test_drained_returns_when_the_last_sequence_has_ended(desk: Desk) -> None:
    await desk.intake.drained()
    await desk.begun()
    await desk.begun()
    drained = asyncio.ensure_future(desk.intake.drained())
    desk.deliver([Output(1, 1, (2,), STOP, 2)])
    await asyncio.sleep(0)
    assert not drained.done()
    desk.intake.fail_all("the engine died")
    async with asyncio.timeout(1):
        await drained


def test_limits_are_unknown_before_the_first_start() -> None:
    desk = Desk()
    with pytest.raises(EngineFault, match="not started"):
        _ = Intake(desk, lambda: 0).limits
