"""Who holds what, of `topowise.io/holdings`, as the model's placements."""

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
from topowise_scheduler.report.cpulists import cpu_set, nodes_of
from topowise_scheduler.report.nrt_report import Placements, PodName, ReportError

Devices = tuple[tuple[str, tuple[str, ...]], ...]

_FEW: Final = 4
# Of each kind; a real machine has so few types of memory, and a key has all of them.
_MANY: Final = 8192
_FEW_TYPES: Final = 8


class Known(NamedTuple):
    """What can be held: CPUs of the machine, and on its NUMA nodes memory of the types the memory manager has."""

    cpus: CpuSet
    nodes: tuple[int, ...]
    types: frozenset[str]


class Held(NamedTuple):
    """What each pod holds. `marks` has a number of eight bytes for the text of each, in their order; none if two pods
    share a name."""

    pods: Mapping[PodName, Placements]
    marks: bytes = b""


def held_by(text: str, known: Known, before: Held | None = None) -> Held:
    """What each pod holds. Raises ParseError, and ReportError for what such a machine cannot have.

    `before` is what was held on the same machine: a pod whose text is as it was then has the same placements, the very
    object. A mark is a keyed hash of the process, so nobody can make two texts of one.
    """
    texts = [*map(bytes, holdings.texts(text))]
    _check_few("pods", len(texts), budget.MAX_PODS)
    marks = array("q", map(hash, texts))
    same = {} if before is None else dict(zip(memoryview(before.marks).cast("q"), before.pods.items(), strict=True))
    pods = [same.get(mark) or _pod(text, known) for mark, text in zip(marks, texts, strict=True)]
    _check_few("containers", sum([len(placements) for _, placements in pods]), budget.MAX_CONTAINERS)
    found = dict(pods)
    if len(found) == len(pods):
        return Held(found, marks.tobytes())
    found.clear()
    for name, placements in pods:
        found[name] = _beside(found.get(name, {}), placements)
    return Held(found)


def _check_few(things: str, count: int, most: int) -> None:
    if count > most:
        raise ReportError(f"attribute {HOLDINGS}: {count} {things}, expected up to {most}")


def _pod(text: bytes, known: Known) -> tuple[PodName, Placements]:
    pod = holdings.pod(text)
    _check_few("containers of a pod", len(pod.containers), budget.MAX_CONTAINERS_OF_A_POD)
    # Pods have few namespaces.
    return (sys.intern(pod.namespace), pod.name), _placements(pod, known)


def _placements(pod: holdings.Pod, known: Known) -> Placements:
    # With pod-level resources the total is booked and the containers' blocks are only shares of it (KEP-5526), so the
    # total is all there is to give back.
    shares = bool(pod.own_memory)
    of_each = [
        _of_container(one.name, one.cpus, () if shares else one.memory, tuple(one.devices.items()), known)
        for one in pod.containers
    ]
    if len(of_each) == 1 and not pod.own_cpus and not shares:
        return of_each[0]
    placements = {name: placement for one in of_each for name, placement in one.items()}
    if pod.own_cpus or shares:
        placements[""] = _placement(pod.own_cpus, pod.own_memory, {}, known)
    return placements


def _of_container(
    name: str, cpus: str, blocks: tuple[holdings.Block, ...], devices: Devices, known: Known
) -> dict[str, Placement]:
    """What one container holds, by its name. Containers of a kind are called alike and hold alike, so it is shared."""
    length = len(name) + len(cpus) + sum([len(resource) + sum(map(len, ids)) for resource, ids in devices])
    if length > budget.MEMORABLE_HOLDING or len(blocks) > _FEW or len(known.types) > _FEW_TYPES:
        return _made.__wrapped__(name, cpus, blocks, devices, known)
    return _made(name, cpus, blocks, devices, known)


@lru_cache(maxsize=_MANY)
def _made(
    name: str, cpus: str, blocks: tuple[holdings.Block, ...], devices: Devices, known: Known
) -> dict[str, Placement]:
    return {name: _placement(cpus, blocks, dict(devices), known)}


def _placement(
    cpus: str, blocks: tuple[holdings.Block, ...], devices: Mapping[str, tuple[str, ...]], known: Known
) -> Placement:
    return Placement(
        kind="app",
        numa=None,
        preferred=False,
        cpus=cpu_set(cpus) & known.cpus if cpus else None,
        memory=tuple([_block_of(block, known) for block in blocks]) if blocks else (),
        devices=devices,
    )


def _block_of(block: holdings.Block, known: Known) -> MemoryBlock:
    length = len(block.type) + len(block.nodes)
    is_memorable = length <= budget.MEMORABLE_HOLDING and len(known.types) <= _FEW_TYPES
    return (_block if is_memorable else _block.__wrapped__)(block.type, block.nodes, block.size, known)


# Pods of a kind hold alike.
@lru_cache(maxsize=_MANY)
def _block(kind: str, text: str, size: int, known: Known) -> MemoryBlock:
    on = nodes_of(text, known.nodes)
    if size < 0 or not on or kind not in known.types:
        raise ReportError(
            f"attribute {HOLDINGS}: {size} bytes of {kind!r:.80} on NUMA nodes {text!r:.80}, "
            f"expected {', '.join(sorted(known.types)) or 'no type'} on some of {cpuset.spell(known.nodes)}"
        )
    return MemoryBlock(kind, on, size)


def _beside(one: Placements, other: Placements) -> Placements:
    """Two pods of one name, of which one is on its way out: both hold what they have."""
    if not one:
        return other
    both = dict(one)
    for name, placement in other.items():
        both[name if name not in both else f"{name} ({len(both)})"] = placement
    return both
