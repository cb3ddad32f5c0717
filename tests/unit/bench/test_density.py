"""The density benchmark counts placements and refusals, and no scheduler exceeds the upper bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest

from bench.density import bound, machines, mix, schedulers
from bench.density.cluster import Cluster
from bench.density.filling import Stream, fill
from bench.density.mix import Hardware, Shape
from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet

SERVER = Hardware(cores=16, memory="128Gi", devices={"example.com/gpu": 4}, pages=0)


def empty(zones: int, policy: str = "single-numa-node", scope: str = "container") -> Kubelet:
    return machines.kubelet(SERVER, zones, policy, scope)


def needs(*containers: dict[str, str]) -> Needs:
    return Shape(1, containers).needs()


def cpus(*counts: int) -> Needs:
    return needs(*({"cpu": str(count), "memory": "1Gi"} for count in counts))


def test_every_recorded_shape_runs_on_an_empty_machine_of_one_numa_node() -> None:
    for pod_mix in mix.read():
        kubelet = machines.kubelet(pod_mix.machine, 1, "single-numa-node", "container")
        for shape in pod_mix.shapes:
            trial = kubelet.fork()
            assert trial.admit_view(trial.view("new", shape.needs())).admitted, (pod_mix.name, shape)


def test_the_trace_has_as_many_pods_as_its_origin_says() -> None:
    trace = next(pod_mix for pod_mix in mix.read() if pod_mix.name == "gpu-trace")
    assert sum(shape.count for shape in trace.shapes) == 5073
    assert "5,073 of 8,152" in trace.origin


@pytest.mark.parametrize("zones", [1, 2, 4, 8])
def test_a_machine_has_the_same_totals_however_it_is_cut(zones: int) -> None:
    kubelet = empty(zones)
    assert kubelet.allocatable()["cpu"] == 30_000
    assert kubelet.allocatable()["memory"] == (128 - zones) << 30
    assert len(kubelet.node_ids) == zones


def test_a_scheduler_that_sees_only_sums_is_refused_where_numa_nodes_are_broken() -> None:
    """6 and 8 CPUs are free on the NUMA nodes of each machine: 14 in sum, and a pod of 12 fits neither."""
    cluster = Cluster(empty(2), 2)
    for node in (0, 0, 1, 1):
        assert cluster.send(cpus(8), node).admitted
    blind, aligned = schedulers.make(schedulers.BLIND[0]), schedulers.make("TightFit")
    assert blind.best(cluster, cpus(12)) == [0, 1]
    assert aligned.best(cluster, cpus(12)) == []
    assert cluster.send(cpus(12), 0).reason == "TopologyAffinityError"


def test_the_blind_spread_or_pack_by_the_sums() -> None:
    cluster = Cluster(empty(2), 3)
    cluster.send(cpus(8), 0)
    cluster.send(cpus(4), 1)
    assert schedulers.make("NUMA-blind LeastAllocated").best(cluster, cpus(2)) == [2]
    assert schedulers.make("NUMA-blind MostAllocated").best(cluster, cpus(2)) == [0]


def test_all_nodes_of_the_best_score_are_returned() -> None:
    cluster = Cluster(empty(2), 3)
    for name in schedulers.NAMES:
        assert schedulers.make(name).best(cluster, cpus(2)) == [0, 1, 2], name


def test_a_cluster_is_filled_until_no_shape_fits() -> None:
    """7 of 8 CPUs of each of four NUMA nodes, the reserved core leaves 6 on the first: 3 pods of 7, then 1 of 5."""
    cluster = Cluster(empty(4), 1)
    filled = fill(cluster, schedulers.make("TightFit"), [cpus(7), cpus(5)], [1_000_000, 1], 0, "example.com/gpu")
    assert (filled.first, filled.running, filled.refused) == (3, 4, 0)
    assert filled.cpus == round(26 / 30, 4)
    assert filled.zones == 1


def test_refusals_are_counted_once_for_a_state_of_the_node() -> None:
    """The fuller machine has 2 and 4 CPUs left, 6 in sum, and MostAllocated sends pods of 5 only there."""
    cluster = Cluster(empty(2), 2)
    for _ in range(2):
        assert cluster.send(cpus(12), 0).admitted
    filled = fill(cluster, schedulers.make("NUMA-blind MostAllocated"), [cpus(5)], [1], 0, "example.com/gpu")
    assert (filled.first, filled.running, filled.refused) == (0, 0, 1)


def test_a_stream_is_the_same_until_shapes_are_left_out() -> None:
    stream, twin = Stream([1, 2, 3], 4), Stream([1, 2, 3], 4)
    assert [stream.next() for _ in range(50)] == [twin.next() for _ in range(50)]
    stream.only({0, 2})
    assert {stream.next() for _ in range(50)} == {0, 2}


def test_the_numa_nodes_of_a_pod_are_counted() -> None:
    cluster = Cluster(empty(2), 1)
    assert cluster.zones_of(cluster.send(cpus(12, 12), 0)) == 2
    assert cluster.zones_of(cluster.send(cpus(2), 0)) == 1


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
    listed = [cpus(1), cpus(3), cpus(5), cpus(7), cpus(2, 3)]
    counts = [5, 4, 3, 2, 2]
    for seed in range(4):
        start = empty(zones, scope=scope)
        most = bound.longest_prefix(Stream(counts, seed).next, listed, start, 3)
        for name in schedulers.NAMES:
            filled = fill(Cluster(start, 3), schedulers.make(name), listed, counts, seed, "example.com/gpu")
            assert filled.first <= most, (name, seed)
            assert filled.running >= filled.first
            assert name in schedulers.BLIND or not filled.refused
