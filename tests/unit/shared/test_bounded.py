"""The bounded map: which entry goes, and what counts."""

from __future__ import annotations

import random

import pytest

from topowise.bounded import ENTRY_BYTES, Bounded


def sized(most_bytes: int, most: int = 1000) -> Bounded[str, int]:
    """A map whose values are their own bytes; the bound includes what each of two entries takes."""
    return Bounded(most_bytes + 2 * ENTRY_BYTES, lambda key, value: len(key) + value, most)


def test_the_least_recently_used_entry_goes_first() -> None:
    kept: Bounded[str, int] = Bounded(1 << 20, lambda key, value: 1, most=3)
    for key in "abc":
        kept.put(key, ord(key))
    assert kept.get("a") == ord("a")
    kept.put("d", 1)
    assert list(kept) == ["c", "a", "d"]
    assert kept.once("c", lambda: 99) == ord("c")
    kept.put("e", 2)
    assert list(kept) == ["d", "c", "e"]
    kept.put("d", 3)
    assert list(kept) == ["c", "e", "d"]


def test_to_look_whether_a_key_is_kept_is_no_use_of_it() -> None:
    kept: Bounded[str, int] = Bounded(1 << 20, lambda key, value: 1, most=2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert "a" in kept
    kept.put("c", 3)
    assert ("a" in kept, kept.get("a"), len(kept)) == (False, None, 2)


def test_bytes_are_bounded_with_those_of_the_entry_itself() -> None:
    kept = sized(100)
    kept.put("a", 40)
    kept.put("b", 58)
    assert (list(kept), kept.bytes) == (["a", "b"], 100 + 2 * ENTRY_BYTES)
    kept.put("c", 1)
    assert (list(kept), kept.bytes) == (["b", "c"], 61 + 2 * ENTRY_BYTES)


def test_a_large_entry_takes_the_place_of_several() -> None:
    kept: Bounded[int, int] = Bounded(10 * (ENTRY_BYTES + 10), lambda key, value: value)
    for key in range(10):
        kept.put(key, 10)
    kept.put(10, 20 + ENTRY_BYTES)
    assert list(kept) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_a_key_that_is_put_again_counts_once() -> None:
    kept = sized(100)
    for size in (90, 10, 50):
        kept.put("a", size)
        assert (len(kept), kept.get("a"), kept.bytes) == (1, size, size + 1 + ENTRY_BYTES)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_entry_above_the_whole_bound_is_not_kept_and_displaces_no_other(is_known: bool) -> None:
    kept = sized(100)
    kept.put("a", 10)
    if is_known:
        kept.put("b", 10)
    kept.put("b", 2 * ENTRY_BYTES)
    assert (list(kept), kept.bytes) == (["a"], 11 + ENTRY_BYTES)
    assert kept.once("c", lambda: 5000) == 5000
    assert list(kept) == ["a"]


def test_what_is_made_once_is_the_same_object_until_it_goes() -> None:
    kept: Bounded[str, list[str]] = Bounded(1 << 20, lambda key, value: 1, most=1)
    first = kept.once("a", list)
    assert kept.once("a", list) is first
    kept.once("b", list)
    assert kept.once("a", list) is not first


def test_none_and_false_are_values() -> None:
    kept: Bounded[str, bool | None] = Bounded(1 << 20, lambda key, value: 1)
    kept.put("a", None)
    assert kept.once("a", lambda: True) is None
    kept.put("b", False)
    assert kept.get("b") is False


def test_popped_and_cleared_entries_count_no_more() -> None:
    kept = sized(100)
    kept.put("a", 10)
    kept.put("b", 20)
    assert (kept.pop("a"), kept.pop("a"), kept.bytes) == (10, None, 21 + ENTRY_BYTES)
    kept.clear()
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_lower_bound_holds_from_the_next_entry_on() -> None:
    kept = sized(100)
    kept.put("a", 10)
    kept.put("b", 10)
    kept.most_bytes = 50 + ENTRY_BYTES
    kept.put("c", 10)
    assert list(kept) == ["c"]


def test_after_any_operations_the_bytes_are_those_of_the_entries() -> None:
    rng = random.Random(7)
    sizes: dict[int, int] = {}
    kept: Bounded[int, int] = Bounded(20_000, lambda key, value: value, most=40)
    for _ in range(5000):
        key = rng.randrange(60)
        operation = rng.randrange(4)
        if operation == 0:
            kept.pop(key)
        elif operation == 1:
            value = kept.get(key)
            assert value is None or value == sizes[key]
        else:
            sizes[key] = rng.choice((0, 100, 1000, 25_000))
            kept.put(key, sizes[key])
            assert (key in kept) == (sizes[key] < 20_000)
        assert len(kept) <= 40
        assert kept.bytes == sum(sizes[one] + ENTRY_BYTES for one in kept) <= 20_000
