"""An upper bound of how many pods of a stream any scheduler could place before the first pod waits.

Two necessary conditions apply to CPUs, memory, hugepages and every device separately. A prefix of the stream that
breaks a condition cannot run under any placement:

- the sum of all requests is at most the sum of the nodes;
- requests that need a single NUMA node (of a container, or of a pod under scope `pod`, unless larger than a NUMA node)
  fit into as many bins as there are NUMA nodes, by the bound L2 of Martello and Toth (Knapsack Problems, 1990, 8.3).

The true optimum is lower: both conditions regard a single resource, and only the end of the prefix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet, free_amounts

Bins = NDArray[np.int64]
"""Shape (NUMA nodes,): the amount of a resource on each NUMA node of an empty node, in whole CPUs."""


def longest_prefix(following: Callable[[], int], needs: Sequence[Needs], empty: Kubelet, nodes: int) -> int:
    """Returns the bound in pods; `following` yields the stream as indices of `needs`."""
    bins = _bins(empty)
    left = {name: amount * nodes for name, amount in empty.allocatable().items()}
    prefix: list[int] = []
    while min(left.values()) >= 0:
        shape = following()
        prefix.append(shape)
        for name, amount in {**needs[shape].requests, "pods": 1}.items():
            left[name] -= amount
    # The last pod broke a sum.
    prefix.pop()
    by_pod = empty.settings.topology.scope == "pod"
    items = [[item for task in aligned(pod, by_pod=by_pod) for item in task.items()] for pod in needs]
    lengths = range(len(prefix) + 1)
    return bisect_left(lengths, True, key=lambda length: _overflows(prefix[:length], items, bins, nodes)) - 1


def _bins(empty: Kubelet) -> Mapping[str, Bins]:
    by_node = free_amounts.by_position(empty)
    return {name: np.array([amounts[name] for amounts in by_node], np.int64) for name in by_node[0]}


def aligned(needs: Needs, *, by_pod: bool) -> list[dict[str, int]]:
    """Returns the amounts of each request that the Topology Manager aligns: per container, or of the pod.

    Only whole CPUs are aligned; containers with fractions of a CPU use the shared pool.
    """
    requests: list[dict[str, int]] = []
    for container in needs.containers:
        whole, rest = divmod(container.requests.get("cpu", 0), 1000)
        requests.append({**container.requests, "cpu": 0 if rest else whole})
    if by_pod:
        names = {name for amounts in requests for name in amounts}
        requests = [{name: sum(amounts.get(name, 0) for amounts in requests) for name in names}]
    return [{name: amount for name, amount in amounts.items() if amount} for amounts in requests]


def _overflows(
    prefix: Sequence[int], items: Sequence[Sequence[tuple[str, int]]], bins: Mapping[str, Bins], nodes: int
) -> bool:
    requested: dict[str, list[int]] = {}
    for shape in prefix:
        for name, amount in items[shape]:
            requested.setdefault(name, []).append(amount)
    for name, amounts in requested.items():
        size, count = int(bins[name].max()), nodes * int((bins[name] > 0).sum())
        sizes = np.array(amounts)
        if _bins_needed(sizes[sizes <= size], size) > count:
            return True
    return False


def _bins_needed(items: NDArray[np.int64], size: int) -> int:
    """Returns the bound L2: the fewest bins of this size that could take the items."""
    best = 0
    for least in (0, *np.unique(items[2 * items <= size]).tolist()):
        large = int((items > size - least).sum())
        middle = items[(2 * items > size) & (items <= size - least)]
        small = int(items[(items >= least) & (2 * items <= size)].sum())
        left = middle.size * size - int(middle.sum())
        best = max(best, large + middle.size + max(0, -(-(small - left) // size)))
    return best
