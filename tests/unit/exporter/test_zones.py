"""Zones: by ids, never double, never negative, and never without cpu or memory."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    ContainerAllocation,
    Device,
    FreeMemory,
    MemoryBlock,
    PodAllocation,
)
from topowise_exporter.machine import Machine, NumaNode
from topowise_exporter.observe import memory_problem
from topowise_exporter.zones import Accounts, Amount, account, hugepages_name, zones

GIB = 1 << 30
MIB = 1 << 20
STATIC = KubeletConfiguration(cpuManagerPolicy="static", memoryManagerPolicy="Static")


def pod(
    namespace: str,
    name: str,
    cpus: frozenset[int] = frozenset(),
    memory: tuple[MemoryBlock, ...] = (),
    devices: tuple[Device, ...] = (),
) -> PodAllocation:
    """A pod of a single container."""
    return PodAllocation(namespace, name, (ContainerAllocation("c", cpus, memory, devices),))


def node(numa_id: int, cpus: range, memory: int = 8 * GIB, hugepages: Mapping[int, int] | None = None) -> NumaNode:
    return NumaNode(
        id=numa_id,
        cpus=tuple(cpus),
        memory_bytes=memory,
        hugepages=dict(hugepages or {}),
        distances={0: 10, 8: 20} if numa_id == 0 else {0: 20, 8: 10},
        sockets=(0,),
    )


def machine(*nodes: NumaNode) -> Machine:
    cpus = tuple(sorted(cpu for node in nodes for cpu in node.cpus))
    return Machine(nodes=nodes, cpus=(), pci=(), online=cpus, present=cpus, possible=cpus, offline=(), isolated=())


TWO = machine(node(0, range(4), hugepages={2 * MIB: 512}), node(8, range(4, 8)))
ALL = Allocatable(
    cpus=frozenset(range(1, 8)),
    memory=(
        MemoryBlock("hugepages-2Mi", (0,), GIB),
        MemoryBlock("memory", (0,), 6 * GIB),
        MemoryBlock("memory", (8,), 8 * GIB),
    ),
    devices=(
        Device("gpu", "near-0", (0,)),
        Device("gpu", "between", (0, 8)),
        Device("gpu", "nowhere", ()),
    ),
)


def test_a_node_without_pods_has_all_that_is_allocatable() -> None:
    accounts = account(TWO, Allocations(ALL, ()), STATIC)
    assert accounts.amounts[0] == {
        "cpu": Amount(4000, 3000, 3000),
        "memory": Amount(8 * GIB, 6 * GIB, 6 * GIB),
        "hugepages-2Mi": Amount(GIB, GIB, GIB),
        "gpu": Amount(2, 2, 2),
    }
    assert accounts.amounts[8]["gpu"] == Amount(1, 1, 1)
    assert accounts.cpus_available == {0: frozenset({1, 2, 3}), 8: frozenset({4, 5, 6, 7})}
    assert not accounts.derived
    assert not accounts.problems


def test_what_two_entries_name_is_taken_once() -> None:
    pods = (
        pod("a", "p", frozenset({1, 2}), devices=(Device("gpu", "between", (0, 8)),)),
        pod("a", "q", frozenset({2, 3})),
    )
    accounts = account(TWO, Allocations(ALL, pods), STATIC)
    assert accounts.amounts[0]["cpu"].available == 0
    assert accounts.amounts[0]["gpu"] == Amount(2, 2, 1)
    assert accounts.amounts[8]["gpu"] == Amount(1, 1, 0)


def test_a_block_over_two_nodes_fills_the_lower_node_first_and_counts_once() -> None:
    pods = (
        pod("a", "p", memory=(MemoryBlock("memory", (0, 8), 9 * GIB),)),
        pod("a", "q", memory=(MemoryBlock("memory", (0,), GIB),)),
    )
    accounts = account(TWO, Allocations(ALL, pods), STATIC)
    assert accounts.amounts[0]["memory"].available == 0
    assert accounts.amounts[8]["memory"].available == 4 * GIB


def test_more_in_use_than_allocatable_is_reported_and_never_negative() -> None:
    pods = (pod("a", "p", memory=(MemoryBlock("memory", (8,), 9 * GIB),)),)
    accounts = account(TWO, Allocations(ALL, pods), STATIC)
    assert accounts.amounts[8]["memory"].available == 0
    assert any("NUMA nodes 8" in problem for problem in accounts.problems)


def test_an_unhealthy_device_in_use_is_in_no_count() -> None:
    pods = (pod("a", "p", devices=(Device("gpu", "broken", (0,)),)),)
    assert account(TWO, Allocations(ALL, pods), STATIC).amounts[0]["gpu"] == Amount(2, 2, 2)


def test_nodes_that_sysfs_does_not_show_are_left_out_and_named() -> None:
    odd = Allocatable(ALL.cpus | {99}, (*ALL.memory, MemoryBlock("memory", (3,), GIB)), (Device("nic", "x", (5,)),))
    accounts = account(TWO, Allocations(odd, ()), STATIC)
    assert set(accounts.amounts) == {0, 8}
    assert "nic" not in accounts.amounts[0]
    assert [next(word for word in ("99", "node 3", "node 5") if word in problem) for problem in accounts.problems] == [
        "99",
        "node 3",
        "node 5",
    ]


def test_with_the_managers_off_amounts_come_from_sysfs_minus_named_reservations() -> None:
    kubelet = KubeletConfiguration(reservedSystemCPUs="0,4", reservedMemory=(MemoryReservation(8, {"memory": "1Gi"}),))
    accounts = account(TWO, Allocations(), kubelet)
    assert accounts.derived == {"cpu", "memory"}
    assert accounts.amounts[0]["cpu"] == Amount(4000, 3000, 3000)
    assert accounts.amounts[0]["memory"] == Amount(8 * GIB, 7 * GIB, 7 * GIB)
    assert accounts.amounts[0]["hugepages-2Mi"] == Amount(GIB, GIB, GIB)
    assert accounts.amounts[8]["memory"] == Amount(8 * GIB, 7 * GIB, 7 * GIB)


def test_reservations_by_amount_are_shared_between_the_nodes_rounded_up() -> None:
    kubelet = KubeletConfiguration(
        systemReserved={"cpu": "500m", "memory": "512Mi"},
        kubeReserved={"cpu": "1"},
        evictionHard={"memory.available": "512Mi"},
    )
    accounts = account(TWO, Allocations(), kubelet)
    # 1,500m over 8 CPUs is 187.5m each.
    assert accounts.amounts[0]["cpu"].allocatable == 4 * (1000 - 188)
    assert accounts.amounts[8]["memory"].allocatable == 8 * GIB - GIB // 2


def test_memory_only_nodes_and_nodes_without_anything_have_zones_of_zeros() -> None:
    accounts = account(
        machine(node(0, range(2)), node(1, range(0)), node(2, range(0), memory=0)), Allocations(), STATIC
    )
    assert accounts.amounts[1]["cpu"] == Amount(0, 0, 0)
    assert accounts.amounts[2]["memory"] == Amount(0, 0, 0)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (64 << 10, "hugepages-64Ki"),
        (2 * MIB, "hugepages-2Mi"),
        (32 * MIB, "hugepages-32Mi"),
        (16 * GIB, "hugepages-16Gi"),
    ],
)
def test_pages_are_named_as_the_kubelet_names_them(size: int, name: str) -> None:
    assert hugepages_name(size) == name


def test_published_zones_carry_costs_by_real_id_and_sorted_resources() -> None:
    named = {0: {"b": "2", "a": "1"}, 8: {}}
    first, second = zones(TWO, account(TWO, Allocations(ALL, ()), STATIC), named)
    assert (first.name, second.name) == ("node-0", "node-8")
    assert [(cost.name, cost.value) for cost in second.costs or ()] == [("node-0", 20), ("node-8", 10)]
    names = [resource.name for resource in first.resources or ()]
    assert names == sorted(names)
    assert [(attribute.name, attribute.value) for attribute in first.attributes or ()] == [("a", "1"), ("b", "2")]


def test_the_memory_managers_own_accounting_is_believed() -> None:
    pods = (pod("a", "p", memory=(MemoryBlock("memory", (0, 8), 9 * GIB),)),)
    free = {(0, "memory"): GIB, (8, "memory"): 4 * GIB, (0, "hugepages-2Mi"): GIB}
    free_memory = FreeMemory(free, {0: 1, 8: 1}, {0: (0, 8), 8: (0, 8)})
    accounts = account(TWO, Allocations(ALL, pods, free_memory=free_memory), STATIC)
    assert accounts.amounts[0]["memory"].available == GIB
    assert accounts.amounts[8]["memory"].available == 4 * GIB
    assert not accounts.problems


def test_free_memory_that_promises_more_than_there_is_is_clamped_and_reported() -> None:
    free_memory = FreeMemory({(8, "memory"): 9 * GIB, (0, "memory"): -1}, {}, {})
    accounts = account(TWO, Allocations(ALL, (), free_memory=free_memory), STATIC)
    assert accounts.amounts[8]["memory"].available == 8 * GIB
    assert accounts.amounts[0]["memory"].available == 0
    assert len(accounts.problems) == 2


def test_cpus_that_only_a_finished_init_container_holds_are_not_free() -> None:
    accounts = account(TWO, Allocations(ALL, (), unlisted={"uid": frozenset({2, 3})}), STATIC)
    assert accounts.amounts[0]["cpu"].available == 1000
    assert accounts.cpus_available[0] == {1}


def test_the_cpu_managers_own_accounting_is_believed() -> None:
    pods = (pod("a", "p", cpus=frozenset({1, 2})),)
    accounts = account(TWO, Allocations(ALL, pods, free_cpus=frozenset({0, 2, 3})), STATIC)
    assert accounts.cpus_available == {0: frozenset({2, 3}), 8: frozenset()}
    assert [accounts.amounts[node]["cpu"].available for node in (0, 8)] == [2000, 0]


def test_memory_that_does_not_sum_up_is_doubted_beyond_a_tolerance() -> None:
    assert memory_problem(TWO, 16 * GIB) == ""
    assert memory_problem(TWO, 16 * GIB - GIB // 2) == ""
    assert memory_problem(TWO, 12 * GIB) == "the nodes have 16Gi, the machine 12Gi"


@st.composite
def situations(draw: st.DrawFn) -> tuple[Machine, Allocatable, tuple[PodAllocation, ...], Accounts]:
    ids = draw(st.lists(st.integers(0, 255), min_size=1, max_size=5, unique=True).map(sorted))
    width = draw(st.integers(0, 6))
    nodes = tuple(node(numa_id, range(at * width, (at + 1) * width)) for at, numa_id in enumerate(ids))
    read = machine(*nodes)
    usable = draw(st.frozensets(st.sampled_from(read.online))) if read.online else frozenset[int]()
    devices = tuple(
        Device("gpu", str(number), tuple(sorted(draw(st.frozensets(st.sampled_from(ids), max_size=2)))))
        for number in range(draw(st.integers(0, 6)))
    )
    memory = tuple(MemoryBlock("memory", (numa_id,), draw(st.integers(1, 8 * GIB))) for numa_id in ids)
    allocatable = Allocatable(usable, memory, devices)
    # Pods as a kubelet would have them: disjoint CPUs and devices, memory within what is free.
    free_cpus, free_devices = sorted(usable), list(devices)
    room = {block.nodes[0]: block.size for block in memory}
    pods = []
    for number in range(draw(st.integers(0, 4))):
        cpus = [free_cpus.pop() for _ in range(draw(st.integers(0, min(2, len(free_cpus)))))]
        pod_devices = [free_devices.pop() for _ in range(draw(st.integers(0, min(1, len(free_devices)))))]
        where = draw(st.sampled_from(ids))
        size = draw(st.integers(0, room[where]))
        room[where] -= size
        blocks = (MemoryBlock("memory", (where,), size),) if size else ()
        pods.append(pod("ns", f"p{number}", frozenset(cpus), blocks, tuple(pod_devices)))
    return read, allocatable, tuple(pods), account(read, Allocations(allocatable, tuple(pods)), STATIC)


@settings(max_examples=examples())
@given(situations())
def test_available_and_used_sum_up_to_allocatable(
    situation: tuple[Machine, Allocatable, tuple[PodAllocation, ...], Accounts],
) -> None:
    read, allocatable, pods, accounts = situation
    assert not accounts.problems
    for node in read.nodes:
        used_cpus = sum(len(holder.cpus & set(node.cpus)) for holder in pods)
        used_memory = sum(block.size for holder in pods for block in holder.memory if block.nodes == (node.id,))
        used_devices = sum(node.id in device.nodes for holder in pods for device in holder.devices)
        amounts = accounts.amounts[node.id]
        if allocatable.cpus:
            assert amounts["cpu"].available + 1000 * used_cpus == amounts["cpu"].allocatable
        assert amounts["memory"].available + used_memory == amounts["memory"].allocatable
        if "gpu" in amounts:
            assert amounts["gpu"].available + used_devices == amounts["gpu"].allocatable
        for amount in amounts.values():
            assert amount.capacity >= amount.allocatable >= amount.available >= 0


def test_memory_below_its_reservation_is_published_as_none() -> None:
    """The kubelet subtracts unsigned numbers (memorymanager/policy_static.go, getDefaultMachineState)."""
    wrapped = (1 << 64) - GIB
    memory = (MemoryBlock("memory", (0,), 3 * GIB), MemoryBlock("memory", (8,), wrapped))
    free_memory = FreeMemory({(0, "memory"): 3 * GIB, (8, "memory"): -GIB}, {}, {})
    allocatable = msgspec.structs.replace(ALL, memory=memory)
    for free in (None, free_memory):
        accounts = account(TWO, Allocations(allocatable, (), free_memory=free), STATIC)
        assert accounts.amounts[0]["memory"].available == 3 * GIB
        assert (accounts.amounts[8]["memory"].allocatable, accounts.amounts[8]["memory"].available) == (0, 0)
        assert accounts.amounts[8]["memory"].capacity == TWO.nodes[1].memory_bytes
        (problem,) = accounts.problems
        assert f"{wrapped} bytes of memory on NUMA node 8" in problem


def test_without_numa_each_package_gets_a_part_of_the_memory() -> None:
    bare = tuple(msgspec.structs.replace(node, memory_bytes=0, hugepages={}) for node in TWO.nodes)
    machine = msgspec.structs.replace(TWO, nodes=bare, memory_bytes=8 * GIB)
    accounts = account(machine, Allocations(), KubeletConfiguration(systemReserved={"memory": "2Gi"}))
    assert [accounts.amounts[node]["memory"] for node in (0, 8)] == [Amount(3 * GIB, 3 * GIB, 3 * GIB)] * 2
