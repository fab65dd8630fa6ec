"""One model's tokenizer: template, vocabulary, and the bytes of each token.

The tokenizer is used with special tokens off (`encode_special_tokens`): text is text, whatever it
spells (K2). Control tokens come from the template's skeleton alone. As a second lock, encoded text
that holds a control id is refused.

`encode_batch_fast` is used also for one text because it releases the interpreter lock, which
`encode` does not (a 64 KiB text would stop the event loop for 80 ms), and is a fifth faster.

Not here: reading weights (`convert.py`), caches and threads (`hf.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import tokenizers

from forebay.core.call import Message
from forebay.core.clock import IdSource
from forebay.core.errors import InvalidRequest
from forebay.tokens.program import UnsupportedModel
from forebay.tokens.template import ChatTemplate, Segment

TOKENIZER_FILE, TEMPLATE_FILE, META_FILE = "tokenizer.json", "chat_template.jinja", "tokens.json"
# A word that long is not text; the tokenizer's cost per byte grows with the length of a word.
_MAX_WORD_CHARACTERS = 65_536
# Looking behind starts each try at a word's first character only, which keeps the search linear.
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{_MAX_WORD_CHARACTERS}}}|(?<!\s)\s{{{_MAX_WORD_CHARACTERS}}}")


class Meta(msgspec.Struct, frozen=True):
    """What `convert.py` writes beside the tokenizer. `control` maps text to id."""

    converter: int
    source_bytes: int
    source_mtime_ns: int
    pre: str
    control: dict[str, int]
    eos_ids: tuple[int, ...]
    bos: str
    eos: str
    vocabulary: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the tokenizer file does not say. `eos_ids` end a generation."""

    control: Mapping[str, int]
    eos_ids: tuple[int, ...]
    bos: str = ""
    eos: str = ""


class ModelTokens:
    """Immutable once built (its caches apart); may be used from several threads."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        *,
        chat_template: str,
        context_tokens: int,
        ids: IdSource,
    ) -> None:
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._control_ids = frozenset(vocabulary.control.values())
        self.eos_ids = vocabulary.eos_ids
        self.context_tokens = context_tokens
        self.table = _byte_table(tokenizer.get_vocab(), self._control_ids)
        self.template = ChatTemplate(
            chat_template,
            control=vocabulary.control,
            names={"bos_token": vocabulary.bos, "eos_token": vocabulary.eos},
            ids=ids,
        )
        self._takes_system = self._renders(Message("system", "x"), Message("user", "y"))
        for text in vocabulary.control:
            if not self._control_ids.isdisjoint(self._encode([text])[0]):
                raise UnsupportedModel(f"The text {text!r} encodes to a control token")

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        ids: IdSource,
        context_tokens: int | None = None,
        chat_template: str | None = None,
    ) -> ModelTokens:
        """Read what `convert.py` wrote (0.3 s: call it in a thread). Raises UnsupportedModel."""
        try:
            meta = msgspec.json.decode((directory / META_FILE).read_bytes(), type=Meta)
            tokenizer = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
            if chat_template is None:
                chat_template = (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
        except FileNotFoundError as fault:
            if fault.filename and fault.filename.endswith(TEMPLATE_FILE):
                message = "The model brings no chat template; set chat_template in its settings"
                raise UnsupportedModel(message) from fault
            raise UnsupportedModel(f"{directory} holds no converted tokenizer") from fault
        except Exception as fault:  # the library raises plain Exception
            raise UnsupportedModel(f"{directory} is damaged, delete it: {fault}") from fault
        if context_tokens is not None and context_tokens > meta.context_tokens:
            raise UnsupportedModel(
                f"context_tokens is {context_tokens}, the model was made for {meta.context_tokens}"
            )
        return cls(
            tokenizer,
            Vocabulary(meta.control, meta.eos_ids, meta.bos, meta.eos),
            chat_template=chat_template,
            context_tokens=context_tokens or meta.context_tokens,
            ids=ids,
        )

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this."""
        return len(self.table)

    def pieces(self, messages: Sequence[Message]) -> list[int | str]:
        """The chat prompt: control ids, and between them texts to be encoded each as one piece."""
        if not self._takes_system:
            messages = _folded(messages)
        contents = [message.content for message in messages]
        pieces = [
            item.text(contents) if isinstance(item, Segment) else item
            for item in self.template.skeleton(messages)
        ]
        return [piece for piece in pieces if piece != ""]

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Ids of ordinary texts, never a control token. Releases the interpreter lock.

        Raises InvalidRequest (prompt_unprocessable) for what the library cannot take.
        """
        for text in texts:
            if len(text) >= _MAX_WORD_CHARACTERS and _LONG_WORD.search(text):
                raise _unprocessable(f"it has a word of {_MAX_WORD_CHARACTERS} characters or more")
        encoded = self._encode(texts)
        for ids in encoded:
            if not self._control_ids.isdisjoint(ids):
                raise _unprocessable("its text encodes to a control token")
        return encoded

    def require_ids(self, ids: Sequence[int]) -> None:
        """Refuse a prompt's ids that the vocabulary does not have, or that are control tokens (K2)."""
        for position, token_id in enumerate(ids):
            if token_id >= len(self.table) or token_id in self._control_ids:
                why = "a control token, which a prompt may not have"
                if token_id >= len(self.table):
                    why = f"outside the vocabulary of {len(self.table)} tokens"
                raise InvalidRequest(
                    f"prompt[{position}] is {token_id}: that is {why}.",
                    param=f"prompt[{position}]",
                    code="invalid_value",
                )

    def _renders(self, *messages: Message) -> bool:
        try:
            self.template.skeleton(messages)
        except InvalidRequest:
            return False
        return True

    def _encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        try:
            batch = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as fault:  # a panic of the library is not even an Exception
            raise _unprocessable("the tokenizer failed on it") from fault
        return [tuple(encoding.ids) for encoding in batch]


def _folded(messages: Sequence[Message]) -> Sequence[Message]:
    """For templates without a system role: what it says begins the first user's message."""
    if len(messages) < 2 or (messages[0].role, messages[1].role) != ("system", "user"):
        return messages
    system, user = messages[:2]
    return [Message("user", f"{system.content}\n\n{user.content}"), *messages[2:]]


def _unprocessable(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The prompt cannot be processed: {why}.", param="messages", code="prompt_unprocessable"
    )


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


def _byte_table(vocabulary: Mapping[str, int], control: frozenset[int]) -> tuple[bytes, ...]:
    alphabet = byte_alphabet()
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        if number not in control:
            try:
                table[number] = bytes([alphabet[character] for character in token])
            except KeyError:
                raise UnsupportedModel(f"The token {token!r} is not in GPT-2's bytes") from None
    return tuple(table)
