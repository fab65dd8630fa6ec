"""Chat templates, rendered so that the text of a message can never become a control token (K2).

The template never sees what people wrote. It is rendered once per *shape* (roles, and which
contents are empty or blank) with a random sentinel in place of each content; the result, split at
the sentinels, is a `Skeleton`: control tokens as ids, and between two of them *segments* of plain
text in which template text and content alternate. Control tokens are found in template text only,
piece by piece, so neither content nor halves joined by the template can make one. A segment is
encoded as one piece of ordinary text: exactly what a tokenizer does with the text between two
special tokens, so merges across the border of template and content come out right (K1).

Supported are templates that print a content as it is or stripped (`trim`, `.strip()`), may ask
whether it is there, and fence every message with control tokens. A sentinel refuses every other
look at it (slices, searches, comparisons, lengths), and at load the skeletons are compared with
direct renderings of telling texts; what does not come out equal is refused with UnsupportedModel,
never rendered wrongly. So are templates that need tools, the date, or plain-text role markers.

Not here: what a template may do and how long (`sentinel.py`, `program.py`), encoding (`model.py`),
the limits of a prompt (`hf.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from forebay.core.call import Message
from forebay.core.clock import IdSource
from forebay.core.errors import InvalidRequest
from forebay.tokens.cache import BoundedCache
from forebay.tokens.program import Program, UnsupportedModel
from forebay.tokens.sentinel import Sentinel, Slot

ROLES = ("system", "user", "assistant")
_SHAPES, _SHAPE_PARTS = 1024, 1 << 17  # remembered skeletons, and their parts all together
_DIALOGUES = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant", "user"),
)
# Texts that templates are known to treat specially, or whose escaping or trimming would show.
_TELLING = (
    "plain",
    " \n\t spaces around \n ",
    "two words, Ümlaut & <b>\"quoted\" 'text'</b> \\n {{ 7 * 7 }} {% raw %}",
    "<think>secret</think>answer",
    "</think>\n\nanswer",
    "<tool_call>{}</tool_call><tool_response>x</tool_response>",
    "line\r\nline\n\n  indented\n",
    "UPPER lower 123",
    "\x00\u2028\u200b",
    "x" * 600,
    " \n ",
    "",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Plain text between two control tokens."""

    parts: tuple[str | Slot, ...]

    def text(self, contents: Sequence[str]) -> str:
        """The segment with the contents filled in."""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return self.parts[0]
        return "".join(
            part if isinstance(part, str) else _filled(part, contents) for part in self.parts
        )


Skeleton = tuple[int | Segment, ...]
Shape = tuple[tuple[str, ...], tuple[str, ...]]


def _filled(slot: Slot, contents: Sequence[str]) -> str:
    content = contents[slot.message]
    return str(getattr(content, slot.strip)()) if slot.strip else content


def shape(messages: Sequence[Message]) -> Shape:
    """All that a template may know of the messages: roles, and who says nothing or only blanks."""
    kinds = tuple(
        "text" if m.content and not m.content.isspace() else m.content and "blank" for m in messages
    )
    return tuple(m.role for m in messages), kinds


