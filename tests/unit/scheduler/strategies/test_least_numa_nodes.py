"""LeastNUMANodes: the KEP's numbers, upstream's tests, and a brute-force twin of upstream's search."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topowise_scheduler.configuration import Scoring
from topowise_scheduler.strategies import make

from .conftest import CandidatesOf, Node, Scores, _candidates

GI = 1 << 30

# fourNUMANodes in scheduler-plugins' score_test.go: GPUs on near zones, and on far ones.
SQUARE = [[10, 12, 20, 20], [12, 10, 20, 20], [20, 20, 10, 12], [20, 20, 12, 10]]
WITH, WITHOUT = {"cpu": 2, "memory": 50, "gpu": 1}, {"cpu": 2, "memory": 50, "gpu": 0}


def test_the_example_of_the_kep(candidates_of: CandidatesOf, scores: Scores) -> None:
    # The KEP's 76 and 88, and half a step more: the distance came after it (least_numa_test.go has 82 and 94).
    nodes: list[Node] = [[{"cpu": 2}, {"cpu": 4}], [{"cpu": 8}, {"cpu": 8}]]
    candidates = candidates_of(*nodes, containers=[{"cpu": 3}, {"cpu": 3}], masks=[[0, 0], [0, 0]])
    assert scores("LeastNUMANodes", candidates) == [8200, 9400]


def test_predicted_hints_stand_for_the_search(candidates_of: CandidatesOf, scores: Scores) -> None:
    nodes: list[Node] = [[{"cpu": 8}, {"cpu": 8}]] * 2
    candidates = candidates_of(*nodes, containers=[{"cpu": 3}, {"cpu": 3}], masks=[[2, 1], [1, 3]])
    assert scores("LeastNUMANodes", candidates) == [9400, 8200]


@pytest.mark.parametrize(
    ("numbers", "wanted"), [(1, [9400, 8800]), (2, [8200, 7600]), (4, [5800, 5200]), (8, [1000, 400])]
)
def test_each_numa_node_costs_a_step_and_distance_half_a_step(
    candidates_of: CandidatesOf, scores: Scores, numbers: int, wanted: list[int]
) -> None:
    # TestNormalizeScore upstream. The first zones are the closest but one pair, so their mirror image is not.
    near, far = (1 << numbers) - 1, ((1 << numbers) - 1) << (8 - numbers)
    matrix = [[10 if row == column else 11 + row + column for column in range(8)] for row in range(8)]
    candidates = candidates_of(*[[{"cpu": 4}] * 8] * 2, containers=[{"cpu": 1}], masks=[[near, far]], distances=matrix)
    if numbers in (1, 8):
        # One zone is always closest, and of all zones there is one combination.
        wanted = [wanted[0]] * 2
    assert scores("LeastNUMANodes", candidates) == wanted


@pytest.mark.parametrize(
    ("limit", "wanted"), [(2, [7500, 2500]), (1, [5000, 0]), (16, [9700, 9100]), (64, [9900, 9800])]
)
def test_the_limit_is_a_setting(candidates_of: CandidatesOf, scores: Scores, limit: int, wanted: list[int]) -> None:
    candidates = candidates_of(*[[{"cpu": 4}, {"cpu": 4}]] * 2, containers=[{"cpu": 1}], masks=[[1, 3]])
    assert scores("LeastNUMANodes", candidates, max_numa_nodes=limit) == wanted


@pytest.mark.parametrize(("gpus", "wanted"), [(1, [9400, 9400]), (2, [8200, 7600])])
def test_the_gpu_examples_of_upstream(
    candidates_of: CandidatesOf, scores: Scores, gpus: int, wanted: list[int]
) -> None:
    nodes: list[Node] = [[WITH, WITH, WITHOUT, WITHOUT], [WITH, WITHOUT, WITH, WITHOUT]]
    pod = {"cpu": 2, "memory": 50, "gpu": gpus}
    candidates = candidates_of(*nodes, containers=[pod], masks=[[0, 0]], distances=SQUARE)
    assert scores("LeastNUMANodes", candidates) == wanted


def test_a_zone_without_memory_is_no_part_of_a_combination(candidates_of: CandidatesOf, scores: Scores) -> None:
    node = [{"cpu": 2, "memory": 8}, {"cpu": 2}, {"cpu": 2, "memory": 8}, {"cpu": 2}]
    candidates = candidates_of(node, containers=[{"cpu": 4, "memory": 4}], masks=[[0]], distances=SQUARE)
    # 0 and 1 are closer, so 0 and 2 are not the closest.
    assert scores("LeastNUMANodes", candidates) == [7600]
    assert scores("LeastNUMANodes", candidates_of(node, containers=[{"cpu": 6, "memory": 4}], masks=[[0]])) == [0]


def test_what_no_zone_has_is_not_asked_of_them(candidates_of: CandidatesOf, scores: Scores) -> None:
    nodes: list[Node] = [[{"cpu": 4}, {"cpu": 4}], [{"cpu": 4, "gpu": 1}, {"cpu": 4}]]
    candidates = candidates_of(*nodes, containers=[{"cpu": 2, "gpu": 1}], masks=[[0, 0]])
    assert scores("LeastNUMANodes", candidates) == [9400, 9400]
    only = candidates_of(*nodes, containers=[{"gpu": 1}], masks=[[0, 0]])
    assert scores("LeastNUMANodes", only) == [10_000, 9400]


def test_a_pod_without_numa_resources_gets_100_and_one_that_fits_nowhere_0(
    candidates_of: CandidatesOf, scores: Scores
) -> None:
    assert scores("LeastNUMANodes", candidates_of([{"cpu": 4}], containers=[{}], masks=[[0]])) == [10_000]
    assert scores("LeastNUMANodes", candidates_of([{"cpu": 4}], containers=[{"other": 1}], masks=[[0]])) == [10_000]
    assert scores("LeastNUMANodes", candidates_of([{"cpu": 4}] * 2, containers=[{"cpu": 9}], masks=[[0]])) == [0]


def test_plain_init_containers_give_back_what_they_took(candidates_of: CandidatesOf, scores: Scores) -> None:
    for kind, wanted in (("init", 9400), ("sidecar", 8200)):
        candidates = candidates_of(
            [{"cpu": 4}, {"cpu": 2}], containers=[{"cpu": 3}, {"cpu": 3}], kinds=[kind, "app"], masks=[[0], [0]]
        )
        assert scores("LeastNUMANodes", candidates) == [wanted]


def brute_force(node: Node, whole: Node, distances: list[list[int]], containers: list[dict[str, int]]) -> int:
    """leastNUMAContainerScopeScore, with this module's rule for zones that lack a resource."""
    left = [dict(zone) for zone in node]
    most, closest = 0, True
    for amounts in containers:
        chosen: tuple[int, ...] | None = None
        for size in range(1, len(node) + 1):
            spans = {
                some: sum(distances[one][other] for one in some for other in some)
                for some in combinations(range(len(node)), size)
            }
            fitting = [
                some
                for some in spans
                if all(whole[zone][name] for zone in some for name in amounts if name in ("cpu", "memory"))
                and all(sum(left[zone][name] for zone in some) >= amount for name, amount in amounts.items())
            ]
            if fitting:
                chosen = min(fitting, key=spans.__getitem__)
                closest &= size == 1 or spans[chosen] == min(spans.values())
                break
        if chosen is None:
            return 0
        most = max(most, len(chosen))
        for name, amount in amounts.items():
            for zone in chosen:
                given = min(left[zone][name], amount)
                left[zone][name] -= given
                amount -= given
    return max(0, 100 - most * 12 + closest * 6) * 100


