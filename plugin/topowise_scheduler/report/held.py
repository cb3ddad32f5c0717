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
from topowise_scheduler.report.model import Placements, PodName, ReportError
from topowise_scheduler.report.sets import cpu_set, nodes_of

Devices = tuple[tuple[str, tuple[str, ...]], ...]

# What a hostile report says of a container is longer, and is not remembered for others: 16,384 times so many bytes.
_MEMORABLE: Final = 512
_FEW: Final = 4


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
    marks = array("q", map(hash, texts))
    same = {} if before is None else dict(zip(memoryview(before.marks).cast("q"), before.pods.items(), strict=True))
    pods = [same.get(mark) or _pod(text, known) for mark, text in zip(marks, texts, strict=True)]
    found = dict(pods)
    if len(found) == len(pods):
        return Held(found, marks.tobytes())
    found.clear()
    for name, placements in pods:
        found[name] = _beside(found.get(name, {}), placements)
    return Held(found)


def _pod(text: bytes, known: Known) -> tuple[PodName, Placements]:
    pod = holdings.pod(text)
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
    if length > _MEMORABLE or len(blocks) > _FEW:
        return _made.__wrapped__(name, cpus, blocks, devices, known)
    return _made(name, cpus, blocks, devices, known)


@lru_cache(maxsize=16384)
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
        memory=tuple([_block(block.type, block.nodes, block.size, known) for block in blocks]) if blocks else (),
        devices=devices,
    )


# Pods of a kind hold alike.
@lru_cache(maxsize=16384)
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
