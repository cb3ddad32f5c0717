"""Parses `topowise.io/holdings`, the allocations of all pods, into the model's placements."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from topowise import cpuset
from topowise.attributes import HOLDINGS, holdings
from topowise_scheduler.kubelet import MemoryBlock, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.report import budget
from topowise_scheduler.report.nrt_report import Placements, PodName, ReportError
from topowise_scheduler.report.texts import cpu_set, nodes_of

Devices = tuple[tuple[str, tuple[str, ...]], ...]

_MAX_CACHED_BLOCKS: Final = 4
# Entries of each cache. A key contains all memory types of the machine, so machines with more types are not cached.
_CACHE_SIZE: Final = 8192
_MAX_CACHED_TYPES: Final = 8


class Allocatable(NamedTuple):
    """What containers can have: the machine's CPUs, and memory of the memory manager's types on its NUMA nodes."""

    cpus: CpuSet
    nodes: tuple[int, ...]
    types: frozenset[str]


class Allocations(NamedTuple):
    """The allocations of each pod. `marks` has a hash of eight bytes per pod's text, in order; none for equal names."""

    pods: Mapping[PodName, Placements]
    marks: bytes = b""


def allocations_of(text: str, machine: Allocatable, before: Allocations | None = None) -> Allocations:
    """Returns the allocations of each pod. Raises ParseError, and ReportError for a resource that the machine lacks.

    `before` are the allocations of the same machine in the previous report. A pod with unchanged text keeps its
    placements, the very object. A mark is a keyed hash of the process, so a client cannot craft a collision.
    """
    texts = [*map(bytes, holdings.texts(text))]
    _check_few("pods", len(texts), budget.MAX_PODS)
    marks = array("q", map(hash, texts))
    known = before or Allocations({})
    # By mark: comparing eight bytes per pod costs less than parsing its text.
    unchanged = dict(zip(memoryview(known.marks).cast("q"), known.pods.items(), strict=True))
    pods = [unchanged.get(mark) or _pod(text, machine) for mark, text in zip(marks, texts, strict=True)]
    _check_few("containers", sum([len(placements) for _, placements in pods]), budget.MAX_CONTAINERS)
    by_name = dict(pods)
    if len(by_name) == len(pods):
        return Allocations(by_name, marks.tobytes())
    by_name.clear()
    # A terminating pod and its successor may share a name: then both keep their allocations.
    for name, placements in pods:
        by_name[name] = _side_by_side(by_name.get(name, {}), placements)
    return Allocations(by_name)


def _check_few(noun: str, count: int, limit: int) -> None:
    """Raises ReportError above a limit."""
    if count > limit:
        raise ReportError(f"attribute {HOLDINGS}: {count} {noun}, expected up to {limit}")


def _pod(text: bytes, machine: Allocatable) -> tuple[PodName, Placements]:
    pod = holdings.pod(text)
    _check_few("containers of a pod", len(pod.containers), budget.MAX_CONTAINERS_OF_A_POD)
    # Interned: a cluster has few namespaces.
    return (sys.intern(pod.namespace), pod.name), _placements(pod, machine)


def _placements(pod: holdings.Pod, machine: Allocatable) -> Placements:
    # With pod-level resources the kubelet books the pod's total, and the containers' blocks are shares of it
    # (KEP-5526). So only the total can be released.
    shares = bool(pod.own_memory)
    by_container = [
        _of_container(part.name, part.cpus, () if shares else part.memory, tuple(part.devices.items()), machine)
        for part in pod.containers
    ]
    if len(by_container) == 1 and not pod.own_cpus and not shares:
        return by_container[0]
    placements = {name: placement for container in by_container for name, placement in container.items()}
    if pod.own_cpus or shares:
        placements[""] = _placement(pod.own_cpus, pod.own_memory, {}, machine)
    return placements


def _of_container(
    name: str, cpus: str, blocks: tuple[holdings.Block, ...], devices: Devices, machine: Allocatable
) -> dict[str, Placement]:
    """Returns the allocation of a container, by its name. Equal allocations and names share an object."""
    length = len(name) + len(cpus) + sum([len(resource) + sum(map(len, ids)) for resource, ids in devices])
    if length > budget.MEMORABLE_HOLDING or len(blocks) > _MAX_CACHED_BLOCKS or len(machine.types) > _MAX_CACHED_TYPES:
        return _cached_placement.__wrapped__(name, cpus, blocks, devices, machine)
    return _cached_placement(name, cpus, blocks, devices, machine)


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_placement(
    name: str, cpus: str, blocks: tuple[holdings.Block, ...], devices: Devices, machine: Allocatable
) -> dict[str, Placement]:
    return {name: _placement(cpus, blocks, dict(devices), machine)}


def _placement(
    cpus: str, blocks: tuple[holdings.Block, ...], devices: Mapping[str, tuple[str, ...]], machine: Allocatable
) -> Placement:
    return Placement(
        # The podresources API shows neither the kind of a container nor its hint.
        kind="app",
        numa=None,
        preferred=False,
        # CPUs that the machine lacks, such as offline CPUs, are ignored.
        cpus=cpu_set(cpus) & machine.cpus if cpus else None,
        memory=tuple([_block_of(block, machine) for block in blocks]) if blocks else (),
        devices=devices,
    )


def _block_of(block: holdings.Block, machine: Allocatable) -> MemoryBlock:
    length = len(block.type) + len(block.nodes)
    is_memorable = length <= budget.MEMORABLE_HOLDING and len(machine.types) <= _MAX_CACHED_TYPES
    return (_cached_block if is_memorable else _cached_block.__wrapped__)(block.type, block.nodes, block.size, machine)


# Pods of a workload have equal blocks.
@lru_cache(maxsize=_CACHE_SIZE)
def _cached_block(kind: str, text: str, size: int, machine: Allocatable) -> MemoryBlock:
    nodes = nodes_of(text, machine.nodes)
    if size < 0 or not nodes or kind not in machine.types:
        raise ReportError(
            f"attribute {HOLDINGS}: {size} bytes of {kind!r:.80} on NUMA nodes {text!r:.80}, "
            f"expected {', '.join(sorted(machine.types)) or 'no type'} on some of {cpuset.to_text(machine.nodes)}"
        )
    return MemoryBlock(kind, nodes, size)


def _side_by_side(first: Placements, second: Placements) -> Placements:
    """Returns the allocations of two pods with the same name: a terminating pod and its successor."""
    if not first:
        return second
    both = dict(first)
    for name, placement in second.items():
        both[name if name not in both else f"{name} ({len(both)})"] = placement
    return both
