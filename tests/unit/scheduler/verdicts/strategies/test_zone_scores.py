"""LeastAllocated, MostAllocated and BalancedAllocation: upstream's formula, and the intended differences."""

from __future__ import annotations

from fractions import Fraction
from statistics import variance

from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.configuration import Scoring
from topowise_scheduler.verdicts.strategies import make

from .conftest import Node, candidates_of, scores

MI = 1 << 20


# defaultNUMANodes in scheduler-plugins' score_test.go: two equal NUMA nodes each.
def test_weights_apply_and_the_default_weight_is_1() -> None:
    candidates = candidates_of([{"cpu": 4, "gpu": 2}], containers=[{"cpu": 1, "gpu": 1}], masks=[[1]])
    assert scores("LeastAllocated", candidates) == [6250]
    assert scores("LeastAllocated", candidates, {"cpu": 3}) == [6875]
    assert scores("MostAllocated", candidates, {"cpu": 3}) == [3125]


def test_containers_score_after_earlier_containers() -> None:
    two = [{"cpu": 4}, {"cpu": 4}]
    node = [{"cpu": 8}, {"cpu": 8}]
    # The first container leaves half of each zone; on the zone with 4 free CPUs, the second would leave no CPU.
    assert scores("LeastAllocated", candidates_of(node, containers=two, masks=[[1], [2]])) == [2500]
    assert scores("LeastAllocated", candidates_of(node, containers=two, kinds=["init", "app"], masks=[[1], [2]])) == [
        5000
    ]


def test_containers_in_the_same_zones_score_together() -> None:
    candidates = candidates_of(
        *[[{"cpu": 8}, {"cpu": 8}]] * 2, containers=[{"cpu": 2}, {"cpu": 2}], masks=[[1, 1], [1, 2]]
    )
    assert scores("LeastAllocated", candidates) == [5000, round((6 / 8 + 4 / 6) * 5000)]


def test_all_containers_score_together_in_scope_pod() -> None:
    pod = [{"cpu": 6}, {"cpu": 1}, {"cpu": 3}]
    candidates = candidates_of([{"cpu": 8}], containers=pod, kinds=["init", "sidecar", "app"], masks=[[1], [1], [1]])
    assert scores("LeastAllocated", candidates) == [2500]


def test_zones_of_the_same_container_count_as_a_single_zone() -> None:
    candidates = candidates_of([{"cpu": 4}, {"cpu": 4}, {"cpu": 9}], containers=[{"cpu": 6}], masks=[[3]])
    assert scores("LeastAllocated", candidates) == [2500]


def test_an_allocation_of_several_zones_fills_the_lowest_zone_first() -> None:
    nodes: list[Node] = [[{"cpu": 4}, {"cpu": 4}], [{"cpu": 4}, {"cpu": 8}]]
    candidates = candidates_of(*nodes, containers=[{"cpu": 6}, {"cpu": 1}], masks=[[3, 3], [2, 2]])
    assert scores("MostAllocated", candidates) == [(7500 + 5000) // 2, round((6 / 12 + 1 / 6) * 5000)]


def test_a_resource_the_node_does_not_have_does_not_count() -> None:
    nodes: list[Node] = [[{"cpu": 8}], [{"cpu": 8, "memory": 10}]]
    candidates = candidates_of(*nodes, containers=[{"cpu": 2, "memory": 5}], masks=[[1, 1]])
    assert scores("LeastAllocated", candidates) == [7500, 6250]
    assert scores("BalancedAllocation", candidates) == [10_000, 9688]


amounts = st.integers(0, 12)
zones = st.fixed_dictionaries({"cpu": amounts, "memory": amounts, "gpu": amounts})
asking = st.fixed_dictionaries(
    {"cpu": st.integers(1, 6)}, optional={"memory": st.integers(0, 6), "gpu": st.integers(0, 6)}
)


@given(st.lists(st.lists(zones, min_size=2, max_size=2), min_size=1, max_size=4), asking, st.integers(1, 5))
def test_a_single_container_scores_as_the_formula_on_each_node(
    nodes: list[Node], pod: dict[str, int], weight: int
) -> None:
    requests = {name: amount for name, amount in pod.items() if amount}
    candidates = candidates_of(
        *nodes,
        containers=[pod],
        masks=[[1] * len(nodes)],
        whole=[[{**dict.fromkeys(zone, 12)} for zone in node] for node in nodes],
    )
    weights = {"cpu": weight, "memory": 1, "gpu": 1}

    def used(zone: dict[str, int]) -> dict[str, Fraction]:
        return {name: Fraction(amount, zone[name]) for name, amount in requests.items()}

    def mean(shares: dict[str, Fraction]) -> Fraction:
        return sum((weights[name] * share for name, share in shares.items()), Fraction(0)) / sum(
            weights[name] for name in shares
        )

    for name, of_zone in (
        ("LeastAllocated", lambda zone: 1 - mean(used(zone))),
        ("MostAllocated", lambda zone: mean(used(zone))),
        ("BalancedAllocation", lambda zone: 1 - variance(used(zone).values()) if len(requests) > 1 else Fraction(1)),
    ):
        node_scores = make(name, weights, Scoring()).raw(candidates).tolist()
        for node, score in zip(nodes, node_scores, strict=True):
            fits = [zone for zone in node if all(zone[resource] >= amount for resource, amount in requests.items())]
            exact = min(map(of_zone, fits), default=Fraction(0)) * 10_000
            assert abs(score - exact) <= Fraction(501, 1000), (name, node)
