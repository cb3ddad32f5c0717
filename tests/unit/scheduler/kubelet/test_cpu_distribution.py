"""distribute-cpus-across-numa: even shares, and the memory Go's slices share."""

from __future__ import annotations

import itertools

import pytest

from topowise_scheduler.kubelet.cpu_distribution import combinations, deviation


@pytest.mark.parametrize("size", range(1, 6))
def test_combinations_come_in_lexicographic_order(size: int) -> None:
    assert [tuple(found.read()) for found in combinations(range(5), size)] == list(
        itertools.combinations(range(5), size)
    )


@pytest.mark.parametrize(("size", "kept"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_remembered_combination_of_four_is_overwritten_by_the_next(size: int, kept: bool) -> None:
    slices = combinations(range(5), size)
    first = next(slices)
    remembered = first.read()
    next(slices)
    assert (first.read() == remembered) is kept


def test_deviation_is_rounded_to_three_decimals_twice() -> None:
    assert deviation([4, 4, 4]) == 0
    # mean 1.333 and not 4/3: sqrt((2 * 0.333^2 + 0.667^2) / 3) = 0.4714 -> 0.471
    assert deviation([1, 1, 2]) == 0.471
