"""An admission that checks its own invariants while the real pipeline uses it.

Wraps any admission: every verb goes through, and A2 is asserted after each take over every stretch of
time that ends there, from a record of what was taken and returned. What a standing says is left must
be what would be left if what was returned had never been taken (A4). `open` has the permits that were
not settled yet: none is settled twice, and none is left when all is quiet.

Not here: whether a refusal was right (the contract suite), the wait of calls (`wait.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from forebay.admission import Admission, Need, Permit, Place, Standing
from forebay.admission.scopes import BucketName, Dimension, Limit, model_limits, scoped
from forebay.core.clock import Clock
from forebay.core.job import Flow, Lane
from forebay.core.principal import Principal


@dataclass(slots=True)
class Take:
    """Permits that one call took from one bucket and has not returned."""

    at_micros: int
    permits: int


class WatchedAdmission(Admission):
    """Answers are the wrapped admission's."""

    def __init__(self, inner: Admission, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._takes: dict[BucketName, list[Take]] = defaultdict(list)
        self.open: dict[int, list[Take]] = {}
        self.used_tokens: list[int] = []

    async def knock(self, principal: Principal) -> None:
        await self._inner.knock(principal)
        self._took((limit, 1) for limit in scoped(principal, Dimension.REQUESTS))

    async def weigh(self, principal: Principal, body_bytes: int) -> None:
        await self._inner.weigh(principal, body_bytes)

    async def foresee(self, place: Place) -> None:
        await self._inner.foresee(place)

    async def admit(self, principal: Principal, need: Need, place: Place) -> Permit:
        permit = await self._inner.admit(principal, need, place)
        calls = model_limits(principal, Dimension.REQUESTS, need.model)
        self._took((limit, 1) for limit in calls)
        tokens = need.input_tokens + need.most_output_tokens
        wanted = [(limit, tokens) for limit in scoped(principal, Dimension.TOKENS, need.model)]
        if place.flow.lane is Lane.BATCH:
            days = scoped(principal, Dimension.BATCH_INPUT, need.model)
            wanted += [(limit, need.input_tokens) for limit in days]
        assert permit.serial not in self.open, "A4: two calls with one permit"
        self.open[permit.serial] = self._took(wanted)
        return permit

    def settle(self, permit: Permit, used_tokens: int) -> None:
        self._inner.settle(permit, used_tokens)
        assert permit.serial in self.open, "A4: settled twice"
        for take in self.open.pop(permit.serial):
            take.permits = min(take.permits, used_tokens)
        self.used_tokens.append(used_tokens)

    def standing(self, principal: Principal, model: str | None = None) -> Standing:
        standing = self._inner.standing(principal, model)
        for dimension, said in (
            (Dimension.REQUESTS, standing.requests),
            (Dimension.TOKENS, standing.tokens),
        ):
            left = [self._left(limit) for limit in scoped(principal, dimension, model)]
            assert min(left, default=None) == (said and said.remaining), f"A4: {dimension}"
        return standing

    def served(self, pool: str, cost: int, *, busy: bool) -> None:
        self._inner.served(pool, cost, busy=busy)

    def deadline_seconds(self, flow: Flow, asked: float | None = None) -> float | None:
        return self._inner.deadline_seconds(flow, asked)

    def _now_micros(self) -> int:
        return int(self._clock.monotonic() * 1_000_000)

    def _left(self, limit: Limit) -> int:
        """By definition: let every take that was not returned happen again."""
        period = limit.dimension.period_micros
        owed = at = 0
        for take in (*self._takes.get(limit.name, ()), Take(self._now_micros(), 0)):
            owed = max(0, owed - (take.at_micros - at) * limit.permits) + take.permits * period
            at = take.at_micros
        return limit.permits - -(-owed // period)

    def _took(self, wanted: Iterable[tuple[Limit, int]]) -> list[Take]:
        now = self._now_micros()
        taken = []
        for limit, permits in wanted:
            taken.append(Take(now, permits))
            takes = self._takes[limit.name]
            takes.append(taken[-1])
            period = limit.dimension.period_micros
            total = 0
            for take in reversed(takes):
                total += take.permits
                micros = period + now - take.at_micros
                assert total * period <= limit.permits * micros, f"A2: {limit}"
        return taken
