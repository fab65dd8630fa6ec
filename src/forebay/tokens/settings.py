"""How much memory, how many threads and how much waiting work tokenising may take."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokensSettings:
    """Bounds of K3."""

    threads: int = field(default=2, metadata={"help": "Threads that tokenise long prompts."})
    inline_characters: int = field(
        default=256, metadata={"help": "Text up to this size is tokenised without a thread."}
    )
    waiting_characters: int = field(
        default=8 << 20, metadata={"help": "Most text that waits for a thread; more is refused."}
    )
    cache_entries: int = field(
        default=8192, metadata={"help": "Most messages whose tokens are remembered."}
    )
    cache_bytes: int = field(
        default=64 << 20, metadata={"help": "Most memory for remembered messages."}
    )

    def __post_init__(self) -> None:
        for name in ("threads", "waiting_characters"):
            if getattr(self, name) < 1:
                raise ValueError(f"tokens.{name} must be positive")
        for name in ("inline_characters", "cache_entries", "cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"tokens.{name} must not be negative")
