"""The memory manager's tables: free memory per NUMA node and type, and the groups of nodes (cm/memorymanager/state).

The kubelet computes a NUMA node's allocatable memory as an unsigned number. If reservedMemory and hugepages exceed the
memory of the node, the result wraps around to nearly 2^64 bytes, and the node takes every pod. In a sum with other
nodes it wraps around again. So such an amount is a negative number here, and `covers` compares it as the kubelet does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from topowise.pods import Amounts
from topowise_scheduler.kubelet import panics
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.machine import NumaNode, hugepages_resource
from topowise_scheduler.kubelet.masks import (
    KUBELET_BITS,
    Mask,
    MaskSet,
    by_size,
    covers,
    mask_of,
    members,
    sized_submasks,
    subsets,
    sums,
)
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED


class MemoryPolicy:
    """The constant part: per type and node position the total, the system's share and the allocatable rest."""

    def __init__(
        self,
        nodes: Sequence[NumaNode],
        reserved: Sequence[Amounts],
        behaviour: Behaviour = NEWEST_RECORDED.behaviour,
        all_ids: Sequence[int] = (),
    ) -> None:
        self.behaviour = behaviour
        self.count = len(nodes)
        self.ids = tuple([node.id for node in nodes])
        self.all_ids = all_ids or self.ids
        # Whether a NUMA id exceeds the kubelet's masks. Then all hints for memory panic.
        self.is_beyond_masks = self.all_ids[-1] >= KUBELET_BITS
        self.system_reserved = tuple(reserved)
        hugepages = [
            {hugepages_resource(kib): pages * kib * 1024 for kib, pages in node.hugepages.items()} for node in nodes
        ]
        types = ("memory", *dict.fromkeys(name for amounts in hugepages for name in amounts))
        # The nodes that lack a page size of other nodes. A kubelet that reads the size there panics.
        self.lacking: dict[str, Mask] = {
            name: mask
            for name in types[1:]
            if (mask := mask_of([position for position, amounts in enumerate(hugepages) if name not in amounts]))
        }
        self.total = {
            name: tuple(
                node.memory if name == "memory" else amounts.get(name, 0)
                for node, amounts in zip(nodes, hugepages, strict=True)
            )
            for name in types
        }
        # getDefaultMachineState: memory excludes the system's share and all hugepages of the node.
        self.allocatable = {
            name: tuple(
                total[position]
                - reserved[position].get(name, 0)
                - (sum(hugepages[position].values()) if name == "memory" else 0)
                for position in range(self.count)
            )
            for name, total in self.total.items()
        }

    @cached_property
    def wrapped(self) -> dict[str, Mask]:
        """Per type the nodes whose allocatable memory has wrapped around."""
        return {
            name: mask_of([position for position, value in enumerate(values) if value < 0])
            for name, values in self.allocatable.items()
            if min(values) < 0
        }

    @cached_property
    def _allocatable_sums(self) -> dict[str, list[int]]:
        return {name: sums(values) for name, values in self.allocatable.items()}

    @cached_property
    def _largest(self) -> dict[str, tuple[int, ...]]:
        """Returns per type, at index k, the most bytes that k nodes can allocate."""
        largest = {}
        for name, values in self.allocatable.items():
            totals = [0]
            for value in sorted(values, reverse=True):
                totals.append(totals[-1] + value)
            largest[name] = tuple(totals)
        return largest

    def smallest_mask(self, requested: Amounts) -> int:
        """Returns the least number of nodes that could have the request if they were empty; all nodes if none can."""
        least = 1
        has_wrapped = any(name in self.wrapped for name in requested)
        for name, size in () if has_wrapped else requested.items():
            largest = self._largest[name]
            while least < self.count and largest[least] < size:
                least += 1
        # Several types: the nodes with most of a type may lack another type, so the masks themselves are tried.
        if len(requested) > 1 or has_wrapped:
            all_nodes = (1 << self.count) - 1
            while least < self.count and not any(
                self.is_large_enough(mask, requested) for mask in sized_submasks(all_nodes, least)
            ):
                least += 1
        return least

    def is_large_enough(self, mask: Mask, requested: Amounts) -> bool:
        """Returns whether the allocatable memory of these nodes covers the request."""
        return all(covers(self._allocatable_sums[name][mask], size) for name, size in requested.items())


