"""Scans the whole machine from the two roots /sys and /proc.

A scan never fails for a part: a missing or damaged file becomes a line in `problems` and a default value. Only a root
without a single CPU is refused, because it is a wrong path. A kernel without NUMA (s390x, 32-bit, CONFIG_NUMA=n) has no
node directory. It gets a node 0 with all CPUs and all memory, as in the kubelet.
"""

from __future__ import annotations

from typing import Final

from topowise.errors import SourceError
from topowise_exporter.machine import cpus, memory, numa_nodes, pci_functions, pci_names
from topowise_exporter.machine.inventory import Cpu, Machine, NumaNode
from topowise_exporter.machine.sysfs import Tree

_LONGEST_BOOT_ID: Final = 64


def read_boot_id(procfs_root: str = "/proc") -> str:
    """Returns the kernel's id of the present boot, "" if it cannot be read."""
    return (Tree(procfs_root, []).text("sys/kernel/random/boot_id") or "").strip()[:_LONGEST_BOOT_ID]


def scan(sysfs_root: str = "/sys", procfs_root: str = "/proc") -> Machine:
    """Returns the machine's present state. Raises SourceError if there is no CPU below `sysfs_root`."""
    problems: list[str] = []
    sysfs, procfs = Tree(sysfs_root, problems), Tree(procfs_root, problems)
    sets = cpus.read_sets(sysfs)
    if not sets.online:
        raise SourceError(f"{sysfs.root}/{cpus.ROOT}", "names no CPU; expected the root of a mounted sysfs")
    ids, columns = numa_nodes.read_ids(sysfs)
    if ids:
        owners = numa_nodes.read_owners(sysfs, ids, sets.online)
    else:
        sysfs.tell(numa_nodes.ROOT, "has no node", "one node 0 with all CPUs and all memory is assumed")
        owners = dict.fromkeys(sets.online, 0)
    described = cpus.read(sysfs, sets.online, owners)
    node_list = tuple(_read_node(sysfs, procfs, node, ids, columns, described) for node in ids or (0,))
    return Machine(
        nodes=node_list,
        cpus=described,
        pci=pci_functions.read(sysfs, {node.id for node in node_list}),
        pci_names=pci_names.read(sysfs, procfs),
        online=tuple(sorted(sets.online)),
        present=tuple(sorted(sets.present)),
        possible=tuple(sorted(sets.possible)),
        offline=tuple(sorted(sets.offline)),
        isolated=tuple(sorted(sets.isolated)),
        problems=tuple(problems),
    )


def _read_node(
    sysfs: Tree, procfs: Tree, node: int, ids: tuple[int, ...], columns: tuple[int, ...], described: tuple[Cpu, ...]
) -> NumaNode:
    own_cpus = [cpu for cpu in described if cpu.node == node]
    return NumaNode(
        id=node,
        cpus=tuple(cpu.id for cpu in own_cpus),
        memory_bytes=memory.read_node_memory(sysfs, procfs, node, ids),
        hugepages=memory.read_hugepages(sysfs, node, ids),
        distances=numa_nodes.read_distances(sysfs, node, ids, columns) if ids else {0: numa_nodes.LOCAL},
        sockets=tuple(sorted({cpu.socket for cpu in own_cpus})),
        access=memory.read_access(sysfs, node, ids),
    )
