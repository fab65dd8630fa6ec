"""What every Batches must do: B1-B5 of batches and their items.

Fixtures: `files` and `batches` on one empty store with SETTINGS, and its `clock`, which begins at NOW.

Not here: files (`batch_files.py`), their bytes (`batch_blobs.py`), what only a store on disk can get
wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from forebay.batch import Batches, BatchSettings, Files, Learnt, Listing, WrongWay
from forebay.core.batch import (
    Answered,
    Batch,
    BatchOrder,
    BatchState,
    Item,
    ItemState,
    LineCounts,
    LineError,
    Place,
    Refused,
    Spent,
    StoredFile,
)
from forebay.core.errors import StaleAttempt
from forebay.core.principal import Scopes
from forebay.core.usage import Usage

NOW = 1_800_000_000.0
SETTINGS = BatchSettings(organisation_bytes=1_000, max_files=1_100)
STATE = BatchState
OLDEST = Listing(100, newest_first=False)
# How a batch gets into each of its states.
PATHS = {
    STATE.VALIDATING: (),
    STATE.FAILED: (STATE.FAILED,),
    STATE.IN_PROGRESS: (STATE.IN_PROGRESS,),
    STATE.FINALIZING: (STATE.IN_PROGRESS, STATE.FINALIZING),
    STATE.COMPLETED: (STATE.IN_PROGRESS, STATE.FINALIZING, STATE.COMPLETED),
    STATE.EXPIRED: (STATE.IN_PROGRESS, STATE.FINALIZING, STATE.EXPIRED),
    STATE.CANCELLING: (STATE.CANCELLING,),
    STATE.CANCELLED: (STATE.IN_PROGRESS, STATE.CANCELLING, STATE.CANCELLED),
}
# Where it may go next (the picture of the contract).
NEXT = {
    STATE.VALIDATING: {STATE.FAILED, STATE.IN_PROGRESS, STATE.CANCELLING},
    STATE.IN_PROGRESS: {STATE.FINALIZING, STATE.CANCELLING},
    STATE.FINALIZING: {STATE.COMPLETED, STATE.EXPIRED},
    STATE.CANCELLING: {STATE.CANCELLED},
}
ENDS = (STATE.FAILED, STATE.COMPLETED, STATE.EXPIRED, STATE.CANCELLED)
WHY = Refused(b"\x00why")


def file_of(id: str = "file-1", **changes: Any) -> StoredFile:
    """A file of 100 bytes."""
    file = StoredFile(id, "org_a", "batch", "calls.jsonl", 100, "0" * 64, NOW, NOW + 1_000)
    return replace(file, **changes)


def batch_of(id: str = "batch_1", organisation_id: str = "org_a", **changes: Any) -> Batch:
    """One that was just ordered; changes that are an order's go there."""
    order = BatchOrder("file-1", "/v1/chat/completions", "24h", 86_400)
    ours = {name: changes.pop(name) for name in list(changes) if hasattr(order, name)}
    scopes = Scopes(organisation_id, f"proj_of_{organisation_id}", "key_1")
    order = replace(order, **ours)
    batch = Batch(id, scopes, order, STATE.VALIDATING, NOW, NOW + 86_400, {})
    return replace(batch, **changes)


def answer_of(line: int) -> Answered:
    """An outcome whose numbers are this line's."""
    return Answered(Usage(10 * line, 100 * line, line), 1_000 * line, b"head of %d" % line)


async def walk(batches: Batches, batch_id: str, state: BatchState) -> Batch:
    """Lead a new batch into this state."""
    batch = await find(batches, batch_id)
    for step in PATHS[state]:
        batch = await batches.advance(batch_id, step, NOW)
    return batch


async def find(batches: Batches, batch_id: str) -> Batch:
    """Whosever it is."""
    organisation_id = "org_b" if batch_id == "batch_b" else "org_a"
    return await batches.find(organisation_id, batch_id)


async def begin(batches: Batches, count: int, batch_id: str = "batch_1") -> list[Place]:
    """A new batch that runs, with so many lines begun."""
    await batches.create(batch_of(batch_id))
    await batches.advance(batch_id, STATE.IN_PROGRESS, NOW, Learnt(total=count))
    places = [Place(batch_id, line) for line in range(1, count + 1)]
    await batches.open(places)
    return places


