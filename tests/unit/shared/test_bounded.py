"""The bounded map: which entry goes, and what counts. A plain list of entries says what is expected."""

from __future__ import annotations

import random

import pytest

from topowise.bounded import ENTRY_BYTES, Bounded

MOST, MOST_BYTES = 12, 12 * ENTRY_BYTES + 3000


class Expected:
    """Entries in the order of their last use."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.most_bytes = MOST_BYTES

    @property
    def bytes(self) -> int:
        return sum(value + ENTRY_BYTES for _, value in self.entries)

    def take(self, key: int) -> int | None:
        value = dict(self.entries).get(key)
        self.entries = [entry for entry in self.entries if entry[0] != key]
        return value

    def put(self, key: int, value: int) -> None:
        """An entry above the whole bound displaces no other entry."""
        self.take(key)
        if value + ENTRY_BYTES > self.most_bytes:
            return
        self.entries.append((key, value))
        while len(self.entries) > MOST or self.bytes > self.most_bytes:
            del self.entries[0]

    def get(self, key: int) -> int | None:
        value = self.take(key)
        if value is not None:
            self.entries.append((key, value))
        return value


@pytest.mark.parametrize("seed", range(4))
def test_any_operations_keep_the_entries_that_were_used_last(seed: int) -> None:
    rng, expected = random.Random(seed), Expected()
    cache: Bounded[int, int] = Bounded(MOST_BYTES, lambda key, value: value, MOST)
    for _ in range(3000):
        key, value = rng.randrange(20), rng.choice((0, 1, 100, 1000, 2000, MOST_BYTES))
        match rng.randrange(40):
            case 0:
                cache.clear()
                expected.entries.clear()
            case 1:
                cache.most_bytes = expected.most_bytes = rng.choice((MOST_BYTES, MOST_BYTES // 3))
            case number if number < 6:
                assert cache.pop(key) == expected.take(key)
            case number if number < 12:
                assert (key in cache) == (key in dict(expected.entries))
            case number if number < 20:
                assert cache.get(key) == expected.get(key)
            case number if number < 30:
                there = expected.get(key)
                assert cache.once(key, lambda value=value: value) == (value if there is None else there)  # type: ignore[misc]
                if there is None:
                    expected.put(key, value)
            case _:
                cache.put(key, value)
                expected.put(key, value)
        assert (list(cache), len(cache)) == ([name for name, _ in expected.entries], len(expected.entries))
        assert cache.bytes == expected.bytes


def test_none_and_false_are_values() -> None:
    cache: Bounded[str, bool | None] = Bounded(1 << 20, lambda key, value: 1)
    cache.put("a", None)
    assert cache.once("a", lambda: True) is None
    cache.put("b", False)
    assert cache.get("b") is False
