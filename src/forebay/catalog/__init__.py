"""Models, pools and prices: see `contract.py`."""

from forebay.catalog.contract import Catalog, ModelCard

__all__ = ["Catalog", "ModelCard"]
