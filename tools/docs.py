"""Rewrites the generated pages of docs/reference: `make docs`. A test compares them with the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from forebay.cli.docs import cli_page
from forebay.config import settings_page
from forebay.gateway import compatibility, manual
from forebay.observe.log import EVENTS
from forebay.observe.metrics import Metrics
from tools.clients import clients_page

ROOT = Path(__file__).parent.parent


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    lines = [
        "# Metrics and log events",
        "",
        "`GET /metrics` on the admin listener has these in Prometheus' text format. Labels come from",
        "the configuration (models, lanes, outcomes), never from callers; what a key or project used",
        "is in `forebay usage`. Lanes are `premium`, `interactive` and `batch`.",
        "",
        "| Metric | Type | Labels | Meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in metrics()
    ]
    lines += [
        "",
        "A histogram has `_bucket`, `_sum` and `_count`; `…_created` tells when a counter or",
        "histogram began.",
        "",
        "## Log events",
        "",
        "One line each on standard error, as text or JSON (`log_format`), from the level",
        "`log_level` on. Prompts, completions and API keys are never logged.",
        "",
        "| Event | Meaning |",
        "| --- | --- |",
    ]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    return "\n".join(lines) + "\n"


def metrics() -> Iterator[tuple[str, str, str, str]]:
    """Name as exposed, type, labels and meaning of every metric, in the order of the code."""
    for collector in vars(Metrics()).values():
        if isinstance(collector, MetricWrapperBase):
            for family in collector.describe():
                name = family.name + ("_total" if family.type == "counter" else "")
                labels = ", ".join(f"`{label}`" for label in collector._labelnames)
                yield name, family.type, labels, family.documentation


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "compatibility.md": compatibility.markdown,
    "errors.md": manual.page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "clients.md": clients_page,
}


def main() -> None:
    """Write what changed."""
    folder = ROOT / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
