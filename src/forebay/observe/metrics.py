"""All metrics, once. Labels come from the catalogue (models, lanes, outcomes), never from tenants.

Per stream at its end and per engine step, never per token. `docs/reference/metrics.md` lists these;
a test compares the two.

Not here: per-tenant numbers (`forebay usage`), the HTTP endpoint (`forebay.gateway`).
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0)
_CALL_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """The collectors of one process, on their own registry (tests make as many as they like)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of_http()
        self._of_calls()
        self._of_batches()
        self._of_engines()
        self._of_the_queue()
        self._of_alerts()

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)

    def _of_http(self) -> None:
        self.http_responses = self._counter(
            "http_responses", "HTTP responses by route and status.", "route", "status"
        )
        self.unknown_fields = self._counter(
            "unknown_request_fields", "Request fields never heard of, ignored."
        )
        self.refusals = self._counter(
            "refusals", "Calls refused before they were queued, by error code.", "code"
        )
        self.open_calls = self._gauge("open_calls", "Calls being answered now, streamed or not.")

    def _of_calls(self) -> None:
        pool = ("model", "lane")
        self.calls = self._counter(
            "calls", "Calls that held money, by how they ended.", *pool, "outcome"
        )
        self.tokens = self._counter(
            "tokens", "Billed tokens; type is input, cached_input or output.", *pool, "type"
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "From enqueued to leased.", _TTFT_SECONDS, *pool
        )
        self.ttft = self._histogram(
            "ttft_seconds", "From enqueued to the first token.", _TTFT_SECONDS, *pool
        )
        self.duration = self._histogram(
            "call_seconds", "From enqueued to resolved.", _CALL_SECONDS, *pool
        )
        self.usage_mismatch = self._counter(
            "usage_mismatches", "Engine's own count differed from ours.", "model"
        )
        self.swept_holds = self._counter(
            "swept_holds", "Holds resolved because their process died."
        )

        self.summaries = self._counter(
            "summaries",
            "Summaries of old turns of dialogues; result is made or failed.",
            "result",
        )

    def _of_batches(self) -> None:
        self.batch_lines = self._counter(
            "batch_lines", "Lines of batches, by outcome: completed or failed.", "outcome"
        )
        self.batches_ended = self._counter(
            "batches_ended", "Batches, by how they ended, in the API's words.", "status"
        )

    def _of_engines(self) -> None:
        self.preemptions = self._counter(
            "preemptions", "Running jobs sent back to the queue for a higher lane.", "model"
        )
        self.engine_faults = self._counter(
            "engine_faults", "Generations ended by a fault of the engine.", "model"
        )
        self.engine_restarts = self._gauge(
            "engine_restarts_count",
            "Times the engine child was restarted since this process started.",
            "model",
        )
        self.engine_step = self._histogram(
            "engine_step_seconds", "Time that an engine step took.", _STEP_SECONDS, "model"
        )
        self.engine_running = self._gauge(
            "engine_running", "Sequences that the engine is running.", "model"
        )
        self.engine_kv_use = self._gauge(
            "engine_kv_use_ratio", "Share of KV memory in use, 0 to 1.", "model"
        )

    def _of_the_queue(self) -> None:
        self.queue_waiting = self._gauge("queue_waiting", "Jobs waiting.", "model", "lane")
        self.queue_oldest = self._gauge(
            "queue_oldest_seconds", "Longest present wait.", "model", "lane"
        )

    def _of_alerts(self) -> None:
        self.alert_events = self._counter("alert_events", "Spend alerts that fired.")
        self.webhook_attempts = self._counter(
            "webhook_attempts",
            "Attempts to deliver an event; result is delivered, failed, refused or given_up.",
            "result",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"forebay_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"forebay_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"forebay_{name}", text, labels, buckets=buckets, registry=self.registry)
