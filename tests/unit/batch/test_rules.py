"""What all stores of files and batches decide alike; what they do with it is their suite's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from forebay.batch import BatchSettings, Learnt, WrongWay
from forebay.batch.rules import (
    PIECE_BYTES,
    WAYS,
    advanced,
    is_name,
    pieces_of,
    require_name,
    require_room,
    require_whole,
)
from forebay.core.batch import BatchState, LineCounts, LineError
from forebay.core.errors import StorageFull, StoreUnavailable
from forebay.testing.contracts.batch import NOW, batch_of, file_of

STATE = BatchState


def test_b2_every_batch_can_end_and_none_goes_on_from_there() -> None:
    for state in BatchState:
        assert (state in WAYS) is not state.is_ended
    reached = {STATE.VALIDATING}
    for _ in BatchState:
        reached |= {to for state in reached for to in WAYS.get(state, ())}
    assert reached == set(BatchState)


def test_b2_nothing_is_lost_on_the_way() -> None:
    batch = batch_of()
    known = Learnt(model="small", total=7, errors=(LineError("c", "m"),))
    running = advanced(batch, STATE.IN_PROGRESS, NOW + 1, known)
    told = replace(running, counts=replace(running.counts, completed=3))
    stopped = advanced(told, STATE.FINALIZING, NOW + 2, None)
    ended = advanced(stopped, STATE.EXPIRED, NOW + 3, Learnt(files=(None, file_of("file-err"))))
    assert ended == replace(
        batch,
        state=STATE.EXPIRED,
        model="small",
        counts=LineCounts(7, 3),
        errors=known.errors,
        entered={STATE.IN_PROGRESS: NOW + 1, STATE.FINALIZING: NOW + 2, STATE.EXPIRED: NOW + 3},
        error_file_id="file-err",
    )
    assert batch == batch_of()


def test_b2_a_batch_that_is_there_already_is_the_same() -> None:
    batch = batch_of()
    assert advanced(batch, STATE.VALIDATING, NOW + 1, Learnt(model="other")) is batch


def test_b2_a_wrong_way_says_where_the_batch_stands() -> None:
    with pytest.raises(WrongWay, match="batch_1 is validating") as refused:
        advanced(batch_of(), STATE.COMPLETED, NOW, None)
    assert refused.value.batch == batch_of()


def test_b8_what_is_too_much_is_told_with_the_limit() -> None:
    settings = BatchSettings(organisation_bytes=100)
    require_room(settings, 100)
    with pytest.raises(StorageFull, match=r"would take 101 bytes; at most 100 are kept\. Delete"):
        require_room(settings, 101)


@pytest.mark.parametrize("id", ["a", "file-0123abcDEF_9", "0", "x" * 128])
def test_ids_are_names_of_files(id: str) -> None:
    assert require_name(id) == id


@pytest.mark.parametrize("id", ["", ".", "..", "a/b", "a.part", "-a", "_a", "a\n", "ä", "x" * 129])
def test_what_leads_elsewhere_is_no_name(id: str) -> None:
    assert not is_name(id)
    with pytest.raises(ValueError, match=re.escape(f"{id!r:.100} is no name")):
        require_name(id)


@pytest.mark.parametrize("size_bytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_pieces_are_as_large_as_they_may_be(size_bytes: int) -> None:
    content = bytes(size_bytes)
    pieces = list(pieces_of(content))
    assert b"".join(pieces) == content
    assert [len(piece) for piece in pieces[:-1]] == [PIECE_BYTES] * (len(pieces) - 1)
    assert all(pieces)


@pytest.mark.parametrize(("size_bytes", "sha256"), [(99, "0" * 64), (100, "1" * 64), (0, "")])
def test_b6_other_bytes_are_not_the_file(size_bytes: int, sha256: str) -> None:
    require_whole(file_of(), 100, "0" * 64)
    with pytest.raises(StoreUnavailable, match="file-1 is damaged: it is not the 100 bytes"):
        require_whole(file_of(), size_bytes, sha256)
