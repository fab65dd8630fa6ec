"""What the scripted model says to a prompt: pure, from the prompt alone.

The output is a function of the original prompt and of the position in the output. The original
prompt is everything up to and including the last `<|im_start|>assistant\\n`; ids after it were
published before and count as output. So a job resumed with prompt + published ids goes on with the
same text (E8). Where a JSON schema is asked for, it is a document of that schema, and all of it
from its beginning whatever the prompt ends with: a grammar's state is not in the prefix.

A prompt may hold a directive, and the last one counts:
`[[script length=40 crash_at=5 text=anything up to the brackets]]`. Numbers count output tokens from
the original prompt; a fault `…_at=k` strikes when k tokens were made, but not again for a job that
was resumed at or behind k (k = 0 always strikes).

    length          tokens before the end of the text (default: 8 to 64, by the prompt's hash)
    choice_step=k   each further choice of a call has k tokens more before its end
    text            what to say, repeated where `length` or ignore_eos asks for more; must come last
    split_utf8=1    words outside ASCII: each byte is a token, so characters are split
    crash_at=k      the whole engine is lost
    hang_at=k       this call says nothing more; others go on
    duplicate_at=k  the last token is sent again (k > 0)
    kv_exhausted_at=k  no KV memory for token k (E9)
    alien_at=k      token k is an id that the vocabulary does not have
    deaf=1          it goes on although it is cancelled
    overlong=k      k tokens more than asked for, and no end before them (E3)
    miscount=k      the engine's count of all its tokens grows by k more with each token
    drop_usage=1    the end comes without the engine's own count

Not here: time, steps and memory (`scripted.py`).
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from forebay.core.json_schema import read
from forebay.engine.document import document

IM_START, IM_END, END_OF_TEXT = 256, 257, 258
VOCABULARY = 259
ALIEN = 100_000
_MARKER = (IM_START, *b"assistant\n")
_DIRECTIVE = re.compile(r"\[\[script\b(.*?)\]\]", re.DOTALL)
_WORDS = (
    b"water stone river light morning paper window garden answer letter summer house bread table "
    b"cloud engine number field silver copper orange forest winter harbour lantern mountain valley "
    b"bridge signal turbine current spring"
).split()
_SPLIT_WORDS = [
    word.encode()
    for word in ("größe", "naïve", "вода", "река", "水力", "発電", "नदी", "🌊", "👩‍🔬", "é")
]


@dataclass(frozen=True, slots=True)
class Script:
    """How one call behaves; see the module."""

    length: int | None = None
    choice_step: int = 0
    text: bytes = b""
    split_utf8: int = 0
    crash_at: int | None = None
    hang_at: int | None = None
    duplicate_at: int | None = None
    kv_exhausted_at: int | None = None
    overlong: int = 0
    drop_usage: int = 0
    miscount: int = 0
    alien_at: int | None = None
    deaf: int = 0


_NUMBERS = frozenset(Script.__slots__) - {"text"}


class Split(NamedTuple):
    """A prompt's ids, cut into the original prompt and what was published since."""

    original: tuple[int, ...]
    published: tuple[int, ...]


def split(prompt_ids: Sequence[int]) -> Split:
    """Cut after the last assistant marker; without one all of it is the original prompt."""
    ids = tuple(prompt_ids)
    size = len(_MARKER)
    for end in range(len(ids), size - 1, -1):
        if ids[end - size] == IM_START and ids[end - size : end] == _MARKER:
            return Split(ids[:end], ids[end:])
    return Split(ids, ())


def parse(body: str) -> Script:
    """The script of `length=40 crash_at=5 text=…`. Raises ValueError naming what is wrong."""
    head, separator, text = body.partition("text=")
    values: dict[str, Any] = {}
    for item in head.split():
        name, _, value = item.partition("=")
        if name not in _NUMBERS:
            raise ValueError(f"a script has no {name!r}: it knows {', '.join(sorted(_NUMBERS))}")
        if not value.isascii() or not value.isdigit():
            raise ValueError(f"{item!r} in a script is not {name}=NUMBER")
        values[name] = int(value)
    if separator and not text:
        raise ValueError("text= in a script must say something")
    return Script(text=text.encode(), **values)


class Performance:
    """One call's behaviour from where its prompt ends."""

    def __init__(
        self, prompt_ids: Sequence[int], default_directive: str = "", json_schema: str = ""
    ) -> None:
        original, published = split(prompt_ids)
        if json_schema:
            original, published = tuple(prompt_ids), ()
        self.start = len(published)
        try:
            packed = struct.pack(f">{len(original)}I", *original)
        except struct.error:
            raise ValueError("a prompt id is not between 0 and 2^32 - 1") from None
        self._digest = hashlib.blake2b(packed, digest_size=32).digest()
        found = _DIRECTIVE.findall(bytes(i for i in original if i < 256).decode(errors="replace"))
        self.script = parse(found[-1] if found else default_directive)
        if json_schema:
            text = document(read(msgspec.json.decode(json_schema), path="schema")).encode()
            self.script = replace(self.script, text=text, length=len(text))
        self._made = bytearray()
        self._blocks = 0

    @property
    def length(self) -> int:
        """Output tokens before the end of the text."""
        if self.script.length is not None:
            return self.script.length
        return len(self.script.text) or 8 + self._digest[0] % 57

    def token(self, position: int) -> int:
        """The token at this position of the output; there is one for every position."""
        if position == self.script.alien_at:
            return ALIEN
        if self.script.text:
            return self.script.text[position % len(self.script.text)]
        while len(self._made) <= position:
            self._extend()
        return self._made[position]

    def strikes(self, at: int | None, position: int) -> bool:
        """Whether a fault scripted at `at` happens now."""
        return at == position and (self.start < position or position == 0)

    def _extend(self) -> None:
        words = _SPLIT_WORDS if self.script.split_utf8 else _WORDS
        for pick in hashlib.blake2b(self._digest + self._blocks.to_bytes(8, "big")).digest():
            self._made += words[pick % len(words)] + b" "
        self._blocks += 1
