"""Admission for the gateways of one process: buckets and pools' paces in two dicts.

Buckets that are full again are forgotten, the one used longest ago first, so what is kept is the
keys that called within the last minute.

Not here: the arithmetic (`limits.py`, `wait.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from forebay.admission.contract import Admission
from forebay.admission.limits import Bucket, take
from forebay.admission.wait import (
    AdmissionSettings,
    ServiceRate,
    cost_ahead,
    predicted_wait_seconds,
)
from forebay.core.clock import Clock, IdSource
from forebay.core.errors import Overloaded, RateLimited
from forebay.core.job import Depth, Flow
from forebay.core.principal import Principal

# Retry-After is spread by ±20 %, or all that were refused together would come back together.
_JITTER = 0.2


class MemoryAdmission(Admission):
    """Owned by one process. `ids` gives the jitter, so that a simulation can repeat it."""

    def __init__(self, settings: AdmissionSettings, clock: Clock, ids: IdSource) -> None:
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._rates: dict[str, ServiceRate] = {}

    async def knock(self, principal: Principal) -> None:
        limit = principal.key_limits.requests_per_minute
        if limit is None:
            return
        key_id, now = principal.scopes.key_id, int(self._clock.monotonic() * 1_000_000)
        bucket = self._buckets.get(key_id, Bucket(limit)).with_limit(limit)
        verdict = take(bucket, now)
        if verdict.allowed:
            self._keep(key_id, verdict.bucket, now)
        elif verdict.wait_micros is None:
            raise RateLimited("This key may not make any calls.", retry_after_seconds=None)
        else:
            seconds = verdict.wait_micros / 1_000_000
            raise RateLimited(
                f"This key may make {limit} {'call' if limit == 1 else 'calls'} a minute; the next "
                f"is possible in {seconds:.1f} s.",
                retry_after_seconds=seconds,
            )

    async def admit(self, pool: str, flow: Flow, cost: int, depths: Mapping[Flow, Depth]) -> None:
        rate = self._rates.get(pool)
        if rate is None:
            return
        if not any(depth.waiting for depth in depths.values()):
            rate.saw_empty_queue()
            return
        deadline = self.deadline_seconds(flow)
        if deadline is None:
            return
        ahead = cost_ahead(flow, cost, depths)
        seconds = predicted_wait_seconds(ahead, rate.cost_per_second)
        if seconds > deadline:
            raise Overloaded(
                f"A call in the {flow.lane} lane would wait about {seconds:.0f} s now; this lane "
                f"allows {deadline:g} s. Retry later.",
                retry_after_seconds=seconds * self._jitter(),
            )

    def served(self, pool: str, cost: int, *, busy: bool) -> None:
        rate = self._rates.get(pool)
        if rate is None:
            rate = self._rates[pool] = ServiceRate()
        rate.served(cost, self._clock.monotonic(), busy=busy)

    def deadline_seconds(self, flow: Flow) -> float | None:
        return self._settings.deadline_seconds(flow.lane)

    def _keep(self, key_id: str, bucket: Bucket, now_micros: int) -> None:
        self._buckets[key_id] = bucket
        self._buckets.move_to_end(key_id)
        while True:
            oldest = next(iter(self._buckets))
            # A bucket is full at the latest a minute after it was last used.
            if oldest == key_id or not self._buckets[oldest].is_full(now_micros):
                return
            del self._buckets[oldest]

    def _jitter(self) -> float:
        draw = int.from_bytes(self._ids.random_bytes(2), "big") / 0xFFFF
        return 1 - _JITTER + 2 * _JITTER * draw
