"""What many objects say alike, kept once for all of them.

Invariant: no more than so many bytes of keys are kept here. When they are reached it begins anew: who holds something
keeps it, and later objects share among themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")

# Of a key and what it is of, beside their texts.
_OVERHEAD: Final = 300
# Of two texts in a dict, beside their characters.
_A_PAIR: Final = 180


class Shared(Generic[Key, Kept]):
    """By a key that says all of it; `size` tells the bytes of one."""

    def __init__(self, most_bytes: int, size: Callable[[Key], int]) -> None:
        self._most = most_bytes
        self._size = size
        self._kept: dict[Key, Kept] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def once(self, key: Key, make: Callable[[], Kept]) -> Kept:
        """What is kept for a key."""
        kept = self._kept.get(key)
        if kept is None:
            size = self._size(key) + _OVERHEAD
            self._bytes += size
            if self._bytes > self._most:
                self._kept.clear()
                self._bytes = size
            kept = self._kept[key] = make()
        return kept


def size_of_texts(key: bytes) -> int:
    """Of a dict of texts and its key, which is the dict in MessagePack: that begins with the number of pairs."""
    head = key[0]
    pairs = head & 15 if head < 0x90 else int.from_bytes(key[1 : 3 if head == 0xDE else 5])
    return 2 * len(key) + _A_PAIR * pairs
