"""The contracts that the corridor walks through, and what it says when a hold is resolved.

Not here: which implementation stands behind each (`forebay.wiring`).
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.admission import Admission
from forebay.catalog import Catalog
from forebay.core.clock import Clock, Spawn
from forebay.core.usage import Outcome, UsageRow
from forebay.ledger import Ledger
from forebay.observe import Metrics, canonical, get_logger
from forebay.queue import JobQueue
from forebay.stream import TokenStream
from forebay.tenancy import Tenancy
from forebay.tokens import Tokens


class Reporter:
    """Turns each resolved hold into its metrics and its canonical log line, exactly once.

    Whoever resolves a hold gets its row from the ledger and reports it; the row has everything.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.log = get_logger("forebay.pipeline")

    def resolved(self, row: UsageRow) -> None:
        """Count and log the end of one call."""
        labels = (row.model, row.lane.value)
        usage, timings = row.usage, row.timings
        self.metrics.calls.labels(*labels, row.outcome.value).inc()
        if row.outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
            fresh = usage.input_tokens - usage.cached_input_tokens
            self.metrics.tokens.labels(*labels, "input").inc(fresh)
            self.metrics.tokens.labels(*labels, "cached_input").inc(usage.cached_input_tokens)
            self.metrics.tokens.labels(*labels, "output").inc(usage.output_tokens)
        if timings.queue_ms is not None:
            self.metrics.queue_wait.labels(*labels).observe(timings.queue_ms / 1000)
        if timings.ttft_ms is not None:
            self.metrics.ttft.labels(*labels).observe(timings.ttft_ms / 1000)
        if timings.duration_ms is not None:
            self.metrics.duration.labels(*labels).observe(timings.duration_ms / 1000)
        canonical(
            self.log,
            request_id=row.call_id,
            organisation_id=row.organisation_id,
            project_id=row.project_id,
            key_id=row.key_id,
            model=row.model,
            lane=row.lane.value,
            outcome=row.outcome.value,
            reason=row.reason,
            attempt=row.attempt,
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
            queue_ms=timings.queue_ms,
            ttft_ms=timings.ttft_ms,
            duration_ms=timings.duration_ms,
            price_version=row.price_version,
            amount_nanos=row.amount_nanos,
        )


@dataclass(frozen=True, slots=True)
class Rooms:
    """One of each contract, plus the clock, task creation and the reporter."""

    tenancy: Tenancy
    admission: Admission
    catalog: Catalog
    tokens: Tokens
    ledger: Ledger
    queue: JobQueue
    stream: TokenStream
    clock: Clock
    spawn: Spawn
    report: Reporter
