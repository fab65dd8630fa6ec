"""The scripted engine's own log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.core.delta import FinishReason
from forebay.engine.frames import Output, Submit
from forebay.engine.journal import Journal, Made
from forebay.testing.clock import FakeClock


def work(sequence: int) -> Submit:
    return Submit(sequence, f"req_{sequence}", 0, (1, 2), 9, 0.0, 1.0, None, 0, False)


def play(journal: Journal) -> None:
    for sequence in (1, 2, 3):
        journal.submitted(work(sequence))
    journal.stepped([(1, 1), (2, 1)])
    journal.cancelled(2)
    journal.cancelled(2)
    journal.cancelled(77)
    journal.stepped([])
    journal.stepped([(1, 2)])
    journal.ended(Output(1, 1, (5,), FinishReason.LENGTH, 2))
    journal.ended(Output(3, 0, fault="out of KV memory"))
    journal.cancelled(1)


def test_records_say_what_was_made_for_whom_and_how_it_ended() -> None:
    journal = Journal(keep=True, clock=FakeClock())
    play(journal)
    assert journal.records == {
        1: Made("req_1", 0, (1, 2), 9, made=2, finished="length"),
        2: Made("req_2", 0, (1, 2), 9, made=1, cancelled_at=1),
        3: Made("req_3", 0, (1, 2), 9, finished="fault"),
    }


def test_a_journal_that_keeps_nothing_forgets_what_has_ended() -> None:
    journal = Journal(keep=False, clock=FakeClock())
    play(journal)
    assert journal.records == {}


def test_the_file_has_each_event_when_it_happens_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path), keep=False, clock=FakeClock())
    journal.submitted(work(1))
    assert len(path.read_text().splitlines()) == 1
    journal.close()
    journal.close()
    journal.submitted(work(9))
    again = Journal(str(path), keep=False, clock=FakeClock())
    play(again)
    again.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == lines[1]
    assert lines[0]["prompt_ids"] == [1, 2]
    assert [line["event"] for line in lines[4:]] == ["step", "cancel", "step", "finish", "finish"]
    assert lines[5] == {"event": "cancel", "sequence": 2, "made": 1, "at": 0.0}
    assert lines[7] == {"event": "finish", "sequence": 1, "made": 2, "reason": "length", "at": 0.0}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Journal(str(tmp_path / "missing" / "journal"), keep=False, clock=FakeClock())
