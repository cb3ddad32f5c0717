"""Fragmentation gradient descent, a yardstick from elsewhere: take the node where a pod costs others the fewest GPUs.

From the definitions of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent" (USENIX ATC 2023), for pods that take whole GPUs. A target workload tells how often each kind of task
comes. What a task cannot use of a node's idle GPUs is the node's fragmentation for that task: all of them if the task
does not fit, or asks for none; none of them otherwise. Its mean over the target workload is the node's fragmentation,
and a pod goes to the node whose fragmentation it makes grow the least, or shrink the most.

The paper's node is a machine and its sums. Where a NUMA node is what a task has to fit, the same definition holds for
the NUMA node; `by_zone` chooses. A task is a container, or a pod where the kubelet aligns pods as a whole. The target
workload is the very mix that the pods are drawn from, which a scheduler at work has to guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.density import bound
from topowise.pods import Needs
from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies.allocations import allocation_plans

PerZone = NDArray[np.int64]
PerNode = NDArray[np.float64]

# A share of a GPU as an integer, fine enough for the rarest pod of any mix.
_UNIT: Final = 1_000_000


class FragmentationGradientDescent:
    """`needs` and how often each comes are the target workload, `resource` the one whose fragmentation counts."""

    in_percent = False

    def __init__(
        self, needs: Sequence[Needs], counts: Sequence[int], resource: str, *, by_pod: bool, by_zone: bool
    ) -> None:
        tasks = [
            (task, count)
            for one, count in zip(needs, counts, strict=True)
            for task in bound.aligned(one, by_pod=by_pod)
        ]
        names = sorted({name for task, _ in tasks for name in task})
        self._asked = {name: np.array([task.get(name, 0) for task, _ in tasks], np.int64) for name in names}
        often = np.array([count for _, count in tasks], np.float64)
        self._often = often / often.sum()
        self._resource = resource
        self._by_zone = by_zone

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) by how much the fragmentation shrinks."""
        shrinks = np.zeros(candidates.placed.shape[1])
        before = self._fragmentation(candidates.available, candidates.allocatable)
        for where, allocations in allocation_plans(candidates, without_init=True):
            left = dict(candidates.available)
            for allocation in allocations:
                for name, amount in allocation.requests.items():
                    left[name] = allocation.placed.without(left[name], amount)
            after = self._fragmentation(left, candidates.allocatable)
            shrinks = np.where(where, before - after, shrinks)
        return np.rint(shrinks * _UNIT).astype(np.int64)

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """As it is."""
        return raw

    def _fragmentation(self, free: Mapping[str, PerZone], whole: Mapping[str, PerZone]) -> PerNode:
        """(nodes,) how many idle devices a task cannot use, in the mean."""
        idle = free[self._resource]
        asked = {name: amounts[:, None, None] for name, amounts in self._asked.items()}
        useless = asked[self._resource] == 0
        on_machine = useless | _is_short(asked, {name: free[name].sum(axis=0)[None] for name in asked})
        if self._by_zone:
            # What is larger than a NUMA node takes what it finds on the machine.
            large = _is_short(asked, {name: whole[name].max(initial=0)[None, None] for name in asked})
            useless = useless | np.where(large, on_machine, _is_short(asked, free))
        else:
            useless = on_machine
        lost: PerNode = (np.tensordot(self._often, useless, axes=1) * idle).sum(axis=0)
        return lost


def _is_short(asked: Mapping[str, PerZone], has: Mapping[str, PerZone]) -> NDArray[np.bool_]:
    """(tasks, ...) whether anything is missing."""
    short: NDArray[np.bool_] = np.logical_or.reduce([amount > has[name] for name, amount in asked.items()])
    return short
