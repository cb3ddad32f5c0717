"""A map that is bounded in bytes: the only mechanism by which topowise forgets what it can make again.

The rule: while a map exceeds its bound, the least recently used entry goes. `get`, `once` and `put` use an entry. An
entry that alone exceeds the bound is not kept.

cachetools.LRUCache is no replacement. Its `getsizeof` does not see the key, which is most of many entries here. It has
one bound, for bytes or for entries, and raises ValueError for an entry above the bound. A wrapper that adds these has
as many lines as this module, and the dependency would ship in the images and in the kubectl plug-in. A hit takes
0.17 us there and 0.07 us here.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView, Iterator, Mapping
from typing import Final, Generic, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

ENTRY_BYTES: Final = 300
"""What an entry takes beside the contents of its key and value; `bytes` includes it."""
# What a key and a value in a dict take beside their characters.
_PAIR_BYTES: Final = 180


class Bounded(Generic[Key, Value]):
    """Entries of together `most_bytes`, and of at most `most` entries. `size` returns the bytes of a key and a value. A
    caller may change `most_bytes`; the next `put` applies it. Not thread-safe."""

    def __init__(self, most_bytes: int, size: Callable[[Key, Value], int], most: int = sys.maxsize) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._size = size
        self._most = most
        # The least recently used entry is the first; each value is with its bytes at the time of `put`.
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def items(self) -> ItemsView[Key, Value]:
        """Returns keys and values, the least recently used first."""
        return {key: value for key, (value, _) in self._entries.items()}.items()

    def values(self) -> list[Value]:
        """Returns the values, the least recently used first."""
        return [value for value, _ in self._entries.values()]

    def get(self, key: Key) -> Value | None:
        """Returns the value of a key, None if it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def once(self, key: Key, make: Callable[[], Value]) -> Value:
        """Returns the value of a key, which `make` makes if it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            self.put(key, value := make())
            return value
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value) -> None:
        """Keeps a value in place of the one that the key had."""
        entries = self._entries
        size = self._size(key, value) + ENTRY_BYTES
        if (before := entries.pop(key, None)) is not None:
            self.bytes -= before[1]
        if size > self.most_bytes:
            return
        entries[key] = value, size
        self.bytes += size
        while self.bytes > self.most_bytes or len(entries) > self._most:
            self.bytes -= entries.popitem(last=False)[1][1]

    def pop(self, key: Key) -> Value | None:
        """Forgets a key; returns its value, None if it is not kept."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.bytes -= entry[1]
        return entry[0]

    def clear(self) -> None:
        """Forgets all entries."""
        self._entries.clear()
        self.bytes = 0


def size_of_dict(text: bytes, value: Mapping[str, object]) -> int:
    """Returns the bytes of a dict of texts or numbers whose key is the dict in MessagePack."""
    return 2 * len(text) + _PAIR_BYTES * len(value)


def size_of_json(_: object, value: object) -> int:
    """Returns the bytes of a value that can be JSON; objects take a few times as much as the text."""
    return 4 * len(msgspec.json.encode(value))
