from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest

from forebay.catalog import settings
from forebay.catalog.settings import (
    BUILT_IN,
    SCRIPTED,
    SMOLLM2,
    FetchSettings,
    LaneFactors,
    ModelSettings,
    PathSource,
    WheelSource,
    price_terms,
)
from forebay.core.job import Lane


def test_the_built_in_catalogue_is_the_default_model_and_the_scripted_one() -> None:
    assert BUILT_IN == (SMOLLM2, SCRIPTED)
    assert list(SMOLLM2.names()) == ["smollm2-135m-instruct", "small", "default"]
    assert isinstance(SMOLLM2.source, WheelSource)
    assert (SMOLLM2.context_tokens, SMOLLM2.kv_tokens, SMOLLM2.max_sequences) == (8192, 65_536, 32)
    assert (SMOLLM2.default_output_tokens, SMOLLM2.max_output_tokens) == (512, 2048)
    assert (SMOLLM2.temperature, SMOLLM2.top_p) == (0.2, 0.9)
    assert SCRIPTED.source is None


def test_every_setting_has_a_sentence_of_help() -> None:
    for kind in (ModelSettings, LaneFactors, WheelSource, PathSource, FetchSettings):
        for field in dataclasses.fields(kind):
            assert field.metadata["help"].endswith("."), (kind, field.name)


def test_prices_per_lane_are_whole_nano_usd_per_token() -> None:
    terms = {t.lane: t for t in price_terms(SMOLLM2, LaneFactors())}
    amounts = {
        lane: (t.input_nanos, t.cached_input_nanos, t.output_nanos) for lane, t in terms.items()
    }
    assert amounts == {
        Lane.PREMIUM: (150, 75, 600),
        Lane.INTERACTIVE: (100, 50, 400),
        Lane.BATCH: (50, 25, 200),
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"id": ""}, "model name"),
        ({"id": "a b"}, "a b"),
        ({"id": "x" * 129}, "model name"),
        ({"aliases": ("-x",)}, "-x"),
        ({"aliases": ("y", "y")}, "alias"),
        ({"aliases": ("smollm2-135m-instruct",)}, "alias"),
        ({"source": None}, "source"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"kv_tokens": -1}, "kv_tokens"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"max_batched_tokens": 0}, "max_batched_tokens"),
        ({"default_output_tokens": 0}, "default_output_tokens"),
        ({"default_output_tokens": 4096}, "default_output_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_a_model_setting_that_makes_no_sense_is_refused_by_name(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(SMOLLM2, **change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"distribution": "--index-url=x"}, "distribution"),
        ({"version": "1.0 --pre"}, "version"),
        ({"member": "../x.gguf"}, "member"),
        ({"member": "/x.gguf"}, "member"),
        ({"member": ""}, "member"),
        ({"size_bytes": 0}, "size_bytes"),
        ({"sha256": "ABC"}, "sha256"),
    ],
)
def test_a_wheel_source_that_makes_no_sense_is_refused_by_name(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(SMOLLM2.source, **change)


def test_a_digest_and_a_lane_factor_are_checked() -> None:
    with pytest.raises(ValueError, match="sha256"):
        settings.PathSource(Path("x.gguf"), sha256="0")
    for factor in ("-1", "NaN", "Infinity"):
        with pytest.raises(ValueError, match="batch"):
            LaneFactors(batch=Decimal(factor))
