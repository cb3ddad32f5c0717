"""The density benchmark counts placements and refusals."""

from __future__ import annotations

from itertools import count
from random import Random

from bench import density
from bench.density import Hardware
from topowise_scheduler.overlay import plan

SERVER = Hardware(cores=16, memory="128Gi", devices={"example.com/gpu": 4}, pages=0)


def test_the_trace_has_as_many_pods_as_its_origin_says() -> None:
    trace = next(pod_mix for pod_mix in density.read() if pod_mix.name == "gpu-trace")
    assert sum(shape.count for shape in trace.shapes) == 5073
    assert "5,073 of 8,152" in trace.origin


def site(zones: int, nodes: int, scope: str = "container") -> plan.Inventory:
    node_type = density.node_type(SERVER, zones, "single-numa-node", scope)
    return plan.Inventory(tuple(plan.PlannedNode(f"{number}", node_type) for number in range(nodes)))


def fleet_of(zones: int, nodes: int, name: str) -> density.Fleet:
    return density.Fleet(site(zones, nodes), name, Random(1))


def workload(cpus: int, copies: int = 1) -> plan.Workload:
    return plan.Workload(f"c{cpus}", plan.pod_of(f"c{cpus}", {"cpu": str(cpus), "memory": "1Gi"}), copies)


_UIDS = count()


def put(fleet: plan.Fleet, cpus: int, node: str) -> None:
    uid = f"put-{next(_UIDS)}"
    fleet.bind(fleet.kind(workload(cpus).pod), uid, ("bench", uid), node)


def test_a_scheduler_that_sees_only_sums_is_refused_where_numa_nodes_are_broken() -> None:
    """6 and 8 CPUs are free on the NUMA nodes of each machine: 14 in sum, and a pod of 12 fits neither."""
    for name, refusals in ((density.BLIND[0], 2), ("TightFit", 0)):
        fleet = fleet_of(2, 2, name)
        for node in ("0", "0", "1", "1"):
            put(fleet, 8, node)
        assert fleet.find(fleet.kind(workload(12).pod)) is None
        assert fleet.kubelet_refusals == refusals


def test_the_blind_spread_or_pack_by_the_sums() -> None:
    for name, node in (("NUMA-blind LeastAllocated", "2"), ("NUMA-blind MostAllocated", "0")):
        fleet = fleet_of(2, 3, name)
        put(fleet, 8, "0")
        put(fleet, 4, "1")
        assert fleet.find(fleet.kind(workload(2).pod)) == node


def test_a_cluster_is_filled_until_no_shape_fits() -> None:
    """7 of 8 CPUs of each of four NUMA nodes, the reserved core leaves 6 on the first: 3 pods of 7, then 1 of 5."""
    mix_of_two = [workload(7, 1_000_000), workload(5)]
    result = density.filled(site(4, 1), "TightFit", mix_of_two, 0)
    assert (result.first, result.running, result.refused) == (3, 4, 0)
    assert result.zones == 1


def test_refusals_are_counted_once_for_a_state_of_the_node() -> None:
    """MostAllocated sends pods only to the fuller machine, which has 6 CPUs in sum and none of its NUMA nodes has 5."""
    fleet = fleet_of(2, 2, "NUMA-blind MostAllocated")
    for _ in range(2):
        put(fleet, 12, "0")
    kind = fleet.kind(workload(5).pod)
    assert [fleet.find(kind) for _ in range(3)] == [None] * 3
    assert fleet.kubelet_refusals == 1 and fleet.may_change(kind)


def test_topowise_is_refused_by_no_kubelet() -> None:
    """A pod that a kubelet refuses is lost; a scheduler that knows NUMA nodes loses none."""
    workloads = [workload(cpus, copies) for cpus, copies in ((1, 5), (3, 4), (5, 3), (7, 2))]
    for name in density.NAMES:
        filled = density.filled(site(2, 3), name, workloads, 1)
        assert filled.running >= filled.first
        assert name in density.BLIND or not filled.refused