class MemoryTables:
    """The changing part. `cells` at a position is the mask of the node's group, initially the node alone."""

    __slots__ = ("assignments", "cells", "free", "policy")

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.assignments = [0] * policy.count
        self.cells: list[Mask] = [1 << position for position in range(policy.count)]
        self.free = {name: list(values) for name, values in policy.allocatable.items()}

    def fork(self) -> MemoryTables:
        """Returns an independent copy."""
        copy = MemoryTables.__new__(MemoryTables)
        copy.policy = self.policy
        copy.assignments = self.assignments.copy()
        copy.cells = self.cells.copy()
        copy.free = {name: values.copy() for name, values in self.free.items()}
        return copy

    def correct(
        self, free: Mapping[str, Sequence[int | None]], assignments: Sequence[int] | None, cells: Sequence[Mask] | None
    ) -> None:
        """Sets the kubelet's own accounting by position, regardless of allocations; None keeps a value."""
        for name, values in free.items():
            bytes_by_node = self.free[name]
            for position, value in enumerate(values):
                if value is not None:
                    bytes_by_node[position] = value
        # Assignments and groups belong together, so both are set or none.
        if assignments is not None and cells is not None:
            self.assignments = list(assignments)
            self.cells = list(cells)

    def dissolve(self, position: int) -> None:
        """Releases all memory of the group of this node, if the node is in a group."""
        group = self.cells[position]
        if group.bit_count() == 1:
            return
        for member in members(group):
            self.assignments[member] = 0
            self.cells[member] = 1 << member
            for name, values in self.free.items():
                values[member] = self.policy.allocatable[name][member]

    def reserved(self, name: str, position: int) -> int:
        """Returns the bytes of a type that containers have on a node."""
        return self.policy.allocatable[name][position] - self.free[name][position]

    def free_of(self, name: str) -> tuple[int, ...]:
        """Returns the free memory of a type by node position. Raises Refused where the kubelet would panic."""
        # -1 is the mask of all nodes: calculateHints reads every node.
        return tuple(self._looked_up(name, -1))

    def _looked_up(self, name: str, mask: Mask) -> list[int]:
        """Returns free memory by node position, as the kubelet reads it on the nodes of the mask."""
        values, lacking = self.free.get(name), self.policy.lacking.get(name, 0) & mask
        if values is None or lacking:
            raise panics.page_size_missing(name, [self.policy.ids[position] for position in members(lacking)])
        return values

    def has_free(self, mask: Mask, requested: Mapping[str, int]) -> bool:
        """isAffinitySatisfyRequest, which ignores reusable memory. Raises Refused where the kubelet would panic."""
        for name, size in requested.items():
            values = self._looked_up(name, mask)
            if not covers(sum(values[position] for position in members(mask)), size):
                return False
        return True

    def allowed(self) -> MaskSet:
        """Returns the masks that the groups allow: single nodes outside groups, unused nodes together, whole groups."""
        singles = unused = 0
        groups = set()
        for position, cells in enumerate(self.cells):
            # calculateHints: a node in a group cannot have single-node allocations, and the other way round.
            if cells.bit_count() == 1:
                singles |= 1 << (1 << position)
            elif self.assignments[position]:
                groups.add(cells)
            if not self.assignments[position]:
                unused |= 1 << position
        allowed = subsets(unused) & ~by_size(self.policy.count)[1] & ~1 | singles
        for group in groups:
            if self.respects_groups(group):
                allowed |= 1 << group
        return allowed

    def respects_groups(self, mask: Mask) -> bool:
        """Returns whether no node of the mask has single-node allocations or another group."""
        # isAffinityViolatingNUMAAllocations: a mask of a single node always passes, even if the node is in a group.
        if mask.bit_count() == 1:
            return True
        return all(not self.assignments[position] or self.cells[position] == mask for position in members(mask))

    def take(self, name: str, mask: Mask, size: int) -> None:
        """Books a block: each node counts an assignment and joins the group; the lowest node fills first."""
        # updateMachineState.
        free = self.free[name]
        for position in members(mask):
            self.assignments[position] += 1
            self.cells[position] = mask
            # Upstream skips a node without free memory.
            taken = size if free[position] < 0 else min(free[position], size)
            if taken > 0:
                free[position] -= taken
                size -= taken

    def give(self, name: str, mask: Mask, size: int) -> None:
        """Releases a block (releaseMemory): from the lowest node on, up to the bytes that containers have there."""
        free = self.free[name]
        allocatable = self.policy.allocatable[name]
        for position in members(mask):
            self.assignments[position] -= 1
            # The group ends with its last assignment.
            if self.assignments[position] == 0:
                self.cells[position] = 1 << position
            released = min(allocatable[position] - free[position], size)
            if released > 0:
                free[position] += released
                size -= released
