"""Money: see `contract.py`."""

from forebay.ledger.contract import Books, Ledger, Records
from forebay.ledger.pricing import amount_nanos
from forebay.ledger.rules import DEAD_AFTER_SECONDS, REMEMBERED_SECONDS, day_id, period_id

__all__ = [
    "DEAD_AFTER_SECONDS",
    "REMEMBERED_SECONDS",
    "Books",
    "Ledger",
    "Records",
    "amount_nanos",
    "day_id",
    "period_id",
]
