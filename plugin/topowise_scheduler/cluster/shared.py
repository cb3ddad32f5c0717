"""Equal values of many objects, kept once.

Invariant: the keys kept here take a bounded number of bytes. At the bound the map is cleared: objects keep the values
that they refer to, and later objects share new values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# A map entry, beside its texts.
_ENTRY_BYTES: Final = 300
# Two texts in a dict, beside their characters.
_PAIR_BYTES: Final = 180


class Shared(Generic[Key, Value]):
    """Values by a key that determines the value; `size` returns the bytes of a key."""

    def __init__(self, most_bytes: int, size: Callable[[Key], int]) -> None:
        self._most = most_bytes
        self._size = size
        self._values: dict[Key, Value] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def once(self, key: Key, make: Callable[[], Value]) -> Value:
        """Returns the value of the key, made by `make` if it is new."""
        value = self._values.get(key)
        if value is None:
            size = self._size(key) + _ENTRY_BYTES
            self._bytes += size
            if self._bytes > self._most:
                self._values.clear()
                self._bytes = size
            value = self._values[key] = make()
        return value


def size_of_texts(key: bytes) -> int:
    """Returns the bytes of a dict of texts and of its key: the dict in MessagePack, which begins with its length."""
    head = key[0]
    pairs = head & 15 if head < 0x90 else int.from_bytes(key[1 : 3 if head == 0xDE else 5])
    return 2 * len(key) + _PAIR_BYTES * pairs
