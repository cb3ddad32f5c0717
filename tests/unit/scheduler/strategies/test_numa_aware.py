"""NUMAAware: Volcano's numbers."""

from __future__ import annotations

from .conftest import CandidatesOf, Node, Scores


def test_the_example_of_volcano(candidates_of: CandidatesOf, scores: Scores) -> None:
    nodes: list[Node] = [[{"cpu": 8}] * 4] * 3
    candidates = candidates_of(*nodes, containers=[{"cpu": 2}], masks=[[1, 3, 15]])
    # With weight 10 Volcano gives 750, 500 and 0.
    assert [10 * score // 100 for score in scores("NUMAAware", candidates)] == [750, 500, 0]


def test_percents_are_truncated(candidates_of: CandidatesOf, scores: Scores) -> None:
    candidates = candidates_of(*[[{"cpu": 8}] * 3] * 3, containers=[{"cpu": 2}], masks=[[1, 3, 7]])
    assert scores("NUMAAware", candidates) == [6700, 3400, 0]


def test_equal_numbers_are_all_0(candidates_of: CandidatesOf, scores: Scores) -> None:
    assert scores("NUMAAware", candidates_of(*[[{"cpu": 8}] * 2] * 2, containers=[{"cpu": 2}], masks=[[1, 2]])) == [
        0,
        0,
    ]


def test_a_pod_without_aligned_resources_gets_100(candidates_of: CandidatesOf, scores: Scores) -> None:
    assert scores("NUMAAware", candidates_of(*[[{"cpu": 8}] * 2] * 2, containers=[{}], masks=[[0, 0]])) == [10_000] * 2


def test_the_zones_of_all_lasting_containers_count_once(candidates_of: CandidatesOf, scores: Scores) -> None:
    masks = [[8, 8], [1, 1], [1, 2]]
    containers = [{"cpu": 1}] * 3
    candidates = candidates_of(
        *[[{"cpu": 8}] * 4] * 2, containers=containers, kinds=["init", "sidecar", "app"], masks=masks
    )
    assert scores("NUMAAware", candidates) == [5000, 0]
