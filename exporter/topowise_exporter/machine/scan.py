"""Scans the whole machine from the two roots /sys and /proc, and writes it as the JSON of `topowise-exporter machine`.

A scan never fails for a part: a missing or damaged file becomes a line in `problems` and a default value. Only a root
without a single CPU is refused, because it is a wrong path. A kernel without NUMA (32-bit, CONFIG_NUMA=n) has no node
directory. There each package is a NUMA node without memory, hugepages and distances, as in the kubelet (cAdvisor
utils/sysinfo, getCPUTopology).

Other tools run the command, so the JSON structure is stable: lists ascend, object keys are decimal text, and a PCI
function without affinity has `numa_node` -1 as the kernel prints it. Problems go to stderr instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topowise.errors import SourceError
from topowise_exporter.machine import cpus, numa_nodes, pci_functions
from topowise_exporter.machine.inventory import Cpu, Machine, NumaNode
from topowise_exporter.machine.sysfs import Tree

_LONGEST_BOOT_ID: Final = 64


def as_json(machine: Machine) -> dict[str, Any]:
    """Returns plain dicts and lists for any JSON or YAML writer."""
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(machine))
    for node in whole["nodes"]:
        del node["access"]
    for function in whole["pci"]:
        function["numa_node"] = -1 if function["numa_node"] is None else function["numa_node"]
    sets = {name: whole[name] for name in ("online", "present", "possible", "offline", "isolated")}
    return {
        "nodes": whole["nodes"],
        "cpus": {**sets, "topology": {str(cpu.pop("id")): cpu for cpu in whole["cpus"]}},
        "pci": whole["pci"],
        "memory_bytes": machine.memory_bytes,
    }


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
    numbers = cpus.read_ids(sysfs, sets.online)
    ids, columns = numa_nodes.read_ids(sysfs)
    owners = numa_nodes.read_owners(sysfs, ids, sets.online) if ids else _packages(sysfs, numbers, sets.online)
    if numbers:
        owners = {cpu: node for cpu, node in owners.items() if cpu in numbers}
    described = cpus.read(sysfs, sets.online, numbers, owners)
    node_list = tuple(
        _read_node(sysfs, node, ids, columns, described) if ids else _package(node, described)
        for node in ids or sorted(set(owners.values()))
    )
    return Machine(
        nodes=node_list,
        cpus=described,
        pci=pci_functions.read(sysfs, {node.id for node in node_list}),
        memory_bytes=numa_nodes.read_mem_total(procfs, "meminfo"),
        pci_names=pci_functions.read_names(sysfs, procfs),
        online=tuple(sorted(sets.online)),
        present=tuple(sorted(sets.present)),
        possible=tuple(sorted(sets.possible)),
        offline=tuple(sorted(sets.offline)),
        isolated=tuple(sorted(sets.isolated)),
        problems=tuple(problems),
    )


def _packages(sysfs: Tree, numbers: Mapping[int, cpus.Ids], online: frozenset[int]) -> dict[int, int]:
    """Returns the NUMA node of each CPU on a kernel without NUMA: its package. An unknown package is node 0."""
    sysfs.tell(numa_nodes.ROOT, "has no node", "each package counts as a NUMA node without memory, as in the kubelet")
    return {cpu: max(0, numbers[cpu].socket) if cpu in numbers else 0 for cpu in online}


def _package(node: int, described: tuple[Cpu, ...]) -> NumaNode:
    own_cpus = [cpu for cpu in described if cpu.node == node]
    return NumaNode(
        id=node,
        cpus=tuple(cpu.id for cpu in own_cpus),
        memory_bytes=0,
        hugepages={},
        distances={},
        sockets=tuple(sorted({cpu.socket for cpu in own_cpus})),
    )


def _read_node(
    sysfs: Tree, node: int, ids: tuple[int, ...], columns: tuple[int, ...], described: tuple[Cpu, ...]
) -> NumaNode:
    return msgspec.structs.replace(
        _package(node, described),
        memory_bytes=numa_nodes.read_mem_total(sysfs, f"{numa_nodes.ROOT}/node{node}/meminfo"),
        hugepages=numa_nodes.read_hugepages(sysfs, node),
        distances=numa_nodes.read_distances(sysfs, node, ids, columns),
        access=numa_nodes.read_access(sysfs, node, ids),
    )
