"""Configurations that prevent the start of a kubelet, and the reservations of valid configurations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise.errors import ConfigError
from topowise_scheduler.kubelet import (
    Core,
    KubeletConfiguration,
    KubeletStartError,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.kubelet.configuration import CpuSettings, TopologySettings, settle
from topowise_scheduler.kubelet.machine import hugepages_resource


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"topologyManagerPolicy": "strict"}, 'unknown policy: "strict"'),
        ({"topologyManagerPolicy": "restricted", "topologyManagerScope": "node"}, 'unknown scope: "node"'),
        (
            {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"prefer-far": "true"}},
            'unknown Topology Manager Policy option: "prefer-far"',
        ),
        (
            {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "7"}},
            'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
        ),
        *(
            (
                {
                    "topologyManagerPolicy": "restricted",
                    "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": text},
                },
                f'unable to convert policy option to integer "max-allowable-numa-nodes": {text!r}',
            )
            for text in ("1_0", " 9", "\u0669", "nine")
        ),
        (
            {
                "topologyManagerPolicy": "restricted",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            },
            "error getting NUMA distances from cadvisor",
        ),
        (
            {
                "topologyManagerPolicy": "restricted",
                "topologyManagerPolicyOptions": {"prefer-most-allocated-numa-node": "true"},
                "featureGates": {"TopologyManagerPolicyAlphaOptions": False},
            },
            "topology manager policy alpha-level options not enabled, "
            'but option "prefer-most-allocated-numa-node" provided',
        ),
        (
            {
                "cpuManagerPolicy": "none",
                "reservedSystemCPUs": "",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
            },
            "new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]",
        ),
        (
            {"reservedSystemCPUs": "", "systemReserved": {"memory": "1Gi"}},
            "[cpumanager] unable to determine reserved CPU resources for static policy",
        ),
        (
            {"reservedSystemCPUs": "", "systemReserved": {"memory": "1Gi", "cpu": "0"}},
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
        ),
        (
            {"cpuManagerPolicyOptions": {"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"}},
            "new static policy error: static policy options full-pcpus-only and distribute-cpus-across-cores "
            "can not be used at the same time",
        ),
        (
            {"cpuManagerPolicyOptions": {"align-by-socket": "true"}, "topologyManagerPolicy": "single-numa-node"},
            "new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager "
            "align-by-socket policy option",
        ),
        (
            {
                "cpuManagerPolicyOptions": {"align-by-socket": "true"},
                "featureGates": {"CPUManagerPolicyAlphaOptions": False},
            },
            "new static policy error: CPU Manager Policy Alpha-level Options not enabled, "
            'but option "align-by-socket" provided',
        ),
        (
            {"reservedMemory": (MemoryReservation(0, {"memory": "1000"}),)},
            'the total amount "1k" of type "memory" is not equal to the value "1073741824" '
            "determined by Node Allocatable feature",
        ),
        (
            {"reservedMemory": (MemoryReservation(0, {"memory": "1Gi"}), MemoryReservation(2, {"memory": "1Gi"}))},
            "the reserved memory configuration references a NUMA node 2 that does not exist on this machine",
        ),
        (
            {"systemReserved": {"cpu": "1"}, "reservedMemory": ()},
            "[memorymanager] you should specify the system reserved memory",
        ),
    ],
)
def test_the_kubelet_does_not_start_with_its_error(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(KubeletStartError) as caught:
        kubelet_of(machine_of(4, 4), **fields)
    assert str(caught.value) == problem


def test_reserved_cpus_must_be_online_when_a_kubelet_starts() -> None:
    """A running kubelet may have lost reserved CPUs since its start."""
    config = KubeletConfiguration(reservedSystemCPUs="0,64")
    with pytest.raises(KubeletStartError, match=r"^reserved-cpus: 0,64 is not a subset of online-cpus: 0-15$"):
        settle(config, machine_of(4, 4), evidence="none")
    assert settle(config, machine_of(4, 4)).reserved["cpu"] == 2000


def test_policy_none_ignores_every_topology_option() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicyOptions={"max-allowable-numa-nodes": "1"})
    assert (kubelet.settings.topology.policy, kubelet.settings.topology.max_numa_nodes) == ("none", 1)


def test_more_numa_nodes_than_allowed_prevent_the_start() -> None:
    machine = machine_of(*([1] * 9))
    config = KubeletConfiguration(topologyManagerPolicy="restricted")
    with pytest.raises(KubeletStartError, match="unsupported on machines with more than 8 NUMA Nodes"):
        settle(config, machine)
    allowed = KubeletConfiguration(
        topologyManagerPolicy="restricted", topologyManagerPolicyOptions={"max-allowable-numa-nodes": "9"}
    )
    assert settle(allowed, machine).topology.policy == "restricted"


def test_reserved_cpus_replace_both_amounts_of_cpu() -> None:
    config = KubeletConfiguration(
        reservedSystemCPUs="0,8",
        systemReserved={"cpu": "500m", "memory": "1Gi"},
        kubeReserved={"cpu": 1.5, "memory": "1Gi"},
        evictionHard={"memory.available": "25%", "imagefs.available": "15%"},
    )
    assert settle(config, machine_of(4, 4)).reserved == {"cpu": 2000, "memory": 6 * GI}


def test_an_eviction_share_is_rounded_as_a_float32() -> None:
    config = KubeletConfiguration(evictionHard={"memory.available": "10%"})
    assert settle(config, machine_of(4)).reserved == {"memory": 858_993_472}  # 8 GiB / 10 is 858,993,459


def test_cpus_are_reserved_by_topology_where_no_set_is_given() -> None:
    kubelet = kubelet_of(machine_of(4, 4), reservedSystemCPUs="", systemReserved={"cpu": "1100m", "memory": "1Gi"})
    assert kubelet.cpu is not None
    assert kubelet.cpu.policy.reserved == 1 << 0 | 1 << 8


def test_node_allocatable_is_capacity_minus_reservations() -> None:
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {2048: 0}])
    assert kubelet_of(machine, maxPods=20).allocatable() == {
        "cpu": 15_000,
        "memory": 14 * GI,
        "hugepages-2Mi": GI,
        "pods": 20,
    }


def test_thirty_nodes_need_no_masks_with_policy_none() -> None:
    # GPU memory appears as NUMA nodes. The kubelet cannot enumerate their masks; policy none needs no masks.
    machine = machine_of(4, *([0] * 33))
    kubelet = kubelet_of(machine, memoryManagerPolicy="None")
    assert kubelet.admit(pod_of("p", {"cpu": "2", "memory": "1Gi"})).admitted
    options = {"max-allowable-numa-nodes": "64"}
    with pytest.raises(ConfigError, match="34 NUMA nodes"):
        kubelet_of(machine, topologyManagerPolicy="restricted", topologyManagerPolicyOptions=options)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ((), "at least one NUMA node"),
        ((NumaNode(0, 1), NumaNode(0, 1)), "same id"),
        ((NumaNode(0, 1, (Core(0, (1, 2)), Core(0, (2, 3)))),), "two cores"),
        ((NumaNode(0, 1, distances=(10,)), NumaNode(1, 1)), "node 0 has 1 distances"),
    ],
)
def test_a_contradictory_machine_is_refused(nodes: tuple[NumaNode, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Machine(numa=nodes)


def test_eight_numa_nodes_are_the_minimum_limit() -> None:
    # policy_options.go refuses values below defaultMaxAllowableNUMANodes.
    for limit, starts in (("8", True), ("7", False)):
        config = KubeletConfiguration(
            topologyManagerPolicy="restricted", topologyManagerPolicyOptions={"max-allowable-numa-nodes": limit}
        )
        if starts:
            assert settle(config, machine_of(4)).topology.policy == "restricted"
        else:
            with pytest.raises(KubeletStartError, match="should not be less than 8"):
                settle(config, machine_of(4))


def test_a_percentage_of_storage_refers_to_the_capacity_of_the_machine() -> None:
    config = KubeletConfiguration(evictionHard={"nodefs.available": "50%"})
    known = Machine(numa=machine_of(4).numa, ephemeral_storage=10 * GI)
    assert settle(config, known).reserved == {"ephemeral-storage": 5 * GI}
    everything = KubeletConfiguration(evictionHard={"nodefs.available": "100%"})
    assert settle(everything, machine_of(4)).reserved.get("ephemeral-storage", 0) == 0


def test_options_of_policy_none_are_printed_in_the_order_of_a_go_map() -> None:
    config = KubeletConfiguration(cpuManagerPolicyOptions={"strict-cpu-reservation": "true", "align-by-socket": "1"})
    with pytest.raises(KubeletStartError) as caught:
        settle(config, machine_of(4))
    assert str(caught.value).endswith("options=map[align-by-socket:1 strict-cpu-reservation:true]")


def test_options_are_off_by_default() -> None:
    settings = kubelet_of(machine_of(4), topologyManagerPolicy="restricted").settings
    assert settings.topology == TopologySettings("restricted", "container")
    assert settings.cpu == CpuSettings(reserved_cpus=1, reserved_milli=1000)
    for option in ("prefer_closest", "prefer_most_allocated"):
        assert getattr(settings.topology, option) is False
    options = [name for name in CpuSettings.__struct_fields__ if not name.startswith("reserved")]
    assert [getattr(settings.cpu, option) for option in options] == [False] * len(options)


@pytest.mark.parametrize(
    ("size_kib", "name"),
    [(64, "64Ki"), (1 << 10, "1Mi"), (2048, "2Mi"), (1536, "1536Ki"), (1 << 20, "1Gi"), (16 << 20, "16Gi")],
)
def test_page_sizes_are_formatted_in_the_largest_unit_that_divides_them(size_kib: int, name: str) -> None:
    assert hugepages_resource(size_kib) == f"hugepages-{name}"


def test_ids_are_bit_numbers_up_to_a_bound() -> None:
    assert msgspec.convert({"id": 65535, "memory": 0}, NumaNode).id == 65535
    for damaged in ({"id": 65536, "memory": 0}, {"id": -1, "memory": 0}, {"id": 0, "memory": -1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(damaged, NumaNode)


def test_prefer_closest_needs_distances_of_every_node() -> None:
    config = KubeletConfiguration(
        topologyManagerPolicy="restricted", topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true"}
    )
    nodes = (NumaNode(0, 1, distances=(10, 20)), NumaNode(1, 1))
    with pytest.raises(KubeletStartError, match="error getting NUMA distances from cadvisor"):
        settle(config, Machine(numa=nodes))


def test_amounts_are_formatted_as_decimal_quantities() -> None:
    reserved = (MemoryReservation(0, {"memory": 1_500_000}),)
    with pytest.raises(KubeletStartError, match=r'"1500k" of type "memory" is not .* value "2M" determined'):
        kubelet_of(machine_of(4), systemReserved={"cpu": "1", "memory": "2M"}, reservedMemory=reserved)


@pytest.mark.parametrize(
    ("system", "on_nodes"),
    [({"hugepages-2Mi": "0"}, {}), ({}, {"hugepages-2Mi": "0"}), ({"hugepages-2Mi": "0"}, {"hugepages-2Mi": "0"})],
)
def test_a_type_with_a_reservation_of_0_may_be_named_once(system: dict[str, str], on_nodes: dict[str, str]) -> None:
    kubelet = kubelet_of(
        machine_of(4, hugepages=[{2048: 512}]),
        systemReserved={"cpu": "1", "memory": "1Gi", **system},
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi", **on_nodes}),),
    )
    assert kubelet.settings.reserved.get("hugepages-2Mi", 0) == 0
