"""Admission for the gateways of one process: buckets and pools' paces in dicts.

Buckets that are full again are forgotten, the one used longest ago first, so what is kept is the
scopes that called within the last minute (or, of the limits of a day, within the last day).

Not here: the arithmetic (`limits.py`, `wait.py`), which limits a call has (`scopes.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from forebay.admission.contract import Admission, Allowance, Need, Permit, Place, Standing
from forebay.admission.limits import Bucket
from forebay.admission.scopes import (
    BODY_BYTES_PER_TOKEN,
    BucketName,
    Dimension,
    Limit,
    model_limits,
    refused_call,
    scoped,
)
from forebay.admission.wait import (
    AdmissionSettings,
    ServiceRate,
    predicted_wait_seconds,
)
from forebay.core.clock import Clock, IdSource
from forebay.core.errors import Overloaded
from forebay.core.job import Flow, Lane
from forebay.core.principal import Principal

# Retry-After is spread by ±20 %, or all that were refused together would come back together.
_JITTER = 0.2
# SDKs try twice again: so all tries of a call are over before the line has drained by half. With the
# whole of that time for each, an overload outlives itself by twice as long (tests/simulation).
_RETRY_SHARE = 1 / 4
# A prediction can be off by so much: flows with less queued go before a call later on, and answers are
# not equally long. Whoever is let in at the very edge may wait the whole deadline for nothing.
_FORESEEN_SHARE = 3 / 4
# OpenAI's SDKs take no Retry-After above 60 s: they would come back within 8 s instead.
_LONGEST_RETRY_SECONDS = 60 / (1 + _JITTER)

# A limit and how many of its permits are wanted.
Wanted = tuple[Limit, int]


class MemoryAdmission(Admission):
    """Owned by one process. `ids` gives the jitter, so that a simulation can repeat it."""

    def __init__(self, settings: AdmissionSettings, clock: Clock, ids: IdSource) -> None:
        self._settings = settings
        self._clock = clock
        self._ids = ids
        # By dimension, since the least recently used is looked at first, and a day is not a minute.
        self._buckets: dict[str, OrderedDict[BucketName, Bucket]] = {
            dimension.label: OrderedDict() for dimension in Dimension
        }
        self._rates: dict[str, ServiceRate] = {}
        self._serial = 0

    async def knock(self, principal: Principal) -> None:
        wanted = [(limit, 1) for limit in scoped(principal, Dimension.REQUESTS)]
        self._require(wanted, lambda _: "this is one more")
        self._take(wanted)

    async def weigh(self, principal: Principal, body_bytes: int) -> None:
        cost = -(-body_bytes // BODY_BYTES_PER_TOKEN)
        needs = f"a body of {body_bytes} bytes needs at least {cost} ({BODY_BYTES_PER_TOKEN} bytes each)"
        wanted = [(limit, cost) for limit in scoped(principal, Dimension.TOKENS)]
        self._require(wanted, lambda _: needs)

    async def foresee(self, place: Place) -> None:
        rate = self._rates.get(place.pool)
        if rate is None:
            return
        if not place.ahead.waiting:
            rate.saw_empty_queue()
            return
        flow = place.flow
        deadline = self.deadline_seconds(flow, place.deadline_seconds)
        if deadline is None:
            return
        seconds = predicted_wait_seconds(place.ahead.cost, rate.cost_per_second)
        longest = deadline * _FORESEEN_SHARE
        if seconds > longest:
            whose = "This lane" if deadline != place.deadline_seconds else "The call itself"
            raise Overloaded(
                f"A call in the {flow.lane} lane would wait about {seconds:.1f} s now. {whose} allows "
                f"{deadline:g} s, and more than {longest:g} s may turn out longer. Retry later.",
                retry_after_seconds=self._jitter()
                * min(seconds * _RETRY_SHARE, _LONGEST_RETRY_SECONDS),
            )

    async def admit(self, principal: Principal, need: Need, place: Place) -> Permit:
        await self.foresee(place)
        tokens = need.input_tokens + need.most_output_tokens
        minute = scoped(principal, Dimension.TOKENS, need.model) if not need.of_batch else []
        returnable = [(limit, tokens) for limit in minute]
        if place.flow.lane is Lane.BATCH:
            days = scoped(principal, Dimension.BATCH_INPUT, need.model)
            returnable += [(limit, need.input_tokens) for limit in days]
        requests = model_limits(principal, Dimension.REQUESTS, need.model)
        calls = [(limit, 1) for limit in requests if not need.of_batch]
        self._require([*calls, *returnable], partial(_needs, need))
        self._take(calls)
        self._serial += 1
        self._take(returnable, self._serial)
        return Permit(self._serial, tuple((limit.name, cost) for limit, cost in returnable))

    def settle(self, permit: Permit, used_tokens: int) -> None:
        now = self._now_micros()
        for name, permits in permit.taken:
            bucket = self._buckets[name[0]].get(name)
            if bucket is not None:
                bucket.give_back(now, permit.serial, max(0, permits - used_tokens))

    def standing(self, principal: Principal, model: str | None = None) -> Standing:
        return Standing(
            requests=self._tightest(scoped(principal, Dimension.REQUESTS, model)),
            tokens=self._tightest(scoped(principal, Dimension.TOKENS, model)),
        )

    def served(self, pool: str, cost: int, *, busy: bool) -> None:
        rate = self._rates.get(pool)
        if rate is None:
            rate = self._rates[pool] = ServiceRate()
        rate.served(cost, self._clock.monotonic(), busy=busy)

    def deadline_seconds(self, flow: Flow, asked: float | None = None) -> float | None:
        lane = self._settings.deadline_seconds(flow.lane)
        return min((each for each in (lane, asked) if each is not None), default=None)

    def _now_micros(self) -> int:
        return int(self._clock.monotonic() * 1_000_000)

    def _bucket(self, limit: Limit) -> Bucket:
        """The limit's bucket, or a full one that is not kept yet."""
        bucket = self._buckets[limit.dimension.label].get(limit.name)
        if bucket is None:
            return Bucket(limit.permits, limit.dimension.period_micros)
        bucket.set_limit(limit.permits)
        return bucket

    def _require(self, wanted: Iterable[Wanted], needs: Callable[[Limit], str]) -> None:
        """Raise what is to be said of the limit that is in the way longest, if one is (A1)."""
        now = self._now_micros()
        longest: tuple[float, Limit] | None = None
        for limit, cost in wanted:
            micros = self._bucket(limit).wait_micros(now, cost)
            seconds = float("inf") if micros is None else micros
            if seconds and (longest is None or seconds > longest[0]):
                longest = seconds, limit
        if longest is not None:
            wait, limit = longest
            micros = None if wait == float("inf") else int(wait)
            raise refused_call(limit, needs(limit), self._bucket(limit).left(now), micros)

    def _take(self, wanted: Sequence[Wanted], serial: int | None = None) -> None:
        """Take what `_require` has found to be there."""
        now = self._now_micros()
        for limit, cost in wanted:
            bucket = self._bucket(limit)
            bucket.take(now, cost, serial)
            self._keep(self._buckets[limit.dimension.label], limit.name, bucket, now)

    @staticmethod
    def _keep(
        kept: OrderedDict[BucketName, Bucket], name: BucketName, bucket: Bucket, now_micros: int
    ) -> None:
        kept[name] = bucket
        kept.move_to_end(name)
        while True:
            oldest = next(iter(kept))
            # A bucket is full at the latest a period after it was last used.
            if oldest == name or kept[oldest].full_in_micros(now_micros):
                return
            del kept[oldest]

    def _tightest(self, limits: Iterable[Limit]) -> Allowance | None:
        now = self._now_micros()
        tightest: Allowance | None = None
        for limit in limits:
            bucket = self._bucket(limit)
            left = bucket.left(now)
            if tightest is None or left < tightest.remaining:
                reset_seconds = bucket.full_in_micros(now) / 1_000_000
                tightest = Allowance(limit.permits, left, reset_seconds)
        return tightest

    def _jitter(self) -> float:
        draw = int.from_bytes(self._ids.random_bytes(2), "big") / 0xFFFF
        return 1 - _JITTER + 2 * _JITTER * draw


def _needs(need: Need, limit: Limit) -> str:
    if limit.dimension is Dimension.BATCH_INPUT:
        return f"this call needs {need.input_tokens} for its prompt"
    tokens = need.input_tokens + need.most_output_tokens
    return (
        f"this call needs {tokens}: {need.input_tokens} for its prompt and up to "
        f"{need.most_output_tokens} for its answer"
    )
