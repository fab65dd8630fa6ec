"""Single faults that befall batches, each in a world in which nothing else happens.

In the end each world is judged as any other: one outcome for each line, and charged is what was told.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from forebay.core.batch import Answered, Batch, BatchState, Place, Refused
from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Bill, Hold, HoldRequest, Period
from forebay.core.usage import UsageRow
from forebay.pipeline import batch as lanes
from forebay.testing.plans import Plan
from tests.simulation.batchery import SETTINGS, Quiet

WIDE = replace(SETTINGS, window_items=64)
# Tenants of two organisations.
POOR, RICH = 2, 1


async def ruin(world: Quiet) -> None:
    """Not a cent is left for the calls of this tenant."""
    await world.ledger.set_cap(f"key{POOR}", 0, Period.DAY)


async def enrich(world: Quiet) -> None:
    await world.ledger.set_cap(f"key{POOR}", 10**12, Period.DAY)


def lines_of_batches(world: Quiet) -> list[UsageRow]:
    rows = world.ledger.rows.items()
    return [row for call_id, row in rows if call_id.startswith("batch_req")]


# -- engines -------------------------------------------------------------------------------------------


def test_an_engine_that_is_away_for_minutes_fails_no_line() -> None:
    """B11: lines have time, so they wait for it, however long a call of another lane would."""
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        batch = await world.begin(0, lines=100)
        await world.until(lambda: world.row(batch).counts.completed > 4)
        (engine,) = world.engines.values()
        engine.state = lambda: "restarting"  # type: ignore[method-assign]
        await asyncio.sleep(180)
        assert world.row(batch).counts.failed == 0
        del engine.state  # type: ignore[method-assign]
        ended.append(await world.end(batch))

    Quiet(story, WIDE).run()
    assert ended[0].counts.completed == 100


# -- money and room ------------------------------------------------------------------------------------


def test_lines_that_wait_for_money_are_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of two batches are more than may be in flight together, of all batches."""
    monkeypatch.setattr(lanes, "LINES_IN_FLIGHT", 2 * SETTINGS.window_items)
    states: list[BatchState] = []

    async def story(world: Quiet) -> None:
        await ruin(world)
        poor = [await world.begin(POOR, lines=20) for _ in range(2)]
        await asyncio.sleep(5.0)
        await world.end(await world.begin(RICH, lines=5))
        states.extend(world.row(each).state for each in poor)
        await enrich(world)
        for each in poor:
            await world.end(each)

    Quiet(story).run()
    assert states == [BatchState.IN_PROGRESS] * 2


def test_of_the_lines_that_wait_for_money_one_tries() -> None:
    """Each try counts a prompt. An hour has 120 half minutes, and the first tries follow closer."""
    rendered: Counter[str] = Counter()

    async def story(world: Quiet) -> None:
        render = world.tokens.render

        async def counted(*args, **options):  # type: ignore[no-untyped-def]
            rendered["prompts"] += 1
            return await render(*args, **options)

        await ruin(world)
        world.tokens.render = counted  # type: ignore[method-assign]
        batch = await world.begin(POOR, lines=64, seconds=3_600)
        await world.end(batch, 3_700)

    Quiet(story, WIDE).run()
    assert 64 < rendered["prompts"] < 64 + 140


def test_batches_leave_half_of_its_open_calls_to_the_key_that_ordered_them() -> None:
    """L15: as many batches as may run at once, each of which would fill the key's calls alone."""
    plans = [
        Plan(f"req_{n:03d}", 0, 8.0 + n / 2, "Go [[script length=2]]", max_tokens=2)
        for n in range(20)
    ]
    running: list[int] = []

    async def story(world: Quiet) -> None:
        batches = [await world.begin(0, lines=120, length=60) for _ in range(2)]
        await world.until(lambda: len(world.seen) == len(plans))
        running.extend(world.row(each).counts.left for each in batches)
        for each in batches:
            await world.end(each)

    world = Quiet(story, WIDE, plans).run()
    assert all(running)
    assert [seen.refused for seen in world.seen if seen.refused is not None] == []


