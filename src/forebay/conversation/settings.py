"""How long dialogues are remembered, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

_DAY_SECONDS = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """Bounds of what is stored of dialogues. `metadata["help"]` of each field is its documentation."""

    ttl_seconds: int = field(
        default=30 * _DAY_SECONDS,
        metadata={
            "help": "How long a conversation is kept after its last use, unless it was made with a "
            "`ttl_seconds` of its own, and a stored response after it was made."
        },
    )
    max_ttl_seconds: int = field(
        default=365 * _DAY_SECONDS, metadata={"help": "Longest that `ttl_seconds` may be."}
    )
    max_items: int = field(
        default=2_000,
        metadata={
            "help": "Most items of one conversation, or of a chain of responses. All are read for each "
            "call that goes on from it, and others wait meanwhile."
        },
    )
    max_bytes: int = field(
        default=2 * 1024 * 1024,
        metadata={"help": "Most bytes of text in one of them, for the same reason."},
    )
    organisation_bytes: int = field(
        default=1024 * 1024 * 1024,
        metadata={"help": "Most bytes of dialogues that are kept for one organisation."},
    )
    recent_turns: int = field(
        default=1_000,
        metadata={"help": "Most turns of the past that a prompt is given, if they fit."},
    )

    summary_share: float = field(
        default=0.6,
        metadata={
            "help": "Share of the room for the past, 0 to 1, from which on its oldest turns are "
            "summarised, in the background and in the batch lane; half of it stays as it was said. "
            "0: nothing is summarised."
        },
    )
    summary_model: str = field(
        default="",
        metadata={
            "help": "The model that summarises, one of `models`; if empty, the one that the call asked for."
        },
    )
    summary_tokens: int = field(
        default=512,
        metadata={"help": "Most tokens of a summary, and a quarter of that share at most."},
    )
    summary_payer: Literal["operator", "project"] = field(
        default="operator",
        metadata={
            "help": "Who pays for summaries: `operator` (they are in `forebay usage`, and in no "
            "customer's budget) or `project`, with the key of the call, whose limits and budgets "
            "they then count in; it must have the batch lane."
        },
    )

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self) if isinstance(each.default, int)):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"conversation.{name} is {getattr(self, name)}; it must be 1 or more"
                )
        if not 0 <= self.summary_share <= 1:
            raise ValueError(
                f"conversation.summary_share is {self.summary_share}; it must be 0 to 1"
            )
        if self.ttl_seconds > self.max_ttl_seconds:
            raise ValueError(
                f"conversation.ttl_seconds is {self.ttl_seconds}, above max_ttl_seconds, which is "
                f"{self.max_ttl_seconds}"
            )
