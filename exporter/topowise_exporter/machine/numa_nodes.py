"""Reads the NUMA nodes, their distances, and which node owns which CPU.

Decisions, each for a machine that exists:
- The node directories are the nodes. `possible` also names hotplug windows; `has_cpu` and `has_memory` are empty or
  missing on some kernels.
- A distance row has a column per *online* node in ascending order, whatever the ids (drivers/base/node.c,
  `node_read_distance`). A kernel without a SLIT assumes 10/20 itself. A missing file is a missing row, as for cAdvisor.
- The links from a node to its CPUs decide which node owns a CPU: cAdvisor reads nothing else. `cpulist` is the
  fallback for a tree without links; several nodes may list a CPU (`numa=fake`, firmware bugs). If several nodes own a
  CPU, the kubelet keeps the last by the order of the directories' names.
Documentation/ABI/stable/sysfs-devices-node.

Reads memory and hugepages of a NUMA node.

`HugePages_Total` of a node's meminfo counts the default page size only, so pages are read from the directory of each
size; `nr_hugepages` there includes surplus pages (Documentation/admin-guide/mm/hugetlbpage.rst). MemTotal includes the
hugepages. The directories are missing without hugetlb support, for a size that the CPU cannot map, and on some nodes
only. Pages and memory that the kernel does not count on a node are not assumed there: cAdvisor does not either.

Access speed is known only on machines with an ACPI HMAT, and only from the best initiators, which `access0` names.
Units are nanoseconds and MiB/s, and 0 means that the firmware left the value out
(Documentation/admin-guide/mm/numaperf.rst).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from topowise.cpuset import to_text
from topowise_exporter.machine.inventory import Access
from topowise_exporter.machine.sysfs import Tree

_GLOBAL_HUGEPAGES = "kernel/mm/hugepages"

_MEM_TOTAL = re.compile(r"^(?:Node +[0-9]+ +)?MemTotal: *([0-9]{1,18}) kB", re.MULTILINE)
_SIZE = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)


def read_mem_total(tree: Tree, path: str) -> int:
    """Returns MemTotal in bytes from a node's meminfo or /proc/meminfo, 0 if it cannot be read."""
    instead = "memory counts as 0"
    text = tree.text(path, instead)
    if text is None:
        return 0
    match = _MEM_TOTAL.search(text)
    if match is None:
        tree.tell(path, "has no line MemTotal", instead)
        return 0
    return int(match[1]) * 1024


def read_hugepages(sysfs: Tree, node: int) -> dict[int, int]:
    """Returns the pages of a node, including surplus pages, by page size in bytes. A size without a readable total is
    left out. A node without the directory has no pages."""
    folder = f"{ROOT}/node{node}/hugepages"
    if sysfs.names(folder) is None and sysfs.names(_GLOBAL_HUGEPAGES):
        sysfs.tell(folder, f"missing, while {_GLOBAL_HUGEPAGES} exists", "it counts as without hugepages")
    pages: dict[int, int] = {}
    sizes = (match for name in sysfs.names(folder) or () if (match := _SIZE.fullmatch(name)))
    for size in sorted(sizes, key=lambda match: int(match[1])):
        count = sysfs.integer(f"{folder}/{size[0]}/nr_hugepages", "pages of this size are left out")
        if count is not None and count >= 0:
            pages[int(size[1]) * 1024] = count
    return pages


def read_access(sysfs: Tree, node: int, ids: Collection[int]) -> Access | None:
    """Returns the initiators with the best access to the node's memory, and its speed; `ids` are all nodes."""
    folder = f"{ROOT}/node{node}/access0/initiators"
    latency, bandwidth = (sysfs.integer(f"{folder}/read_{what}") for what in ("latency", "bandwidth"))
    access = Access(
        initiators=tuple(initiator for initiator in sysfs.numbered(folder, "node") if initiator in ids),
        read_latency_ns=latency if latency is not None and latency > 0 else None,
        read_bandwidth_mib=bandwidth if bandwidth is not None and bandwidth > 0 else None,
    )
    return None if access == Access((), None, None) else access


ROOT = "devices/system/node"

_DISTANCE = re.compile(r"[0-9]{1,9}")


def read_ids(sysfs: Tree) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the node ids, and the ids of the columns of their distance rows; both empty on a kernel without NUMA."""
    directories = sysfs.numbered(ROOT, "node")
    if not directories:
        return (), ()
    online = sorted(sysfs.cpus(f"{ROOT}/online") or directories)
    if online == directories:
        return tuple(directories), tuple(directories)
    both = sorted(set(online) & set(directories)) or directories
    what = f"names nodes {to_text(online)}, but there are directories of {to_text(directories)}"
    sysfs.tell(f"{ROOT}/online", what, f"nodes {to_text(both)} are used")
    return tuple(both), tuple(online)


def read_distances(sysfs: Tree, node: int, ids: tuple[int, ...], columns: tuple[int, ...]) -> dict[int, int]:
    """Returns node id -> distance from `node`; empty if the row does not match the nodes."""
    path = f"{ROOT}/node{node}/distance"
    row = sysfs.text(path, "distances left out")
    if row is None:
        return {}
    entries = row.split()
    if len(entries) != len(columns) or not all(map(_DISTANCE.fullmatch, entries)):
        sysfs.tell(path, f"{row[:80]!r} is not one number for each of {len(columns)} nodes", "distances left out")
        return {}
    return {column: int(entry) for column, entry in zip(columns, entries, strict=True) if column in ids}


def read_owners(sysfs: Tree, ids: tuple[int, ...], online: frozenset[int]) -> dict[int, int]:
    """Returns online CPU -> the node that owns it, without CPUs that no node lists."""
    linked = {node: online & frozenset(sysfs.numbered(f"{ROOT}/node{node}", "cpu")) for node in ids}
    if not any(linked.values()):
        linked = {node: online & _listed_cpus(sysfs, node) for node in ids}
    owners = {cpu: node for node in sorted(ids, key=str) for cpu in linked[node]}
    orphans = online - owners.keys()
    if orphans:
        sysfs.tell(ROOT, f"no node names the online CPUs {to_text(orphans)}", "they are left out of every node")
    return owners


def _listed_cpus(sysfs: Tree, node: int) -> frozenset[int]:
    folder = f"{ROOT}/node{node}"
    instead = "it counts as without CPUs"
    return sysfs.cpus(f"{folder}/cpulist", masks=(f"{folder}/cpumap",), instead=instead) or frozenset()
