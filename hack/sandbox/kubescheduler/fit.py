"""NodeResourcesFit: its filter, and its LeastAllocated score over CPU and memory.

Sources: pkg/scheduler/framework/plugins/noderesources/fit.go (fitsRequest), least_allocated.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sandbox.kubescheduler.attempt import Refused
from sandbox.kubescheduler.cache import NodeInfo, non_zero
from sandbox.kubescheduler.pod import PodInfo

PLUGIN: Final = "NodeResourcesFit"
_FIRST: Final = ("cpu", "memory", "ephemeral-storage")
_TOP: Final = 100


def check(
    info: PodInfo, node: NodeInfo, beside: Iterable[PodInfo] = (), without: Iterable[PodInfo] = ()
) -> Refused | None:
    """None if the node has enough, with more pods (nominated) and without some (victims)."""
    more, less = list(beside), list(without)
    reasons: list[str] = []
    ever = False
    if len(node.pods) + len(more) - len(less) + 1 > node.allocatable.get("pods", 0):
        reasons.append("Too many pods")
    scalars = sorted(info.requests.keys() - _FIRST)
    for name in (*_FIRST, *scalars):
        requested = info.requests.get(name, 0)
        if requested <= 0:
            continue
        capacity = node.allocatable.get(name, 0)
        used = node.used.get(name, 0)
        used += sum(pod.requests.get(name, 0) for pod in more) - sum(pod.requests.get(name, 0) for pod in less)
        if requested > capacity - used:
            reasons.append(f"Insufficient {name}")
            ever = ever or requested > capacity
    return Refused(tuple(reasons), PLUGIN, ever) if reasons else None


def could_ever(info: PodInfo, node: NodeInfo) -> bool:
    """Returns whether the node had enough if it were empty (isFit of the node events' hints)."""
    return all(amount <= node.allocatable.get(name, 0) for name, amount in info.requests.items())


def least_allocated(info: PodInfo, node: NodeInfo) -> int:
    """0..100, more for the emptier node."""
    total = count = 0
    for name, amount in non_zero(info).items():
        capacity = node.allocatable.get(name, 0)
        if not capacity:
            continue
        count += 1
        requested = node.scored[name] + amount
        if requested <= capacity:
            # Rounded down, as Go's integer division of positive numbers does.
            total += (capacity - requested) * _TOP // capacity
    return total // count if count else 0
