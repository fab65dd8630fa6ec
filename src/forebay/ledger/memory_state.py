"""What the ledger in memory keeps: one object, which its contracts share as backends share a file.

Not here: the verbs (`memory`, `memory_records`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.core.clock import Clock
from forebay.core.errors import StoreUnavailable
from forebay.core.hold import Account, Remembered
from forebay.core.money import Price
from forebay.core.records import EngineWindow
from forebay.core.usage import UsageRow
from forebay.ledger.audit import START, Link
from forebay.ledger.rules import Held


@dataclass(slots=True)
class Sums:
    """One scope's money in one period. high_water = max(cap, posted + pending), or None."""

    posted: int = 0
    pending: int = 0
    high_water: int | None = None

    def follow(self, cap: int | None) -> None:
        """Raise or lower the high-water mark to the cap, or to what is still spoken for (L2)."""
        self.high_water = None if cap is None else max(cap, self.posted + self.pending)

    def check(self) -> None:
        assert self.posted >= 0, "L1"
        assert self.pending >= 0, "L1"
        assert self.high_water is None or self.posted + self.pending <= self.high_water, "L2"


@dataclass(slots=True)
class State:
    """`rows` follow `seal` and end with `head`; `sealed` are the sums of what was before, by day."""

    clock: Clock
    closed: bool = False
    accounts: dict[str, Account] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    sums: dict[tuple[str, str], Sums] = field(default_factory=dict)
    prices: list[Price] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    rows: list[UsageRow] = field(default_factory=list)
    resolved: dict[str, tuple[UsageRow, Held]] = field(default_factory=dict)
    head: Link = START
    seal: Link = START
    sealed: dict[tuple[str, str], int] = field(default_factory=dict)
    claims: dict[tuple[str, str], Remembered] = field(default_factory=dict)
    kept_bytes: int = 0
    windows: dict[tuple[float, str, str], EngineWindow] = field(default_factory=dict)

    def check_usable(self) -> None:
        if self.closed:
            raise StoreUnavailable("The ledger is closed; nothing was charged.")

    def price(self, version: int) -> Price:
        if not 1 <= version <= len(self.prices):
            raise KeyError(f"price version {version} was never published")
        return self.prices[version - 1]
