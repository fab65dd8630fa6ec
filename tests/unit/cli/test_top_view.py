from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from forebay.cli.top_view import headline, render


def a_look(calls: int = 3, **changes: Any) -> dict[str, Any]:
    lane = {
        "model": "small",
        "waiting": 2,
        "running": calls,
        "oldest_wait_seconds": 1.25,
        "calls_per_minute": 12.4,
        "ttft_p50_ms": 120,
        "ttft_p95_ms": None,
        "output_tokens_per_second": 70.4,
    }
    idle = dict.fromkeys(lane, 0) | {"model": "small", "ttft_p50_ms": None, "ttft_p95_ms": None}
    call = {
        "id": "req_0123456789abcdef",
        "project": "default/[red]search",
        "model": "small",
        "lane": "interactive",
        "state": "running",
        "age_seconds": 3.21,
        "output_tokens": 17,
    }
    look = {
        "version": "0.1",
        "urls": ["http://127.0.0.1:8080", "http://127.0.0.1:8081"],
        "engines": [{"model": "small", "state": "ready"}],
        "open_calls": calls,
        "lanes": [{**idle, "lane": "premium"}, {**lane, "lane": "interactive"}],
        "calls": [call] * calls,
        "spent_today_usd": "0.0012",
        "usd_per_hour": "0.04",
    }
    return look | changes


def shown(look: dict[str, Any], lines: int | None = None, width: int = 120) -> list[str]:
    seen = io.StringIO()
    Console(markup=False, highlight=False, width=width, file=seen).print(render(look, lines=lines))
    return [line.rstrip() for line in seen.getvalue().splitlines()]


def test_the_headline_has_the_server_and_its_money():
    assert headline(a_look(1)) == (
        "forebay 0.1 · small · http://127.0.0.1:8080 · 1 open call · today $0.0012 · $0.04 an hour"
    )


def test_lanes_that_are_quiet_are_left_out_and_what_was_not_measured_is_empty():
    lines = shown(a_look())
    [lane] = [line for line in lines if "interactive" in line and "1.2 s" in line]
    assert lane.split() == [
        "interactive", "2", "3", "1.2", "s", "0.12", "s", "70", "12",
    ]  # fmt: skip
    assert not any("premium" in line for line in lines)


def test_a_call_is_a_line_and_names_are_shown_as_they_are():
    [call] = [line for line in shown(a_look(1)) if "…" in line]
    assert call.split() == [
        "…89abcdef", "default/[red]search", "interactive", "running", "3.2", "s", "17",
    ]  # fmt: skip


def test_of_several_models_each_line_says_which():
    look = a_look(1)
    look["lanes"] = [*look["lanes"], {**look["lanes"][1], "model": "large"}]
    assert any("large" in line and "interactive" in line for line in shown(look))
    assert any("small" in line and "…" in line for line in shown(look))


def test_numbers_of_one_model_are_whole_in_eighty_columns():
    busy = {
        "waiting": 1024,
        "oldest_wait_seconds": 123.4,
        "ttft_p50_ms": 12_345,
        "ttft_p95_ms": 54_321,
    }
    look = a_look(1)
    look["lanes"] = [{**look["lanes"][1], **busy, "lane": "interactive"}]
    [lane] = [line for line in shown(look, width=80) if "interactive" in line and "1024" in line]
    assert "…" not in lane
    assert all(each in lane for each in ("123.4 s", "12.35 s", "54.32 s", "70", "12"))


@pytest.mark.parametrize("lines", [12, 24, 40])
def test_no_more_calls_are_shown_than_fit_and_the_rest_is_counted(lines):
    text = shown(a_look(100), lines)
    assert len(text) <= lines
    left_out = 100 - sum("…" in line for line in text)
    assert f"and {left_out} open calls more" in text


def test_an_engine_that_is_not_ready_is_said():
    look = a_look(engines=[{"model": "small", "state": "restarting"}])
    assert "The engine of small is restarting." in shown(look)
