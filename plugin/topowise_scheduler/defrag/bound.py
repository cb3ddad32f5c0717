"""How many pods must leave a node at the least so that another one fits there, by amounts alone.

Invariant: if the kubelet would take the pod without some pods, these cover what is missing here. The amounts are
hopeful (any free CPU will do, memory on several NUMA nodes counts in full on each), so that the number is never too
high, and a set that covers what is missing may still not do: that is the model's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from topowise.pods import Amounts
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.pod import PodView, device_requests

_Gaps = tuple[tuple[str, int], ...]


class Bound:
    """One node and one pod; `uids` are those of the pods on it that may leave."""

    def __init__(self, node: Kubelet, pod: PodView, uids: Iterable[str]) -> None:
        everywhere: Mask = (1 << len(node.node_ids)) - 1
        is_single = node.settings.topology.policy == "single-numa-node"
        masks = [1 << position for position in range(len(node.node_ids))] if is_single else [everywhere]
        self._relief = {uid: {mask: _held(node, uid, mask) for mask in masks} for uid in uids}
        free = dict(zip(masks, free_amounts.on_masks(node, masks), strict=True))
        # What has to lie together, and for each place where it may, what is missing there.
        self._wishes = [
            [(mask, _missing(wish, free[mask])) for mask in masks] for wish in _wishes(node, pod, is_single=is_single)
        ]
        self._sums = _missing({**pod.requests, "pods": 1}, _left(node))
        self._requests = {uid: {**node.active[uid].requests, "pods": 1} for uid in self._relief}
        self.relevant: Sequence[str] = [
            uid for uid, places in self._relief.items() if self._sums or any(places.values())
        ]
        """Those whose leaving may be of any use."""

    def may_do(self, uids: Sequence[str]) -> bool:
        """Whether the pod may fit once these have left; if not it does not."""
        if not _covers([self._requests[uid] for uid in uids], self._sums):
            return False
        return all(
            any(_covers([self._relief[uid][mask] for uid in uids], gaps) for mask, gaps in wish)
            for wish in self._wishes
        )

    def least(self) -> int | None:
        """No fewer than so many must leave; None if it would not do if all of them left."""
        if not self.may_do(self.relevant):
            return None
        found = _fewest(self._requests.values(), self._sums)
        for wish in self._wishes:
            found = max(
                found,
                min(
                    _fewest([places[mask] for places in self._relief.values()], gaps)
                    for mask, gaps in wish
                    if _covers([places[mask] for places in self._relief.values()], gaps)
                ),
            )
        return found


def _wishes(node: Kubelet, pod: PodView, *, is_single: bool) -> Iterator[Amounts]:
    """Amounts that must be free at once in one place; of what containers hand on to each other only the largest."""
    if is_single and node.settings.topology.scope == "pod" and not any(one.kind == "init" for one in pod.containers):
        devices = {name: device_requests(pod, name) or 0 for name in node.devices.tables}
        yield _known(node, {**(pod.memory or {}), **devices, "cpu": pod.cpus})
        return
    for container in pod.containers:
        devices = {name: container.limits.get(name, 0) for name in node.devices.tables}
        memory = (container.memory or {}) if pod.pinned else {}
        yield _known(node, {**memory, **devices, "cpu": container.cpus})


def _known(node: Kubelet, amounts: Amounts) -> Amounts:
    """What some manager of the node gives out."""
    memory = {} if node.memory is None else node.memory.tables.free
    return {
        name: amount
        for name, amount in amounts.items()
        if amount > 0 and (name in memory or name in node.devices.tables or (name == "cpu" and node.cpu is not None))
    }


def _held(node: Kubelet, uid: str, mask: Mask) -> Amounts:
    """What would be free in this place without the pod, at the most."""
    found: Amounts = {}
    if node.cpu is not None:
        cpus = 0
        for held in node.cpu.allocations.get(uid, {}).values():
            cpus |= held
        positions = [position for position in range(len(node.node_ids)) if mask >> position & 1]
        found["cpu"] = sum((cpus & node.topology.numa_cpus[at]).bit_count() for at in positions)
    if node.memory is not None:
        for blocks in node.memory.allocations.get(uid, {}).values():
            for block in blocks:
                if block.mask & mask:
                    found[block.type] = found.get(block.type, 0) + block.size
    for holding in node.devices.allocations.get(uid, {}).values():
        for resource, devices in holding.items():
            found[resource] = found.get(resource, 0) + free_amounts.count_near(node, resource, devices, mask)
    return {name: amount for name, amount in found.items() if amount}


def _left(node: Kubelet) -> Amounts:
    """What node allocatable has left, of the resources that it knows."""
    used = {**node.requested, "pods": len(node.active)}
    return {name: amount - used.get(name, 0) for name, amount in node.allocatable().items()}


def _missing(wanted: Amounts, free: Amounts) -> _Gaps:
    return tuple((name, amount - free[name]) for name, amount in wanted.items() if name in free and amount > free[name])


def _covers(relief: Iterable[Amounts], gaps: _Gaps) -> bool:
    return not gaps or all(sum(amounts.get(name, 0) for amounts in relief) >= gap for name, gap in gaps)


def _fewest(relief: Iterable[Amounts], gaps: _Gaps) -> int:
    """How many of these cover what is missing of one resource, where the most is asked for."""
    each = list(relief)
    found = 0
    for name, gap in gaps:
        left = gap
        for count, amount in enumerate(sorted((one.get(name, 0) for one in each), reverse=True), start=1):
            left -= amount
            if left <= 0:
                found = max(found, count)
                break
    return found
