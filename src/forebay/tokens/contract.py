"""From messages to token ids and back, per model.

Invariants
- K1 For benign text the ids equal the model's own chat template and tokenizer, id for id.
- K2 Text inside a message can never become a control token: templates are rendered with random
  sentinels in place of content, and content is encoded with special tokens off.
- K3 Work is bounded: bytes are limited before tokenising, and tokenising runs off the event loop.
- E4 Stop strings never leak into the text, also when split over tokens.
- E5 A token that is half a character is held back; a half character at the very end is dropped.

Not here: fitting a history into the window (`forebay.conversation`, later).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from forebay.core.call import Message, Prompt


class Piece(NamedTuple):
    """Text that may be shown now. `stopped`: a stop string was completed; nothing follows."""

    text: str
    stopped: bool


class Decoder(ABC):
    """Incremental, stateful, of one choice. Feeding the same ids gives the same pieces."""

    @abstractmethod
    def push(self, token_id: int) -> Piece:
        """Add one token; the text it makes showable (often empty while something is held back)."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Characters of what was pushed that are held back (E4, E5); half a character counts as one."""

    @abstractmethod
    def token(self, token_id: int) -> bytes:
        """What one token stands for; nothing for a control token."""

    @abstractmethod
    def finish(self) -> str:
        """What was held back only because a stop string might have followed (E4, E5)."""


class Tokens(ABC):
    """Shared by gateways and workers."""

    @abstractmethod
    async def render(self, model: str, messages: Sequence[Message], *, scope: str = "") -> Prompt:
        """The exact ids of a chat prompt, generation prompt included (K1-K3).

        `scope` (an organisation's id) says whose remembered texts may save work: nobody learns by
        timing what another one sent. Raises ContextLengthExceeded (more bytes than any fitting
        prompt could have), InvalidRequest (roles the template cannot render, text that cannot be
        processed), Overloaded (too much text waits).
        """

    @abstractmethod
    async def encode(self, model: str, prompt: str | tuple[int, ...], *, scope: str = "") -> Prompt:
        """The ids of a prompt that is completed as it is, without a template (K2, K3).

        Text is text, whatever it spells. Token ids are taken as they are, but for those that are
        not the vocabulary's or are control tokens: InvalidRequest. Raises as `render` does.
        """

    @abstractmethod
    def decoder(self, model: str, stop: Sequence[str]) -> Decoder:
        """A fresh decoder for one choice of this model."""
