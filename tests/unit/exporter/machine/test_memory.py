"""Memory and hugepages per node."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import machines
from topowise_exporter.machine import Machine
from topowise_exporter.machine.inventory import Access

Read = Callable[[Path], Machine]

_2M = machines.PAGE_2M
_1G = machines.PAGE_1G


@pytest.fixture
def nodes(small: Path) -> Path:
    return small / "sys/devices/system/node"


@pytest.fixture
def lone(tmp_path: Path) -> Path:
    """A machine with a single node."""
    node = machines.Node(0, 3 * machines.GIB, cores=1, hugepages={_2M: 6})
    machines.write_tree(machines.Machine(nodes=(node,), distances=((10,),)), tmp_path)
    return tmp_path


def test_pages_of_every_size_are_counted(small: Path, read: Read) -> None:
    machine = read(small)
    assert [node.hugepages for node in machine.nodes] == [{_2M: 8, _1G: 0}, {_2M: 4, _1G: 1}]
    assert [node.memory_bytes for node in machine.nodes] == [machines.GIB, 2 * machines.GIB]


def test_sizes_ascend_as_numbers(small: Path, read: Read) -> None:
    assert [list(node.hugepages) for node in read(small).nodes] == [[_2M, _1G], [_2M, _1G]]


def test_surplus_pages_are_in_the_total(small: Path, nodes: Path, read: Read) -> None:
    folder = nodes / "node0/hugepages/hugepages-2048kB"
    for name, count in (("nr", 44), ("free", 34), ("surplus", 4)):
        (folder / f"{name}_hugepages").write_text(f"{count}\n")
    assert read(small).nodes[0].hugepages[_2M] == 44


def test_a_node_without_hugepages_has_none_beside_nodes_with_hugepages(small: Path, nodes: Path, read: Read) -> None:
    shutil.rmtree(nodes / "node1/hugepages")
    machine = read(small)
    assert machine.nodes[1].hugepages == {}
    assert machine.problems == (
        f"{nodes}/node1/hugepages: missing, while kernel/mm/hugepages exists; it counts as without hugepages",
    )


def test_the_only_node_does_not_get_what_the_kernel_shows_for_the_machine_alone(lone: Path, read: Read) -> None:
    """cAdvisor reads hugepages and memory of a NUMA node only from its directory."""
    node = lone / "sys/devices/system/node/node0"
    shutil.rmtree(node / "hugepages")
    (node / "meminfo").unlink()
    machine = read(lone)
    assert (machine.nodes[0].hugepages, machine.nodes[0].memory_bytes) == ({}, 0)
    assert machine.memory_bytes == 3 * machines.GIB
    assert machine.problems == (
        f"{node}/meminfo: missing; memory counts as 0",
        f"{node}/hugepages: missing, while kernel/mm/hugepages exists; it counts as without hugepages",
    )


def test_a_kernel_without_hugetlb_is_no_problem(small: Path, nodes: Path, read: Read) -> None:
    shutil.rmtree(small / "sys/kernel")
    for folder in nodes.glob("node*/hugepages"):
        shutil.rmtree(folder)
    machine = read(small)
    assert [node.hugepages for node in machine.nodes] == [{}, {}]
    assert machine.problems == ()


def test_an_unreadable_count_leaves_the_size_out(small: Path, nodes: Path, read: Read) -> None:
    path = nodes / "node0/hugepages/hugepages-2048kB/nr_hugepages"
    path.write_text("many\n")
    machine = read(small)
    assert machine.nodes[0].hugepages == {_1G: 0}
    assert machine.problems == (f"{path}: 'many' is not a number; pages of this size are left out",)


@pytest.mark.parametrize("content", ["", "Node 1 MemFree: 5 kB", "Node 1 MemTotal: all"])
def test_unreadable_memory_counts_as_zero(small: Path, nodes: Path, read: Read, content: str) -> None:
    (nodes / "node1/meminfo").write_text(content + "\n")
    machine = read(small)
    assert machine.nodes[1].memory_bytes == 0
    assert machine.problems == (f"{nodes}/node1/meminfo: has no line MemTotal; memory counts as 0",)


def _tell_access(node: Path, files: dict[str, str], *initiators: int) -> None:
    folder = node / "access0/initiators"
    folder.mkdir(parents=True)
    for initiator in initiators:
        (folder / f"node{initiator}").symlink_to(f"../../../node{initiator}")
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_memory_speed_is_read_where_the_firmware_has_it(small: Path, nodes: Path, read: Read) -> None:
    _tell_access(nodes / "node1", {"read_latency": "150", "read_bandwidth": "20480", "write_latency": "1"}, 0, 1, 7)
    machine = read(small)
    assert [node.access for node in machine.nodes] == [None, Access((0, 1), 150, 20480)]
    assert machine.problems == ()


@pytest.mark.parametrize(
    ("files", "initiators", "expected"),
    [
        ({"read_latency": "0", "read_bandwidth": "100"}, (0,), Access((0,), None, 100)),
        ({"read_latency": "-1"}, (), None),
        ({}, (1,), Access((1,), None, None)),
        ({}, (), None),
    ],
)
def test_figures_that_the_firmware_left_out_are_none(
    small: Path, nodes: Path, read: Read, files: dict[str, str], initiators: tuple[int, ...], expected: Access | None
) -> None:
    _tell_access(nodes / "node0", files, *initiators)
    assert read(small).nodes[0].access == expected


def test_a_figure_that_is_no_number_is_a_problem(small: Path, nodes: Path, read: Read) -> None:
    _tell_access(nodes / "node0", {"read_latency": "fast", "read_bandwidth": "5"}, 0)
    machine = read(small)
    assert machine.nodes[0].access == Access((0,), None, 5)
    assert len(machine.problems) == 1
    assert "'fast' is not a number" in machine.problems[0]
