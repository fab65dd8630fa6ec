"""Money: see `contract.py`."""

from forebay.ledger.archive import FIELDS as ARCHIVE_FIELDS
from forebay.ledger.archive import archived, follow
from forebay.ledger.audit import START, Link
from forebay.ledger.contract import Books, Ledger, Records, StartsAfresh
from forebay.ledger.pricing import amount_nanos
from forebay.ledger.rules import (
    DEAD_AFTER_SECONDS,
    REMEMBERED_SECONDS,
    day_id,
    drop_limit,
    period_id,
)

__all__ = [
    "ARCHIVE_FIELDS",
    "DEAD_AFTER_SECONDS",
    "REMEMBERED_SECONDS",
    "START",
    "Books",
    "Ledger",
    "Link",
    "Records",
    "StartsAfresh",
    "amount_nanos",
    "archived",
    "day_id",
    "drop_limit",
    "follow",
    "period_id",
]
