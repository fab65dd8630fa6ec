"""Who goes first: weighted virtual counters between flows, shares between lanes. Pure integers.

*Between flows of one lane* (Q8): the Virtual Token Counter of Sheng et al., "Fairness in Serving
Large Language Models" (OSDI 2024), with weights. Every flow has a counter of the cost it was
served, divided by its weight; the flow with the smallest counter goes next. A flow that had
nothing waiting is lifted to the lane's virtual time v when it comes back, so that idling earns
nothing. v is the smallest counter among flows that wait, else that of the flow served last.
Cost is w_in·uncached + w_cached·cached + w_out·output. A lease is charged an estimate of its output
at once, so that many leases in one breath do not all go to one flow; the estimate is corrected when
the truth is known. So v can fall: who comes after a refund is lifted to where the others are, not
to where they were thought to be.

To see what this is worth, `order: arrival` makes a lane first come, first served: the flow of the
oldest waiting job goes next, whatever it was served. Counters are kept all the same.

*Between lanes* (Q7): premium, interactive, batch, in this order; but a lane that waits is owed a
share of the cost that is served meanwhile, over a sliding window. Only service that a lane had to
watch counts against the others, so a burst after a quiet minute has no claim on that minute.

Everything here is what another backend must mirror to the unit: no floats, no clock (time comes in
as whole seconds), and memory bounded by the flows that have jobs plus `IDLE_FLOWS`.

Not here: the jobs themselves (`memory.py`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from forebay.core.job import Flow, Job, Lane, Served

# Counters are in 1/1000 of a cost unit per weight unit: a charge divided by any plausible weight
# keeps three digits, and 2^53 (the integers of other languages' doubles) is years of service away.
COUNTER_SCALE = 1_000
# Output averages are in 1/256 token and move by 1/8 of the difference with each finished call of a flow,
# that of a lane by 1/64.
_AVERAGE_SCALE, _AVERAGE_STEPS, _LANE_STEPS = 256, 8, 64
# Flows without any job whose counters are remembered. The one idle longest is forgotten first; by
# then 10,000 others came and went, v has normally passed its counter, and being lifted to v is
# what it would get anyway. At worst it is forgiven what its last leases cost.
IDLE_FLOWS = 10_000


Order = Literal["fair", "arrival"]


def _setting(default: int, help_sentence: str) -> Any:
    return field(default=default, metadata={"help": help_sentence})


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The queue's bounds and weights. Raises ValueError for values that make no sense."""

    order: Order = field(
        default="fair",
        metadata={
            "help": "Who goes first inside a lane: fair, or arrival (first come, first served), "
            "which is there to compare with: the predicted wait of calls stays that of fair."
        },
    )
    flow_jobs: int = _setting(256, "Most jobs of one project that may wait in one lane.")
    lane_jobs: int = _setting(2048, "Most jobs that may wait in one lane of a pool.")
    w_in: int = _setting(10, "Cost of one input token that was not cached.")
    w_cached: int = _setting(1, "Cost of one input token that the engine had cached.")
    w_out: int = _setting(40, "Cost of one output token.")
    window_seconds: int = _setting(60, "Length of the window over which lane shares are kept.")
    interactive_share_percent: int = _setting(
        20, "Share of the cost served that the interactive lane is owed while it waits."
    )
    batch_share_percent: int = _setting(
        5, "Share of the cost served that the batch lane is owed while it waits."
    )
    batch_reserve_percent: int = _setting(
        65,
        "Share of an engine's sequences that batch jobs leave free for calls of other lanes; one is "
        "never reserved.",
    )
    batch_reserve_seconds: int = _setting(
        300,
        "How long they are kept free after the last call of another lane began, or the server; then "
        "batch jobs may take them all.",
    )
    batch_starts: int = _setting(
        1, "Most sequences of batch jobs that an engine may run without a first token."
    )
    protect_seconds: int = _setting(
        10, "How long a job leased for its lane's share must not be preempted."
    )
    protect_after_preemptions: int = _setting(
        3, "A job preempted this often must not be preempted again."
    )

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise ValueError(f"queue.order is {self.order!r}; it must be fair or arrival")
        for each in fields(self):
            if each.name == "order":
                continue
            value, floor = getattr(self, each.name), 0
            if each.name in ("flow_jobs", "lane_jobs", "window_seconds", "batch_starts"):
                floor = 1
            if value < floor:
                raise ValueError(f"queue.{each.name} is {value}; it must be at least {floor}")
        if self.interactive_share_percent + self.batch_share_percent > 100:
            raise ValueError("queue.interactive_share_percent + queue.batch_share_percent > 100")
        if self.batch_reserve_percent > 100:
            percent = self.batch_reserve_percent
            raise ValueError(f"queue.batch_reserve_percent is {percent}; it must be at most 100")

    def share_percent(self, lane: Lane) -> int:
        """What the lane is owed while it waits."""
        if lane is Lane.PREMIUM:
            return 0
        return (
            self.interactive_share_percent if lane is Lane.INTERACTIVE else self.batch_share_percent
        )

    def input_cost(self, input_tokens: int, cached_tokens: int = 0) -> int:
        """Cost of a prefill. An engine that claims more cached tokens than there are gets P."""
        cached = min(cached_tokens, input_tokens)
        return self.w_in * (input_tokens - cached) + self.w_cached * cached

    def output_cost(self, output_tokens: int) -> int:
        """Cost of a decode."""
        return self.w_out * output_tokens


