"""Models, pools and prices: see `contract.py`."""

from forebay.catalog.choose import index, output_bound, require_lane, resolve
from forebay.catalog.contract import Catalog, ModelCard
from forebay.catalog.describe import describe
from forebay.catalog.settings import (
    BUILT_IN,
    SCRIPTED,
    SMOLLM2,
    FetchSettings,
    LaneFactors,
    ModelSettings,
    PathSource,
    Source,
    WheelSource,
    price_terms,
)

__all__ = [
    "BUILT_IN",
    "SCRIPTED",
    "SMOLLM2",
    "Catalog",
    "FetchSettings",
    "LaneFactors",
    "ModelCard",
    "ModelSettings",
    "PathSource",
    "Source",
    "WheelSource",
    "describe",
    "index",
    "output_bound",
    "price_terms",
    "require_lane",
    "resolve",
]
