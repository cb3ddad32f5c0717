"""How many pods of a stream any scheduler at all could place before the first that finds no room: an upper bound.

Two necessary conditions, each for CPUs, memory, hugepages and every device on its own. A prefix of the stream that
breaks one of them cannot run, wherever its pods are put:

- the sum of all requests is at most what the nodes have;
- what must lie in one NUMA node (a container, or the pod where that is the scope, if it is no larger than a NUMA node)
  fits into as many bins as there are NUMA nodes, by the bound L2 of Martello and Toth (Knapsack Problems, 1990, 8.3).

The true optimum is lower: both look at one resource at a time, and at the stream's end instead of at every pod.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.density.cluster import Cluster
from sandbox.judging import candidates
from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.shape import PodRequests

Bins = NDArray[np.int64]
"""(NUMA nodes,) what each of an empty node can give of one resource, CPUs in whole ones."""


def longest_prefix(following: Callable[[], int], needs: Sequence[Needs], empty: Kubelet, nodes: int) -> int:
    """In pods; `following` yields the stream as places in `needs`."""
    bins = _bins(needs, empty)
    left = {name: amount * nodes for name, amount in empty.allocatable().items()}
    prefix: list[int] = []
    while min(left.values()) >= 0:
        shape = following()
        prefix.append(shape)
        for name, amount in {**needs[shape].requests, "pods": 1}.items():
            left[name] -= amount
    # The last one broke a sum.
    prefix.pop()
    by_pod = empty.settings.topology.scope == "pod"
    items = [[item for task in aligned(one, by_pod=by_pod) for item in task.items()] for one in needs]
    lengths = range(len(prefix) + 1)
    return bisect_left(lengths, True, key=lambda length: _overflows(prefix[:length], items, bins, nodes)) - 1


def _bins(needs: Sequence[Needs], empty: Kubelet) -> Mapping[str, Bins]:
    cluster = Cluster(empty, 1)
    _, found = next(found for one in needs for found in candidates(cluster.engine, PodRequests(one)))
    return {name: amounts[:, 0] for name, amounts in found.allocatable.items()}


def aligned(needs: Needs, *, by_pod: bool) -> list[dict[str, int]]:
    """What managers align at once, one by one. CPUs are those of containers with whole ones; others share the pool of
    the node."""
    found: list[dict[str, int]] = []
    for container in needs.containers:
        whole, rest = divmod(container.requests.get("cpu", 0), 1000)
        found.append({**container.requests, "cpu": 0 if rest else whole})
    if by_pod:
        names = {name for amounts in found for name in amounts}
        found = [{name: sum(amounts.get(name, 0) for amounts in found) for name in names}]
    return [{name: amount for name, amount in amounts.items() if amount} for amounts in found]


def _overflows(
    prefix: Sequence[int], items: Sequence[Sequence[tuple[str, int]]], bins: Mapping[str, Bins], nodes: int
) -> bool:
    asked: dict[str, list[int]] = {}
    for shape in prefix:
        for name, amount in items[shape]:
            asked.setdefault(name, []).append(amount)
    for name, amounts in asked.items():
        size, count = int(bins[name].max()), nodes * int((bins[name] > 0).sum())
        sizes = np.array(amounts)
        if _bins_needed(sizes[sizes <= size], size) > count:
            return True
    return False


def _bins_needed(items: NDArray[np.int64], size: int) -> int:
    """L2: of bins of this size, however the items are put."""
    best = 0
    for least in (0, *np.unique(items[2 * items <= size]).tolist()):
        large = int((items > size - least).sum())
        middle = items[(2 * items > size) & (items <= size - least)]
        small = int(items[(items >= least) & (2 * items <= size)].sum())
        left = middle.size * size - int(middle.sum())
        best = max(best, large + middle.size + max(0, -(-(small - left) // size)))
    return best
