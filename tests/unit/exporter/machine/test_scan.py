"""A scan as a whole: no files, unreadable files, this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise import cpuset
from topowise.errors import SourceError
from topowise_exporter.machine import Machine, as_json, scan

Read = Callable[[Path], Machine]


def test_a_root_without_cpus_is_refused_by_name(tmp_path: Path, read: Read) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/sys/devices/system/cpu: names no CPU"):
        read(tmp_path)


def test_without_node_directories_each_package_is_a_node_without_memory(small: Path, read: Read) -> None:
    """cAdvisor utils/sysinfo, getCPUTopology."""
    shutil.rmtree(small / "sys/devices/system/node")
    machine = read(small)
    assert [(node.id, node.cpus, node.sockets) for node in machine.nodes] == [
        (0, (0, 1, 4, 5), (0,)),
        (1, (2, 3, 6, 7), (1,)),
    ]
    assert {(node.memory_bytes, len(node.distances), len(node.hugepages)) for node in machine.nodes} == {(0, 0, 0)}
    assert machine.memory_bytes == 3 << 30
    assert machine.problems[0] == (
        f"{small}/sys/devices/system/node: has no node; each package counts as a NUMA node without memory, as in the "
        "kubelet"
    )


def test_no_unreadable_file_ends_a_scan(small: Path, read: Read) -> None:
    online = small / "sys/devices/system/cpu/online"
    files = [path for path in small.rglob("*") if path.is_file() and not path.is_symlink() and path != online]
    for path in files:
        path.unlink()
        path.mkdir()
    machine = read(small)
    assert [node.id for node in machine.nodes] == [0, 1]
    assert {node.id: node.cpus for node in machine.nodes} == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    assert [(node.memory_bytes, node.hugepages) for node in machine.nodes] == [(0, {}), (0, {})]
    assert {node.id: node.distances for node in machine.nodes} == {0: {}, 1: {}}
    assert len(machine.pci) == 5
    assert (
        f"{small}/sys/devices/system/node/node0/distance: unreadable (Is a directory); distances left out"
    ) in machine.problems


@pytest.mark.parametrize("garbage", [b"", b"\0", b"\xff\xfe", b"9" * 5000, b"a,b-c\n", b"-1\n", b"0-99999999\n"])
def test_no_garbage_ends_a_scan(small: Path, read: Read, garbage: bytes) -> None:
    online = small / "sys/devices/system/cpu/online"
    for path in small.rglob("*"):
        if path.is_file() and not path.is_symlink() and path != online:
            path.write_bytes(garbage)
    machine = read(small)
    assert machine.online == tuple(range(8))
    assert machine.problems
    json.dumps(as_json(machine))


def test_two_scans_of_an_unchanged_machine_are_equal(small: Path, read: Read) -> None:
    assert read(small) == read(small)


def test_a_link_to_nowhere_is_a_missing_file(small: Path, read: Read) -> None:
    path = small / "sys/devices/system/node/node0/distance"
    path.unlink()
    path.symlink_to("nowhere")
    assert read(small).problems == (f"{path}: missing; distances left out",)


def test_the_report_has_the_keys_of_the_contract(small: Path, read: Read) -> None:
    shown = json.loads(json.dumps(as_json(read(small))))
    assert list(shown) == ["nodes", "cpus", "pci", "memory_bytes"]
    assert list(shown["nodes"][0]) == ["id", "cpus", "memory_bytes", "hugepages", "distances", "sockets"]
    assert list(shown["pci"][0]) == ["address", "numa_node", "class", "vendor", "device", "driver", "physfn", "path"]
    assert shown["nodes"][1]["distances"] == {"0": 22, "1": 10}


def test_this_machine_is_read_without_failing() -> None:
    machine = scan()
    assert machine.online == tuple(sorted(cpuset.parse(Path("/sys/devices/system/cpu/online").read_text())))
    owned = sorted(cpu for node in machine.nodes for cpu in node.cpus)
    assert owned == [cpu.id for cpu in machine.cpus if cpu.node >= 0]
