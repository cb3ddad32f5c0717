"""NUMAAware: Volcano's numbers."""

from __future__ import annotations

from .conftest import candidates_of, scores


def test_percents_are_truncated() -> None:
    candidates = candidates_of(*[[{"cpu": 8}] * 3] * 3, containers=[{"cpu": 2}], masks=[[1, 3, 7]])
    assert scores("NUMAAware", candidates) == [6700, 3400, 0]


def test_equal_numbers_are_all_0() -> None:
    assert scores("NUMAAware", candidates_of(*[[{"cpu": 8}] * 2] * 2, containers=[{"cpu": 2}], masks=[[1, 2]])) == [
        0,
        0,
    ]


def test_a_pod_without_aligned_resources_gets_100() -> None:
    assert scores("NUMAAware", candidates_of(*[[{"cpu": 8}] * 2] * 2, containers=[{}], masks=[[0, 0]])) == [10_000] * 2


def test_the_zones_of_all_lasting_containers_count_once() -> None:
    masks = [[8, 8], [1, 1], [1, 2]]
    containers = [{"cpu": 1}] * 3
    candidates = candidates_of(
        *[[{"cpu": 8}] * 4] * 2, containers=containers, kinds=["init", "sidecar", "app"], masks=masks
    )
    assert scores("NUMAAware", candidates) == [5000, 0]
