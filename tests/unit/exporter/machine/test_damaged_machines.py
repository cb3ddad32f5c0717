"""A small machine with other files: what the scan makes of them, what it says, and that nothing else changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from sandbox import machines
from topowise import cpuset
from topowise.errors import SourceError
from topowise_exporter.machine import Machine, as_json, scan
from topowise_exporter.machine.inventory import Access

Read = Callable[[Path], Machine]

N, C = "sys/devices/system/node", "sys/devices/system/cpu"
GIB, _2M, _1G = machines.GIB, machines.PAGE_2M, machines.PAGE_1G
GONE: Final = None
"""A path that is removed, with everything below it."""

CPUS = {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
DISTANCES = {0: {0: 10, 1: 21}, 1: {0: 22, 1: 10}}
PAGES = {0: {_2M: 8, _1G: 0}, 1: {_2M: 4, _1G: 1}}
NODES: Mapping[str, Callable[[Machine], Any]] = {
    "cpus": lambda machine: {node.id: node.cpus for node in machine.nodes},
    "distances": lambda machine: {node.id: node.distances for node in machine.nodes},
    "memory": lambda machine: {node.id: node.memory_bytes for node in machine.nodes},
    "hugepages": lambda machine: {node.id: node.hugepages for node in machine.nodes},
    "access": lambda machine: {node.id: node.access for node in machine.nodes},
}
"""What stays as it is unless a case says otherwise."""
SETS: Mapping[str, Callable[[Machine], Any]] = {
    "online": lambda machine: machine.online,
    "present": lambda machine: machine.present,
    "possible": lambda machine: machine.possible,
    "offline": lambda machine: machine.offline,
    "isolated": lambda machine: machine.isolated,
    "threads": lambda machine: sorted({cpu.threads for cpu in machine.cpus}),
    "l3": lambda machine: {cpu.l3 for cpu in machine.cpus},
    "l3_ids": lambda machine: {cpu.l3_id for cpu in machine.cpus},
    "uncores": lambda machine: [cpu.uncore for cpu in machine.cpus],
    "kinds": lambda machine: [cpu.kind for cpu in machine.cpus],
    "ids": lambda machine: [(cpu.socket, cpu.die, cpu.core_id) for cpu in machine.cpus],
    "nowhere": lambda machine: [cpu.id for cpu in machine.cpus if cpu.node < 0],
    "affinity": lambda machine: {function.numa_node for function in machine.pci},
}
SOUND = {"cpus": CPUS, "distances": DISTANCES, "memory": {0: GIB, 1: 2 * GIB}, "hugepages": PAGES} | {
    "access": {0: None, 1: None}
}
OWN_L3 = {
    f"{C}/cpu{cpu}/cache/index3/{name}": text
    for cpu in range(8)
    for name, text in (("shared_cpu_map", f"{0x11 << cpu % 4:x}"), ("id", str(cpu % 4)))
}
"""Each core has an L3 cache of its own."""
NO_LINKS = {f"{N}/node*/cpu[0-9]*": GONE, f"{C}/cpu*/node*": GONE}
FASTER = {f"{N}/node1/access0/initiators/node{node}": "" for node in (0, 1, 7)}


def change(root: Path, files: Mapping[str, str | None]) -> None:
    """Writes a text to every path of a pattern, or removes the paths."""
    for pattern, text in files.items():
        paths = [*root.glob(pattern)] if "*" in pattern else [root / pattern]
        assert paths, pattern
        for path in paths:
            if text is not GONE:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + "\n")
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@pytest.mark.parametrize(
    ("files", "expected", "problems"),
    [
        pytest.param({}, {"threads": [(0, 4), (1, 5), (2, 6), (3, 7)]} | {"uncores": [None] * 8}, (), id="sound"),
        # NUMA nodes.
        pytest.param({f"{N}/possible": "0-7"}, {}, (), id="possible nodes are no nodes"),
        pytest.param({f"{N}/online": GONE}, {}, (), id="no file of online nodes"),
        pytest.param(
            {f"{N}/online": "0-2", f"{N}/node0/distance": "10 21 31", f"{N}/node1/distance": "22 10 31"},
            {},
            (f"{N}/online: names nodes 0-2, but there are directories of 0-1; nodes 0-1 are used",),
            id="an online node without directory keeps its column",
        ),
        pytest.param(
            {f"{N}/online": "0", f"{N}/node0/distance": "10"},
            {
                "cpus": {0: CPUS[0]},
                "distances": {0: {0: 10}},
                "memory": {0: GIB},
                "hugepages": {0: PAGES[0]},
                "access": {0: None},
                "affinity": {None},
            },
            (
                f"{N}/online: names nodes 0, but there are directories of 0-1; nodes 0 are used",
                f"{N}: no node names the online CPUs 2-3,6-7; they are left out of every node",
                *[
                    f"sys/bus/pci/devices/0000:{address}/numa_node: unknown node 1; the function has no affinity"
                    for address in ("97:00.0", "98:00.0", "98:00.1", "98:00.2")
                ],
            ),
            id="a directory that is not online is no node",
        ),
        pytest.param(
            {f"{N}/node1/distance": GONE},
            {"distances": {0: DISTANCES[0], 1: {}}},
            (f"{N}/node1/distance: missing; distances left out",),
            id="no distances",
        ),
        *[
            pytest.param(
                {f"{N}/node1/distance": row},
                {"distances": {0: DISTANCES[0], 1: {}}},
                (f"{N}/node1/distance: {row!r} is not one number for each of 2 nodes; distances left out",),
                id=f"distances {row!r}",
            )
            for row in ("22 10 10", "22", "", "22 near", "-1 10")
        ],
        pytest.param({f"{N}/node*/cpulist": "0-7"}, {}, (), id="links count, not lists"),
        pytest.param(
            {f"{N}/node1/cpulist": "2-", f"{N}/node1/cpumap": "xyz"}, {}, (), id="links need neither list nor mask"
        ),
        pytest.param(NO_LINKS, {}, (), id="lists do without links"),
        pytest.param(
            {**NO_LINKS, f"{N}/node1/cpulist": GONE, f"{N}/node1/cpumap": "0000,00000000,000000cc\n\0"},
            {},
            (),
            id="a mask does without list",
        ),
        pytest.param(
            {**NO_LINKS, f"{N}/node1/cpulist": "2,6"},
            {"cpus": {0: CPUS[0], 1: (2, 6)}, "nowhere": [3, 7]},
            (f"{N}: no node names the online CPUs 3,7; they are left out of every node",),
            id="CPUs that no node names",
        ),
        pytest.param(
            {f"{N}/{name}/x": "" for name in ("node", "nodeX", "node1x", "power")}
            | {f"{C}/{name}/x": "" for name in ("cpufreq", "cpuidle", "cpu")},
            {"online": tuple(range(8))},
            (),
            id="other entries of the directories",
        ),
        # Memory.
        pytest.param(
            {
                f"{N}/node0/hugepages/hugepages-2048kB/{name}_hugepages": text
                for name, text in (("nr", "44"), ("free", "34"), ("surplus", "4"))
            },
            {"hugepages": {0: {_2M: 44, _1G: 0}, 1: PAGES[1]}},
            (),
            id="surplus pages are in the total",
        ),
        pytest.param(
            {f"{N}/node1/hugepages": GONE},
            {"hugepages": {0: PAGES[0], 1: {}}},
            (f"{N}/node1/hugepages: missing, while kernel/mm/hugepages exists; it counts as without hugepages",),
            id="no hugepages on a node",
        ),
        pytest.param(
            {"sys/kernel": GONE, f"{N}/node*/hugepages": GONE},
            {"hugepages": {0: {}, 1: {}}},
            (),
            id="a kernel without hugetlb",
        ),
        pytest.param(
            {f"{N}/node0/hugepages/hugepages-2048kB/nr_hugepages": "many"},
            {"hugepages": {0: {_1G: 0}, 1: PAGES[1]}},
            (
                f"{N}/node0/hugepages/hugepages-2048kB/nr_hugepages: 'many' is not a number; "
                "pages of this size are left out",
            ),
            id="a count that is no number",
        ),
        *[
            pytest.param(
                {f"{N}/node1/meminfo": text},
                {"memory": {0: GIB, 1: 0}},
                (f"{N}/node1/meminfo: has no line MemTotal; memory counts as 0",),
                id=f"meminfo {text!r}",
            )
            for text in ("", "Node 1 MemFree: 5 kB", "Node 1 MemTotal: all")
        ],
        pytest.param(
            {
                **FASTER,
                f"{N}/node1/access0/initiators/read_latency": "150",
                f"{N}/node1/access0/initiators/read_bandwidth": "20480",
                f"{N}/node1/access0/initiators/write_latency": "1",
                f"{N}/node0/access0/initiators/read_latency": "-1",
            },
            {"access": {0: None, 1: Access((0, 1), 150, 20480)}},
            (),
            id="memory speed",
        ),
        pytest.param(
            {**FASTER, f"{N}/node1/access0/initiators/read_latency": "0"},
            {"access": {0: None, 1: Access((0, 1), None, None)}},
            (),
            id="memory speed that the firmware left out",
        ),
        pytest.param(
            {
                **FASTER,
                f"{N}/node1/access0/initiators/read_latency": "fast",
                f"{N}/node1/access0/initiators/read_bandwidth": "5",
            },
            {"access": {0: None, 1: Access((0, 1), None, 5)}},
            (f"{N}/node1/access0/initiators/read_latency: 'fast' is not a number; taken as missing",),
            id="memory speed that is no number",
        ),
        # CPUs. core_id restarts in each cluster of an ARM board: then cAdvisor takes the clusters' cores as one.
        pytest.param(
            {f"{C}/cpu*/topology/core_id": "0"}
            | {
                f"{C}/cpu{cpu}/topology/{name}": str(cpu)
                for cpu in range(8)
                for name in ("core_cpus_list", "thread_siblings_list")
            },
            {"threads": [(0, 1, 4, 5), (2, 3, 6, 7)]},
            (),
            id="a core is what cAdvisor takes as a core",
        ),
        pytest.param(
            {f"{C}/cpu*/topology/core_id": "0"}
            | {f"{C}/cpu{cpu}/topology/physical_package_id": str(cpu // 4) for cpu in range(8)},
            {"threads": [(0, 1), (2, 3), (4, 5), (6, 7)]},
            (),
            id="a core is in one package and NUMA node",
        ),
        pytest.param(
            {f"{C}/cpu*/topology": GONE},
            {"threads": [(cpu,) for cpu in range(8)], "ids": [(-1, -1, -1)] * 8},
            (f"{C}/cpu{{0-7}}/topology: has no physical_package_id or no core_id; each CPU counts as a core",),
            id="no topology",
        ),
        *[
            pytest.param(
                {f"{C}/cpu4/topology/{name}": GONE},
                {"cpus": {0: (0, 1, 5), 1: CPUS[1]}, "nowhere": [4]},
                (
                    f"{C}/cpu{{4}}/topology: has no physical_package_id or no core_id; the kubelet leaves these CPUs "
                    "out",
                ),
                id=f"a CPU without {name}",
            )
            for name in ("core_id", "physical_package_id")
        ],
        pytest.param(
            {f"{C}/online": "0-3,5-7"},
            {
                "cpus": {0: (0, 1, 5), 1: CPUS[1]},
                "threads": [(0,), (1, 5), (2, 6), (3, 7)],
                "l3": {(0, 1, 5), CPUS[1]},
                "offline": (),
            },
            (),
            id="an offline thread is no sibling",
        ),
        pytest.param(
            {f"{C}/online": "0-6", f"{C}/cpu7/topology": GONE, f"{C}/cpu7/cache": GONE},
            {
                "cpus": {0: CPUS[0], 1: (2, 3, 6)},
                "online": tuple(range(7)),
                "ids": [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 0, 0), (0, 0, 1), (1, 0, 0)],
            },
            (),
            id="an offline CPU that a node still lists",
        ),
        pytest.param(
            {f"{C}/{name}": GONE for name in ("online", "present", "possible", "offline", "isolated")}
            | {f"{C}/cpu7/online": "0"},
            {
                "cpus": {0: CPUS[0], 1: (2, 3, 6)},
                "online": tuple(range(7)),
                "present": tuple(range(8)),
                "possible": tuple(range(8)),
                "offline": (7,),
                "isolated": (),
            },
            (f"{C}/online: no usable set of CPUs; the CPUs not switched off are used",),
            id="an old kernel without sets",
        ),
        pytest.param(
            {f"{C}/online": "0-7\n\0", f"{C}/isolated": "\n\0"},
            {"online": tuple(range(8)), "isolated": ()},
            (),
            id="NULs at the end",
        ),
        pytest.param({f"{C}/isolated": "2-3,6-7"}, {"isolated": CPUS[1]}, (), id="isolated CPUs"),
        pytest.param(
            {"sys/devices/cpu_core/cpus": "0-1,4-5", "sys/devices/cpu_atom/cpus": "2-3,6-7"},
            {"kinds": ["core", "core", "atom", "atom"] * 2},
            (),
            id="a hybrid machine",
        ),
        # Caches.
        pytest.param(
            {f"{C}/cpu*/cache/index3/id": "0"}, {"l3": set(CPUS.values()), "l3_ids": {0}}, (), id="L3 groups are lists"
        ),
        pytest.param(
            {f"{C}/cpu*/cache/index3/id": GONE}, {"l3": set(CPUS.values()), "l3_ids": {None}}, (), id="L3 without id"
        ),
        *[
            pytest.param({f"{C}/cpu*/{path}": GONE}, {"l3": {None}, "l3_ids": {None}}, (), id=f"no {path}")
            for path in ("cache", "cache/index3")
        ],
        pytest.param(
            {f"{C}/cpu*/cache/index2/level": "3", f"{C}/cpu*/cache/index3": GONE},
            {"l3": {(0, 4), (1, 5), (2, 6), (3, 7)}},
            (),
            id="the L3 is found by its level",
        ),
        pytest.param(OWN_L3, {"uncores": [0, 1, 2, 3] * 2}, (), id="an L3 for each core"),
        # cAdvisor returns at the first file that it cannot read; cores before keep their caches.
        *[
            pytest.param(
                {**OWN_L3, f"{C}/cpu1/cache/index{index}/{name}": GONE},
                {"uncores": [0, None, 2, 3] * 2},
                (),
                id=f"index{index} without {name}",
            )
            for index, name in ((0, "id"), (1, "size"), (2, "type"), (3, "id"), (3, "shared_cpu_map"))
        ],
    ],
)
def test_a_machine_with_other_files(
    small: Path, read: Read, files: Mapping[str, str | None], expected: Mapping[str, Any], problems: tuple[str, ...]
) -> None:
    change(small, files)
    machine = read(small)
    for name, of in NODES.items():
        assert of(machine) == expected.get(name, SOUND[name]), name
    for name in expected.keys() & SETS.keys():
        assert SETS[name](machine) == expected[name], name
    assert [problem.removeprefix(f"{small}/") for problem in machine.problems] == list(problems)


def test_a_cpu_that_several_nodes_link_belongs_to_the_last_by_name(small: Path, read: Read) -> None:
    (small / f"{N}/node0/cpu2").symlink_to("../../cpu/cpu2")
    assert NODES["cpus"](read(small)) == CPUS
    (small / f"{N}/node1/cpu0").symlink_to("../../cpu/cpu0")
    assert NODES["cpus"](read(small)) == {0: (1, 4, 5), 1: (0, 2, 3, 6, 7)}


def test_the_only_node_does_not_get_what_the_kernel_shows_for_the_machine_alone(tmp_path: Path, read: Read) -> None:
    """cAdvisor reads hugepages and memory of a NUMA node only from its directory."""
    lone = machines.Node(0, 3 * GIB, cores=1, hugepages={_2M: 6})
    machines.write_tree(machines.Machine(nodes=(lone,), distances=((10,),)), tmp_path)
    change(tmp_path, {f"{N}/node0/hugepages": GONE, f"{N}/node0/meminfo": GONE})
    machine = read(tmp_path)
    assert (machine.nodes[0].hugepages, machine.nodes[0].memory_bytes) == ({}, 0)
    assert machine.memory_bytes == 3 * GIB
    assert machine.problems == (
        f"{tmp_path}/{N}/node0/meminfo: missing; memory counts as 0",
        f"{tmp_path}/{N}/node0/hugepages: missing, while kernel/mm/hugepages exists; it counts as without hugepages",
    )


def test_without_node_directories_each_package_is_a_node_without_memory(small: Path, read: Read) -> None:
    """cAdvisor utils/sysinfo, getCPUTopology."""
    change(small, {N: GONE})
    machine = read(small)
    assert [(node.id, node.cpus, node.sockets) for node in machine.nodes] == [(0, CPUS[0], (0,)), (1, CPUS[1], (1,))]
    assert {(node.memory_bytes, len(node.distances), len(node.hugepages)) for node in machine.nodes} == {(0, 0, 0)}
    assert machine.memory_bytes == 3 * GIB
    assert machine.problems[0] == (
        f"{small}/{N}: has no node; each package counts as a NUMA node without memory, as in the kubelet"
    )


def test_a_root_without_cpus_is_refused_by_name(tmp_path: Path, read: Read) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/{C}: names no CPU"):
        read(tmp_path)


def test_no_unreadable_file_ends_a_scan(small: Path, read: Read) -> None:
    """A directory in each file's place. Files with any content: tests/unit/fuzz/test_machines.py."""
    for path in [path for path in small.rglob("*") if path.is_file() and not path.is_symlink()]:
        if path != small / C / "online":
            path.unlink()
            path.mkdir()
    machine = read(small)
    assert NODES["cpus"](machine) == CPUS
    assert NODES["memory"](machine) == {0: 0, 1: 0}
    assert NODES["distances"](machine) == NODES["hugepages"](machine) == {0: {}, 1: {}}
    assert len(machine.pci) == 5
    assert f"{small}/{N}/node0/distance: unreadable (Is a directory); distances left out" in machine.problems
    json.dumps(as_json(machine))


def test_a_link_to_nowhere_is_a_missing_file(small: Path, read: Read) -> None:
    path = small / N / "node0/distance"
    path.unlink()
    path.symlink_to("nowhere")
    assert read(small).problems == (f"{path}: missing; distances left out",)


def test_this_machine_is_read_without_failing() -> None:
    machine = scan()
    assert machine.online == tuple(sorted(cpuset.parse(Path("/sys/devices/system/cpu/online").read_text())))
    owned = sorted(cpu for node in machine.nodes for cpu in node.cpus)
    assert owned == [cpu.id for cpu in machine.cpus if cpu.node >= 0]
