"""Where memory over several NUMA nodes may lie while its pod is uncertain: everywhere that it may, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduling import configuration, container, decoded, machine, pod
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.node.possible_placements import possible_placements


def node_with(policy: str, *memory: str, zones: int = 4, **changed: Any) -> Kubelet:
    """Returns a node with a pod for each amount of memory."""
    node = Kubelet(machine(zones), configuration(topologyManagerPolicy=policy, **changed))
    for number, amount in enumerate(memory):
        admitted(node, f"p{number}", amount)
    return node


def admitted(node: Kubelet, name: str, *memory: str, cpu: str = "1") -> PodView:
    """A pod with a container for each amount of memory."""
    containers = [container({"cpu": cpu, "memory": amount}, f"c{at}") for at, amount in enumerate(memory)]
    view = node.view(f"uid-{name}", pods.needs(decoded(pod(name, containers=containers))))
    assert node.admit_view(view).admitted
    return view


def groups(node: Kubelet, uncertain: PodView, highest: Mapping[str, int]) -> list[set[int]]:
    """Returns the NUMA nodes that memory shares, in each possible placement, in turn."""
    found = []
    for state in possible_placements(node, [uncertain], highest):
        assert state.memory is not None
        (mask,) = {cells for cells in state.memory.tables.cells if cells.bit_count() > 1}
        found.append({at for at in range(len(node.node_ids)) if mask >> at & 1})
    return found


PAIRS = [{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}]
TRIPLES = [{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}]


@pytest.mark.parametrize(
    ("policy", "others", "highest", "expected"),
    [
        pytest.param("none", ["4Gi"], 2, [{0, 1}, {0, 2}, {1, 2}], id="after ends up to where it is predicted"),
        pytest.param("none", ["4Gi", "12Gi"], 3, PAIRS, id="after ends on no more NUMA nodes than predicted"),
        pytest.param("none", [], 4, [*PAIRS, *TRIPLES, {0, 1, 2, 3}], id="anywhere beside a pod that ended unreported"),
        pytest.param("none", [], None, [*PAIRS, *TRIPLES, {0, 1, 2, 3}], id="anywhere if other pods may have come"),
        pytest.param("restricted", [], None, PAIRS, id="on as few NUMA nodes as possible"),
        pytest.param("closest", ["4Gi"], 2, PAIRS, id="anywhere if distances decide"),
    ],
)
def test_wide_memory_may_lie(policy: str, others: list[str], highest: int | None, expected: list[set[int]]) -> None:
    """By policy restricted a pod with a single CPU cannot have memory of two NUMA nodes."""
    options = {"topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}} if policy == "closest" else {}
    node = node_with("restricted" if policy == "closest" else policy, *others, **options)
    wide = admitted(node, "wide", "20Gi", cpu="500m")
    assert groups(node, wide, {} if highest is None else {wide.uid: highest}) == expected


def free_memory(node: Kubelet, uncertain: PodView, highest: Mapping[str, int]) -> list[bool]:
    """Returns for each possible placement whether the node has any memory left."""
    found = []
    for state in possible_placements(node, [uncertain], highest):
        assert state.memory is not None
        found.append(any(map(any, state.memory.tables.free.values())))
    return found


def test_too_many_possible_groups_leave_no_memory() -> None:
    """Of 7 NUMA nodes there are 21 pairs."""
    node = node_with("restricted", zones=7)
    assert free_memory(node, admitted(node, "wide", "20Gi", cpu="500m"), {}) == [False]


class TestBestEffort:
    """Memory follows hints that are not preferred to any NUMA nodes."""

    def test_beside_a_group_a_pod_may_have_met_it_or_not(self) -> None:
        node = node_with("best-effort", "20Gi", "14Gi", "14Gi")
        assert node.memory is not None
        assert node.memory.tables.cells == [3, 3, 4, 8]
        assert free_memory(node, admitted(node, "a", "1Gi"), {}) == [False]

    def test_on_the_last_unused_numa_node_no_group_can_form(self) -> None:
        node = node_with("best-effort", "1Gi", zones=2)
        assert free_memory(node, admitted(node, "a", "14Gi"), {}) == [True, True]

    def test_containers_that_found_their_numa_nodes_form_no_group_after_ends(self) -> None:
        node = node_with("best-effort")
        two = admitted(node, "a", "1Gi", "1Gi")
        assert all(free_memory(node, two, {two.uid: 3}))
