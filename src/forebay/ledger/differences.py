"""What a reconciliation says when numbers differ, pure: one sentence each, the same of every backend.

    difference(kept, computed anew) -> a sentence, or None

Not here: taking the sums, and choosing what to compare (the backends).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from forebay.core.money import Price, format_usd
from forebay.core.records import EngineWindow
from forebay.core.usage import Outcome, Usage
from forebay.ledger.pricing import amount_nanos, hold_nanos
from forebay.ledger.rules import Held

MOST_SENTENCES = 1_000  # one broken balance may come with a million broken rows


class Money(NamedTuple):
    """Posted and pending nano-USD."""

    posted: int
    pending: int


def listed(sentences: Iterable[str | None]) -> tuple[str, ...]:
    """The differences that there are; of very many the first, and how many more."""
    found: list[str] = []
    more = 0
    for sentence in sentences:
        if sentence is not None and len(found) < MOST_SENTENCES:
            found.append(sentence)
        elif sentence is not None:
            more += 1
    return (*found, f"And {more} differences more.") if more else tuple(found)


def row_name(sequence: int, call_id: str) -> str:
    """How a sentence calls a resolution."""
    return f"Row {sequence} ({call_id})"


def of_row(
    name: str, outcome: str, usage: Usage, amount: int, held: int, price: Price | None
) -> str | None:
    """A resolution against its stored price version and its hold (L3, L11).

    What was completed was charged; any other ending may be free. A hold bounds its output by what
    it could pay for; output that is free is bounded by nothing that is stored.
    """
    if price is None:
        return f"{name} has a price version that was never published."
    try:
        due = amount_nanos(price, usage)
        most = hold_nanos(price, usage.input_tokens, usage.output_tokens, 1)
    except (ValueError, OverflowError) as error:
        return f"{name} has counts that cannot be: {error}."
    if amount > held:
        return f"{name} was charged {format_usd(amount)} USD, more than its hold of {format_usd(held)}."
    if most > held:
        return f"{name} counts more tokens than its hold of {format_usd(held)} USD could pay for."
    if amount == 0 < due and outcome == Outcome.COMPLETED:
        return f"{name} was completed, but charged 0 of {format_usd(due)} USD."
    if amount not in (0, due):
        return f"{name} was charged {format_usd(amount)} USD; its usage costs {format_usd(due)}."
    return None


def of_periods(name: str, day: str) -> str:
    """A resolution that is stored with a period that its day is not in."""
    return f"{name} began on {day}, but is stored with a period that this day is not in."


def of_hold(held: Held) -> str | None:
    """An open hold against its stored price version (L11)."""
    due = hold_nanos(held.price, held.input_tokens, held.ceiling_tokens, held.choices)
    if due == held.amount_nanos:
        return None
    kept = format_usd(held.amount_nanos)
    return f"Hold {held.id} reserves {kept} USD; the most it can cost is {format_usd(due)}."


def of_balance(scope: str, period_id: str, kept: Money, summed: Money) -> Iterable[str]:
    """One balance against its settlements and its open holds (L1)."""
    where = f"{scope} ({period_id or 'total'})"
    if kept.posted != summed.posted:
        yield (
            f"{where} has {format_usd(kept.posted)} USD posted; "
            f"its settlements sum to {format_usd(summed.posted)}."
        )
    if kept.pending != summed.pending:
        yield (
            f"{where} has {format_usd(kept.pending)} USD pending; "
            f"its open holds sum to {format_usd(summed.pending)}."
        )


def of_kept(kept: int, counted: int) -> str | None:
    """The counted bytes of all kept answers against the answers."""
    if kept == counted:
        return None
    return (
        f"The answers kept for idempotency keys are counted as {kept} bytes; they have {counted}."
    )


def of_open(scope: str, kept: int, counted: int) -> str | None:
    """One account's open calls against its unresolved holds (L15)."""
    if kept == counted:
        return None
    return f"{scope} counts {kept} open calls; it has {counted} open holds."


def of_window(window: EngineWindow) -> str | None:
    """A complete minute of an engine against what its worker received and discarded."""
    received, discarded = window.received_tokens, window.discarded_tokens
    if not window.complete or window.engine_tokens == received + discarded:
        return None
    return (
        f"Engine {window.engine} ({window.boot}) made {window.engine_tokens} tokens in the minute "
        f"at {window.minute_at:.0f}; {received} were received and {discarded} discarded."
    )


def check_window(window: EngineWindow) -> None:
    """Raise ValueError for a window that counts nothing that can be."""
    counts = (window.engine_tokens, window.received_tokens, window.discarded_tokens)
    if not window.engine or not window.boot or min(counts) < 0:
        raise ValueError(f"{window} needs an engine, a boot and counts of tokens")
    if window.minute_at % 60:
        raise ValueError(f"a window begins with a minute, not at {window.minute_at}")
