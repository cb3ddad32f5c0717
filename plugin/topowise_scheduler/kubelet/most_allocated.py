"""KEP-6007: of two equally preferred nodes, take the fuller node. A draft, in no release of Kubernetes.

Its option was prefer-most-allocated-numa-node and became numa-allocation-strategy; the model accepts both names.

Policy single-numa-node takes the lowest node that fits. So small pods spread over nodes as pods come and go, and a
large pod finds no empty node. With the option, CPU and memory manager each vote for the node with the higher share of
exclusive allocations. The option does not change which pods fit now, only which pods fit later.
"""

from __future__ import annotations

from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.memory_manager import MemoryManager


class MostAllocated:
    """The combined vote over the current state of the managers; a manager with policy none is None.

    The KEP scores "as MostAllocated", which the scheduler computes by integer division: shares within one percent may
    be equal.
    """

    __slots__ = ("cpu", "memory")

    def __init__(self, cpu: CpuManager | None, memory: MemoryManager | None) -> None:
        self.cpu = cpu
        self.memory = memory

    def __call__(self, current: int, candidate: int) -> int:
        """Returns the node (by position) to keep. Without a clear vote, the lower node stays."""
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

    def _higher(self, node: int, share: tuple[int, int], other_node: int, other_share: tuple[int, int]) -> int | None:
        """Returns the node with the higher share, each (allocated, allocatable); None for equal shares."""
        left, right = _score(*share), _score(*other_share)
        if left == right:
            return None
        return node if left > right else other_node


def _score(allocated: int, allocatable: int) -> int:
    # mostRequestedScore of the scheduler: 0 to 100, rounded down, 0 without allocatable amounts.
    return min(100, allocated * 100 // allocatable) if allocatable > 0 else 0
