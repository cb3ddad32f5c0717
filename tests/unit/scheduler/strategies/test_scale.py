"""What goes over the wire uses all levels, and keeps the order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.strategies import scale


def spread(raw: list[int], top: int = 10, ranks: list[int] | None = None, low: int = 0, **options: bool) -> list[int]:
    of = np.array(ranks or [0] * len(raw), np.int64)
    return scale.spread(np.array(raw, np.int64), of, top, low, **options).tolist()


def percents(raw: list[int], ranks: list[int]) -> list[int]:
    return scale.percents(np.array(raw, np.int64), np.array(ranks, np.int64)).tolist()


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


def test_the_best_rank_has_the_upper_half_whatever_the_others_score() -> None:
    assert spread([100, 200, 9000, 10_000], ranks=[0, 0, 7, 7]) == [5, 10, 0, 4]
    assert spread([100, 200, 9000, 10_000], ranks=[0, 0, 7, 7], top=100) == [50, 100, 0, 49]
    assert spread([0, 10_000], ranks=[3, 4]) == [10, 0]


def test_ranks_share_the_lower_half_and_the_last_ones_a_level() -> None:
    assert spread([5000] * 4, ranks=[0, 1, 2, 3]) == [10, 3, 1, 0]
    assert spread([5000] * 8, ranks=list(range(8))) == [10, 4, 3, 2, 2, 1, 0, 0]


def test_room_is_left_for_who_is_worse_than_all_of_them() -> None:
    assert spread([100, 200], low=1, more_below=True) == [6, 10]
    assert spread([100, 100], low=1, more_below=True) == [10, 10]
    assert spread([0, 0], low=1) == [1, 1]


def test_percents_are_lowered_where_a_rank_would_reach_into_a_better_one() -> None:
    assert percents([9400, 8200], [0, 5]) == [94, 82]
    assert percents([7000, 8200, 8300], [0, 5, 5]) == [70, 69, 69]
    assert percents([0, 8200], [0, 5]) == [100, 0]


@given(
    st.lists(st.tuples(st.integers(0, scale.RAW_MAX), st.integers(0, 5)), min_size=2),
    st.sampled_from([10, 100]),
    st.integers(0, 1),
)
def test_ranks_come_first_then_raw_scores(nodes: list[tuple[int, int]], top: int, low: int) -> None:
    raw, ranks = [one for one, _ in nodes], [rank for _, rank in nodes]
    levels = spread(raw, top, ranks, low)
    assert all(low <= level <= top for level in levels)
    for (score, rank), level in zip(nodes, levels, strict=True):
        for (other, behind), theirs in zip(nodes, levels, strict=True):
            if rank == behind and score <= other:
                assert level <= theirs
            if rank > behind and (behind == min(ranks) or top == 100):
                assert level < theirs
            if rank > behind:
                assert level <= theirs


@given(st.lists(st.tuples(st.integers(0, scale.RAW_MAX), st.integers(0, 5)), min_size=1))
def test_percents_keep_ranks_apart(nodes: list[tuple[int, int]]) -> None:
    found = percents([one for one, _ in nodes], [rank for _, rank in nodes])
    assert all(0 <= one <= 100 for one in found)
    for (_, rank), one in zip(nodes, found, strict=True):
        assert all(one < other for (_, better), other in zip(nodes, found, strict=True) if better < rank)


@pytest.mark.parametrize(
    ("levels", "raw", "ranks", "wins", "expected"),
    [
        ([10, 10, 0], [9, 9, 1], [0, 0, 0], [True, False, True], [10, 9, 0]),
        ([10, 10, 10], [9, 9, 8], [0, 0, 0], [True, False, False], [10, 9, 9]),
        ([7, 7], [5, 5], [0, 0], [True, False], [7, 6]),
        ([0, 0], [0, 0], [0, 0], [True, False], [1, 0]),
        ([10, 10], [9, 9], [0, 0], [True, True], [10, 10]),
        ([10, 10], [9, 9], [0, 0], [False, False], [10, 10]),
        ([10, 4], [1, 9], [0, 1], [False, True], [10, 4]),
        ([], [], [], [], []),
    ],
)
def test_of_the_best_those_that_win_are_alone_on_top(
    levels: list[int], raw: list[int], ranks: list[int], wins: list[bool], expected: list[int]
) -> None:
    found = np.array(levels, np.int64)
    scale.break_tie(found, np.array(raw, np.int64), np.array(ranks, np.int64), np.array(wins, np.bool_), 10, 0)
    assert found.tolist() == expected
