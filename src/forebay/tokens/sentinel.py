"""Stand-ins for what people wrote, which a template may print and strip but not look at.

A `Sentinel` is a string, so a template can print and join it; every method and operator that
would tell something of the text behind it raises `LooksAtContent`. Joining keeps that up.

Not here: finding the sentinels in what was rendered (`template.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn


class LooksAtContent(Exception):
    """The template wants to know what a message says."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the content of a message goes; `strip` is how the template trims it."""

    message: int
    strip: str  # "", "strip", "lstrip" or "rstrip"


class Opaque(str):
    """Text that may be printed and joined but not looked at."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True

    def __add__(self, other: str) -> Opaque:
        return Opaque(str.__add__(self, other))

    def __radd__(self, other: str) -> Opaque:
        return Opaque(str.__add__(other, self))

    def __eq__(self, other: object) -> bool:
        # A sentinel stands for text that is not empty: that much a template may ask.
        return refuse() if isinstance(other, str) and other else False

    def __ne__(self, other: object) -> bool:
        return not self == other


def refuse(*_: object, **__: object) -> NoReturn:
    raise LooksAtContent


_ALLOWED_ON_TEXT = frozenset(
    f"__{name}__"
    for name in (
        *("new", "init", "init_subclass", "subclasshook", "class", "doc", "dir", "sizeof"),
        *("getattribute", "setattr", "delattr", "getstate", "getnewargs", "reduce", "reduce_ex"),
        *("str", "repr", "hash", "bool", "add", "radd", "eq", "ne"),
    )
)
for _name in dir(str):
    if _name not in _ALLOWED_ON_TEXT and callable(getattr(str, _name)):
        setattr(Opaque, _name, refuse)


class Sentinel(Opaque):
    """Stands for one content. Its text is nonce, message number, how stripped, semicolon."""

    __slots__ = ("_blank", "_nonce", "_slot")
    _blank: bool
    _nonce: str
    _slot: Slot

    @classmethod
    def of(cls, nonce: str, slot: Slot, blank: bool) -> Sentinel:
        made = cls(f"{nonce}{slot.message}{slot.strip};")
        made._nonce, made._slot, made._blank = nonce, slot, blank
        return made

    def _stripped(self, how: str, characters: str | None) -> str:
        if characters is not None:
            refuse()
        if self._blank:
            return ""
        # Stripping left and right in any order is stripping both.
        strip = how if self._slot.strip in ("", how) else "strip"
        return Sentinel.of(self._nonce, Slot(self._slot.message, strip), False)

    def strip(self, characters: str | None = None, /) -> str:
        return self._stripped("strip", characters)

    def lstrip(self, characters: str | None = None, /) -> str:
        return self._stripped("lstrip", characters)

    def rstrip(self, characters: str | None = None, /) -> str:
        return self._stripped("rstrip", characters)
