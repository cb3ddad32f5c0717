"""What goes over the wire uses all levels, and keeps the order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.strategies import scale


def spread(raw: list[int], top: int = 10) -> list[int]:
    return scale.spread(np.array(raw, np.int64), top).tolist()


def test_the_worst_is_0_and_the_best_the_top() -> None:
    assert spread([4990, 5000, 5010]) == [0, 5, 10]
    assert spread([4990, 5000, 5010], top=100) == [0, 50, 100]


def test_halves_are_rounded_up() -> None:
    assert spread([0, 1, 3, 20]) == [0, 1, 2, 10]


@pytest.mark.parametrize(("height", "level"), [(0, 0), (499, 0), (500, 1), (5000, 5), (10_000, 10)])
def test_equal_scores_get_one_level_by_their_height(height: int, level: int) -> None:
    assert spread([height] * 3) == [level] * 3


def test_no_nodes_have_no_scores() -> None:
    assert spread([]) == []


@given(st.lists(st.integers(0, scale.RAW_MAX), min_size=2), st.sampled_from([10, 100]))
def test_levels_are_those_of_exact_fractions(raw: list[int], top: int) -> None:
    low, high = min(raw), max(raw)
    levels = spread(raw, top)
    if low == high:
        assert len(set(levels)) == 1
    else:
        assert levels == [(2 * (one - low) * top + high - low) // (2 * (high - low)) for one in raw]
        assert {0, top} <= set(levels)
