"""Memory and hugepages of a NUMA node.

`HugePages_Total` of a node's meminfo counts the default page size alone, so pages are read from the directory of each
size; `nr_hugepages` there includes surplus pages (Documentation/admin-guide/mm/hugetlbpage.rst). MemTotal includes the
hugepages. The directories are missing where hugetlb is not supported, for a size the CPU cannot map, and on some nodes
only; what the kernel does not count we do not invent, except that the only node of a machine has what the machine has.

How fast memory is, is told on machines with an ACPI HMAT only, as it is from the best initiators, which `access0`
names: there are no figures for other pairs of nodes. Units are nanoseconds and MiB/s, and 0 is what the firmware left
out (Documentation/admin-guide/mm/numaperf.rst).
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from topowise_exporter.machine.inventory import Access
from topowise_exporter.machine.numa_nodes import ROOT
from topowise_exporter.machine.sysfs import Tree

GLOBAL_HUGEPAGES = "kernel/mm/hugepages"

_MEM_TOTAL = re.compile(r"^(?:Node +[0-9]+ +)?MemTotal: *([0-9]{1,18}) kB", re.MULTILINE)
_SIZE = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)


class Hugepages(msgspec.Struct, frozen=True, gc=False):
    """Pages by their size in bytes; `total` includes `surplus`."""

    total: dict[int, int]
    free: dict[int, int]
    surplus: dict[int, int]


def read_mem_total(tree: Tree, path: str, instead: str) -> int | None:
    """MemTotal in bytes, of a node's meminfo or of /proc/meminfo."""
    text = tree.text(path, instead)
    if text is None:
        return None
    match = _MEM_TOTAL.search(text)
    if match is None:
        tree.tell(path, "has no line MemTotal", instead)
        return None
    return int(match[1]) * 1024


def read_node_memory(sysfs: Tree, procfs: Tree, node: int, *, is_only: bool) -> int:
    """MemTotal of a node; of the only node the machine's will do, and 0 if all else fails."""
    instead = "MemTotal of the machine is used" if is_only else "its memory counts as 0"
    amount = read_mem_total(sysfs, f"{ROOT}/node{node}/meminfo", instead)
    return read_machine_memory(procfs) if amount is None and is_only else amount or 0


def read_machine_memory(procfs: Tree) -> int:
    """MemTotal of the whole machine, 0 if it cannot be told."""
    return read_mem_total(procfs, "meminfo", "memory counts as 0") or 0


def read_node_hugepages(sysfs: Tree, node: int, *, is_only: bool) -> Hugepages:
    """All page sizes of a node; a node without the directory has none, unless it is the only one."""
    folder = f"{ROOT}/node{node}/hugepages"
    if sysfs.names(folder) is None and sysfs.names(GLOBAL_HUGEPAGES):
        instead = "the machine's hugepages are used" if is_only else "it counts as without hugepages"
        sysfs.tell(folder, f"missing, while {GLOBAL_HUGEPAGES} exists", instead)
        folder = GLOBAL_HUGEPAGES if is_only else folder
    return read_hugepages(sysfs, folder)


def read_hugepages(sysfs: Tree, folder: str) -> Hugepages:
    """All page sizes in a directory; a size whose total is unreadable is left out."""
    total: dict[int, int] = {}
    free: dict[int, int] = {}
    surplus: dict[int, int] = {}
    sizes = (match for name in sysfs.names(folder) or () if (match := _SIZE.fullmatch(name)))
    for size in sorted(sizes, key=lambda match: int(match[1])):
        path, page = f"{folder}/{size[0]}", int(size[1]) * 1024
        count = sysfs.integer(f"{path}/nr_hugepages", "pages of this size are left out")
        if count is None or count < 0:
            continue
        total[page] = count
        unused = sysfs.integer(f"{path}/free_hugepages", "all count as free")
        free[page] = count if unused is None else unused
        surplus[page] = sysfs.integer(f"{path}/surplus_hugepages", "none counts as surplus") or 0
    return Hugepages(total=total, free=free, surplus=surplus)


def read_access(sysfs: Tree, node: int, ids: Collection[int]) -> Access | None:
    """From where, and how fast, the node's memory is reached best; `ids` are the nodes there are."""
    folder = f"{ROOT}/node{node}/access0/initiators"
    latency, bandwidth = (sysfs.integer(f"{folder}/read_{what}") for what in ("latency", "bandwidth"))
    found = Access(
        initiators=tuple(other for other in sysfs.numbered(folder, "node") if other in ids),
        read_latency_ns=latency if latency is not None and latency > 0 else None,
        read_bandwidth_mib=bandwidth if bandwidth is not None and bandwidth > 0 else None,
    )
    return None if found == Access((), None, None) else found
