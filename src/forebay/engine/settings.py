"""What an operator decides about an engine; every field has a unit in its name and one help line.

Not here: which weights a model uses (`forebay.catalog`), how settings are read (`forebay.config`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PrefixCache = Literal["auto", "off", "shared"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes and behaviour of one embedded engine."""

    max_sequences: int = field(
        default=32, metadata={"help": "Sequences generated at once; further ones wait."}
    )
    kv_tokens: int = field(
        default=65_536,
        metadata={"help": "KV-cache memory in tokens, shared by all running sequences."},
    )
    # 256 keeps the longest mixed step at 0.15 s on two cores; 512 doubles it for no throughput.
    max_batched_tokens: int = field(
        default=256, metadata={"help": "Most tokens (prompt and output) processed in one step."}
    )
    context_tokens: int = field(
        default=8_192, metadata={"help": "Most tokens of one sequence, prompt and output together."}
    )
    prefix_cache: PrefixCache = field(
        default="auto",
        metadata={
            "help": "Reuse of common prompt prefixes: auto (only while one organisation exists), "
            "off, or shared (between organisations too: timing can then leak prompts)."
        },
    )
    # Half a megabyte for a usual schema, 25 for the largest.
    max_growth_bytes: int = field(
        default=512 * 1024 * 1024,
        metadata={
            "help": "Growth by JSON schemas, which are never forgotten, before it is renewed."
        },
    )
    start_timeout_seconds: float = field(
        default=300.0, metadata={"help": "Longest that loading and warming up may take."}
    )
    step_timeout_seconds: float = field(
        default=60.0,
        metadata={"help": "An engine with work that is silent for this long is restarted."},
    )


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """The scripted engine's speed and faults. Its sizes are `EngineSettings`."""

    step_seconds: float = field(
        default=0.02, metadata={"help": "How long a step takes, prefill not counted."}
    )
    prefill_tokens_per_second: float = field(
        default=0.0, metadata={"help": "Prompt tokens processed a second; 0 takes no time."}
    )
    start_seconds: float = field(
        default=0.0, metadata={"help": "How long starting takes, and starting again after a crash."}
    )
    block_tokens: int = field(
        default=32,
        metadata={"help": "KV-cache memory is handed out in blocks of this many tokens."},
    )
    evicts: bool = field(
        default=False,
        metadata={
            "help": "Whether it can free KV memory of running calls; if not, it can run out."
        },
    )
    directive: str = field(
        default="",
        metadata={
            "help": "Used for prompts without [[script …]], for example: length=40 crash_at=5."
        },
    )
    freeze_after_steps: int | None = field(
        default=None, metadata={"help": "The whole engine falls silent after this many steps."}
    )
    log_path: str = field(
        default="",
        metadata={"help": "File that gets a JSON line for all that was made, and for whom."},
    )
