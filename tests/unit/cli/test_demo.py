from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forebay.catalog import SCRIPTED
from forebay.cli.demo import GREEDY, POLITE, _directory, configured, report, sooner
from forebay.cli.demo_phase import Look, Seen
from forebay.cli.failure import Failure
from forebay.config import load


def looks(without: int | None, fair: int | None) -> list[Look]:
    def half(order: str, ttft_ms: int | None) -> Look:
        seen = Seen(0, 0, 1, {}, ttft_ms, ttft_ms, 1.0)
        return Look(order, 20.0, {GREEDY: seen, POLITE: seen})

    return [half("arrival", without), half("fair", fair)]


@pytest.mark.parametrize(
    ("without", "fair", "expected"),
    [(9000, 300, 30.0), (9000, 0, 9000.0), (None, 300, None), (9000, None, None)],
)
def test_how_much_sooner_is_the_ratio_of_medians_where_both_were_measured(without, fair, expected):
    assert sooner(looks(without, fair)) == expected


def test_the_report_says_what_was_configured_and_what_was_seen():
    settings = replace(load({}, {"HOME": "/home/a"}), models=(SCRIPTED,))
    seen = report(settings, looks(9000, 300), 30.0)
    assert (seen["model"], seen["max_sequences"]) == ("scripted", 32)
    assert [half["order"] for half in seen["phases"]] == ["arrival", "fair"]
    assert seen["phases"][1]["projects"][POLITE]["ttft_p50_ms"] == 300
    assert seen["polite_ttft_p50_ratio"] == 30.0
    assert [each["name"] for each in seen["habits"]] == [GREEDY, POLITE]
    assert configured(settings).startswith("scripted, 32 sequences at once")


def test_a_directory_of_its_own_goes_when_the_demo_ends():
    with _directory(None) as directory:
        (directory / "fair").mkdir()
    assert not directory.exists()


def test_a_directory_that_was_named_stays_and_must_have_been_empty(tmp_path: Path):
    with _directory(tmp_path / "mine") as directory:
        directory.mkdir()
        (directory / "fair").mkdir()
    assert directory.exists()
    with pytest.raises(Failure, match="not empty"), _directory(directory):
        raise AssertionError("not reached")
