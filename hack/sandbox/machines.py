"""Bare-metal machines that do not exist: described in a few lines, written as the /sys and /proc a kernel would show.

The exporter, the demo and the tests read a machine from a root directory, so a folder is as good as a server. The tree
has what the exporter reads and what lstopo or a numactl-like reader expects (node, cpu and cache directories, both
spellings of every CPU set, hugepages per node and global, PCI devices under their host bridge with the links of
bus/pci, SR-IOV). Forms and widths are those of Linux 6.x: Documentation/admin-guide/cputopology.rst,
Documentation/ABI/stable/sysfs-devices-node, Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from topowise import cpuset

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE_2M, PAGE_1G = 2 * MIB, GIB

Numbering = Literal["blocks", "adjacent", "even-odd"]


class Node(msgspec.Struct, frozen=True):
    """A NUMA node of `cores` cores in a socket; without cores it is memory only (CXL, HBM)."""

    id: int
    memory_bytes: int
    socket: int = 0
    cores: int = 0
    hugepages: dict[int, int] = {}
    """Page size in bytes -> pages, all free."""


class Pci(msgspec.Struct, frozen=True):
    """A PCI function. `root_port` is the address of the bridge right above it (also a function of the machine), if any;
    it may be a port of a switch, with a bridge above it in turn."""

    address: str
    node: int | None
    class_code: str
    vendor: str
    device: str
    driver: str | None = None
    physfn: str | None = None
    root_port: str | None = None


class Machine(msgspec.Struct, frozen=True):
    """`distances[i][j]` is from the i-th to the j-th node; nodes ascend by id."""

    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    threads_per_core: int = 2
    numbering: Numbering = "blocks"
    """Ids of CPUs: "blocks" gives all first threads, then all second ones, node after node (most servers); "even-odd"
    does so with the sockets dealt in turn, node after node within each; "adjacent" keeps the threads of a core
    together (virtual machines)."""
    cores_per_l3: int | None = None
    """None: one L3 cache for the cores of a node. 0: no L3."""
    pci: tuple[Pci, ...] = ()
    offline: frozenset[int] = frozenset()


class Cpu(msgspec.Struct, frozen=True):
    """A hardware thread as laid out by `layout`, offline threads included."""

    id: int
    node: int
    socket: int
    core_id: int
    threads: tuple[int, ...]
    l3: tuple[int, ...] | None


def layout(machine: Machine) -> tuple[Cpu, ...]:
    """Returns every thread with its final id, by id."""
    cores = _cores(machine)
    groups: dict[tuple[int, int], list[int]] = {}
    for core in cores:
        groups.setdefault(core.l3, []).extend(core.threads)
    cpus = (
        Cpu(
            id=thread,
            node=core.node.id,
            socket=core.node.socket,
            core_id=core.core_id,
            threads=core.threads,
            l3=None if machine.cores_per_l3 == 0 else tuple(sorted(groups[core.l3])),
        )
        for core in cores
        for thread in core.threads
    )
    return tuple(sorted(cpus, key=lambda cpu: cpu.id))


class _Core(msgspec.Struct, frozen=True):
    node: Node
    core_id: int
    threads: tuple[int, ...]
    l3: tuple[int, int]


def _cores(machine: Machine) -> list[_Core]:
    """Returns the cores in the order in which they get their first thread."""
    order = [(node, index) for node in machine.nodes for index in range(node.cores)]
    before = {
        node.id: [earlier for earlier in machine.nodes[:rank] if earlier.socket == node.socket]
        for rank, node in enumerate(machine.nodes)
    }
    if machine.numbering == "even-odd":
        order.sort(key=lambda core: (core[1], len(before[core[0].id]), core[0].socket))
    width = machine.threads_per_core
    return [
        _Core(
            node=node,
            core_id=index + sum(earlier.cores for earlier in before[node.id]),
            threads=tuple(
                rank * width + thread if machine.numbering == "adjacent" else thread * len(order) + rank
                for thread in range(width)
            ),
            l3=(node.id, index // (machine.cores_per_l3 or node.cores)),
        )
        for rank, (node, index) in enumerate(order)
    ]


def root_port(address: str, node: int | None) -> Pci:
    """Returns a PCIe root port, to hang devices below."""
    return Pci(address, node, "0x060400", "0x8086", "0x347a", "pcieport")


def gpu(address: str, node: int | None, port: str) -> tuple[Pci, ...]:
    """Returns an H100 behind its own root port."""
    return root_port(port, node), Pci(address, node, "0x030200", "0x10de", "0x2330", "nvidia", root_port=port)


def nic(address: str, node: int | None, port: str, virtual_functions: int = 0) -> tuple[Pci, ...]:
    """Returns an E810 behind its own root port, with `virtual_functions` (at most 7: a device number)."""
    functions = (
        Pci(f"{address[:-1]}{number}", node, "0x020000", "0x8086", "0x1889", "vfio-pci", address, port)
        for number in range(1, virtual_functions + 1)
    )
    return root_port(port, node), Pci(address, node, "0x020000", "0x8086", "0x159b", "ice", root_port=port), *functions


def switch(port: str, upstream: str, downstream: Sequence[str], node: int | None) -> tuple[Pci, ...]:
    """A root port with a PCIe switch behind it: its upstream port, and its downstream ports to hang devices below."""
    ports = ((upstream, port), *((address, upstream) for address in downstream))
    return root_port(port, node), *(
        Pci(address, node, "0x060400", "0x1000", "0xc030", "pcieport", root_port=bridge) for address, bridge in ports
    )


def nvme(address: str, node: int | None, port: str) -> Pci:
    """Returns a disk."""
    return Pci(address, node, "0x010802", "0x144d", "0xa80a", "nvme", root_port=port)


two_socket = Machine(
    nodes=(
        Node(0, 64 * GIB, socket=0, cores=16, hugepages={PAGE_2M: 2048, PAGE_1G: 4}),
        Node(1, 64 * GIB, socket=1, cores=16, hugepages={PAGE_2M: 2048, PAGE_1G: 2}),
    ),
    distances=((10, 21), (21, 10)),
    pci=(
        *nic("0000:18:00.0", 0, "0000:17:00.0", virtual_functions=4),
        *gpu("0000:3b:00.0", 0, "0000:3a:00.0"),
        *nic("0000:98:00.0", 1, "0000:97:00.0", virtual_functions=4),
        *gpu("0000:bb:00.0", 1, "0000:ba:00.0"),
    ),
)

four_node_snc = Machine(
    nodes=(
        Node(0, 48 * GIB, socket=0, cores=8, hugepages={PAGE_2M: 1024, PAGE_1G: 8}),
        Node(1, 48 * GIB, socket=0, cores=8, hugepages={PAGE_2M: 512, PAGE_1G: 0}),
        Node(2, 48 * GIB, socket=1, cores=8, hugepages={PAGE_2M: 0, PAGE_1G: 4}),
        Node(3, 48 * GIB, socket=1, cores=8, hugepages={PAGE_2M: 256, PAGE_1G: 0}),
    ),
    distances=((10, 12, 21, 21), (12, 10, 21, 21), (21, 21, 10, 12), (21, 21, 12, 10)),
    numbering="even-odd",
    pci=(
        *gpu("0000:18:00.0", 0, "0000:17:00.0"),
        *gpu("0000:2b:00.0", 0, "0000:2a:00.0"),
        *gpu("0000:98:00.0", 2, "0000:97:00.0"),
        *gpu("0000:ab:00.0", 2, "0000:aa:00.0"),
    ),
)

four_node_uneven = Machine(
    nodes=(
        Node(0, 96 * GIB, socket=0, cores=8, hugepages={PAGE_2M: 1024}),
        Node(1, 64 * GIB, socket=1, cores=8, hugepages={PAGE_2M: 0}),
        Node(2, 32 * GIB, socket=2, cores=8, hugepages={PAGE_2M: 512}),
        Node(3, 16 * GIB, socket=3, cores=8, hugepages={PAGE_2M: 0}),
    ),
    distances=((10, 16, 24, 32), (16, 10, 16, 24), (24, 16, 10, 16), (32, 24, 16, 10)),
    pci=nic("0000:c8:00.0", 3, "0000:c7:00.0", virtual_functions=7),
)

two_node_cxl = Machine(
    nodes=(
        Node(0, 128 * GIB, socket=0, cores=12, hugepages={PAGE_2M: 512, PAGE_1G: 2}),
        Node(1, 128 * GIB, socket=1, cores=12, hugepages={PAGE_2M: 512, PAGE_1G: 2}),
        Node(2, 256 * GIB, hugepages={PAGE_2M: 0, PAGE_1G: 0}),
    ),
    distances=((10, 21, 14), (21, 10, 24), (14, 24, 10)),
    pci=(*nic("0000:18:00.0", 0, "0000:17:00.0"), *nic("0000:98:00.0", 1, "0000:97:00.0")),
)


class _Writer:
    """Files below a directory. Paths and link targets are relative to it; links are written relative, as in sysfs."""

    def __init__(self, root: Path, width: int) -> None:
        self.root = root
        self.width = width
        """Bits of a CPU mask: the number of possible CPUs."""
        self.folders: set[str] = set()

    def file(self, path: str, content: object) -> None:
        # A tree has hundreds of files, and many a test its own: a stream and a path for each cost more than the file.
        descriptor = os.open(self._parent(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(descriptor, f"{content}\n".encode("ascii"))
        finally:
            os.close(descriptor)

    def cpus(self, list_path: str, mask_path: str, members: Iterable[int]) -> None:
        chosen = sorted(members)
        self.file(list_path, cpuset.to_text(chosen))
        self.file(mask_path, _mask(chosen, self.width))

    def link(self, path: str, target: str) -> None:
        Path(self._parent(path)).symlink_to("../" * path.count("/") + target)

    def folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def _parent(self, path: str) -> str:
        """Makes the folder of a file; returns where the file is."""
        folder = path.rpartition("/")[0]
        if folder not in self.folders:
            self.folder(folder)
            self.folders.add(folder)
        return f"{self.root}/{path}"


def _mask(members: Iterable[int], width: int) -> str:
    """A bitmap as the kernel prints it: 32-bit words, highest first, the first as short as `width` bits allow."""
    digits = f"{sum(1 << member for member in members):0{-(-width // 4)}x}"
    head = len(digits) % 8
    words = [digits[:head]] * bool(head) + [digits[at : at + 8] for at in range(head, len(digits), 8)]
    return ",".join(words)


def write_tree(machine: Machine, root: Path | str) -> tuple[Path, Path]:
    """Writes `<root>/sys` and `<root>/proc` and returns both; nothing of a tree may be there yet."""
    cpus = layout(machine)
    sys, proc = (_Writer(Path(root) / name, len(cpus)) for name in ("sys", "proc"))
    online = [cpu for cpu in cpus if cpu.id not in machine.offline]
    _write_sets(sys, machine, cpus, online)
    for cpu in cpus:
        _write_cpu(sys, cpu, online)
    for node, row in zip(machine.nodes, machine.distances, strict=True):
        _write_node(sys, node, row, cpus, online)
    _write_pages(sys, machine)
    _write_pci(sys, machine, online)
    _write_proc(proc, machine, online)
    return sys.root, proc.root


def _write_sets(out: _Writer, machine: Machine, cpus: tuple[Cpu, ...], online: list[Cpu]) -> None:
    everything = cpuset.to_text(cpu.id for cpu in cpus)
    nodes = cpuset.to_text(node.id for node in machine.nodes)
    with_memory = cpuset.to_text(node.id for node in machine.nodes if node.memory_bytes)
    for path, content in {
        "cpu/possible": everything,
        "cpu/present": everything,
        "cpu/online": cpuset.to_text(cpu.id for cpu in online),
        "cpu/offline": cpuset.to_text(machine.offline),
        "cpu/isolated": "",
        "cpu/nohz_full": "  (null)",
        "cpu/kernel_max": "8191",
        "cpu/smt/active": str(int(machine.threads_per_core > 1)),
        "node/possible": nodes,
        "node/online": nodes,
        "node/has_cpu": cpuset.to_text(cpu.node for cpu in online),
        "node/has_memory": with_memory,
        "node/has_normal_memory": with_memory,
    }.items():
        out.file(f"devices/system/{path}", content)


def _write_cpu(out: _Writer, cpu: Cpu, online: list[Cpu]) -> None:
    folder = f"devices/system/cpu/cpu{cpu.id}"
    running = {running_cpu.id for running_cpu in online}
    out.link(f"{folder}/node{cpu.node}", f"devices/system/node/node{cpu.node}")
    out.link(f"bus/cpu/devices/cpu{cpu.id}", folder)
    if cpu.id:
        out.file(f"{folder}/online", int(cpu.id in running))
    if cpu.id not in running:
        return
    threads = running.intersection(cpu.threads)
    package = {sibling.id for sibling in online if sibling.socket == cpu.socket}
    for name, number in (("physical_package_id", cpu.socket), ("die_id", 0), ("core_id", cpu.core_id)):
        out.file(f"{folder}/topology/{name}", number)
    for name in ("core_cpus", "thread_siblings"):
        out.cpus(f"{folder}/topology/{name}_list", f"{folder}/topology/{name}", threads)
    for name in ("die_cpus", "package_cpus", "core_siblings"):
        out.cpus(f"{folder}/topology/{name}_list", f"{folder}/topology/{name}", package)
    caches = [(1, "Data", "48K", threads), (1, "Instruction", "32K", threads), (2, "Unified", "2048K", threads)]
    if cpu.l3 is not None:
        caches.append((3, "Unified", "32768K", running.intersection(cpu.l3)))
    for index, (level, kind, size, shared) in enumerate(caches):
        cache = f"{folder}/cache/index{index}"
        for name, value in {"level": level, "type": kind, "size": size, "id": min(shared)}.items():
            out.file(f"{cache}/{name}", value)
        out.cpus(f"{cache}/shared_cpu_list", f"{cache}/shared_cpu_map", shared)


def _write_node(out: _Writer, node: Node, row: tuple[int, ...], cpus: tuple[Cpu, ...], online: list[Cpu]) -> None:
    folder = f"devices/system/node/node{node.id}"
    out.link(f"bus/node/devices/node{node.id}", folder)
    out.cpus(f"{folder}/cpulist", f"{folder}/cpumap", (cpu.id for cpu in online if cpu.node == node.id))
    for cpu in cpus:
        if cpu.node == node.id:
            out.link(f"{folder}/cpu{cpu.id}", f"devices/system/cpu/cpu{cpu.id}")
    out.file(f"{folder}/distance", " ".join(map(str, row)))
    out.file(f"{folder}/meminfo", "\n".join(f"Node {node.id} {line}" for line in _meminfo((node,), "MemUsed")))
    out.file(f"{folder}/numastat", "\n".join(f"{name} 0" for name in ("numa_hit", "numa_miss", "numa_foreign")))
    for size, count in node.hugepages.items():
        for name, value in {"nr": count, "free": count, "surplus": 0}.items():
            out.file(f"{folder}/hugepages/hugepages-{size // KIB}kB/{name}_hugepages", value)


def _meminfo(nodes: Sequence[Node], third: Literal["MemUsed", "MemAvailable"]) -> list[str]:
    total = sum(node.memory_bytes for node in nodes)
    free = total - sum(size * count for node in nodes for size, count in node.hugepages.items())
    amounts = {"MemTotal": total, "MemFree": free, third: total - free if third == "MemUsed" else free}
    lines = [f"{name + ':':<15} {amount // KIB:>8} kB" for name, amount in amounts.items()]
    if any(node.hugepages for node in nodes):
        # Of the default size only, as in the kernel.
        default = sum(node.hugepages.get(PAGE_2M, 0) for node in nodes)
        lines += [
            f"HugePages_{name:<7} {count:>5}" for name, count in (("Total:", default), ("Free:", default), ("Surp:", 0))
        ]
    return lines


def _write_pages(out: _Writer, machine: Machine) -> None:
    for size in sorted({size for node in machine.nodes for size in node.hugepages}):
        total = sum(node.hugepages.get(size, 0) for node in machine.nodes)
        for name, value in {"nr": total, "free": total, "resv": 0, "surplus": 0, "nr_overcommit": 0}.items():
            out.file(f"kernel/mm/hugepages/hugepages-{size // KIB}kB/{name}_hugepages", value)


def _write_pci(out: _Writer, machine: Machine, online: list[Cpu]) -> None:
    out.folder("bus/pci/devices")
    places = {
        function.address: f"devices/{'/'.join((*above(machine, function), function.address))}"
        for function in machine.pci
    }
    for function in machine.pci:
        folder = places[function.address]
        out.link(f"bus/pci/devices/{function.address}", folder)
        out.link(f"{folder}/subsystem", "bus/pci")
        _write_attributes(out, folder, function, online)
        if function.driver is not None:
            out.link(f"bus/pci/drivers/{function.driver}/{function.address}", folder)
            out.link(f"{folder}/driver", f"bus/pci/drivers/{function.driver}")
        if function.physfn is not None:
            out.link(f"{folder}/physfn", places[function.physfn])
        virtual = [places[candidate.address] for candidate in machine.pci if candidate.physfn == function.address]
        if virtual:
            out.file(f"{folder}/sriov_totalvfs", len(virtual))
            out.file(f"{folder}/sriov_numvfs", len(virtual))
        for number, place in enumerate(virtual):
            out.link(f"{folder}/virtfn{number}", place)


def above(machine: Machine, function: Pci) -> tuple[str, ...]:
    """What is above a function in the tree of devices, host bridge first."""
    bridges = {function.address: function for function in machine.pci}
    chain: list[str] = []
    top = function
    while top.root_port is not None and len(chain) < len(bridges):
        chain.append(top.root_port)
        # A port that is only named hangs on the root bus itself.
        top = bridges.get(top.root_port, Pci(top.root_port, None, "0x060400", "", ""))
    return f"pci{top.address.rpartition(':')[0]}", *reversed(chain)


def _write_attributes(out: _Writer, folder: str, function: Pci, online: list[Cpu]) -> None:
    out.file(f"{folder}/class", function.class_code)
    out.file(f"{folder}/vendor", function.vendor)
    out.file(f"{folder}/device", function.device)
    out.file(f"{folder}/numa_node", -1 if function.node is None else function.node)
    # Without affinity the kernel names all online CPUs as local.
    local = (cpu.id for cpu in online if function.node is None or cpu.node == function.node)
    out.cpus(f"{folder}/local_cpulist", f"{folder}/local_cpus", local)


def _write_proc(out: _Writer, machine: Machine, online: list[Cpu]) -> None:
    lines = _meminfo(machine.nodes, "MemAvailable")
    if any(node.hugepages for node in machine.nodes):
        lines.append(f"Hugepagesize:   {PAGE_2M // KIB:>8} kB")
    out.file("meminfo", "\n".join(lines))
    processors = (
        f"processor\t: {cpu.id}\nvendor_id\t: GenuineIntel\nphysical id\t: {cpu.socket}\ncore id\t\t: {cpu.core_id}\n"
        for cpu in online
    )
    out.file("cpuinfo", "\n".join(processors))
    out.file("cmdline", "quiet")
