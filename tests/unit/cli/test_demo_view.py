from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from forebay.cli.demo_phase import Look, Seen
from forebay.cli.demo_view import panels, refusals, save_svg, summary, verdict


def seen(ttft_p50_ms: int | None, **changes: Any) -> Seen:
    values: dict[str, Any] = {
        "waiting": 3,
        "running": 2,
        "finished": 7,
        "refused": {},
        "ttft_p50_ms": ttft_p50_ms,
        "ttft_p95_ms": ttft_p50_ms,
        "output_tokens_per_second": 71.6,
    }
    return Seen(**(values | changes))


def looks() -> list[Look]:
    return [
        Look("arrival", 20.4, {"greedy": seen(8000), "polite": seen(9000)}),
        Look("fair", 20.1, {"greedy": seen(8100), "polite": seen(300)}),
    ]


def lines(renderable: Any) -> list[str]:
    shown = io.StringIO()
    Console(file=shown, width=100, markup=False, highlight=False).print(renderable)
    return [line.strip() for line in shown.getvalue().splitlines()]


def test_a_half_while_it_runs_has_a_panel_for_each_project():
    text = lines(panels(looks()[0]))
    assert text[0] == "first come, first served (queue.order: arrival), 20 s"
    assert "greedy" in text[1]
    assert "polite" in text[1]
    [first] = [line for line in text if "first token p50" in line]
    assert "8.00 s" in first
    assert "9.00 s" in first


def test_the_end_sets_both_halves_side_by_side():
    text = [line.split() for line in lines(summary(looks(), "small, 4 sequences", 30.0))]
    assert ["small,", "4", "sequences"] in text
    assert ["first", "token", "p50", "9.00", "s", "0.30", "s"] in text
    assert "With the fair queue the polite project's first token came 30.0 times sooner." in (
        " ".join(line) for line in text
    )


def test_who_was_not_answered_is_not_compared():
    assert "nothing to compare" in verdict(None, 0)
    text = lines(panels(Look("fair", 1, {"polite": seen(None)})))
    assert any("none yet" in line for line in text)


def test_refusals_are_counted_by_kind():
    assert refusals(seen(1)) == "0"
    assert refusals(seen(1, refused={"503": 4, "connection broken": 1})) == (
        "4 × 503, 1 × connection broken"
    )


def test_the_picture_loads_nothing_from_elsewhere(tmp_path):
    path = tmp_path / "demo.svg"
    save_svg(path, summary(looks(), "small", 30.0), "forebay demo fairness")
    text = path.read_text()
    assert text.startswith("<svg")
    assert "font-face" not in text
    assert "url(http" not in text
    assert "9.00" in text
