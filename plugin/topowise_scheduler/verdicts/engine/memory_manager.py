"""The memory manager of many nodes at once (kubelet/memory_manager.py and memory_tables.py).

Invariant: the free amounts and groups of a node equal those of its memory manager after the same containers. The memory
manager decides by amounts and groups of NUMA nodes, never by ids, so arithmetic suffices. Only where a kubelet joins
groups in use, as kubelets did up to 1.31, the node is deferred.

A single NUMA node fits if it is in no group. Several NUMA nodes fit together if none of them is in use, or if they are
exactly a group (isAffinityViolatingNUMAAllocations). NUMA nodes in use are ABSENT in sums, and groups are checked
separately.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.report.shape import Amounts
from topowise_scheduler.verdicts.engine.mask_arrays import (
    LOWEST_ZONE,
    Flags,
    Masks,
    Subset,
    masks_reaching,
    popcounts,
    select,
    to_masks,
    zones_in,
)
from topowise_scheduler.verdicts.engine.node_groups import NodesView
from topowise_scheduler.verdicts.engine.node_vector import ABSENT, GROUPS
from topowise_scheduler.verdicts.engine.verdicts import FAILED, PANICS, Decisions

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Reusable:
    """The memory of init containers on a mask (nodes,), 0 for none; `amounts` by type (nodes,)."""

    mask: Masks
    amounts: dict[str, Numbers]


@dataclass(slots=True)
class MemoryHints:
    """The hints for some amounts, equal for every type. Where nothing fits, the manager gives no hints."""

    memory: MemoryManager
    requested: Amounts
    singles: Masks
    sizes: Masks
    active: Flags | None
    lists: int

    def fitting(self, subset: Subset) -> Flags:
        return self.memory.fitting(self.requested, self.singles, subset)

    def any_fits(self, subset: Subset) -> Flags:
        return np.ones(len(subset), dtype=np.bool_)

    def only_singles(self, subset: Subset) -> Flags:
        return ~self.memory.several(self.requested, subset)

    def upward_closed(self, subset: Subset) -> Flags:
        return self.memory.unused(subset) & self.memory.several(self.requested, subset)

    def cover(self, subset: Subset) -> Masks:
        everything = np.uint8((1 << self.memory.nodes.zones) - 1)
        return np.where(self.memory.several(self.requested, subset), everything, self.singles[subset])


class MemoryManager:
    """The memory of all nodes. `_used` are the NUMA nodes in use as a mask, `_alone` the NUMA nodes in no group."""

    def __init__(self, nodes: NodesView, decisions: Decisions) -> None:
        self.nodes = nodes
        self.decisions = decisions
        zones = nodes.zones
        section = nodes.section(GROUPS)
        self._used: Masks = section[0].astype(np.uint8)
        self._alone: Masks = section[1].astype(np.uint8)
        self._grouped: Flags = section[2] > 0
        self._checked: Flags = section[3] > 0
        self._cells: NDArray[np.int64] = section[4:]
        self._free: dict[str, Numbers] = {}
        self._reusable: list[_Reusable] = []
        self._everything = np.uint8((1 << zones) - 1)
        # By type and amount, the NUMA nodes with this amount free as a mask.
        self._enough: dict[tuple[str, int], Masks] = {}
        self._hints: dict[Amounts, MemoryHints] = {}
        self._owned = False

    def hints(self, requested: Amounts) -> MemoryHints | None:
        """The hints for these amounts (calculateHints), None without any. Refuses nodes that lack a type."""
        if not requested or self._missing(requested):
            return None
        hints = self._hints.get(requested)
        if hints is None:
            hints = self._hints[requested] = self._hints_of(requested)
        return hints

    def check(self, requested: Amounts) -> None:
        """Refuses a container under every hint: no mask fits, and there is no group with which a mask could fit."""
        hints = None if self._reusable else self.hints(requested)
        if hints is not None and hints.active is not None:
            self.decisions.refuse(~hints.active & ~self._grouped & self._checked, FAILED)

    def allocate(self, requested: Amounts, kind: Kind, hint: Masks, preferred: Flags, *, more: bool) -> Masks:
        """Allocates a container (staticPolicy.Allocate); `more`: a later container has memory too.

        Returns its NUMA nodes, which can be more than the hint's. A hint of 0 is no affinity.
        """
        decide = self.decisions
        if self._missing(requested):
            return hint
        mask = hint.copy()
        # First getDefaultHint for nodes without affinity, then extendTopologyManagerHint for hints with too little.
        for has_hint in (False, True):
            extended = decide.undecided & ((hint != 0) == has_hint)
            if has_hint:
                extended &= ~self._has_free(mask, requested)
            if not extended.any():
                continue
            if "memory" not in dict(requested):
                decide.refuse(extended, FAILED)
            else:
                self._extend(mask, extended, requested, preferred)
        single = popcounts(self.nodes.zones)[mask] <= 1
        if not single.all():
            subset = np.flatnonzero(~single & decide.undecided)
            violates = np.zeros(len(mask), dtype=np.bool_)
            # Several NUMA nodes must be unused or exactly a group.
            violates[subset] = ~self._respects(mask[subset], subset)
            decide.refuse(violates & self._checked, FAILED)
            # Kubelets up to 1.31 join groups, which amounts do not represent.
            decide.defer(violates, "memory-groups")
        if more and requested:
            self._book(mask, requested, kind, single)
        return mask

    def fitting(self, requested: Amounts, singles: Masks, subset: Subset) -> Flags:
        """(2**zones, subset) whether the mask fits; `singles` as in the hints."""
        zones = self.nodes.zones
        unused = ~zones_in(self._used[subset], zones)
        table = np.ones((1 << zones, len(subset)), dtype=np.bool_)
        for name, size in requested:
            # ABSENT excludes masks with a NUMA node in use.
            table &= masks_reaching(np.where(unused, select(self._free_of(name), subset), ABSENT), size)
        table[0] = False
        # Single NUMA nodes also fit if only single-node containers use them.
        table[1 << np.arange(zones)] = zones_in(singles[subset], zones)
        grouped = np.flatnonzero(self._grouped[subset])
        if len(grouped):
            for mask, fits in self._groups(requested, subset[grouped]):
                table[mask[fits], grouped[fits]] = True
        for reusable in self._reusable:
            fits = self._fits_with(reusable, requested)[subset]
            fitting = np.flatnonzero(fits)
            table[reusable.mask[subset][fitting], fitting] = True
        return table

    def several(self, requested: Amounts, subset: Subset) -> Flags:
        """Whether several NUMA nodes fit together: all unused nodes, a group, or the nodes of reusable memory."""
        zones = self.nodes.zones
        unused = self._everything & ~self._used[subset]
        several: Flags = popcounts(zones)[unused] >= 2
        if several.any():
            # If all unused NUMA nodes together lack memory, every subset does.
            several &= self._has_free_at(unused, requested, subset)
        grouped = np.flatnonzero(self._grouped[subset])
        if len(grouped):
            for _, fits in self._groups(requested, subset[grouped]):
                several[grouped] |= fits
        for reusable in self._reusable:
            several |= self._fits_with(reusable, requested)[subset] & (popcounts(zones)[reusable.mask[subset]] > 1)
        return several

    def unused(self, subset: Subset) -> Flags:
        """Whether no NUMA node is in use, so that every mask with enough memory fits."""
        if self._reusable:
            return np.zeros(len(subset), dtype=np.bool_)
        unused: Flags = (self._used[subset] == 0) & ~self._grouped[subset]
        return unused

    def reserved(self) -> tuple[Numbers, Numbers]:
        """(zones, nodes) the allocated and the allocatable "memory"."""
        allocatable = self.nodes.allocatable(("memory", "memory"))
        return allocatable - self._free_of("memory"), allocatable

    def _hints_of(self, requested: Amounts) -> MemoryHints:
        singles = self._alone
        for name, size in requested:
            singles = singles & self._zones_with(name, size)
        for reusable in self._reusable:
            fits = self._fits_with(reusable, requested)
            single = popcounts(self.nodes.zones)[reusable.mask] == 1
            singles = np.where(fits & single, singles | reusable.mask, singles)
        active = singles != 0
        none = np.flatnonzero(~active)
        if len(none):
            active[none] = self.several(requested, none)
        sizes = self.nodes.memory_sizes(requested)
        whole = None if active.all() else active
        return MemoryHints(self, requested, singles, sizes, whole, len(requested))

    def _missing(self, requested: Amounts) -> bool:
        """Refuses nodes that lack a type, whose kubelets would panic; True if all nodes lack it."""
        zones = self.nodes.zones
        for name, _ in requested:
            section = self.nodes.find(("memory", name))
            if section is None:
                self.decisions.refuse(self.decisions.undecided, PANICS)
                return True
            known = section[zones]
            if not (known > 0).all():
                self.decisions.refuse(known == 0, PANICS)
                # The kubelet panics on masks with a NUMA node that lacks the page size, so the model decides.
                self.decisions.defer(known < 0, "page-sizes")
        return False

    def _free_of(self, name: str) -> Numbers:
        free = self._free.get(name)
        if free is None:
            free = self._free[name] = self.nodes.section(("memory", name))[: self.nodes.zones]
        return free

    def _zones_with(self, name: str, size: int) -> Masks:
        mask = self._enough.get((name, size))
        if mask is None:
            mask = self._enough[name, size] = to_masks(self._free_of(name) >= size)
        return mask

    def _groups(self, requested: Amounts, subset: Subset) -> list[tuple[Masks, Flags]]:
        """By zone, the group of that zone as a mask (subset,), and whether the group fits (isHintInGroup)."""
        groups = []
        for zone in range(self.nodes.zones):
            mask = self._cells[zone, subset].astype(np.uint8)
            fits = (self._used[subset] >> np.uint8(zone) & 1 > 0) & (popcounts(self.nodes.zones)[mask] > 1)
            if fits.any():
                fits &= self._respects(mask, subset)
                fits &= self._has_free_at(mask, requested, subset)
                groups.append((mask, fits))
        return groups

    def _respects(self, mask: Masks, subset: Subset) -> Flags:
        """Whether no NUMA node of the mask is in use alone or in a different group
        (isAffinityViolatingNUMAAllocations)."""
        zones = self.nodes.zones
        inside = zones_in(mask & self._used[subset], zones)
        violated: Flags = (inside & (select(self._cells, subset) != mask)).any(axis=0)
        return ~violated

    def _has_free(self, mask: Masks, requested: Amounts) -> Flags:
        """Whether the NUMA nodes of the mask have enough free memory (isAffinitySatisfyRequest), without reuse."""
        enough = np.ones(len(mask), dtype=np.bool_)
        for name, size in requested:
            enough &= (mask & self._zones_with(name, size)) != 0
        # Cached masks decide for single NUMA nodes; only wider masks need sums.
        several = np.flatnonzero(popcounts(self.nodes.zones)[mask] != 1)
        if len(several):
            enough[several] = self._has_free_at(mask[several], requested, several)
        return enough

    def _has_free_at(self, mask: Masks, requested: Amounts, subset: Subset) -> Flags:
        inside = zones_in(mask, self.nodes.zones).astype(np.int64)
        enough = np.ones(len(subset), dtype=np.bool_)
        for name, size in requested:
            enough &= (select(self._free_of(name), subset) * inside).sum(axis=0) >= size
        return enough

    def _fits_with(self, reusable: _Reusable, requested: Amounts) -> Flags:
        """Whether the reusable mask fits with its reusable memory, and on the empty node."""
        zones = self.nodes.zones
        inside = zones_in(reusable.mask, zones)
        fits: Flags = reusable.mask != 0
        for name, size in requested:
            allocatable = self.nodes.allocatable(("memory", name))
            more = reusable.amounts.get(name, np.int64(0))
            # calculateHints skips masks that are too small even without any allocation.
            fits &= (allocatable * inside).sum(axis=0) >= size
            fits &= (self._free_of(name) * inside).sum(axis=0) >= size - more
        single = popcounts(zones)[reusable.mask] == 1
        subset = np.flatnonzero(fits)
        allowed = np.where(single, reusable.mask & self._alone != 0, True)
        allowed[subset] &= self._respects(reusable.mask[subset], subset) | single[subset]
        fits &= allowed
        return fits

    def _extend(self, mask: Masks, where: Flags, requested: Amounts, preferred: Flags) -> None:
        """Writes the best hint that contains the stored hint (findBestHint) into `mask`, or refuses the container."""
        zones = self.nodes.zones
        hints = self.hints(requested)
        if hints is None:
            return
        within = mask.copy()
        # A single NUMA node that fits is better than every mask that contains it.
        singles = hints.singles & np.where(within == 0, self._everything, within)
        alone = popcounts(zones)[within] <= 1
        best = np.where(alone, singles & (~singles + np.uint8(1)), np.uint8(0))
        subset = np.flatnonzero(where & (best == 0))
        subset = subset[self.several(requested, subset)]
        if len(subset):
            fits = self.fitting(requested, hints.singles, subset)
            masks = np.arange(1 << zones, dtype=np.uint8)[:, None]
            fits &= (masks & within[subset]) == within[subset]
            sizes = hints.sizes[subset]
            lengths = popcounts(zones)
            # Preferred first, then fewer NUMA nodes, then the smaller integer.
            rank = (lengths[:, None] != sizes) * np.int32(1 << 16) + (lengths.astype(np.int32) << 8)[:, None] + masks
            least = np.where(fits, rank, np.int32(1 << 24)).min(axis=0)
            best[subset] = np.where(least < 1 << 24, least & 255, 0)
        self.decisions.refuse(where & (best == 0), FAILED)
        # A preferred hint must not become a hint that is not preferred.
        self.decisions.refuse(where & preferred & (popcounts(zones)[best] != hints.sizes), FAILED)
        mask[where] = best[where]

    def _book(self, mask: Masks, requested: Amounts, kind: Kind, single: Flags) -> None:
        """Takes memory from the lowest NUMA node on and makes the mask a group (updateMachineState)."""
        if not self._owned:
            for name in self.nodes.names("memory"):
                self._free[name] = self._free_of(name).copy()
            self._cells = self._cells.copy()
            self._owned = True
        # Cached masks and hints refer to the previous amounts.
        self._enough.clear()
        self._hints.clear()
        zones, count = self.nodes.zones, len(mask)
        needed = {}
        for name, size in requested:
            reused = np.zeros(count, dtype=np.int64)
            for reusable in self._reusable:
                reused += np.where(reusable.mask == mask, reusable.amounts.get(name, np.int64(0)), 0)
            needed[name] = np.maximum(0, size - reused)
        # The common case needs no loop over zones.
        if single.all():
            zone, every = LOWEST_ZONE[mask], np.arange(count)
            for name, amount in needed.items():
                free = self._free[name]
                free[zone, every] -= np.clip(free[zone, every], 0, amount)
            self._cells[zone, every] = mask
            self._alone |= mask
        else:
            inside = zones_in(mask, zones)
            for name, amount in needed.items():
                free = self._free[name]
                for position in range(zones):
                    taken = np.clip(free[position], 0, amount * inside[position])
                    free[position] -= taken
                    amount = amount - taken
            self._cells = np.where(inside, mask, self._cells)
            # The NUMA nodes of a wider mask form a group.
            self._alone = np.where(single, self._alone | mask, self._alone & ~mask)
            self._grouped |= ~single
        self._used = self._used | mask
        self._keep_reusable(mask, dict(requested), kind)

    def _keep_reusable(self, mask: Masks, amounts: dict[str, int], kind: Kind) -> None:
        """Updates reusable memory: an init container adds to it, sidecars and app containers take from it
        (updatePodReusableMemory)."""
        count = len(mask)
        unmatched = np.ones(count, dtype=np.bool_)
        for reusable in self._reusable:
            is_same = reusable.mask == mask
            unmatched &= ~is_same
            for name, size in amounts.items():
                before = reusable.amounts.get(name, np.zeros(count, dtype=np.int64))
                after = np.maximum(before, size) if kind == "init" else np.maximum(0, before - size)
                reusable.amounts[name] = np.where(is_same, after, before)
        if kind == "init":
            left = {name: np.full(count, size, dtype=np.int64) for name, size in amounts.items()}
            self._reusable.append(_Reusable(np.where(unmatched, mask, np.uint8(0)), left))
