"""The bounded map: which entry goes, and what counts."""

from __future__ import annotations

import random

import pytest

from topowise.bounded import ENTRY_BYTES, Bounded


def sized(most_bytes: int, most: int = 1000) -> Bounded[str, int]:
    """A map whose values are their own bytes; the bound includes what each of two entries takes."""
    return Bounded(most_bytes + 2 * ENTRY_BYTES, lambda key, value: len(key) + value, most)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache: Bounded[str, int] = Bounded(1 << 20, lambda key, value: 1, most=3)
    for key in "abc":
        cache.put(key, ord(key))
    assert cache.get("a") == ord("a")
    cache.put("d", 1)
    assert list(cache) == ["c", "a", "d"]
    assert cache.once("c", lambda: 99) == ord("c")
    cache.put("e", 2)
    assert list(cache) == ["d", "c", "e"]
    cache.put("d", 3)
    assert list(cache) == ["c", "e", "d"]


def test_to_look_whether_a_key_is_kept_is_no_use_of_it() -> None:
    cache: Bounded[str, int] = Bounded(1 << 20, lambda key, value: 1, most=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert "a" in cache
    cache.put("c", 3)
    assert ("a" in cache, cache.get("a"), len(cache)) == (False, None, 2)


def test_bytes_are_bounded_including_the_overhead_of_entries() -> None:
    cache = sized(100)
    cache.put("a", 40)
    cache.put("b", 58)
    assert (list(cache), cache.bytes) == (["a", "b"], 100 + 2 * ENTRY_BYTES)
    cache.put("c", 1)
    assert (list(cache), cache.bytes) == (["b", "c"], 61 + 2 * ENTRY_BYTES)


def test_a_large_entry_takes_the_place_of_several() -> None:
    cache: Bounded[int, int] = Bounded(10 * (ENTRY_BYTES + 10), lambda key, value: value)
    for key in range(10):
        cache.put(key, 10)
    cache.put(10, 20 + ENTRY_BYTES)
    assert list(cache) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_a_key_that_is_put_again_counts_once() -> None:
    cache = sized(100)
    for size in (90, 10, 50):
        cache.put("a", size)
        assert (len(cache), cache.get("a"), cache.bytes) == (1, size, size + 1 + ENTRY_BYTES)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_entry_above_the_whole_bound_is_not_kept_and_displaces_no_other(is_known: bool) -> None:
    cache = sized(100)
    cache.put("a", 10)
    if is_known:
        cache.put("b", 10)
    cache.put("b", 2 * ENTRY_BYTES)
    assert (list(cache), cache.bytes) == (["a"], 11 + ENTRY_BYTES)
    assert cache.once("c", lambda: 5000) == 5000
    assert list(cache) == ["a"]


def test_what_is_made_once_is_the_same_object_until_it_goes() -> None:
    cache: Bounded[str, list[str]] = Bounded(1 << 20, lambda key, value: 1, most=1)
    first = cache.once("a", list)
    assert cache.once("a", list) is first
    cache.once("b", list)
    assert cache.once("a", list) is not first


def test_none_and_false_are_values() -> None:
    cache: Bounded[str, bool | None] = Bounded(1 << 20, lambda key, value: 1)
    cache.put("a", None)
    assert cache.once("a", lambda: True) is None
    cache.put("b", False)
    assert cache.get("b") is False


def test_popped_and_cleared_entries_count_no_more() -> None:
    cache = sized(100)
    cache.put("a", 10)
    cache.put("b", 20)
    assert (cache.pop("a"), cache.pop("a"), cache.bytes) == (10, None, 21 + ENTRY_BYTES)
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def test_a_lower_bound_applies_from_the_next_entry_on() -> None:
    cache = sized(100)
    cache.put("a", 10)
    cache.put("b", 10)
    cache.most_bytes = 50 + ENTRY_BYTES
    cache.put("c", 10)
    assert list(cache) == ["c"]


def test_after_any_operations_the_bytes_equal_the_sum_of_the_entries() -> None:
    rng = random.Random(7)
    sizes: dict[int, int] = {}
    cache: Bounded[int, int] = Bounded(20_000, lambda key, value: value, most=40)
    for _ in range(5000):
        key = rng.randrange(60)
        operation = rng.randrange(4)
        if operation == 0:
            cache.pop(key)
        elif operation == 1:
            value = cache.get(key)
            assert value is None or value == sizes[key]
        else:
            sizes[key] = rng.choice((0, 100, 1000, 25_000))
            cache.put(key, sizes[key])
            assert (key in cache) == (sizes[key] < 20_000)
        assert len(cache) <= 40
        assert cache.bytes == sum(sizes[name] + ENTRY_BYTES for name in cache) <= 20_000
