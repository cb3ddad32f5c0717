"""The memory of each zone in shares, from the state of the memory manager.

The manager knows the allocated bytes of a zone, and every pod's blocks on *sets* of zones. A block on a single zone is
that pod's share there. The rest belongs to the pods with blocks on several zones: a share of the pod, or a common share
of several pods.
"""

from __future__ import annotations

from collections.abc import Sequence

from topowise_scheduler.explain.picture.allocations import Holdings
from topowise_scheduler.explain.picture.contents import Block, Memory, Share
from topowise_scheduler.kubelet import Kubelet, NumaNode, memory_manager
from topowise_scheduler.kubelet.machine import hugepages_resource


def by_zone(kubelet: Kubelet, nodes: Sequence[NumaNode], allocated: Holdings) -> tuple[tuple[Memory, ...], ...]:
    """The memory of each zone by position, all types in all zones.

    Empty if neither the manager nor `nodes`, which are in the same order, have amounts.
    """
    if kubelet.memory is not None:
        types = kubelet.memory.policy.total
        return tuple(
            tuple([_managed(kubelet.memory, allocated, name, position) for name in types])
            for position in range(len(kubelet.node_ids))
        )
    sizes = tuple(dict.fromkeys(size for node in nodes for size in node.hugepages))
    return tuple(_unmanaged(node, sizes) for node in nodes) or tuple(() for _ in kubelet.node_ids)


def group(kubelet: Kubelet, position: int) -> tuple[int, ...]:
    """Ids of the zones in its memory group, itself included; empty without a group."""
    if kubelet.memory is None:
        return ()
    cells = kubelet.memory.tables.cells[position]
    return kubelet.ids(cells) if cells.bit_count() > 1 else ()


def block_of(kubelet: Kubelet, block: memory_manager.Block) -> Block:
    """The block with zone ids."""
    return Block(block.type, kubelet.ids(block.mask), block.size)


def _managed(manager: memory_manager.MemoryManager, allocated: Holdings, name: str, position: int) -> Memory:
    policy, tables = manager.policy, manager.tables
    total, free = policy.total[name][position], tables.free[name][position]
    reserved = min(total, policy.system_reserved[position].get(name, 0))
    hugepages = max(0, total - reserved - policy.allocatable[name][position])
    taken = _taken(allocated, name, position, max(0, total - reserved - hugepages - free))
    shares = [Share("reserved", reserved), Share("hugepages", hugepages), *taken, Share("free", max(0, free))]
    return Memory(name, total, tuple([share for share in shares if share.size]))


def _taken(allocated: Holdings, name: str, position: int, left: int) -> list[Share]:
    shares = []
    joined: dict[int | None, None] = {}
    for owner, block in allocated.memory:
        if block.type != name or not block.mask >> position & 1:
            continue
        if block.mask.bit_count() > 1:
            joined[owner] = None
            continue
        size = min(left, block.size)
        left -= size
        shares.append(Share("held", size, _known(owner)))
    if left:
        shares.append(
            Share("held", left, () if None in joined else tuple(owner for owner in joined if owner is not None))
        )
    return shares


def _known(owner: int | None) -> tuple[int, ...]:
    return () if owner is None else (owner,)


def _unmanaged(node: NumaNode, sizes: tuple[int, ...]) -> tuple[Memory, ...]:
    hugepages = {size: node.hugepages.get(size, 0) * size * 1024 for size in sizes}
    reserved = min(node.memory, sum(hugepages.values()))
    shares = [share for share in (Share("hugepages", reserved), Share("shared", node.memory - reserved)) if share.size]
    return (
        Memory("memory", node.memory, tuple(shares)),
        *(
            Memory(hugepages_resource(size), total, (Share("shared", total),) if total else ())
            for size, total in hugepages.items()
        ),
    )