# -- stores --------------------------------------------------------------------------------------------


def test_a_settlement_whose_answer_is_lost_is_told_as_it_was_charged() -> None:
    """B11: a line that was charged has an answer, also if its fourth try was the one that was stored."""
    tries: Counter[str] = Counter()
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        settle = world.ledger.settle

        async def lossy(hold_id: str, attempt: int, bill: Bill) -> UsageRow:
            tries[hold_id] += 1
            if not hold_id.endswith("_3") or tries[hold_id] > 4:
                return await settle(hold_id, attempt, bill)
            if tries[hold_id] == 4:
                await settle(hold_id, attempt, bill)
            raise StoreUnavailable

        world.ledger.settle = lossy  # type: ignore[method-assign]
        ended.append(await world.end(await world.begin(0, lines=5)))

    Quiet(story).run()
    assert max(tries.values()) > 4
    assert ended[0].counts.completed == 5


def test_a_store_that_fails_for_seconds_fails_no_line_that_is_done() -> None:
    """B4: the answer is kept when the store is there again; until then the line is not told of."""
    ended: list[Batch] = []
    failed: list[Place] = []

    async def story(world: Quiet) -> None:
        store, keep = world.store_of_batches, world.store_of_batches.keep
        batch = await world.begin(0, lines=60)
        await world.until(lambda: world.row(batch).counts.completed > 4)
        back_at = world.loop.time() + 20.0

        async def flaky(place: Place, attempt: int, answer: bytes) -> None:
            if world.loop.time() < back_at:
                failed.append(place)
                raise StoreUnavailable
            await keep(place, attempt, answer)

        store.keep = flaky  # type: ignore[method-assign]
        ended.append(await world.end(batch))

    world = Quiet(story, WIDE).run()
    assert failed
    assert ended[0].counts.completed == 60
    assert {row.attempt for row in lines_of_batches(world)} == {1}, "it ran again"


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_cancel_whose_answer_is_lost_is_one(asked_again: bool) -> None:
    """B14: whether or not its client asks again, the lines that are left do not run."""
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        advance = world.store_of_batches.advance
        lost: list[BatchState] = []

        async def lossy(batch_id, to, *what):  # type: ignore[no-untyped-def]
            row = await advance(batch_id, to, *what)
            if to is BatchState.CANCELLING and not lost:
                lost.append(to)
                raise StoreUnavailable
            return row

        world.store_of_batches.advance = lossy  # type: ignore[method-assign]
        batch = await world.begin(0, lines=400)
        await world.until(lambda: world.row(batch).counts.completed > 4)
        with pytest.raises(StoreUnavailable):
            await world.lane.cancel(batch)
        if asked_again:
            await asyncio.sleep(2.0)
            await world.lane.cancel(batch)
        ended.append(await world.end(batch))

    Quiet(story).run()
    assert ended[0].state is BatchState.CANCELLED
    assert ended[0].counts.left > 200


def test_what_goes_wrong_with_one_line_leaves_its_neighbours_alone() -> None:
    """B11: an exception that nobody expects, out of the room that is told of outcomes."""
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        tell, broken = world.store_of_batches.tell, []

        async def buggy(place: Place, outcome: Answered | Refused) -> bool:
            if not broken:
                broken.append(place)
                raise ValueError("nobody expects this")
            return await tell(place, outcome)

        batch = await world.begin(0, lines=60, length=30)
        await world.until(lambda: world.row(batch).counts.completed > 4)
        world.store_of_batches.tell = buggy  # type: ignore[method-assign]
        ended.append(await world.end(batch))
        assert broken

    world = Quiet(story, WIDE).run()
    assert ended[0].counts.completed == 60
    assert {row.attempt for row in lines_of_batches(world)} == {1}, "a neighbour ran again"


# -- stops ---------------------------------------------------------------------------------------------


