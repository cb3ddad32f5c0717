"""The NUMA nodes of CPUs, memory and devices of a container, which may differ from its hint."""

from __future__ import annotations

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Device, Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.allocated_nodes import AllocatedNodes, allocated_nodes, in_words, placements

NIC = "x.io/nic"
DEVICES = {NIC: [Device("both", (0, 1)), Device("n0", (0,)), Device("n1", (1,)), Device("none", None)]}


def _kubelet(*cores: int) -> Kubelet:
    return kubelet_of(machine_of(*cores, devices=DEVICES), topologyManagerPolicy="best-effort")


def _reported(cpus: int | None = None, memory: int | None = None, *devices: str) -> Placement:
    blocks = () if memory is None else (MemoryBlock("memory", (memory,), GI),)
    return Placement("app", None, False, cpus, blocks, {NIC: devices} if devices else {})


def test_each_kind_of_allocation_has_its_own_numa_nodes() -> None:
    kubelet = _kubelet(4, 4)
    kubelet.hold(
        "p",
        {},
        {
            "cpus": _reported(cpus=0b10),
            "memory": _reported(None, 1),
            # A device near both NUMA nodes is on neither, and a device without a topology has none.
            "devices": _reported(None, None, "both", "n1", "none"),
            "all": _reported(1 << 5, 0, "both"),
        },
    )
    nodes = allocated_nodes(kubelet, "p")
    assert nodes == {
        "cpus": AllocatedNodes(0b01, 0, 0, False),
        "memory": AllocatedNodes(0, 0b10, 0, False),
        "devices": AllocatedNodes(0, 0, 0b10, False),
        "all": AllocatedNodes(0b10, 0b01, 0, False),
    }
    assert {name: of_container.mask for name, of_container in nodes.items()} == {
        "cpus": 0b01,
        "memory": 0b10,
        "devices": 0b10,
        "all": 0b11,
    }


def test_on_a_single_numa_node_all_is_aligned_and_devices_with_a_topology_are_there() -> None:
    kubelet = _kubelet(4)
    none = Placement("app", None, False, None, (), {NIC: ()})
    kubelet.hold("p", {}, {"device": _reported(None, None, "both"), "cpu": _reported(0b10), "none": none})
    assert allocated_nodes(kubelet, "p") == {
        "device": AllocatedNodes(0, 0, 1, True),
        "cpu": AllocatedNodes(1, 0, 0, True),
        "none": AllocatedNodes(0, 0, 0, True),
    }
    without = kubelet_of(machine_of(4, devices={NIC: [Device("none", None)]}))
    without.hold("p", {}, {"device": _reported(None, None, "none")})
    assert allocated_nodes(without, "p") == {"device": AllocatedNodes(0, 0, 0, True)}


def test_a_container_is_aligned_if_its_hint_was_preferred() -> None:
    kubelet = kubelet_of(
        machine_of(4, 4), topologyManagerPolicy="best-effort", memoryManagerPolicy="None", reservedMemory=()
    )
    for uid in ("a", "b"):
        kubelet.admit(pod_of(uid, {"cpu": "6", "memory": "1Gi"}))
    kubelet.admit(pod_of("p", {"cpu": "3", "memory": "1Gi"}, {"cpu": "100m", "memory": "1Gi"}))
    assert {name: nodes.preferred for name, nodes in allocated_nodes(kubelet, "p").items()} == {"c0": False, "c1": True}
    assert allocated_nodes(kubelet, "a")["c0"].preferred
    placed = placements(kubelet, "p", is_exact=False)
    assert {name: (place.numa, place.aligned) for name, place in placed.items()} == {
        "c0": ((0, 1), False),
        "c1": ((), True),
    }
    assert in_words(placed) == "c0: 0+1 (not aligned)"