async def answer(batches: Batches, place: Place) -> None:
    """From its call's end to its outcome."""
    await batches.keep(place, 1, b"answer of %d" % place.line)
    assert await batches.tell(place, answer_of(place.line))


async def ids_of(batches: Batches, listing: Listing = OLDEST) -> list[str]:
    return [batch.id for batch in await batches.page("org_a", listing)]


async def refusal_of(asked: Awaitable[Any]) -> object:
    """The argument of the KeyError that this must raise."""
    with pytest.raises(KeyError) as raised:
        await asked
    assert raised.type is KeyError
    return raised.value.args[0]


# -- batches ------------------------------------------------------------------------------------------


async def test_a_batch_is_found_as_it_was_ordered(batches: Batches) -> None:
    plain = batch_of()
    full = batch_of(
        "batch_2",
        metadata={"team": "größe"},
        output_ttl_seconds=3_600,
        key="order-1",
        fingerprint=b"\x00\xff",
    )
    for batch in (plain, full):
        assert await batches.create(batch) == batch
        assert await batches.find("org_a", batch.id) == batch


async def test_a_batch_is_not_changed_by_who_ordered_it(batches: Batches) -> None:
    metadata = {"a": "b"}
    await batches.create(batch_of(metadata=metadata))
    metadata["a"] = "c"
    assert (await batches.find("org_a", "batch_1")).order.metadata == {"a": "b"}


async def test_an_id_is_given_once(batches: Batches) -> None:
    first = await batches.create(batch_of())
    for changed in (batch_of(endpoint="/v1/responses"), batch_of(organisation_id="org_b")):
        with pytest.raises(ValueError, match="batch_1 exists already"):
            await batches.create(changed)
    assert await batches.find("org_a", "batch_1") == first


async def test_b1_another_s_batch_is_answered_like_one_that_does_not_exist(
    batches: Batches,
) -> None:
    await batches.create(batch_of())
    await batches.create(batch_of("batch_b", "org_b"))
    for id in ("batch_1", "batch_7"):
        assert await refusal_of(batches.find("org_b", id)) == id
        assert await refusal_of(batches.page("org_b", Listing(10, after=id))) == id
    assert await batches.page("org_b", OLDEST) == [batch_of("batch_b", "org_b")]
    assert await batches.page("org_c", OLDEST) == []


async def test_batches_are_listed_by_time_of_creation_and_paged(batches: Batches) -> None:
    for number, at in ((1, 30), (2, 10), (3, 20), (4, 20), (5, 20)):
        await batches.create(batch_of(f"batch_{number}", created_at=NOW + at))
    oldest = [f"batch_{number}" for number in (2, 3, 4, 5, 1)]
    assert await ids_of(batches) == oldest
    assert await ids_of(batches, Listing(100)) == oldest[::-1]
    for newest_first, ordered in ((False, oldest), (True, oldest[::-1])):
        paged: list[str] = []
        while page := await ids_of(batches, Listing(2, next(reversed(paged), None), newest_first)):
            assert len(page) <= 2
            paged += page
        assert paged == ordered


async def test_all_that_have_not_ended_are_listed_oldest_first_whosever_they_are(
    batches: Batches,
) -> None:
    for number, state in enumerate(PATHS):
        await batches.create(batch_of(f"batch_{number}", created_at=NOW - number))
        await walk(batches, f"batch_{number}", state)
    theirs = await batches.create(batch_of("batch_b", "org_b"))
    mine = [each for each in await batches.page("org_a", OLDEST) if each.state not in ENDS]
    assert len(mine) == len(PATHS) - len(ENDS)
    assert await batches.unfinished() == [*mine, theirs]


@pytest.mark.parametrize("state", PATHS)
async def test_b2_a_batch_goes_only_the_ways_that_there_are(
    batches: Batches, state: BatchState
) -> None:
    learnt = Learnt(model="small", errors=(LineError("code", "message"),))
    for to in BatchState:
        id = f"batch_to_{to}"
        await batches.create(batch_of(id))
        expected = await walk(batches, id, state)
        assert expected.state is state
        assert expected.entered == dict.fromkeys(PATHS[state], NOW)
        if to in NEXT.get(state, ()):
            entered = {**expected.entered, to: NOW + 5}
            expected = replace(expected, state=to, entered=entered)
            expected = replace(expected, model="small", errors=learnt.errors)
        if to is expected.state:
            assert await batches.advance(id, to, NOW + 5, learnt) == expected
        else:
            with pytest.raises(WrongWay) as refused:
                await batches.advance(id, to, NOW + 5, learnt)
            assert refused.value.batch == expected
        assert await batches.find("org_a", id) == expected


