"""Ranks of a placement under every strategy: alignment, then the number of NUMA nodes, then distance."""

from __future__ import annotations

from topowise_scheduler.verdicts.strategies import ranks

from .conftest import Node, candidates_of

FOUR: Node = [{"cpu": 4}] * 4
SQUARE = [[10, 12, 32, 32], [12, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]]


def test_the_order() -> None:
    masks = [0b1, 0b11, 0b101, 0b111, 0b1111, 0b1, 0b11, 0b101]
    candidates = candidates_of(
        *[FOUR] * 8, containers=[{"cpu": 4}], masks=[masks], aligned=[[True] * 5 + [False] * 3], distances=SQUARE
    )
    node_ranks = ranks.of(candidates).tolist()
    assert node_ranks == sorted(node_ranks)
    assert len(set(node_ranks)) == 8
    assert node_ranks[0] == 0


def test_all_single_numa_nodes_rank_equal() -> None:
    candidates = candidates_of(*[FOUR] * 3, containers=[{"cpu": 4}, {"cpu": 1}], masks=[[1, 2, 8], [1, 4, 0]])
    assert ranks.of(candidates).tolist() == [0, 0, 0]


def test_the_widest_container_decides_and_in_scope_pod_the_pod() -> None:
    masks = [[1, 1, 3], [2, 3, 0]]
    per_container = ranks.of(candidates_of(*[FOUR] * 3, containers=[{"cpu": 4}] * 2, masks=masks)).tolist()
    assert per_container[0] < per_container[1] == per_container[2]
    per_pod = ranks.of(candidates_of(*[FOUR] * 3, containers=[{"cpu": 4}] * 2, masks=masks, by_pod=True)).tolist()
    assert per_pod[0] == per_pod[1] == per_pod[2] == per_container[1]


def test_among_equally_wide_containers_the_greatest_distance_decides() -> None:
    candidates = candidates_of(
        *[FOUR] * 2, containers=[{"cpu": 4}] * 2, masks=[[0b11, 0b11], [0b1100, 0b101]], distances=SQUARE
    )
    near, far = ranks.of(candidates).tolist()
    assert far - near == 32 - 12


def test_plain_init_containers_do_not_count() -> None:
    candidates = candidates_of(
        *[FOUR] * 2,
        containers=[{"cpu": 8}, {"cpu": 1}],
        masks=[[3, 3], [1, 3]],
        aligned=[[False, True], [True, True]],
        kinds=["init", "app"],
    )
    init_split, both = ranks.of(candidates).tolist()
    assert init_split == 0 < both
    alone = candidates_of(FOUR, containers=[{"cpu": 8}], masks=[[3]], aligned=[[False]], kinds=["init"])
    assert ranks.of(alone).tolist() == [0]


def test_machines_of_dozens_of_numa_nodes_are_ranked_too() -> None:
    candidates = candidates_of([{"cpu": 4}] * 64, containers=[{"cpu": 4}], masks=[[(1 << 63) - 1]])
    assert ranks.of(candidates).tolist() == [62 * 256 + 20]
