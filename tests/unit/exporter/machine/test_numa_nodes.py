"""Which NUMA nodes there are, their distances and the CPUs they own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise_exporter.machine import Machine

Read = Callable[[Path], Machine]


@pytest.fixture
def nodes(small: Path) -> Path:
    return small / "sys/devices/system/node"


def _distances(machine: Machine) -> dict[int, dict[int, int]]:
    return {node.id: node.distances for node in machine.nodes}


def _cpus(machine: Machine) -> dict[int, tuple[int, ...]]:
    return {node.id: node.cpus for node in machine.nodes}


def test_distances_may_be_asymmetric(small: Path, read: Read) -> None:
    assert _distances(read(small)) == {0: {0: 10, 1: 21}, 1: {0: 22, 1: 10}}


def test_possible_nodes_without_a_directory_are_no_nodes(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "possible").write_text("0-7\n")
    machine = read(small)
    assert [node.id for node in machine.nodes] == [0, 1]
    assert machine.problems == ()


def test_nodes_are_found_without_the_online_file(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "online").unlink()
    assert _distances(read(small)) == {0: {0: 10, 1: 21}, 1: {0: 22, 1: 10}}


def test_an_online_node_without_directory_keeps_its_column(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "online").write_text("0-2\n")
    (nodes / "node0/distance").write_text("10 21 31\n")
    (nodes / "node1/distance").write_text("22 10 31\n")
    machine = read(small)
    assert _distances(machine) == {0: {0: 10, 1: 21}, 1: {0: 22, 1: 10}}
    assert machine.problems == (
        f"{nodes}/online: names nodes 0-2, but there are directories of 0-1; nodes 0-1 are used",
    )


def test_a_directory_that_is_not_online_is_no_node(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "online").write_text("0\n")
    (nodes / "node0/distance").write_text("10\n")
    machine = read(small)
    assert _distances(machine) == {0: {0: 10}}
    assert machine.nodes[0].cpus == (0, 1, 4, 5)
    assert {function.numa_node for function in machine.pci} == {None}
    assert machine.problems[0].endswith("names nodes 0, but there are directories of 0-1; nodes 0 are used")


def test_missing_distances_are_left_out_as_cadvisor_does(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "node1/distance").unlink()
    machine = read(small)
    assert _distances(machine)[1] == {}
    assert machine.problems == (f"{nodes}/node1/distance: missing; distances left out",)


@pytest.mark.parametrize("row", ["22 10 10", "22", "", "22 near", "-1 10"])
def test_a_damaged_row_of_distances_is_left_out(small: Path, nodes: Path, read: Read, row: str) -> None:
    (nodes / "node1/distance").write_text(row + "\n")
    machine = read(small)
    assert _distances(machine) == {0: {0: 10, 1: 21}, 1: {}}
    assert machine.problems == (
        f"{nodes}/node1/distance: {row!r} is not one number for each of 2 nodes; distances left out",
    )


def test_a_cpu_of_several_nodes_belongs_to_the_linked_node(small: Path, nodes: Path, read: Read) -> None:
    for node in (0, 1):
        (nodes / f"node{node}/cpulist").write_text("0-7\n")
    assert _cpus(read(small)) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}


def test_a_cpu_that_several_nodes_link_belongs_to_the_last_by_name(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "node0/cpu2").symlink_to("../../cpu/cpu2")
    assert _cpus(read(small)) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    (nodes / "node1/cpu0").symlink_to("../../cpu/cpu0")
    assert _cpus(read(small)) == {0: (1, 4, 5), 1: (0, 2, 3, 6, 7)}


def test_lists_do_in_a_tree_without_links(small: Path, nodes: Path, read: Read) -> None:
    _unlink_cpus(small)
    assert _cpus(read(small)) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}


def _unlink_cpus(root: Path) -> None:
    for pattern in ("node/node*/cpu[0-9]*", "cpu/cpu*/node*"):
        for link in root.glob(f"sys/devices/system/{pattern}"):
            link.unlink()


def test_the_mask_does_when_the_list_is_missing(small: Path, nodes: Path, read: Read) -> None:
    _unlink_cpus(small)
    (nodes / "node1/cpulist").unlink()
    (nodes / "node1/cpumap").write_text("0000,00000000,000000cc\n\0")
    machine = read(small)
    assert _cpus(machine) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    assert machine.problems == ()


def test_links_need_neither_list_nor_mask(small: Path, nodes: Path, read: Read) -> None:
    (nodes / "node1/cpulist").write_text("2-\n")
    (nodes / "node1/cpumap").write_text("xyz\n")
    machine = read(small)
    assert _cpus(machine) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    assert machine.problems == ()


def test_an_online_cpu_that_no_node_names_is_in_none(small: Path, nodes: Path, read: Read) -> None:
    _unlink_cpus(small)
    (nodes / "node1/cpulist").write_text("2,6\n")
    machine = read(small)
    assert _cpus(machine) == {0: (0, 1, 4, 5), 1: (2, 6)}
    assert {cpu.id: cpu.node for cpu in machine.cpus if cpu.node < 0} == {3: -1, 7: -1}
    assert machine.problems == (f"{nodes}: no node names the online CPUs 3,7; they are left out of every node",)


def test_offline_cpus_are_present_only_even_if_an_old_kernel_lists_them(small: Path, nodes: Path, read: Read) -> None:
    (small / "sys/devices/system/cpu/online").write_text("0-6\n")
    for entry in ("topology", "cache"):
        shutil.rmtree(small / "sys/devices/system/cpu/cpu7" / entry)
    (nodes / "node1/cpulist").write_text("2-3,6-7\n")
    machine = read(small)
    assert machine.nodes[1].cpus == (2, 3, 6)
    assert [cpu.id for cpu in machine.cpus] == [0, 1, 2, 3, 4, 5, 6]


def test_other_entries_of_the_directories_are_not_taken_for_nodes_or_cpus(small: Path, nodes: Path, read: Read) -> None:
    before = read(small)
    for entry in ("node", "nodeX", "node1x", "power"):
        (nodes / entry).mkdir()
    for entry in ("cpufreq", "cpuidle", "cpu"):
        (small / "sys/devices/system/cpu" / entry).mkdir()
    assert read(small) == before
