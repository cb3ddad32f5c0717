"""The memory of each zone in shares, from the state of the memory manager.

It knows how much of a zone is held, and every pod's blocks on *sets* of zones. A block on one zone is that pod's
share there. What is held beyond these is of the pods with blocks on several zones: the share of the one pod, or
of all of them together if there are more.
"""

from __future__ import annotations

from collections.abc import Sequence

from topowise_scheduler.kubelet import Kubelet, NumaNode, memory_manager
from topowise_scheduler.kubelet.machine import hugepages_resource
from topowise_scheduler.presentation.picture.allocations import Holdings
from topowise_scheduler.presentation.picture.contents import Block, Memory, Share


def by_zone(kubelet: Kubelet, nodes: Sequence[NumaNode], held: Holdings) -> tuple[tuple[Memory, ...], ...]:
    """At a zone's position its memory, all types in all zones; nothing if neither manager nor `nodes`, which are in the
    same order, tell of any."""
    if kubelet.memory is not None:
        types = kubelet.memory.policy.total
        return tuple(
            tuple([_managed(kubelet.memory, held, name, position) for name in types])
            for position in range(len(kubelet.node_ids))
        )
    sizes = tuple(dict.fromkeys(size for node in nodes for size in node.hugepages))
    return tuple(_unmanaged(node, sizes) for node in nodes) or tuple(() for _ in kubelet.node_ids)


def group(kubelet: Kubelet, position: int) -> tuple[int, ...]:
    """The zone ids whose memory the zone's is joined with, itself too; empty if it is on its own."""
    if kubelet.memory is None:
        return ()
    cells = kubelet.memory.tables.cells[position]
    return kubelet.ids(cells) if cells.bit_count() > 1 else ()


def block_of(kubelet: Kubelet, block: memory_manager.Block) -> Block:
    """The block with zone ids."""
    return Block(block.type, kubelet.ids(block.mask), block.size)


def _managed(manager: memory_manager.MemoryManager, held: Holdings, name: str, position: int) -> Memory:
    policy, tables = manager.policy, manager.tables
    total, free = policy.total[name][position], tables.free[name][position]
    reserved = min(total, policy.system_reserved[position].get(name, 0))
    hugepages = max(0, total - reserved - policy.allocatable[name][position])
    taken = _taken(held, name, position, max(0, total - reserved - hugepages - free))
    shares = [Share("reserved", reserved), Share("hugepages", hugepages), *taken, Share("free", max(0, free))]
    return Memory(name, total, tuple([share for share in shares if share.size]))


def _taken(held: Holdings, name: str, position: int, left: int) -> list[Share]:
    shares = []
    joined: dict[int | None, None] = {}
    for owner, block in held.memory:
        if block.type != name or not block.mask >> position & 1:
            continue
        if block.mask.bit_count() > 1:
            joined[owner] = None
            continue
        size = min(left, block.size)
        left -= size
        shares.append(Share("held", size, _known(owner)))
    if left:
        shares.append(Share("held", left, () if None in joined else tuple(one for one in joined if one is not None)))
    return shares


def _known(owner: int | None) -> tuple[int, ...]:
    return () if owner is None else (owner,)


def _unmanaged(node: NumaNode, sizes: tuple[int, ...]) -> tuple[Memory, ...]:
    hugepages = {size: node.hugepages.get(size, 0) * size * 1024 for size in sizes}
    made = min(node.memory, sum(hugepages.values()))
    shares = [share for share in (Share("hugepages", made), Share("shared", node.memory - made)) if share.size]
    return (
        Memory("memory", node.memory, tuple(shares)),
        *(
            Memory(hugepages_resource(size), total, (Share("shared", total),) if total else ())
            for size, total in hugepages.items()
        ),
    )
