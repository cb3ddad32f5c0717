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
"""

from __future__ import annotations

import re

from topowise.cpuset import to_text
from topowise_exporter.machine.sysfs import Tree

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
