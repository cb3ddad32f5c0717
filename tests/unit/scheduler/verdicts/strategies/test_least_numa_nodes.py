"""LeastNUMANodes: the KEP's numbers, upstream's tests, and a brute-force twin of upstream's formula.

The KEP's examples from free CPUs to the answer are in ../test_scores_follow_the_placement.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.verdicts.strategies import make

from .conftest import Node, candidates_of, scores

# fourNUMANodes in scheduler-plugins' score_test.go: GPUs on near zones, and on far zones.
SQUARE = [[10, 12, 20, 20], [12, 10, 20, 20], [20, 20, 10, 12], [20, 20, 12, 10]]


def test_in_scope_pod_all_containers_count_together() -> None:
    nodes: list[Node] = [[{"cpu": 8}, {"cpu": 8}]] * 2
    candidates = candidates_of(*nodes, containers=[{"cpu": 3}, {"cpu": 3}], masks=[[2, 1], [1, 1]], by_pod=True)
    assert scores("LeastNUMANodes", candidates) == [8200, 9400]


@pytest.mark.parametrize(
    ("numbers", "expected"), [(1, [9400, 8800]), (2, [8200, 7600]), (4, [5800, 5200]), (8, [1000, 400])]
)
def test_each_numa_node_costs_a_step_and_distance_half_a_step(numbers: int, expected: list[int]) -> None:
    # TestNormalizeScore upstream. The first zones have the least distances, and the last zones do not.
    near, far = (1 << numbers) - 1, ((1 << numbers) - 1) << (8 - numbers)
    matrix = [[10 if row == column else 11 + row + column for column in range(8)] for row in range(8)]
    candidates = candidates_of(*[[{"cpu": 4}] * 8] * 2, containers=[{"cpu": 1}], masks=[[near, far]], distances=matrix)
    if numbers in (1, 8):
        # A single zone is always closest, and all zones have a single combination.
        expected = [expected[0]] * 2
    assert scores("LeastNUMANodes", candidates) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(0, [9400, 8200]), (8, [9400, 8200]), (2, [7500, 2500]), (1, [5000, 0]), (16, [9700, 9100]), (64, [9900, 9800])],
)
def test_the_limit_is_the_nodes_own_or_the_kubelets_default(limit: int, expected: list[int]) -> None:
    candidates = candidates_of(*[[{"cpu": 4}, {"cpu": 4}]] * 2, containers=[{"cpu": 1}], masks=[[1, 3]])
    assert scores("LeastNUMANodes", replace(candidates, max_numa_nodes=limit)) == expected


def test_distance_counts_on_every_node_as_in_the_code_of_scheduler_plugins() -> None:
    candidates = candidates_of(*[[{"cpu": 4}] * 4] * 3, containers=[{"cpu": 1}], masks=[[1, 3, 5]], distances=SQUARE)
    assert scores("LeastNUMANodes", candidates) == [9400, 8200, 7600]


def test_a_pod_without_numa_resources_gets_100() -> None:
    assert scores("LeastNUMANodes", candidates_of([{"cpu": 4}], containers=[{}], masks=[[0]])) == [10_000]
    assert scores("LeastNUMANodes", candidates_of([{"cpu": 4}], containers=[], masks=[])) == [10_000]


def test_too_many_combinations_are_not_enumerated() -> None:
    candidates = candidates_of([{"cpu": 4}] * 34, containers=[{"cpu": 60}], masks=[[(1 << 17) - 1]])
    assert scores("LeastNUMANodes", replace(candidates, max_numa_nodes=34)) == [100 * (100 - 17 * 2)]


def brute_force(distances: list[list[int]], placed: list[int]) -> int:
    """Upstream's leastNUMAContainerScopeScore for containers on the zones of these masks."""
    most, closest = 0, True
    for mask in placed:
        zones = tuple(zone for zone in range(len(distances)) if mask >> zone & 1)
        spans = {
            subset: sum(distances[row][column] for row in subset for column in subset)
            for subset in combinations(range(len(distances)), len(zones))
        }
        most = max(most, len(zones))
        closest &= len(zones) < 2 or spans[zones] == min(spans.values())
    return max(0, 100 - most * 12 + closest * 6) * 100


@settings(max_examples=examples(), deadline=None)
@given(st.data(), st.integers(1, 5))
def test_the_formula_is_upstreams(data: st.DataObject, zones: int) -> None:
    mask = st.integers(1, 2**zones - 1)
    placed = data.draw(st.lists(st.lists(mask, min_size=2, max_size=2), min_size=1, max_size=4))
    far = data.draw(
        st.lists(st.lists(st.integers(11, 13), min_size=zones, max_size=zones), min_size=zones, max_size=zones)
    )
    matrix = [[10 if row == column else far[row][column] for column in range(zones)] for row in range(zones)]
    candidates = candidates_of(
        *[[{"cpu": 4}] * zones] * len(placed),
        containers=[{"cpu": 1}] * 2,
        masks=[list(row) for row in zip(*placed, strict=True)],
        distances=matrix,
    )
    raw = make("LeastNUMANodes", {}, Scoring()).raw(candidates).tolist()
    assert raw == [brute_force(matrix, row) for row in placed]
