"""How long dialogues are remembered, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

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

    def __post_init__(self) -> None:
        for setting in fields(self):
            if getattr(self, setting.name) < 1:
                raise ValueError(
                    f"conversation.{setting.name} is {getattr(self, setting.name)}; it must be 1 or more"
                )
        if self.ttl_seconds > self.max_ttl_seconds:
            raise ValueError(
                f"conversation.ttl_seconds is {self.ttl_seconds}, above max_ttl_seconds, which is "
                f"{self.max_ttl_seconds}"
            )
