"""Scores on the wire use all levels and keep the order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.verdicts.strategies import scale


def spread(raw: list[int], top: int = 10, ranks: list[int] | None = None, low: int = 0, **options: bool) -> list[int]:
    of = np.array(ranks or [0] * len(raw), np.int64)
    return scale.spread(np.array(raw, np.int64), of, top, low, **options).tolist()


def percents(raw: list[int], ranks: list[int]) -> list[int]:
    return scale.percents(np.array(raw, np.int64), np.array(ranks, np.int64)).tolist()


@pytest.mark.parametrize(("height", "level"), [(0, 0), (499, 0), (500, 1), (5000, 5), (10_000, 10)])
def test_equal_scores_get_the_same_level_by_height(height: int, level: int) -> None:
    assert spread([height] * 3) == [level] * 3


def test_no_nodes_have_no_scores() -> None:
    assert spread([]) == []


@given(st.lists(st.integers(0, scale.RAW_MAX), min_size=2), st.sampled_from([10, 100]))
def test_levels_equal_exact_fractions(raw: list[int], top: int) -> None:
    low, high = min(raw), max(raw)
    levels = spread(raw, top)
    if low == high:
        assert len(set(levels)) == 1
    else:
        assert levels == [(2 * (score - low) * top + high - low) // (2 * (high - low)) for score in raw]
        assert {0, top} <= set(levels)


def test_the_best_rank_has_the_upper_half_at_any_scores_of_lower_ranks() -> None:
    assert spread([100, 200, 9000, 10_000], ranks=[0, 0, 7, 7]) == [5, 10, 0, 4]
    assert spread([100, 200, 9000, 10_000], ranks=[0, 0, 7, 7], top=100) == [50, 100, 0, 49]
    assert spread([0, 10_000], ranks=[3, 4]) == [10, 0]


def test_ranks_share_the_lower_half_and_the_last_ranks_a_level() -> None:
    assert spread([5000] * 4, ranks=[0, 1, 2, 3]) == [10, 3, 1, 0]
    assert spread([5000] * 8, ranks=list(range(8))) == [10, 4, 3, 2, 2, 1, 0, 0]


def test_a_level_is_left_for_nodes_below_all_scored_nodes() -> None:
    assert spread([100, 200], low=1, more_below=True) == [6, 10]
    assert spread([100, 100], low=1, more_below=True) == [10, 10]
    assert spread([0, 0], low=1) == [1, 1]


def test_percents_are_lowered_where_a_rank_would_reach_a_better_rank() -> None:
    assert percents([9400, 8200], [0, 5]) == [94, 82]
    assert percents([7000, 8200, 8300], [0, 5, 5]) == [70, 69, 69]
    assert percents([0, 8200], [0, 5]) == [100, 0]


@given(
    st.lists(st.tuples(st.integers(0, scale.RAW_MAX), st.integers(0, 5)), min_size=2),
    st.sampled_from([10, 100]),
    st.integers(0, 1),
)
def test_ranks_come_first_then_raw_scores(nodes: list[tuple[int, int]], top: int, low: int) -> None:
    raw, ranks = [score for score, _ in nodes], [rank for _, rank in nodes]
    levels = spread(raw, top, ranks, low)
    assert all(low <= level <= top for level in levels)
    for (score, rank), level in zip(nodes, levels, strict=True):
        for (second_score, second_rank), second_level in zip(nodes, levels, strict=True):
            if rank == second_rank and score <= second_score:
                assert level <= second_level
            if rank > second_rank and (second_rank == min(ranks) or top == 100):
                assert level < second_level
            if rank > second_rank:
                assert level <= second_level


@given(st.lists(st.tuples(st.integers(0, scale.RAW_MAX), st.integers(0, 5)), min_size=1))
def test_percents_keep_the_order_of_ranks(nodes: list[tuple[int, int]]) -> None:
    scores = percents([score for score, _ in nodes], [rank for _, rank in nodes])
    assert all(0 <= score <= 100 for score in scores)
    for (_, rank), score in zip(nodes, scores, strict=True):
        assert all(score < higher for (_, better), higher in zip(nodes, scores, strict=True) if better < rank)


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
def test_a_tie_break_leaves_only_winners_at_the_top_level(
    levels: list[int], raw: list[int], ranks: list[int], wins: list[bool], expected: list[int]
) -> None:
    result = np.array(levels, np.int64)
    scale.break_tie(result, np.array(raw, np.int64), np.array(ranks, np.int64), np.array(wins, np.bool_), 10, 0)
    assert result.tolist() == expected
