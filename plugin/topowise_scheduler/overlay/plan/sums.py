"""The requests on nodes as kube-scheduler sums them, for all nodes at once, and its scores by these sums: those of
NodeResourcesFit and NodeResourcesBalancedAllocation, 0 to 100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Amounts, Needs
from topowise_scheduler.verdicts.kube_scheduler import Node

Scores = NDArray[np.int64]
_TOP = 100
_PODS = "pods"
_ANY = 1 << 62


class Sums:
    """An array of shape (nodes,) for each resource. A node that is None has no limits: its Node is unknown."""

    def __init__(self, nodes: Sequence[Node | None]) -> None:
        names = dict.fromkeys(name for node in nodes if node is not None for name in node.allocatable)
        unknown = np.array([node is None for node in nodes], np.bool_)
        self._unlimited = np.where(unknown, _ANY, 0)
        self.allocatable = {
            name: np.array([_ANY if node is None else node.allocatable.get(name, 0) for node in nodes], np.int64)
            for name in names
        }
        self.requested: dict[str, NDArray[np.int64]] = {}

    def add(self, at: int, requests: Amounts | Mapping[str, int], pods: int = 1) -> None:
        """Adds the requests of pods to a node; takes them away if `pods` is negative."""
        for name, amount in (*requests.items(), (_PODS, 1)):
            self._requested(name)[at] += amount * pods

    def least_allocated(self, needs: Needs) -> Scores:
        """Returns the scores of NodeResourcesFit's LeastAllocated."""
        # Rounds down twice, as noderesources/least_allocated.go does.
        cpus, memory = [(total - used) * _TOP // np.maximum(total, 1) for total, used in self._shares(needs)]
        return (cpus + memory) // 2

    def most_allocated(self, needs: Needs) -> Scores:
        """Returns the scores of NodeResourcesFit's MostAllocated."""
        cpus, memory = [used * _TOP // np.maximum(total, 1) for total, used in self._shares(needs)]
        return (cpus + memory) // 2

    def balanced(self, needs: Needs) -> Scores:
        """Returns the scores of NodeResourcesBalancedAllocation; the deviation of two shares is half their distance."""
        (cpus, used_cpus), (memory, used_memory) = self._shares(needs)
        shares = [
            np.minimum(used / np.maximum(total, 1), 1) for total, used in ((cpus, used_cpus), (memory, used_memory))
        ]
        scores: Scores = ((1 - np.abs(shares[0] - shares[1]) / 2) * _TOP).astype(np.int64)
        return scores

    def _shares(self, needs: Needs) -> Iterator[tuple[Scores, Scores]]:
        """Yields allocatable and requested amounts of CPUs and memory, the pod included."""
        for name in ("cpu", "memory"):
            yield self._allocatable(name), self._requested(name) + needs.requests.get(name, 0)

    def _allocatable(self, name: str) -> NDArray[np.int64]:
        return self.allocatable.get(name, self._unlimited)

    def _requested(self, name: str) -> NDArray[np.int64]:
        requested = self.requested.get(name)
        if requested is None:
            requested = self.requested[name] = np.zeros(self._unlimited.size, np.int64)
        return requested
