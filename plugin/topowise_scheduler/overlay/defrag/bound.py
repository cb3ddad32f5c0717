"""A lower bound of the pods that must leave a node before another pod fits there, from amounts alone.

Invariant: if the kubelet takes the pod without some pods, those pods cover the missing amounts here. The amounts are
optimistic: every free CPU counts, and memory of several NUMA nodes counts in full on each. So the bound is never too
high, and a set that covers the missing amounts may still not suffice, which the model decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from topowise.pods import Amounts
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.pod import PodView, device_requests

_Gaps = tuple[tuple[str, int], ...]


class Bound:
    """The bound of a node and a pod; `uids` are the pods on the node that may leave."""

    def __init__(self, node: Kubelet, pod: PodView, uids: Iterable[str]) -> None:
        everywhere: Mask = (1 << len(node.node_ids)) - 1
        is_single = node.settings.topology.policy == "single-numa-node"
        masks = [1 << position for position in range(len(node.node_ids))] if is_single else [everywhere]
        self._relief = {uid: {mask: _allocated(node, uid, mask) for mask in masks} for uid in uids}
        free = dict(zip(masks, free_amounts.on_masks(node, masks), strict=True))
        # Amounts that must be free together, with the missing amounts on each NUMA node mask that may provide them.
        self._demands = [
            [(mask, _missing(demand, free[mask])) for mask in masks]
            for demand in _demands(node, pod, is_single=is_single)
        ]
        self._sums = _missing({**pod.requests, "pods": 1}, _free_allocatable(node))
        self._requests = {uid: {**node.active[uid].requests, "pods": 1} for uid in self._relief}
        self.relevant: Sequence[str] = [
            uid for uid, by_mask in self._relief.items() if self._sums or any(by_mask.values())
        ]
        """Pods whose leaving can help."""

    def may_do(self, uids: Sequence[str]) -> bool:
        """Returns False if the pod cannot fit once these pods have left."""
        if not _covers([self._requests[uid] for uid in uids], self._sums):
            return False
        return all(
            any(_covers([self._relief[uid][mask] for uid in uids], gaps) for mask, gaps in demand)
            for demand in self._demands
        )

    def least(self) -> int | None:
        """Returns how many pods must leave at least, None if the pod cannot fit even without all of them."""
        if not self.may_do(self.relevant):
            return None
        fewest = _fewest(self._requests.values(), self._sums)
        for demand in self._demands:
            fewest = max(
                fewest,
                min(
                    _fewest([by_mask[mask] for by_mask in self._relief.values()], gaps)
                    for mask, gaps in demand
                    if _covers([by_mask[mask] for by_mask in self._relief.values()], gaps)
                ),
            )
        return fewest


def _demands(node: Kubelet, pod: PodView, *, is_single: bool) -> Iterator[Amounts]:
    """Yields amounts that must be free on the same NUMA nodes."""
    if (
        is_single
        and node.settings.topology.scope == "pod"
        and not any(container.kind == "init" for container in pod.containers)
    ):
        devices = {name: device_requests(pod, name) or 0 for name in node.devices.tables}
        yield _known(node, {**(pod.memory or {}), **devices, "cpu": pod.cpus})
        return
    for container in pod.containers:
        devices = {name: container.limits.get(name, 0) for name in node.devices.tables}
        memory = (container.memory or {}) if pod.pinned else {}
        yield _known(node, {**memory, **devices, "cpu": container.cpus})


def _known(node: Kubelet, amounts: Amounts) -> Amounts:
    """Returns the amounts that a resource manager of the node allocates."""
    memory = {} if node.memory is None else node.memory.tables.free
    return {
        name: amount
        for name, amount in amounts.items()
        if amount > 0 and (name in memory or name in node.devices.tables or (name == "cpu" and node.cpu is not None))
    }


def _allocated(node: Kubelet, uid: str, mask: Mask) -> Amounts:
    """Returns at most how much the pod's leaving frees on these NUMA nodes."""
    relief: Amounts = {}
    if node.cpu is not None:
        cpus = 0
        for cpu_set in node.cpu.allocations.get(uid, {}).values():
            cpus |= cpu_set
        positions = [position for position in range(len(node.node_ids)) if mask >> position & 1]
        relief["cpu"] = sum((cpus & node.topology.numa_cpus[at]).bit_count() for at in positions)
    if node.memory is not None:
        for blocks in node.memory.allocations.get(uid, {}).values():
            for block in blocks:
                if block.mask & mask:
                    relief[block.type] = relief.get(block.type, 0) + block.size
    for holding in node.devices.allocations.get(uid, {}).values():
        for resource, devices in holding.items():
            relief[resource] = relief.get(resource, 0) + free_amounts.count_near(node, resource, devices, mask)
    return {name: amount for name, amount in relief.items() if amount}


def _free_allocatable(node: Kubelet) -> Amounts:
    """Returns the unrequested node allocatable."""
    used = {**node.requested, "pods": len(node.active)}
    return {name: amount - used.get(name, 0) for name, amount in node.allocatable().items()}


def _missing(requested: Amounts, free: Amounts) -> _Gaps:
    known = ((name, amount - free[name]) for name, amount in requested.items() if name in free)
    return tuple((name, gap) for name, gap in known if gap > 0)


def _covers(relief: Iterable[Amounts], gaps: _Gaps) -> bool:
    return not gaps or all(sum(amounts.get(name, 0) for amounts in relief) >= gap for name, gap in gaps)


def _fewest(relief: Iterable[Amounts], gaps: _Gaps) -> int:
    """Returns how many of these pods cover the missing amount of the scarcest resource at least."""
    each = list(relief)
    fewest = 0
    for name, gap in gaps:
        left = gap
        for count, amount in enumerate(sorted((amounts.get(name, 0) for amounts in each), reverse=True), start=1):
            left -= amount
            if left <= 0:
                fewest = max(fewest, count)
                break
    return fewest
