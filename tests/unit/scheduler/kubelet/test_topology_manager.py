"""Policies and scopes: the stored hint, and the refused pods."""

from __future__ import annotations

import pytest

from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.hints import IMPOSSIBLE, Hint, Hints
from topowise_scheduler.kubelet.machine import NumaNode
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.topology_manager import TopologyManager

NODE_0, NODE_1, BOTH = 1, 2, 3


def _hints(fits: list[int], preferred: list[int]) -> Hints:
    return Hints(mask_of(fits), mask_of(preferred))


def _manager(
    policy: str, count: int = 2, closest: bool = False, rows: list[list[int]] | None = None
) -> TopologyManager:
    nodes = [NumaNode(id=node, memory=0, distances=tuple(rows[node]) if rows else None) for node in range(count)]
    return TopologyManager(TopologySettings(policy, "container", prefer_closest=closest), nodes)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", (Hint(None, False), True)),
        ("best-effort", (Hint(BOTH, True), True)),
        ("restricted", (Hint(BOTH, True), True)),
        ("single-numa-node", (Hint(None, True), True)),
    ],
)
def test_without_hints_every_policy_admits(policy: str, expected: tuple[Hint, bool]) -> None:
    assert _manager(policy).decide([]) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", (Hint(None, False), True)),
        ("best-effort", (Hint(NODE_0, False), True)),
        ("restricted", (Hint(NODE_0, False), False)),
        ("single-numa-node", (Hint(None, False), False)),
    ],
)
def test_resources_on_different_nodes_are_refused_by_the_strict_policies(
    policy: str, expected: tuple[Hint, bool]
) -> None:
    groups = [_hints([NODE_0, BOTH], [NODE_0]), _hints([NODE_1, BOTH], [NODE_1])]
    assert _manager(policy).decide(groups) == expected


def test_restricted_admits_two_nodes_if_a_single_node_never_fits() -> None:
    assert _manager("restricted").decide([_hints([BOTH], [BOTH])]) == (Hint(BOTH, True), True)
    assert _manager("single-numa-node").decide([_hints([BOTH], [BOTH])]) == (Hint(None, False), False)


def test_an_impossible_resource_keeps_the_merged_hint_but_not_preferred() -> None:
    groups = [_hints([NODE_1], [NODE_1]), IMPOSSIBLE]
    assert _manager("best-effort").decide(groups) == (Hint(NODE_1, False), True)
    assert _manager("restricted").decide(groups) == (Hint(NODE_1, False), False)


def test_on_a_single_numa_node_the_single_numa_policy_stores_no_affinity() -> None:
    assert _manager("single-numa-node", count=1).decide([_hints([1], [1])]) == (Hint(None, True), True)


def test_overlapping_masks_are_merged_to_their_intersection() -> None:
    groups = [_hints([0b0011], [0b0011]), _hints([0b0110], [0b0110])]
    assert _manager("best-effort", count=4).decide(groups) == (Hint(0b0010, False), True)


def test_a_hint_that_is_not_preferred_is_as_wide_as_the_widest_minimum() -> None:
    # Memory needs at least two nodes, so two nodes win although CPUs fit on a single node.
    cpu = _hints([NODE_0, NODE_1, BOTH], [NODE_0, NODE_1])
    memory = _hints([BOTH], [BOTH])
    assert _manager("best-effort").decide([cpu, memory]) == (Hint(BOTH, False), True)


def test_prefer_closest_takes_the_pair_with_the_least_distance() -> None:
    rows = [[10, 32, 32, 32], [32, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]]
    pairs = [0b0011, 0b0101, 0b1100, 0b1111]
    hints = [_hints(pairs, pairs[:3])]
    assert _manager("best-effort", 4, closest=True, rows=rows).decide(hints) == (Hint(0b1100, True), True)
    assert _manager("best-effort", 4, closest=False, rows=rows).decide(hints) == (Hint(0b0011, True), True)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(10, 12, 32), (12, 10, 32), (32, 32, 10)], id="a row for each node"),
        pytest.param([(10, 0, 12, 32), (12, 0, 10, 32), (32, 0, 32, 10)], id="a row with gaps"),
    ],
)
def test_distances_are_read_by_id_or_by_position_in_dense_rows(rows: list[tuple[int, ...]]) -> None:
    # Ids 0, 2 and 3: the kubelet indexes a row by id; the kernel prints no entry for absent nodes.
    nodes = [NumaNode(id=node, memory=0, distances=row) for node, row in zip((0, 2, 3), rows, strict=True)]
    manager = TopologyManager(TopologySettings("best-effort", "container", prefer_closest=True), nodes)
    assert manager.distances == ((10, 12, 32), (12, 10, 32), (32, 32, 10))
