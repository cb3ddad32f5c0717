"""Reads the NUMA nodes, their distances, and which node owns which CPU.

Decisions, each for a machine that exists:
- The node directories are the nodes. `possible` also names hotplug windows; `has_cpu` and `has_memory` are empty or
  missing on some kernels.
- A distance row has a column per *online* node in ascending order, whatever the ids (drivers/base/node.c,
  `node_read_distance`). A kernel without a SLIT assumes 10/20 itself, so this module does the same when the kernel
  shows none.
- `cpulist` names online CPUs only, except on old kernels. Several nodes may list a CPU (`numa=fake`, firmware bugs).
  Then the links between node and CPU decide which node owns it, so that no CPU is counted twice.
Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from topowise.cpuset import to_text
from topowise_exporter.machine.sysfs import Tree

ROOT = "devices/system/node"

# include/linux/topology.h: LOCAL_DISTANCE and REMOTE_DISTANCE.
LOCAL = 10
_REMOTE = 20
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
    row = sysfs.text(path, f"{LOCAL} to itself and {_REMOTE} to every other node are assumed")
    if row is None:
        return {column: LOCAL if column == node else _REMOTE for column in ids}
    entries = row.split()
    if len(entries) != len(columns) or not all(map(_DISTANCE.fullmatch, entries)):
        sysfs.tell(path, f"{row[:80]!r} is not one number for each of {len(columns)} nodes", "distances left out")
        return {}
    return {column: int(entry) for column, entry in zip(columns, entries, strict=True) if column in ids}


def read_owners(sysfs: Tree, ids: tuple[int, ...], online: frozenset[int]) -> dict[int, int]:
    """Returns online CPU -> the node that owns it, without CPUs that no node lists."""
    listing = _read_cpu_lists(sysfs, ids, online)
    owners: dict[int, int] = {}
    orphans: list[int] = []
    for cpu in sorted(online):
        candidates = listing.get(cpu, [])
        owner = candidates[0] if len(candidates) == 1 else _linked_owner(sysfs, cpu, ids)
        if owner is None and candidates:
            owner = min(candidates)
        if owner is not None:
            owners[cpu] = owner
        else:
            orphans.append(cpu)
    if orphans:
        sysfs.tell(ROOT, f"no node names the online CPUs {to_text(orphans)}", "they are left out of every node")
    return owners


def _read_cpu_lists(sysfs: Tree, ids: tuple[int, ...], online: frozenset[int]) -> Mapping[int, list[int]]:
    nodes_of: dict[int, list[int]] = {}
    for node in ids:
        folder = f"{ROOT}/node{node}"
        listed = sysfs.cpus(f"{folder}/cpulist", masks=(f"{folder}/cpumap",), instead="the links to its CPUs are used")
        if listed is None:
            listed = online & frozenset(sysfs.numbered(folder, "cpu"))
        for cpu in listed:
            nodes_of.setdefault(cpu, []).append(node)
    return nodes_of


def _linked_owner(sysfs: Tree, cpu: int, ids: tuple[int, ...]) -> int | None:
    """Returns the owner by the link cpuN/nodeM, else by nodeM/cpuN."""
    linked = [node for node in sysfs.numbered(f"devices/system/cpu/cpu{cpu}", "node") if node in ids]
    linked = linked or [node for node in ids if sysfs.has(f"{ROOT}/node{node}/cpu{cpu}")]
    return min(linked, default=None)
