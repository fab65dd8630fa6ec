"""Money: see `contract.py`."""

from forebay.ledger.contract import Books, Ledger
from forebay.ledger.pricing import amount_nanos

__all__ = ["Books", "Ledger", "amount_nanos"]
