"""A pod keeps its NUMA nodes when the state of its node is rebuilt; its invented ids may change."""

from __future__ import annotations

import msgspec
import pytest

from lives import GPU, machine
from scheduling import GIB, configuration, kubelet
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.ledger.node.same_zones import same_zones

# CPUs 0-3 are on NUMA node 0, where 0 is reserved, 4-7 on NUMA node 1.
HELD = Placement("app", None, False, 0b0110_0000, (MemoryBlock("memory", (1,), GIB),), {})


def taken(node: Kubelet, cpus: int, memory: int = 0) -> Kubelet:
    """Returns the node after another pod took CPUs and memory of NUMA node 1."""
    blocks = (MemoryBlock("memory", (1,), memory),) if memory else ()
    node.hold("other", {}, {"c": Placement("app", None, False, cpus, blocks, {})})
    return node


def test_the_same_number_of_cpus_of_the_same_numa_node_is_found_with_other_ids() -> None:
    zones = same_zones(taken(kubelet(), 0b0010_0000), {"c": HELD})
    assert zones is not None
    cpus = zones["c"].cpus
    assert cpus is not None
    assert (cpus.bit_count(), cpus & 0b1101_0000) == (2, cpus)
    assert zones["c"].memory == HELD.memory


@pytest.mark.parametrize(
    ("cpus", "memory"), [(0b0111_0000, 0), (0, 16 * GIB)], ids=["too few CPUs", "too little memory"]
)
def test_a_full_numa_node_gives_no_placement(cpus: int, memory: int) -> None:
    assert same_zones(taken(kubelet(), cpus, memory), {"c": HELD}) is None


def test_two_containers_do_not_get_the_same_cpus() -> None:
    zones = same_zones(kubelet(), {"a": HELD, "b": HELD})
    assert zones is not None
    assert ((zones["a"].cpus or 0) | (zones["b"].cpus or 0)) == 0b1111_0000
    assert same_zones(taken(kubelet(), 0b0001_0000), {"a": HELD, "b": HELD}) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "init"},
        {"memory": (MemoryBlock("memory", (0, 1), GIB),)},
        {"memory": (MemoryBlock("gold", (1,), 1),)},
        {"devices": {"example.com/gone": ("d0",)}},
    ],
    ids=["init container", "memory over two nodes", "memory that the node does not have", "devices that are gone"],
)
def test_resources_that_need_an_admission_have_no_placement(changed: dict[str, object]) -> None:
    assert same_zones(kubelet(), {"c": msgspec.structs.replace(HELD, **changed)}) is None


def test_as_many_devices_near_the_same_numa_node_are_found_or_none() -> None:
    node = Kubelet(machine(), configuration())
    placement = Placement("app", None, False, None, (), {GPU: ("gpu10",)})
    assert same_zones(node, {"c": msgspec.structs.replace(placement, devices={GPU: ("gone",)})}) is None
    both = same_zones(node, {"a": placement, "b": placement})
    assert both is not None
    assert [both[name].devices[GPU] for name in ("a", "b")] == [("gpu10",), ("gpu11",)]
    for own, expected in (("a", "gpu10"), ("b", "gpu11")):
        zones = same_zones(node, {"c": placement})
        assert zones is not None
        assert zones["c"].devices == {GPU: (expected,)}
        node.hold(own, {}, zones)
    assert same_zones(node, {"c": placement}) is None