whole_zones = st.fixed_dictionaries({"cpu": st.integers(0, 8), "memory": st.integers(0, 8), "gpu": st.integers(0, 2)})
pods = st.lists(
    st.fixed_dictionaries(
        {"cpu": st.integers(1, 14)}, optional={"memory": st.integers(1, 14), "gpu": st.integers(1, 3)}
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_the_search_is_upstreams(data: st.DataObject, zones: int) -> None:
    full = {"cpu": 1, "memory": 1, "gpu": 1}
    # A zone that has everything, so that every resource is somewhere.
    nodes = data.draw(st.lists(st.lists(whole_zones, min_size=zones, max_size=zones), min_size=1, max_size=3))
    whole = [
        [{name: max(zone[name], full[name] * (not at)) for name in full} for at, zone in enumerate(node)]
        for node in nodes
    ]
    containers = data.draw(pods)
    far = data.draw(
        st.lists(st.lists(st.integers(11, 13), min_size=zones, max_size=zones), min_size=zones, max_size=zones)
    )
    matrix = [[10 if row == column else far[row][column] for column in range(zones)] for row in range(zones)]
    candidates = _candidates(
        *nodes, containers=containers, masks=[[0] * len(nodes)] * len(containers), whole=whole, distances=matrix
    )
    found = make("LeastNUMANodes", {}, Scoring()).raw(candidates).tolist()
    assert found == [brute_force(node, most, matrix, containers) for node, most in zip(nodes, whole, strict=True)]