@dataclass(slots=True)
class Charge:
    """What one lease has cost its flow so far.

    `parts` over `weight` is one over the flow's effective weight when the lease was granted. It
    stays for the life of the lease, so that a refund never exceeds what was charged.
    `input_tokens` is 0 where the prefill is charged to nobody (a re-prefill). `watching` are the
    lanes that waited in `second`, when the lease was granted.
    """

    flow: Flow
    input_tokens: int
    estimate: int
    parts: int
    weight: int
    watching: tuple[Lane, ...]
    second: int
    cost: int = 0
    counted: int = 0

    def scaled(self, cost: int) -> int:
        """The cost over the effective weight, in the unit of counters."""
        return cost * COUNTER_SCALE * self.parts // self.weight


@dataclass(slots=True)
class _Account:
    """What is remembered of one flow. `average` is None until it has finished a call."""

    counter: int = 0
    average: int | None = None
    last_turn: int = 0


class FlowCounters:
    """The virtual counters of one lane of one pool (Q8), and who is next by them or by arrival."""

    def __init__(self, *, order: Order = "fair", idle_flows: int = IDLE_FLOWS) -> None:
        self._order = order
        self._accounts: dict[Flow, _Account] = {}
        self._waiting: set[Flow] = set()
        self._idle: OrderedDict[Flow, None] = OrderedDict()
        self._idle_flows = idle_flows
        self._active_projects: dict[str, int] = {}
        self._average: int | None = None
        self._last_served: Flow | None = None
        self._virtual_time = 0
        self._turn = 0

    @property
    def virtual_time(self) -> int:
        """v, when it was last looked at."""
        return self._virtual_time

    def counter(self, flow: Flow) -> int:
        """The flow's counter; 0 for one that is not remembered."""
        account = self._accounts.get(flow)
        return account.counter if account else 0

    def begin(self, flow: Flow) -> None:
        """The flow has jobs now, waiting or leased, after it had none: it is active."""
        self._accounts.setdefault(flow, _Account())
        self._idle.pop(flow, None)
        organisation = flow.organisation_id
        self._active_projects[organisation] = self._active_projects.get(organisation, 0) + 1

    def end(self, flow: Flow) -> None:
        """The flow has no job any more: idle, and forgotten when too many others are."""
        left = self._active_projects[flow.organisation_id] - 1
        if left:
            self._active_projects[flow.organisation_id] = left
        else:
            del self._active_projects[flow.organisation_id]
        self._idle[flow] = None
        while len(self._idle) > self._idle_flows:
            del self._accounts[self._idle.popitem(last=False)[0]]

    def wait(self, flow: Flow) -> None:
        """An active flow got its first waiting job: lift it to v (Q8)."""
        self._advance()
        account = self._accounts[flow]
        account.counter = max(account.counter, self._virtual_time)
        self._waiting.add(flow)

    def unwait(self, flow: Flow) -> None:
        """The flow's last waiting job was leased or removed."""
        self._waiting.discard(flow)

    def choose(self, arrival: Callable[[Flow], tuple[int, int]]) -> Flow:
        """The flow to serve next among those that wait; `arrival` is of a flow's first job.

        Smallest counter; of equal ones the flow leased least recently, then the earlier arrival.
        With `order: arrival` the earlier arrival alone.
        """
        if self._order == "arrival":
            return min(self._waiting, key=arrival)

        def precedence(flow: Flow) -> tuple[int, int, tuple[int, int]]:
            account = self._accounts[flow]
            return (account.counter, account.last_turn, arrival(flow))

        return min(self._waiting, key=precedence)

    def parts(self, flow: Flow) -> int:
        """Active projects of the flow's organisation: they share its weight."""
        return self._active_projects[flow.organisation_id]

    def estimate(self, job: Job) -> int:
        """E: the output to expect, over all choices, beyond what the job has generated before. Of a flow
        of which nothing is known yet: what is usual in the lane; if nothing is, all that it may be."""
        ceiling = max(0, job.choices * job.ceiling_tokens - job.resume.output_tokens)
        account = self._accounts.get(job.flow)
        average = self._average if account is None else account.average or self._average
        return ceiling if average is None else min(ceiling, -(-average // _AVERAGE_SCALE))

    def served(self, flow: Flow) -> None:
        """The flow is being served: called for each lease, before it is charged."""
        self._advance()
        self._turn += 1
        self._accounts[flow].last_turn = self._turn
        self._last_served = flow

    def settle(self, charge: Charge, cost: int) -> int:
        """Make `cost` the charge of this lease, up or down; answers the difference in cost."""
        scaled, difference = charge.scaled(cost), cost - charge.cost
        account = self._accounts[charge.flow]
        account.counter += scaled - charge.counted
        charge.cost, charge.counted = cost, scaled
        assert account.counter >= 0, "Q8: a refund exceeds its charge"
        return difference

    def finished(self, flow: Flow, output_tokens: int) -> None:
        """A call of the flow ended after this much output: it moves the average.

        One that ended with nothing (evicted, failed) says nothing about lengths.
        """
        if output_tokens <= 0:
            return
        account, sample = self._accounts[flow], output_tokens * _AVERAGE_SCALE
        account.average = _moved(account.average, sample, _AVERAGE_STEPS)
        self._average = _moved(self._average, sample, _LANE_STEPS)

    def _advance(self) -> None:
        accounts = self._accounts
        if self._waiting:
            self._virtual_time = min(accounts[flow].counter for flow in self._waiting)
        elif self._last_served in accounts:
            self._virtual_time = accounts[self._last_served].counter


def _moved(average: int | None, sample: int, steps: int) -> int:
    return sample if average is None else average + (sample - average) // steps


_LANES = tuple(sorted(Lane, key=lambda lane: lane.rank))


@dataclass(slots=True)
class _Bucket:
    """One second: the cost served to each lane, and served while each lane waited."""

    second: int
    own: list[int] = field(default_factory=lambda: [0] * len(_LANES))
    watched: list[int] = field(default_factory=lambda: [0] * len(_LANES))


class LaneShares:
    """The cost that a pool served in the last `window_seconds`, by lane (Q7)."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._buckets: deque[_Bucket] = deque()
        self._own = [0] * len(_LANES)
        self._watched = [0] * len(_LANES)

    def choose(self, waiting: Collection[Lane], second: int) -> tuple[Lane, bool]:
        """The lane to serve next among those that wait, and whether its share puts it first."""
        self._slide(second)
        for lane in _LANES:
            if lane in waiting and self._owed(lane):
                return lane, True
        return min(waiting, key=lambda lane: lane.rank), False

    def add(self, charge: Charge, cost: int, second: int, waiting: Collection[Lane]) -> None:
        """Record a difference in a charge, and the lanes that wait meanwhile.

        More was served now; a refund takes back from the second in which the lease was charged,
        and from nothing if that second has left the window.
        """
        self._slide(second)
        bucket = self._newest(second) if cost >= 0 else self._find(charge.second)
        if bucket is None:
            return
        rank = charge.flow.lane.rank
        self._own[rank] += _shift(bucket.own, rank, cost)
        for lane in waiting if cost >= 0 else charge.watching:
            self._watched[lane.rank] += _shift(bucket.watched, lane.rank, cost)

    def _owed(self, lane: Lane) -> bool:
        share = self._settings.share_percent(lane)
        return self._own[lane.rank] * 100 < share * self._watched[lane.rank]

    def _newest(self, second: int) -> _Bucket:
        if not self._buckets or self._buckets[-1].second < second:
            self._buckets.append(_Bucket(second))
        return self._buckets[-1]

    def _find(self, second: int) -> _Bucket | None:
        # Newest first: a charge is mostly corrected soon after it was made.
        return next((each for each in reversed(self._buckets) if each.second == second), None)

    def _slide(self, second: int) -> None:
        while self._buckets and self._buckets[0].second <= second - self._settings.window_seconds:
            old = self._buckets.popleft()
            for rank in range(len(_LANES)):
                self._own[rank] -= old.own[rank]
                self._watched[rank] -= old.watched[rank]


def _shift(totals: list[int], index: int, amount: int) -> int:
    """Add to one total but not below zero; answers what was added."""
    added = max(amount, -totals[index])
    totals[index] += added
    return added


def served_cost(settings: QueueSettings, charge: Charge, served: Served) -> int:
    """What a lease that is over has cost: its prefill where charged, and what it generated."""
    prefill = settings.input_cost(charge.input_tokens, served.cached_input_tokens)
    return prefill + settings.output_cost(served.output_tokens)


def cost_ahead(own: int, cost: int, lane: Iterable[int], higher: Iterable[int]) -> int:
    """The cost that is served before a new job of this cost, of a flow with `own` waiting.

    All of the flows in higher lanes, its own, and of every other flow of its lane at most as much as
    it will have waiting itself, for the fair queue alternates between them. Lower lanes are left
    out: their shares are small. `lane` has the waiting costs of all flows of its lane.
    """
    turn = own + cost
    return sum(each if each < turn else turn for each in lane) + sum(higher)