async def test_b2_what_becomes_known_of_a_batch_stays(batches: Batches, files: Files) -> None:
    await batches.create(batch_of())
    known = Learnt(model="small", total=3)
    running = await batches.advance("batch_1", STATE.IN_PROGRESS, NOW + 1, known)
    assert (running.model, running.counts) == ("small", LineCounts(total=3))
    await batches.advance("batch_1", STATE.FINALIZING, NOW + 2)
    output = file_of("file-out", purpose="batch_output")
    ended = await batches.advance("batch_1", STATE.COMPLETED, NOW + 3, Learnt(files=(output, None)))
    assert (ended.model, ended.counts) == ("small", LineCounts(total=3))
    assert (ended.output_file_id, ended.error_file_id) == ("file-out", None)
    times = {STATE.IN_PROGRESS: NOW + 1, STATE.FINALIZING: NOW + 2, STATE.COMPLETED: NOW + 3}
    assert ended.entered == times
    assert await batches.find("org_a", "batch_1") == ended
    assert await files.find("org_a", "file-out") == output


async def test_what_is_wrong_with_a_file_is_told_as_it_was_found(batches: Batches) -> None:
    await batches.create(batch_of())
    errors = (
        LineError("empty_file", "ünd"),
        LineError("invalid", "no", line=7, param="body.messages[0]"),
    )
    failed = await batches.advance("batch_1", STATE.FAILED, NOW, Learnt(errors=errors))
    assert failed.errors == errors
    assert await batches.find("org_a", "batch_1") == failed


async def test_b2_entering_a_state_twice_adds_its_files_once(
    batches: Batches, files: Files
) -> None:
    """Whoever does it again, having been killed in between, changes nothing."""
    await batches.create(batch_of())
    await walk(batches, "batch_1", STATE.FINALIZING)
    first = Learnt(files=(file_of("file-out"), file_of("file-err")))
    ended = await batches.advance("batch_1", STATE.EXPIRED, NOW, first)
    again = Learnt(files=(file_of("file-out-2"), file_of("file-err-2")))
    assert await batches.advance("batch_1", STATE.EXPIRED, NOW + 9, again) == ended
    with pytest.raises(WrongWay):
        await batches.advance("batch_1", STATE.COMPLETED, NOW + 9, again)
    assert await files.ids() == ["file-out", "file-err"]


async def test_a_batch_that_cannot_have_its_files_stays_where_it_is(
    batches: Batches, files: Files
) -> None:
    await batches.create(batch_of())
    before = await walk(batches, "batch_1", STATE.FINALIZING)
    await files.add(file_of("file-err"))
    learnt = Learnt(files=(file_of("file-out"), file_of("file-err")))
    with pytest.raises(ValueError, match="file-err exists already"):
        await batches.advance("batch_1", STATE.COMPLETED, NOW, learnt)
    assert await batches.find("org_a", "batch_1") == before
    assert await files.ids() == ["file-err"]


async def test_a_batch_that_does_not_exist_goes_nowhere(batches: Batches) -> None:
    assert await refusal_of(batches.advance("batch_7", STATE.FAILED, NOW)) == "batch_7"


async def test_b5_an_order_with_a_key_makes_one_batch(batches: Batches) -> None:
    first = await batches.create(batch_of(key="once", fingerprint=b"1"))
    same = batch_of("batch_2", key="once", fingerprint=b"1")
    assert await batches.create(same) == first
    ended = await walk(batches, "batch_1", STATE.COMPLETED)
    assert await batches.create(same) == ended
    other = batch_of("batch_3", key="once", fingerprint=b"2", endpoint="/v1/responses")
    assert await batches.create(other) == ended
    assert await ids_of(batches) == ["batch_1"]
    assert await batches.by_key("org_a", "once") == ended
    assert await batches.by_key("org_b", "once") is None
    assert await batches.by_key("org_a", "") is None


