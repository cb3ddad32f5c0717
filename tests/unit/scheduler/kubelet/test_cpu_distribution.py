"""distribute-cpus-across-numa: even shares, and Go slices that share memory."""

from __future__ import annotations

import itertools

import pytest

from kubelets import PACKED, machine_of
from topowise import cpuset
from topowise_scheduler.kubelet import Machine
from topowise_scheduler.kubelet.cpu_distribution import CpuDistribution, combinations, deviation
from topowise_scheduler.kubelet.cpu_topology import CpuTopology
from topowise_scheduler.kubelet.masks import mask_of, members


@pytest.mark.parametrize("size", range(1, 6))
def test_combinations_come_in_lexicographic_order(size: int) -> None:
    assert [tuple(combination.read()) for combination in combinations(range(5), size)] == list(
        itertools.combinations(range(5), size)
    )


@pytest.mark.parametrize(("size", "intact"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_remembered_combination_of_four_is_overwritten_by_the_next(size: int, intact: bool) -> None:
    slices = combinations(range(5), size)
    first = next(slices)
    remembered = first.read()
    next(slices)
    assert (first.read() == remembered) is intact


def test_deviation_is_rounded_to_three_decimals_twice() -> None:
    assert deviation([4, 4, 4]) == 0
    # mean 1.333 and not 4/3: sqrt((2 * 0.333^2 + 0.667^2) / 3) = 0.4714 -> 0.471
    assert deviation([1, 1, 2]) == 0.471


def _distributed(
    machine: Machine, count: int, *, busy: str = "", width: int = 0, group: int = 1, **changed: bool
) -> str:
    topology = CpuTopology(machine)
    available = topology.cpus & ~mask_of(cpuset.parse(busy))
    settings = dict.fromkeys(("in_one_socket", "by_hint", "whole_groups", "copies"), False) | changed
    distribution = CpuDistribution(topology, PACKED, group=group, **settings)
    return cpuset.to_text(members(distribution.take(available, count, width)))


def test_the_fewest_nodes_follow_from_the_average_node() -> None:
    # Nine CPUs exceed the average of eight, so two nodes share the CPUs although the first node has ten; full cores
    # make it ten CPUs.
    assert _distributed(machine_of(5, 3), 9) == "0-2,5-6,8-9,13-14"
    assert _distributed(machine_of(5, 3), 10, group=2) == "0-2,5-6,8-10,13-14"
    # The average of seventeen CPUs is rounded up.
    assert _distributed(machine_of(9, 8, threads=1), 9) == "0-8"


def test_nodes_of_the_same_socket_beat_even_shares_of_two_sockets() -> None:
    # kubernetes#139778. Nodes of 2, 4 | 4, 2 CPUs, the first busy: two CPUs of each middle node leave equal amounts.
    machine = machine_of(2, 4, 4, 2, threads=1, nodes_per_socket=2)
    assert _distributed(machine, 4, busy="0-1") == "2-3,6-7"
    assert _distributed(machine, 4, busy="0-1", in_one_socket=True) == "6-7,10-11"


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        pytest.param(0, "0-3", id="no hint"),
        pytest.param(2, "0-1,4-5", id="as many nodes as the hint has"),
        pytest.param(4, "0,4,8,12", id="as many as there are"),
        pytest.param(5, "0-3", id="more than there are"),
    ],
)
def test_the_hint_sets_the_minimum_number_of_nodes(width: int, expected: str) -> None:
    # kubernetes#139456
    machine = machine_of(4, 4, 4, 4, threads=1)
    assert _distributed(machine, 4, width=width, by_hint=True) == expected
    assert _distributed(machine, 4, width=width) == "0-3"


def test_a_hint_of_more_nodes_than_groups_of_cpus_sets_no_minimum() -> None:
    assert _distributed(machine_of(4, 4, 4, 4, threads=1), 2, width=3, by_hint=True) == "0-1"
    # A machine without cores has groups of no CPUs.
    assert _distributed(machine_of(0), 0, group=0) == ""