class ChatTemplate:
    """One model's template; may be used from several threads."""

    def __init__(
        self,
        source: str,
        *,
        control: Mapping[str, int],
        names: Mapping[str, str],
        ids: IdSource,
    ) -> None:
        """`control` maps every control token's text to its id; `names` are the template's other
        variables (bos_token, eos_token). Raises UnsupportedModel."""
        self._program = Program(source)
        self._control, self._names = control, names
        longest_first = sorted(control, key=len, reverse=True)
        self._split_control: Callable[[str], list[str]] = re.compile(
            "(" + "|".join(map(re.escape, longest_first)) + ")" if control else r"(\Z.)"
        ).split
        # No one can guess it, and contents are never rendered beside it: there is nothing to forge.
        self._nonce = f"x{ids.random_bytes(16).hex()}x"
        self._sentinel = re.compile(self._nonce + r"(\d+)(|strip|lstrip|rstrip);")
        self._skeletons = BoundedCache[Shape, Skeleton](entries=_SHAPES, weight=_SHAPE_PARTS)
        self._prove()

    def knows(self, messages: Sequence[Message]) -> bool:
        """Whether `skeleton` is a mere look-up."""
        return self._skeletons.get(shape(messages)) is not None

    def skeleton(self, messages: Sequence[Message]) -> Skeleton:
        """Raises InvalidRequest for roles in an order that the template refuses."""
        wanted = shape(messages)
        if (known := self._skeletons.get(wanted)) is not None:
            return known
        for position, role in enumerate(wanted[0]):
            if role not in ROLES:  # a role is printed as template text: it must be one of ours
                raise InvalidRequest(
                    f"{role[:40]!r} is not one of the roles {', '.join(ROLES)}.",
                    param=f"messages[{position}].role",
                )
        try:
            made = self._skeleton(wanted)
        except UnsupportedModel as fault:
            raise InvalidRequest(
                f"The model's chat template cannot render these messages: {fault}", param="messages"
            ) from fault
        self._skeletons.put(wanted, made, weight=len(made) + len(messages))
        return made

    def _skeleton(self, wanted: Shape) -> Skeleton:
        contents = [
            Sentinel.of(self._nonce, Slot(number, ""), kind == "blank") if kind else ""
            for number, kind in enumerate(wanted[1])
        ]
        items = tuple(self._items(self._render(wanted[0], contents)))
        _require_fences(items, wanted)
        return items

    def _render(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        return self._program.render(messages, self._names)

    def _items(self, rendered: str) -> Iterator[int | Segment]:
        parts: list[str | Slot] = []
        for piece in self._pieces(rendered):
            if isinstance(piece, int):
                if parts:
                    yield Segment(tuple(parts))
                yield piece
                parts = []
            else:
                parts.append(piece)
        if parts:
            yield Segment(tuple(parts))

    def _pieces(self, rendered: str) -> Iterator[int | str | Slot]:
        """Template text, slot, template text …: control tokens are sought in template text only."""
        texts = self._sentinel.split(rendered)
        for position in range(0, len(texts), 3):
            for literal in self._split_control(texts[position]):
                if literal in self._control:
                    yield self._control[literal]
                elif literal:
                    yield literal
            if position + 2 < len(texts):
                yield Slot(int(texts[position + 1]), texts[position + 2])

    def _prove(self) -> None:
        """Compare skeletons with direct renderings, for every dialogue that the template takes."""
        for roles in _DIALOGUES:
            for offset, skew in product(range(len(_TELLING)), (1, 5)):
                contents = [
                    _TELLING[(offset + skew * number) % len(_TELLING)]
                    for number in range(len(roles))
                ]
                try:
                    self._compare(roles, contents)
                except InvalidRequest as fault:
                    if roles == ("user",):
                        raise UnsupportedModel(fault.message) from fault
                    break
                except UnsupportedModel as fault:
                    raise UnsupportedModel(
                        f"The chat template cannot be used safely: {fault}"
                    ) from fault

    def _compare(self, roles: Sequence[str], contents: Sequence[str]) -> None:
        messages = [Message(role, text) for role, text in zip(roles, contents, strict=True)]
        direct = self._render(roles, contents)
        spelled = {number: text for text, number in self._control.items()}
        joined = "".join(
            item.text(contents) if isinstance(item, Segment) else spelled[item]
            for item in self._skeleton(shape(messages))
        )
        if joined != direct:
            raise UnsupportedModel("it changes the text of messages")


def _require_fences(items: Skeleton, wanted: Shape) -> None:
    """Between two contents, before the first and after the last stands a control token, and no
    message is left out."""
    seen: set[int] = set()
    for position, item in enumerate(items):
        if isinstance(item, int):
            continue
        slots = {part.message for part in item.parts if isinstance(part, Slot)}
        if not slots:
            continue
        after = items[position + 1 : position + 2]
        if len(slots) > 1 or position == 0 or not after or not isinstance(after[0], int):
            raise UnsupportedModel("messages are not fenced by control tokens")
        seen |= slots
    missing = [number for number, kind in enumerate(wanted[1]) if kind == "text"]
    if not seen.issuperset(missing):
        raise UnsupportedModel("it leaves messages out")