async def test_b5_a_key_is_its_organisation_s_and_without_one_each_order_counts(
    batches: Batches,
) -> None:
    await batches.create(batch_of(key="once"))
    theirs = batch_of("batch_b", "org_b", key="once")
    assert await batches.create(theirs) == theirs
    for number in (2, 3):
        await batches.create(batch_of(f"batch_{number}"))
    assert await ids_of(batches) == ["batch_1", "batch_2", "batch_3"]


async def test_b5_of_orders_at_once_one_makes_the_batch(batches: Batches) -> None:
    orders = [batch_of(f"batch_{number}", key="once") for number in range(20)]
    made = await asyncio.gather(*map(batches.create, orders))
    assert len({each.id for each in made}) == 1
    assert await ids_of(batches) == [made[0].id]


# -- items --------------------------------------------------------------------------------------------


async def test_a_line_that_is_begun_again_stays_as_it_is(batches: Batches) -> None:
    places = await begin(batches, 3)
    await batches.keep(places[0], 1, b"kept")
    await batches.tell(places[1], WHY)
    before = await batches.items("batch_1", 0, 10)
    await batches.open([*places, Place("batch_1", 4)])
    assert await batches.items("batch_1", 0, 3) == before
    assert [item.state for item in await batches.items("batch_1", 0, 10)] == [
        ItemState.KEPT,
        ItemState.FAILED,
        ItemState.OPEN,
        ItemState.OPEN,
    ]


async def test_lines_are_begun_all_or_none(batches: Batches) -> None:
    await begin(batches, 1)
    await batches.open([])
    lines = [Place("batch_1", 2), Place("batch_7", 1)]
    assert await refusal_of(batches.open(lines)) == "batch_7"
    assert len(await batches.items("batch_1", 0, 10)) == 1
    assert await batches.items("batch_7", 0, 10) == []


async def test_lines_are_listed_in_order_from_any_of_them(batches: Batches) -> None:
    await batches.create(batch_of())
    await batches.create(batch_of("batch_2"))
    lines = (11, 2, 100, 9, 1)
    await batches.open([Place(id, line) for line in lines for id in ("batch_1", "batch_2")])
    for after, limit, expected in (
        (0, 10, [1, 2, 9, 11, 100]),
        (0, 2, [1, 2]),
        (2, 2, [9, 11]),
        (10, 10, [11, 100]),
        (100, 10, []),
        (0, 0, []),
    ):
        found = await batches.items("batch_1", after, limit)
        assert found == [Item(Place("batch_1", line), ItemState.OPEN) for line in expected]


async def test_b3_the_first_outcome_stays(batches: Batches) -> None:
    first, second, third = await begin(batches, 3)
    await answer(batches, first)
    await batches.keep(second, 1, b"answer")
    assert await batches.tell(second, WHY)
    assert await batches.tell(third, WHY)
    before = await batches.items("batch_1", 0, 10), await find(batches, "batch_1")
    for place in (first, second, third):
        for outcome in (answer_of(9), Refused(b"other")):
            assert await batches.tell(place, outcome) is False
    assert (await batches.items("batch_1", 0, 10), await find(batches, "batch_1")) == before
    assert before[0] == [
        Item(first, ItemState.COMPLETED, 1, b"answer of 1", b"head of 1"),
        Item(second, ItemState.FAILED, 1, b"\x00why"),
        Item(third, ItemState.FAILED, 0, b"\x00why"),
    ]


async def test_b3_counts_and_sums_are_those_of_the_outcomes(batches: Batches) -> None:
    places = await begin(batches, 5)
    await begin(batches, 2, "batch_2")
    for place in places[:3]:
        await answer(batches, place)
    await batches.tell(places[3], WHY)
    batch = await find(batches, "batch_1")
    assert batch.counts == LineCounts(total=5, completed=3, failed=1)
    assert batch.counts.left == 1
    assert batch.spent == Spent(60, 6, 600, 6_000)
    assert (await find(batches, "batch_2")).spent == Spent()
    ended = await batches.advance("batch_1", STATE.CANCELLING, NOW)
    assert (ended.counts, ended.spent) == (batch.counts, batch.spent)


async def test_b3_sums_may_be_as_large_as_money_is(batches: Batches) -> None:
    places = await begin(batches, 2)
    most = Answered(Usage(2**31, 2**31, 2**31), 2**53, b"")
    for place in places:
        await batches.keep(place, 1, b"")
        await batches.tell(place, most)
    assert (await find(batches, "batch_1")).spent == Spent(2**32, 2**32, 2**32, 2**54)


