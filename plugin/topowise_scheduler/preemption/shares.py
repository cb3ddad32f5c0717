"""Who holds how much of what a pod wants, per NUMA node: where evicting helps, in whole 1/UNIT of the pod's wish.

These numbers only say in which order sets are tried, the model decides. So they may be rough: memory on several nodes
counts as spread evenly, containers that share CPUs count them once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from topowise.pods import Amounts
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import Mask, mask_of, members, sized_submasks, sums
from topowise_scheduler.kubelet.pod import PodView, device_requests
from topowise_scheduler.preemption.roster import PodSet, Roster

UNIT: Final = 1 << 20


class Shares:
    """The shares of the roster's pods. `node` is the node as it is; `base` has the proposed pods gone already."""

    def __init__(self, node: Kubelet, base: Kubelet, pod: PodView, roster: Roster) -> None:
        positions = range(len(node.node_ids))
        self.everywhere: Mask = (1 << len(node.node_ids)) - 1
        wanted = _wanted(node, pod)
        missing = _missing(base, pod)
        self._roster = roster
        self._held = [_held(node, one.uid, wanted) for one in roster.pods]
        self._anywhere = [_relief(node, one.uid, missing) for one in roster.pods]
        self._free = sums([_share(_free(base, position), wanted) for position in positions])
        self.spread: tuple[Mask, ...] = tuple(
            [mask_of(position for position in positions if held[position]) for held in self._held]
        )
        """By position in the roster, the NUMA nodes on which the pod holds anything that is wanted."""

    def roomiest(self, size: int, limit: int) -> list[Mask]:
        """At most so many sets of up to `size` NUMA nodes: larger ones first, and those with most of the wish free."""
        found: list[Mask] = []
        while size and len(found) < limit:
            masks = sized_submasks(self.everywhere, size)
            found += sorted(masks, key=lambda mask: (-self._free[mask], mask))
            size -= 1
        return found[:limit]

    def holders(self, mask: Mask, pods: PodSet) -> PodSet:
        """Those of these pods that hold anything on these NUMA nodes."""
        return mask_of(at for at in members(pods) if self.spread[at] & mask)

    def gain(self, at: int, mask: Mask) -> int:
        """How much evicting the pod at this position frees on these NUMA nodes, and of what the whole node lacks.

        It is relative to the pod's weight in Harm.priorities.
        """
        held = self._held[at]
        share = sum([held[position] for position in members(mask)]) + self._anywhere[at]
        return (share << 32) // (self._roster.weights[at] + 1)


def _wanted(node: Kubelet, pod: PodView) -> Amounts:
    """What the managers would give the pod: CPUs, bytes per type of memory, devices."""
    wanted: Amounts = {}
    if node.memory is not None:
        wanted.update(pod.memory or {})
    if node.cpu is not None:
        wanted["cpu"] = pod.cpus
    for resource in node.devices.tables:
        wanted[resource] = device_requests(pod, resource) or 0
    return {resource: amount for resource, amount in wanted.items() if amount > 0}


def _missing(base: Kubelet, pod: PodView) -> Amounts:
    """What node allocatable lacks for the pod, per resource (predicates.py)."""
    used: Amounts = {"pods": len(base.active)}
    for active in base.active.values():
        for resource, amount in active.requests.items():
            used[resource] = used.get(resource, 0) + amount
    capacity = base.allocatable()
    missing = {
        resource: amount + used.get(resource, 0) - capacity.get(resource, 0)
        for resource, amount in {**pod.requests, "pods": 1}.items()
        if resource in capacity
    }
    return {resource: amount for resource, amount in missing.items() if amount > 0}


def _held(node: Kubelet, uid: str, wanted: Amounts) -> list[int]:
    """The share of the wish that a pod holds, by position of the NUMA node."""
    amounts: list[Amounts] = [{} for _ in node.node_ids]
    for position, resource, amount in _holdings(node, uid):
        amounts[position][resource] = amounts[position].get(resource, 0) + amount
    return [_share(held, wanted) for held in amounts]


def _holdings(node: Kubelet, uid: str) -> Iterator[tuple[int, str, int]]:
    """What a pod holds: position of the NUMA node, resource, amount."""
    if node.cpu is not None:
        exclusive = 0
        for cpus in node.cpu.allocations.get(uid, {}).values():
            exclusive |= cpus
        for position, local in enumerate(node.topology.numa_cpus if exclusive else ()):
            yield position, "cpu", (exclusive & local).bit_count()
    if node.memory is not None:
        for blocks in node.memory.allocations.get(uid, {}).values():
            for block in blocks:
                for position in members(block.mask):
                    yield position, block.type, block.size // block.mask.bit_count()
    for holding in node.devices.allocations.get(uid, {}).values():
        for resource, devices in holding.items():
            table = node.devices.tables[resource]
            for position in members(table.nodes):
                yield position, resource, (devices & table.touching(1 << position)).bit_count()


def _free(base: Kubelet, position: int) -> Amounts:
    free: Amounts = {}
    if base.cpu is not None:
        free["cpu"] = (base.cpu.available & base.topology.numa_cpus[position]).bit_count()
    if base.memory is not None:
        free.update({name: amounts[position] for name, amounts in base.memory.tables.free.items()})
    for resource, table in base.devices.tables.items():
        free[resource] = (base.devices.free(resource) & table.touching(1 << position)).bit_count()
    return free


def _relief(node: Kubelet, uid: str, missing: Amounts) -> int:
    """The share of what the whole node lacks that the requests of a pod make up for."""
    active = node.active.get(uid)
    return 0 if active is None or not missing else _share({**active.requests, "pods": 1}, missing)


def _share(amounts: Amounts, wanted: Amounts) -> int:
    return sum([min(UNIT, amounts.get(resource, 0) * UNIT // amount) for resource, amount in wanted.items()])
