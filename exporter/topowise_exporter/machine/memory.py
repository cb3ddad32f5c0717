"""Reads memory and hugepages of a NUMA node.

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

from topowise_exporter.machine.inventory import Access
from topowise_exporter.machine.numa_nodes import ROOT
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
