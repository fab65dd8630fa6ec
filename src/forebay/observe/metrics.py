"""All metrics, once. Labels come from the catalogue (models, lanes, outcomes), never from tenants.

Per stream at its end and per engine step, never per token. `docs/reference/metrics.md` lists these;
a test compares the two.

Not here: per-tenant numbers (`forebay usage`), the HTTP endpoint (`forebay.gateway`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0)
_CALL_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """The collectors of one process, on a registry of their own (tests make as many as they like)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        call = ("model", "lane")
        self.http_responses = Counter(
            "forebay_http_responses",
            "HTTP responses by route and status.",
            ("route", "status"),
            registry=r,
        )
        self.unknown_fields = Counter(
            "forebay_unknown_request_fields", "Request fields never heard of, ignored.", registry=r
        )
        self.refusals = Counter(
            "forebay_refusals",
            "Calls refused before they were queued, by error code.",
            ("code",),
            registry=r,
        )
        self.calls = Counter(
            "forebay_calls",
            "Calls that held money, by how they ended.",
            (*call, "outcome"),
            registry=r,
        )
        self.tokens = Counter(
            "forebay_tokens",
            "Billed tokens; type is input, cached_input or output.",
            (*call, "type"),
            registry=r,
        )
        self.queue_wait = Histogram(
            "forebay_queue_wait_seconds",
            "From enqueued to leased.",
            call,
            buckets=_TTFT_SECONDS,
            registry=r,
        )
        self.ttft = Histogram(
            "forebay_ttft_seconds",
            "From accepted to the first token read.",
            call,
            buckets=_TTFT_SECONDS,
            registry=r,
        )
        self.duration = Histogram(
            "forebay_call_seconds",
            "From accepted to resolved.",
            call,
            buckets=_CALL_SECONDS,
            registry=r,
        )
        self.preemptions = Counter(
            "forebay_preemptions",
            "Running jobs sent back to the queue for a higher lane.",
            ("model",),
            registry=r,
        )
        self.engine_faults = Counter(
            "forebay_engine_faults",
            "Generations ended by a fault of the engine.",
            ("model",),
            registry=r,
        )
        self.engine_restarts = Gauge(
            "forebay_engine_restarts",
            "Times the engine child was restarted since start.",
            ("model",),
            registry=r,
        )
        self.engine_step = Histogram(
            "forebay_engine_step_seconds", "Time between the frames of engine steps.", ("model",),
            buckets=_STEP_SECONDS, registry=r,
        )  # fmt: skip
        self.engine_running = Gauge(
            "forebay_engine_running",
            "Sequences that the engine is running.",
            ("model",),
            registry=r,
        )
        self.engine_kv_use = Gauge(
            "forebay_engine_kv_use_ratio",
            "Share of KV memory reserved by leases, 0 to 1.",
            ("model",),
            registry=r,
        )
        self.queue_waiting = Gauge("forebay_queue_waiting", "Jobs waiting.", call, registry=r)
        self.queue_oldest = Gauge(
            "forebay_queue_oldest_seconds", "Longest present wait.", call, registry=r
        )
        self.open_streams = Gauge("forebay_open_streams", "Calls being answered now.", registry=r)
        self.usage_mismatch = Counter(
            "forebay_usage_mismatches",
            "Engine's own count differed from ours.",
            ("model",),
            registry=r,
        )
        self.swept_holds = Counter(
            "forebay_swept_holds", "Holds resolved because their process died.", registry=r
        )

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