def test_a_stop_ends_although_lines_wait_for_money() -> None:
    """B12: one is on its way to the ledger as the stop begins. The next process goes on with all."""
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        await ruin(world)
        batch = await world.begin(POOR, lines=20)
        await asyncio.sleep(5.0)
        hold, asked = world.ledger.hold, asyncio.Event()

        async def slow(request: HoldRequest) -> Hold:
            asked.set()
            await asyncio.sleep(0.05)
            return await hold(request)

        world.ledger.hold = slow  # type: ignore[method-assign]
        await asked.wait()
        async with asyncio.timeout(60):
            await world.lane.drain()
        assert await world.lane.left() == 0
        assert world.row(batch).state is BatchState.IN_PROGRESS
        await enrich(world)
        world.restart()
        ended.append(await world.end(batch))

    Quiet(story).run()
    assert ended[0].counts.completed == 20


# -- files ---------------------------------------------------------------------------------------------


def damage(world: Quiet, batch: Batch) -> None:
    """Its file has other bytes now, as many as before."""
    contents, id_ = world.blobs._contents, batch.order.input_file_id
    contents[id_] = contents[id_].replace(b"line-3", b"line-8")


def codes(batch: Batch) -> list[str]:
    return [error.code for error in batch.errors]


def test_a_file_that_is_damaged_before_its_check_fails_its_batch() -> None:
    """B10, B6: nothing runs, and whoever ordered it is told why."""
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        world.lane.begin = lambda batch: None  # type: ignore[method-assign]
        batch = await world.begin(0, lines=5)
        damage(world, batch)
        del world.lane.begin  # type: ignore[method-assign]
        ended.append(await world.end(batch))

    world = Quiet(story).run()
    assert ended[0].state is BatchState.FAILED
    assert codes(ended[0]) == ["file_damaged"]
    assert lines_of_batches(world) == []


def test_a_file_that_is_damaged_while_its_lines_run_ends_its_batch() -> None:
    """B6: what the file was cannot be told any more, but that is, and what was spent."""
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        batch = await world.begin(0, lines=60)
        await world.until(lambda: world.row(batch).counts.completed > 4)
        damage(world, batch)
        ended.append(await world.end(batch))
        world.ordered.remove(batch.id)  # of such a one the judge would want all lines

    world = Quiet(story).run()
    assert codes(ended[0]) == ["file_damaged"]
    paid = sum(row.amount_nanos for row in lines_of_batches(world))
    assert paid == ended[0].spent.amount_nanos > 0


BLANK_LINES = 100_000


@pytest.mark.parametrize("max_lines", [BLANK_LINES, 1_000])
def test_blank_lines_cost_few_turns_of_the_loop(max_lines: int) -> None:
    """B10: they are read in large bites, and no more of them than twice the lines that a file may have."""
    before: list[int] = []
    ended: list[Batch] = []

    async def story(world: Quiet) -> None:
        before.append(world.loop.steps)
        blank = b"\n" * BLANK_LINES
        ended.append(await world.end(await world.begin(0, lines=1, foot=blank)))
        before.append(world.loop.steps)

    Quiet(story, replace(SETTINGS, max_lines=max_lines)).run()
    whole = max_lines == BLANK_LINES
    assert ended[0].state is (BatchState.COMPLETED if whole else BatchState.FAILED)
    assert codes(ended[0]) == ([] if whole else ["too_many_lines"])
    assert before[1] - before[0] < BLANK_LINES / 50


def test_bytes_that_the_database_does_not_know_stay_where_they_are() -> None:
    """B6: the database may be an older one, put back from a backup; then they are all that there is."""
    kept: list[str] = []

    async def story(world: Quiet) -> None:
        async with world.blobs.create("file-unknown") as upload:
            await upload.write(b"{}")
            await upload.commit()
        world.restart()
        await asyncio.sleep(60.0)
        kept.extend(await world.blobs.ids())

    Quiet(story).run()
    assert kept == ["file-unknown"]
