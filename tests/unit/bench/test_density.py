"""What the density benchmark counts: placements, refusals, and a bound that nobody exceeds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest

from bench.density import bound, machines, mix, schedulers, steady
from bench.density.cluster import Cluster
from bench.density.filling import Stream, fill, offer
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
    for one in mix.read():
        kubelet = machines.kubelet(one.machine, 1, "single-numa-node", "container")
        for shape in one.shapes:
            trial = kubelet.fork()
            assert trial.admit_view(trial.view("new", shape.needs())).admitted, (one.name, shape)


def test_the_trace_is_there_as_often_as_it_was_recorded() -> None:
    trace = next(one for one in mix.read() if one.name == "gpu-trace")
    assert sum(shape.count for shape in trace.shapes) == 5073
    assert "5,073 of 8,152" in trace.origin


@pytest.mark.parametrize("zones", [1, 2, 4, 8])
def test_a_machine_has_the_same_whole_however_it_is_cut(zones: int) -> None:
    kubelet = empty(zones)
    assert kubelet.allocatable()["cpu"] == 30_000
    assert kubelet.allocatable()["memory"] == (128 - zones) << 30
    assert len(kubelet.node_ids) == zones


def test_a_scheduler_that_sees_only_sums_is_refused_where_numa_nodes_are_broken() -> None:
    """6 and 8 CPUs free on the two NUMA nodes of each machine: 14 in sum, and no place for 12."""
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


def test_equally_good_nodes_are_all_told() -> None:
    cluster = Cluster(empty(2), 3)
    for name in schedulers.NAMES:
        assert schedulers.make(name).best(cluster, cpus(2)) == [0, 1, 2], name


def test_what_fits_is_filled_until_nothing_does() -> None:
    """7 of 8 CPUs of each of four NUMA nodes, the reserved core leaves 6 on the first: 3 pods of 7, then 1 of 5."""
    cluster = Cluster(empty(4), 1)
    found = fill(cluster, schedulers.make("TightFit"), [cpus(7), cpus(5)], [1_000_000, 1], 0, "example.com/gpu")
    assert (found.first, found.running, found.refused) == (3, 4, 0)
    assert found.cpus == round(26 / 30, 4)
    assert found.zones == 1


def test_of_the_same_pods_those_without_a_place_are_lost() -> None:
    """14 and 16 CPUs: the third pod of 12 finds no place, nor does the second of 4."""
    found = offer(
        Cluster(empty(2), 1), schedulers.make("TightFit"), [cpus(12), cpus(4)], [0, 0, 0, 1, 1], 0, "example.com/gpu"
    )
    assert (found.placed, found.cpus, found.devices) == (3, round(28 / 30, 4), 0)


def test_refusals_are_counted_once_for_a_state_of_the_node() -> None:
    """The fuller machine has 2 and 4 CPUs left, 6 in sum, and packing sends pods of 5 nowhere else."""
    cluster = Cluster(empty(2), 2)
    for _ in range(2):
        assert cluster.send(cpus(12), 0).admitted
    found = fill(cluster, schedulers.make("NUMA-blind MostAllocated"), [cpus(5)], [1], 0, "example.com/gpu")
    assert (found.first, found.running, found.refused) == (0, 0, 1)


def test_a_stream_is_the_same_until_shapes_are_left_out() -> None:
    one, other = Stream([1, 2, 3], 4), Stream([1, 2, 3], 4)
    assert [one.next() for _ in range(50)] == [other.next() for _ in range(50)]
    one.only({0, 2})
    assert {one.next() for _ in range(50)} == {0, 2}


def test_pods_over_several_numa_nodes_are_told_by_their_number() -> None:
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
        # 7 and 6 share with nothing, 3 fits beside one, 4 beside the other.
        ([7, 6, 3, 4], 10, 2),
        ([7, 7, 4, 4], 10, 3),
    ],
)
def test_bins_needed(items: list[int], size: int, bins: int) -> None:
    assert bound._bins_needed(np.array(items), size) == bins


def endless(needs: list[Needs]) -> Iterator[int]:
    return cycle(range(len(needs)))


def test_large_containers_bound_the_pods_by_numa_nodes_and_not_by_sums() -> None:
    """12 of 16 CPUs: one a NUMA node, four on two machines, though the sum of 60 would take five."""
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
def test_nobody_exceeds_the_bound(zones: int, scope: str) -> None:
    listed = [cpus(1), cpus(3), cpus(5), cpus(7), cpus(2, 3)]
    counts = [5, 4, 3, 2, 2]
    for seed in range(4):
        start = empty(zones, scope=scope)
        most = bound.longest_prefix(Stream(counts, seed).next, listed, start, 3)
        for name in schedulers.NAMES:
            found = fill(Cluster(start, 3), schedulers.make(name), listed, counts, seed, "example.com/gpu")
            assert found.first <= most, (name, seed)
            assert found.running >= found.first
            assert name in schedulers.BLIND or not found.refused


# Pods that come and go


def test_all_schedulers_see_the_same_pods_come_and_go() -> None:
    listed, mean = steady.arrivals([1, 2, 3], 4, 20)
    assert (listed, mean) == steady.arrivals([1, 2, 3], 4, 20)
    assert mean == round(20 * steady.LOAD)
    assert [one.at for one in listed[: mean + 3]] == [0] * (mean + 1) + [1, 2]
    assert len(listed) == (1 + steady.SETTLED + steady.MEASURED) * mean
    assert min(one.ticks for one in listed) >= 1


def test_running_times_have_the_mean_that_is_named() -> None:
    listed, mean = steady.arrivals([1], 0, 1000)
    assert sum(one.ticks for one in listed) / len(listed) == pytest.approx(mean, rel=0.05)


def test_large_pods_run_no_longer_than_small_ones() -> None:
    """Both are drawn at random, and were of the same numbers."""
    listed, mean = steady.arrivals([1, 1], 3, 1000)
    of_shapes = [[one.ticks for one in listed if one.shape == shape] for shape in range(2)]
    for ticks in of_shapes:
        assert sum(ticks) / len(ticks) == pytest.approx(mean, rel=0.08)


def test_large_are_the_tenth_of_the_pods_with_the_most_cpus() -> None:
    listed = [cpus(2), cpus(5), cpus(3, 3), cpus(1)]
    assert steady.large(listed, [50, 5, 7, 38]) == {1, 2}
    assert steady.large(listed, [50, 5, 10, 35]) == {2}


def test_who_finds_no_place_waits_for_the_end_of_another_and_the_longest_waiting_is_first() -> None:
    """One machine of 14 and 16 CPUs: 12 run in each NUMA node, and two more wait."""
    cluster, listed = Cluster(empty(2), 1), [cpus(12), cpus(2)]
    churn = steady.Churn(cluster, schedulers.make("TightFit"), listed, 0)
    for number, (shape, ticks) in enumerate([(0, 10), (0, 20), (0, 99), (0, 99), (1, 99)]):
        churn.come(number, steady.Arrival(0, shape, ticks))
    assert churn.waited == {0: 0, 1: 0, 4: 0}
    churn.end(9)
    assert 2 not in churn.waited
    churn.end(10)
    assert churn.waited[2] == 10
    churn.end(21)
    assert churn.waited == {0: 0, 1: 0, 2: 10, 3: 21, 4: 0}


def test_who_waits_still_has_waited_until_the_end() -> None:
    churn = steady.Churn(Cluster(empty(2), 1), schedulers.make("TightFit"), [cpus(16)], 0)
    for number in range(2):
        churn.come(number, steady.Arrival(number, 0, 99))
    churn.stop(30)
    assert churn.waited == {0: 0, 1: 29}


def test_a_pod_that_ends_leaves_nothing_behind() -> None:
    cluster = Cluster(empty(2), 1)
    assert cluster.send(cpus(12), 0, "one").admitted
    cluster.remove("one")
    assert cluster.share("cpu") == 0
    assert cluster.send(cpus(16), 0, "two").admitted


def test_refused_pods_wait_too() -> None:
    """6 and 8 CPUs are free, in sum 14, and the blind sends a pod of 12 there."""
    cluster = Cluster(empty(2), 1)
    churn = steady.Churn(cluster, schedulers.make(schedulers.BLIND[0]), [cpus(8), cpus(12)], 0)
    for number, shape in enumerate((0, 0, 1)):
        churn.come(number, steady.Arrival(0, shape, 5))
    assert (churn.refused, churn.waited) == (1, {0: 0, 1: 0})
    churn.end(6)
    assert churn.waited[2] == 6


# Fragmentation gradient descent

GPU = "example.com/gpu"


def fgd(listed: list[Needs], counts: list[int], name: str) -> schedulers.Scheduler:
    return schedulers.yardsticks(listed, counts, GPU, by_pod=False)[name]


@pytest.mark.parametrize("name", schedulers.FGD)
def test_pods_without_gpus_go_where_the_gpus_are_taken(name: str) -> None:
    """10 and 14 CPUs are free, with four GPUs and none. Two CPUs are too few for who wants a GPU."""
    with_gpu = needs({"cpu": "4", "memory": "1Gi", GPU: "1"})
    cluster = Cluster(empty(1), 2)
    assert cluster.send(cpus(20), 0).admitted
    for _ in range(4):
        assert cluster.send(with_gpu, 1).admitted
    assert fgd([with_gpu], [1], name).best(cluster, cpus(8)) == [1]
    assert fgd([with_gpu], [1], name).best(cluster, cpus(6)) == [0, 1]


def test_a_gpu_whose_numa_node_is_full_is_lost_only_to_who_looks_at_numa_nodes() -> None:
    """The first NUMA node of one machine has 8 CPUs left beside its GPU, that of the other 2, which are too few for
    three CPUs and for a GPU alike."""
    with_gpu = needs({"cpu": "6", "memory": "1Gi", GPU: "1"})
    cluster = Cluster(empty(2), 2)
    assert cluster.send(with_gpu, 0).admitted
    assert cluster.send(cpus(12), 1).admitted
    assert fgd([with_gpu], [1], "FGD by NUMA node").best(cluster, cpus(3)) == [1]
    assert fgd([with_gpu], [1], "FGD").best(cluster, cpus(3)) == [0, 1]


def test_a_task_larger_than_a_numa_node_needs_the_machine() -> None:
    """Of GPUs that it could have, a pod of three takes the machine that has only two left."""
    large = needs({"cpu": "4", "memory": "1Gi", GPU: "3"})
    cluster = Cluster(empty(2, "restricted"), 2)
    for _ in range(2):
        assert cluster.send(needs({"cpu": "1", "memory": "1Gi", GPU: "1"}), 1).admitted
    for name in schedulers.FGD:
        assert fgd([large], [1], name).best(cluster, needs({"cpu": "1", "memory": "1Gi", GPU: "1"})) == [1], name
