"""The density benchmark counts placements and refusals, and no scheduler exceeds the upper bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from random import Random

import numpy as np
import pytest

from bench.density import bound, machines, measuring, mix, schedulers
from bench.density.mix import Hardware, Shape
from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan.filling import Stream

SERVER = Hardware(cores=16, memory="128Gi", devices={"example.com/gpu": 4}, pages=0)


def empty(zones: int, policy: str = "single-numa-node", scope: str = "container") -> Kubelet:
    return machines.kubelet(SERVER, zones, policy, scope)


def needs(*containers: dict[str, str]) -> Needs:
    return Shape(1, containers).needs()


def cpus(*counts: int) -> Needs:
    return needs(*({"cpu": str(count), "memory": "1Gi"} for count in counts))


def test_the_trace_has_as_many_pods_as_its_origin_says() -> None:
    trace = next(pod_mix for pod_mix in mix.read() if pod_mix.name == "gpu-trace")
    assert sum(shape.count for shape in trace.shapes) == 5073
    assert "5,073 of 8,152" in trace.origin


def site(zones: int, nodes: int, scope: str = "container") -> plan.Inventory:
    node_type = machines.node_type(SERVER, zones, "single-numa-node", scope)
    return plan.Inventory(tuple(plan.PlannedNode(f"{number}", node_type) for number in range(nodes)))


def scheduler(name: str, seed: int = 1) -> plan.Scheduler:
    return schedulers.make(name, Random(seed))


def workload(cpus: int, copies: int = 1) -> plan.Workload:
    return plan.Workload(f"c{cpus}", plan.pod_of(f"c{cpus}", {"cpu": str(cpus), "memory": "1Gi"}), copies)


_UIDS = count()


def put(fleet: plan.Fleet, cpus: int, node: str) -> None:
    uid = f"put-{next(_UIDS)}"
    fleet.bind(fleet.kind(workload(cpus).pod), uid, ("bench", uid), node)


def test_a_scheduler_that_sees_only_sums_is_refused_where_numa_nodes_are_broken() -> None:
    """6 and 8 CPUs are free on the NUMA nodes of each machine: 14 in sum, and a pod of 12 fits neither."""
    for name, refusals in ((schedulers.BLIND[0], 2), ("TightFit", 0)):
        fleet = plan.fleet_of(site(2, 2), scheduler(name))
        for node in ("0", "0", "1", "1"):
            put(fleet, 8, node)
        assert fleet.find(fleet.kind(workload(12).pod)) is None
        assert fleet.kubelet_refusals == refusals


def test_the_blind_spread_or_pack_by_the_sums() -> None:
    for name, node in (("NUMA-blind LeastAllocated", "2"), ("NUMA-blind MostAllocated", "0")):
        fleet = plan.fleet_of(site(2, 3), scheduler(name))
        put(fleet, 8, "0")
        put(fleet, 4, "1")
        assert fleet.find(fleet.kind(workload(2).pod)) == node


def test_a_cluster_is_filled_until_no_shape_fits() -> None:
    """7 of 8 CPUs of each of four NUMA nodes, the reserved core leaves 6 on the first: 3 pods of 7, then 1 of 5."""
    mix_of_two = [workload(7, 1_000_000), workload(5)]
    result = measuring.filled(site(4, 1), scheduler("TightFit"), mix_of_two, 0, "example.com/gpu")
    assert (result.first, result.running, result.refused) == (3, 4, 0)
    assert result.cpus == round(26 / 30, 4)
    assert result.zones == 1


def test_refusals_are_counted_once_for_a_state_of_the_node() -> None:
    """MostAllocated sends pods only to the fuller machine, which has 6 CPUs in sum and none of its NUMA nodes has 5."""
    fleet = plan.fleet_of(site(2, 2), scheduler("NUMA-blind MostAllocated"))
    for _ in range(2):
        put(fleet, 12, "0")
    kind = fleet.kind(workload(5).pod)
    assert [fleet.find(kind) for _ in range(3)] == [None] * 3
    assert fleet.kubelet_refusals == 1 and fleet.may_change(kind)


# The upper bound


@pytest.mark.parametrize(
    ("items", "size", "bins"),
    [
        ([6, 6, 6], 10, 3),
        ([6, 4, 6, 4], 10, 2),
        ([5, 5, 5], 10, 2),
        # 7 and 6 need a bin each; 3 fits beside 7, and 4 beside 6.
        ([7, 6, 3, 4], 10, 2),
        ([7, 7, 4, 4], 10, 3),
    ],
)
def test_bins_needed(items: list[int], size: int, bins: int) -> None:
    assert bound._bins_needed(np.array(items), size) == bins


def endless(needs: list[Needs]) -> Iterator[int]:
    return cycle(range(len(needs)))


def test_large_containers_bound_the_pods_by_numa_nodes_and_not_by_sums() -> None:
    """12 of 16 CPUs: a pod per NUMA node, four on two machines, although the sum of 60 CPUs would allow five."""
    listed = [cpus(12)]
    assert bound.longest_prefix(endless(listed).__next__, listed, empty(2), 2) == 4
    assert bound.longest_prefix(endless(listed).__next__, listed, empty(1), 2) == 5


def test_scope_pod_bounds_the_pod_as_a_whole() -> None:
    listed = [cpus(6, 6)]
    assert bound.longest_prefix(endless(listed).__next__, listed, empty(2), 2) == 5
    assert bound.longest_prefix(endless(listed).__next__, listed, empty(2, scope="pod"), 2) == 4


def test_devices_bound_too() -> None:
    listed = [needs({"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"})]
    assert bound.longest_prefix(endless(listed).__next__, listed, empty(2), 2) == 8


@pytest.mark.parametrize("zones", [2, 4])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_no_scheduler_exceeds_the_bound(zones: int, scope: str) -> None:
    shapes = [
        Shape(count, tuple({"cpu": str(size), "memory": "1Gi"} for size in sizes))
        for count, sizes in ((5, (1,)), (4, (3,)), (3, (5,)), (2, (7,)), (2, (2, 3)))
    ]
    listed, counts = [shape.needs() for shape in shapes], [shape.count for shape in shapes]
    workloads = [plan.Workload(f"w{at}", shape.pod(f"w{at}"), shape.count) for at, shape in enumerate(shapes)]
    for seed in range(2):
        most = bound.longest_prefix(Stream(counts, Random(seed)).next, listed, empty(zones, scope=scope), 3)
        for name in schedulers.NAMES:
            inventory = site(zones, 3, scope)
            filled = measuring.filled(inventory, scheduler(name, seed), workloads, seed, "example.com/gpu")
            assert filled.first <= most, (name, seed)
            assert filled.running >= filled.first
            assert name in schedulers.BLIND or not filled.refused
