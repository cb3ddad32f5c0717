"""Each running pod's share of the resources that a pod requests, by NUMA node, in units of 1/UNIT of the request.

These numbers only order the trials; the model decides. So they may be rough: memory on several NUMA nodes counts as
evenly distributed, and CPUs shared by containers count once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from topowise.pods import Amounts
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import Mask, mask_of, members, sized_submasks, sums
from topowise_scheduler.kubelet.pod import PodView, device_requests
from topowise_scheduler.overlay.preemption.roster import PodSet, Roster

UNIT: Final = 1 << 20


class Shares:
    """The shares of the roster's pods on `node`; `base` is the node without the proposed pods."""

    def __init__(self, node: Kubelet, base: Kubelet, pod: PodView, roster: Roster) -> None:
        positions = range(len(node.node_ids))
        self.everywhere: Mask = (1 << len(node.node_ids)) - 1
        requested = _requested(node, pod)
        missing = _missing(base, pod)
        self._roster = roster
        self._shares = [_shares(node, running.uid, requested) for running in roster.pods]
        self._anywhere = [_relief(node, running.uid, missing) for running in roster.pods]
        self._free = sums([_share(_free(base, position), requested) for position in positions])
        self.spread: tuple[Mask, ...] = tuple(
            [mask_of(position for position in positions if shares[position]) for shares in self._shares]
        )
        """By position in the roster, the NUMA nodes on which the pod has any of the requested resources."""

    def roomiest(self, size: int, limit: int) -> list[Mask]:
        """At most `limit` sets of up to `size` NUMA nodes: larger sets first, then by free requested resources."""
        ordered: list[Mask] = []
        while size and len(ordered) < limit:
            masks = sized_submasks(self.everywhere, size)
            ordered += sorted(masks, key=lambda mask: (-self._free[mask], mask))
            size -= 1
        return ordered[:limit]

    def holders(self, mask: Mask, pods: PodSet) -> PodSet:
        """The pods of this set with requested resources on these NUMA nodes."""
        return mask_of(at for at in members(pods) if self.spread[at] & mask)

    def gain(self, at: int, mask: Mask) -> int:
        """The share that evicting the pod at this position frees on these NUMA nodes, and of missing node allocatable.

        It is relative to the pod's weight in Harm.priorities.
        """
        shares = self._shares[at]
        share = sum([shares[position] for position in members(mask)]) + self._anywhere[at]
        return (share << 32) // (self._roster.weights[at] + 1)


def _requested(node: Kubelet, pod: PodView) -> Amounts:
    """The resources that the managers allocate to the pod: CPUs, bytes by type of memory, devices."""
    requested: Amounts = {}
    if node.memory is not None:
        requested.update(pod.memory or {})
    if node.cpu is not None:
        requested["cpu"] = pod.cpus
    for resource in node.devices.tables:
        requested[resource] = device_requests(pod, resource) or 0
    return {resource: amount for resource, amount in requested.items() if amount > 0}


def _missing(base: Kubelet, pod: PodView) -> Amounts:
    """The amounts that node allocatable lacks for the pod (predicates.py)."""
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


def _shares(node: Kubelet, uid: str, requested: Amounts) -> list[int]:
    """The share of the request that a pod is allocated, by position of the NUMA node."""
    by_position: list[Amounts] = [{} for _ in node.node_ids]
    for position, resource, amount in _allocations(node, uid):
        by_position[position][resource] = by_position[position].get(resource, 0) + amount
    return [_share(amounts, requested) for amounts in by_position]


def _allocations(node: Kubelet, uid: str) -> Iterator[tuple[int, str, int]]:
    """The allocations of a pod: position of the NUMA node, resource, amount."""
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
    """The share of the missing node allocatable that evicting a pod frees."""
    active = node.active.get(uid)
    return 0 if active is None or not missing else _share({**active.requests, "pods": 1}, missing)


def _share(amounts: Amounts, requested: Amounts) -> int:
    """The sum over resources of the share of the request, at most 1 (UNIT) each."""
    return sum([min(UNIT, amounts.get(resource, 0) * UNIT // amount) for resource, amount in requested.items()])
