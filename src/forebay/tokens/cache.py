"""A bounded memory of what was computed: least recently used goes first.

Not here: what is remembered and for whom (its users put that into the key).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class BoundedCache(Generic[_Key, _Value]):
    """Bounded by entries and by weight; may be used from several threads."""

    def __init__(self, *, entries: int, weight: int) -> None:
        self._entries, self._weight = entries, weight
        self._kept: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        """The value, which becomes the youngest."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: _Key, value: _Value, weight: int) -> None:
        """Remember it, unless it alone would take more than an eighth of the room."""
        if weight > self._weight // 8:
            return
        with self._lock:
            _, replaced = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, weight)
            self._used += weight - replaced
            while self._used > self._weight or len(self._kept) > self._entries:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._used -= dropped

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def used_weight(self) -> int:
        """Never above the bound."""
        return self._used
