"""What is said when a hold is resolved: its metrics and its canonical log line.

Not here: the names of metrics and events (`forebay.observe`).
"""

from __future__ import annotations

from forebay.core.job import Lane
from forebay.core.usage import Outcome, UsageRow
from forebay.observe import Metrics, canonical, get_logger
from forebay.pipeline.recent import RecentCalls


class PoolMetrics:
    """One model's and lane's children of the metrics, looked up once."""

    def __init__(self, metrics: Metrics, model: str, lane: Lane) -> None:
        labels = (model, lane.value)
        self.calls = {each: metrics.calls.labels(*labels, each.value) for each in Outcome}
        self.input = metrics.tokens.labels(*labels, "input")
        self.cached_input = metrics.tokens.labels(*labels, "cached_input")
        self.output = metrics.tokens.labels(*labels, "output")
        self.queue_wait = metrics.queue_wait.labels(*labels)
        self.ttft = metrics.ttft.labels(*labels)
        self.duration = metrics.duration.labels(*labels)


class Reporter:
    """Turns each resolved hold into its metrics and its canonical log line, exactly once.

    Whoever resolves a hold gets its row from the ledger and reports it; the row has everything.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.log = get_logger("forebay.pipeline")
        self.recent = RecentCalls()
        self._of_pools: dict[tuple[str, Lane], PoolMetrics] = {}

    def resolved(self, row: UsageRow) -> None:
        """Count and log the end of one call."""
        self.recent.add(row)
        usage, timings = row.usage, row.timings
        of_pool = self._metrics_of(row.model, row.lane)
        of_pool.calls[row.outcome].inc()
        if row.outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
            of_pool.input.inc(usage.input_tokens - usage.cached_input_tokens)
            of_pool.cached_input.inc(usage.cached_input_tokens)
            of_pool.output.inc(usage.output_tokens)
        for histogram, milliseconds in (
            (of_pool.queue_wait, timings.queue_ms),
            (of_pool.ttft, timings.ttft_ms),
            (of_pool.duration, timings.duration_ms),
        ):
            if milliseconds is not None:
                histogram.observe(milliseconds / 1000)
        canonical(
            self.log,
            request_id=row.call_id,
            kind=row.kind.value,
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

    def _metrics_of(self, model: str, lane: Lane) -> PoolMetrics:
        found = self._of_pools.get((model, lane))
        if found is None:
            found = self._of_pools[model, lane] = PoolMetrics(self.metrics, model, lane)
        return found
