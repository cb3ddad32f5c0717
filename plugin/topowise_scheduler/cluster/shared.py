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
_OVERHEAD = 300
BYTES_A_PAIR: Final = 180
"""Of two texts in a dict, beside their characters."""


class Shared(Generic[Key, Kept]):
    """By a key that says all of it."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: dict[Key, Kept] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def once(self, key: Key, size: int, make: Callable[[], Kept]) -> Kept:
        """What is kept for a key whose texts have so many bytes."""
        kept = self._kept.get(key)
        if kept is None:
            self._bytes += size + _OVERHEAD
            if self._bytes > self._most:
                self._kept.clear()
                self._bytes = size + _OVERHEAD
            kept = self._kept[key] = make()
        return kept
