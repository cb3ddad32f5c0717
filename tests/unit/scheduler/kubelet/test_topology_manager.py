"""Pods without hints, and distances; test_merge.py compares hints with the cross product."""

from __future__ import annotations

import pytest

from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.hints import Hint
from topowise_scheduler.kubelet.machine import NumaNode
from topowise_scheduler.kubelet.topology_manager import TopologyManager

BOTH = 0b11


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
    manager = TopologyManager(TopologySettings(policy, "container"), [NumaNode(id=node, memory=0) for node in range(2)])
    assert manager.decide([]) == expected


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
    unreadable = [*nodes[:2], NumaNode(id=3, memory=0)]
    assert TopologyManager(TopologySettings("best-effort", "container"), unreadable).distances is None
