"""KEP-6007: of two equally preferred nodes take the fuller one. A draft, in no release of Kubernetes.

Its option was prefer-most-allocated-numa-node and became numa-allocation-strategy: most-allocated; both names mean it.

Policy single-numa-node takes the lowest node that fits, so small pods spread over nodes as they come and go and a
large pod finds none empty. With the option CPU and memory manager each vote for the node with the higher share of
exclusively allocated resources. Which pods fit now is the same; which fit later is not.
"""

from __future__ import annotations

from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.memory_manager import MemoryManager


class MostAllocated:
    """The combined vote over the current state of the managers, None for one with policy none.

    The KEP scores "as MostAllocated", which in the scheduler is integer division, so that shares less than one per
    cent apart are equal. `integer_scores` False compares the shares exactly instead.
    """

    __slots__ = ("cpu", "integer_scores", "memory")

    def __init__(self, cpu: CpuManager | None, memory: MemoryManager | None, integer_scores: bool) -> None:
        self.cpu = cpu
        self.memory = memory
        self.integer_scores = integer_scores

    def __call__(self, current: int, candidate: int) -> int:
        """The node (by position) to keep. Undecided or contradicting votes leave the lower one."""
        votes = (self._vote_cpu(current, candidate), self._vote_memory(current, candidate))
        decided = {vote for vote in votes if vote is not None}
        return decided.pop() if len(decided) == 1 else min(current, candidate)

    def _vote_cpu(self, current: int, candidate: int) -> int | None:
        if self.cpu is None:
            return None
        return self._higher(current, self.cpu.exclusive_cpus(current), candidate, self.cpu.exclusive_cpus(candidate))

    def _vote_memory(self, current: int, candidate: int) -> int | None:
        if self.memory is None:
            return None
        tables = self.memory.tables
        shares = [
            (tables.reserved("memory", position), self.memory.policy.allocatable["memory"][position])
            for position in (current, candidate)
        ]
        return self._higher(current, shares[0], candidate, shares[1])

    def _higher(self, one: int, share: tuple[int, int], other: int, other_share: tuple[int, int]) -> int | None:
        """The node with the higher share, each (allocated, allocatable); None if they are equal."""
        if self.integer_scores:
            left, right = _score(*share), _score(*other_share)
        else:
            left, right = share[0] * max(1, other_share[1]), other_share[0] * max(1, share[1])
        if left == right:
            return None
        return one if left > right else other


def _score(allocated: int, allocatable: int) -> int:
    """mostRequestedScore of the scheduler: 0..100, rounded down, 0 where nothing can be allocated."""
    return min(100, allocated * 100 // allocatable) if allocatable > 0 else 0