async def test_b3_of_outcomes_at_once_one_counts(batches: Batches) -> None:
    (place,) = await begin(batches, 1)
    await batches.keep(place, 1, b"answer")
    outcomes: list[Answered | Refused] = [answer_of(1), WHY] * 10
    told = await asyncio.gather(*(batches.tell(place, each) for each in outcomes))
    assert sorted(told) == [False] * 19 + [True]
    counts = (await find(batches, "batch_1")).counts
    assert counts.completed + counts.failed == 1


async def test_b4_an_answer_that_was_not_kept_is_no_answer(batches: Batches) -> None:
    """A line that is begun, and one that is not."""
    (place,) = await begin(batches, 1)
    before = await find(batches, "batch_1")
    for missing in (place, Place("batch_1", 2), Place("batch_7", 1)):
        assert await refusal_of(batches.tell(missing, answer_of(1))) == missing
    for missing in (Place("batch_1", 2), Place("batch_7", 1)):
        assert await refusal_of(batches.tell(missing, WHY)) == missing
        assert await refusal_of(batches.keep(missing, 1, b"")) == missing
    assert await batches.items("batch_1", 0, 10) == [Item(place, ItemState.OPEN)]
    assert await find(batches, "batch_1") == before


async def test_b4_of_answers_kept_twice_that_of_the_newer_attempt_stays(
    batches: Batches,
) -> None:
    (place,) = await begin(batches, 1)
    await batches.keep(place, 2, b"two")
    with pytest.raises(StaleAttempt):
        await batches.keep(place, 1, b"one")
    assert await batches.items("batch_1", 0, 10) == [Item(place, ItemState.KEPT, 2, b"two")]
    await batches.keep(place, 2, b"two again")
    await batches.keep(place, 3, b"three")
    assert await batches.items("batch_1", 0, 10) == [Item(place, ItemState.KEPT, 3, b"three")]
    assert (await find(batches, "batch_1")).counts == LineCounts(total=1)


@pytest.mark.parametrize("attempt", [1, 2, 3])
async def test_b4_no_answer_replaces_an_outcome(batches: Batches, attempt: int) -> None:
    first, second = await begin(batches, 2)
    await batches.keep(first, 2, b"answer")
    await batches.tell(first, answer_of(1))
    await batches.tell(second, WHY)
    before = await batches.items("batch_1", 0, 10)
    for place in (first, second):
        await batches.keep(place, attempt, b"late")
    assert await batches.items("batch_1", 0, 10) == before


async def test_what_has_no_outcome_is_pending_until_its_batch_has_ended(
    batches: Batches,
) -> None:
    second = await begin(batches, 12, "batch_2")
    first = await begin(batches, 3)
    await batches.keep(first[0], 1, b"")
    await answer(batches, first[1])
    await batches.tell(second[4], WHY)
    assert await batches.pending() == [first[0], first[2], *second[:4], *second[5:]]
    await batches.advance("batch_2", STATE.CANCELLING, NOW)
    await batches.advance("batch_2", STATE.CANCELLED, NOW)
    assert await batches.pending() == [first[0], first[2]]


@pytest.mark.parametrize("end", ENDS)
async def test_items_of_what_has_ended_are_forgotten_and_counts_are_not(
    batches: Batches, end: BatchState
) -> None:
    await batches.create(batch_of("batch_0"))
    await batches.open([Place("batch_0", line) for line in range(1, 6)])
    places = await begin(batches, 2)
    await answer(batches, places[0])
    assert await batches.forget_items(100) == 0
    ended = await walk(batches, "batch_0", end)
    assert [await batches.forget_items(2) for _ in range(4)] == [2, 2, 1, 0]
    assert await batches.items("batch_0", 0, 10) == []
    assert await batches.find("org_a", "batch_0") == ended
    assert len(await batches.items("batch_1", 0, 10)) == 2
    assert (await find(batches, "batch_1")).counts.completed == 1
    for state in (STATE.CANCELLING, STATE.CANCELLED):
        await batches.advance("batch_1", state, NOW)
    assert await batches.forget_items(0) == 0
    assert await batches.forget_items(100) == 2
    assert (await find(batches, "batch_1")).counts == LineCounts(2, 1)
