"""The memory manager of many nodes at once (kubelet/memory_manager.py and memory_tables.py).

Invariant: the free amounts and groups kept here are those its memory manager would have after the same containers. It
decides by amounts and by groups of NUMA nodes, never by ids, so all of it is arithmetic, and only where a kubelet joins
groups that are in use, as it did up to 1.31, the node is deferred.

One NUMA node fits alone if it is in no group; several fit together if none of them is in use, or if they are exactly a
group. Nodes in use count as less than nothing in sums over several, which leaves the groups to be looked at one by one,
where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.engine.mask_arrays import (
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
from topowise_scheduler.engine.node_groups import NodesView
from topowise_scheduler.engine.node_vector import ABSENT, GROUPS
from topowise_scheduler.engine.verdicts import FAILED, PANICS, Decisions
from topowise_scheduler.shape import Amounts

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Reusable:
    """What init containers left on one mask (nodes,), 0 for none; `amounts` per type (nodes,)."""

    mask: Masks
    amounts: dict[str, Numbers]


@dataclass(slots=True)
class MemoryHints:
    """The hints for some amounts: equal for every type. Where nothing fits the manager does not care."""

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
        everything = np.uint8((1 << self.memory.counts.zones) - 1)
        return np.where(self.memory.several(self.requested, subset), everything, self.singles[subset])


class MemoryManager:
    """The tables of all nodes. `used` has the bits of the NUMA nodes in use, `alone` of those in no group."""

    def __init__(self, counts: NodesView, decisions: Decisions) -> None:
        self.counts = counts
        self.decisions = decisions
        zones = counts.zones
        section = counts.section(GROUPS)
        self._used: Masks = section[0].astype(np.uint8)
        self._alone: Masks = section[1].astype(np.uint8)
        self._grouped: Flags = section[2] > 0
        self._checked: Flags = section[3] > 0
        self._cells: NDArray[np.int64] = section[4:]
        self._free: dict[str, Numbers] = {}
        self._reusable: list[_Reusable] = []
        self._everything = np.uint8((1 << zones) - 1)
        # The bits of the NUMA nodes that have so much free.
        self._enough: dict[tuple[str, int], Masks] = {}
        self._hints: dict[Amounts, MemoryHints] = {}
        self._owned = False

    def hints(self, requested: Amounts) -> MemoryHints | None:
        """The hints for these amounts; None for none at all. Refuses where a type is missing."""
        if not requested or self._missing(requested):
            return None
        found = self._hints.get(requested)
        if found is None:
            found = self._hints[requested] = self._hints_of(requested)
        return found

    def check(self, requested: Amounts) -> None:
        """Refuse where no hint would help: no mask fits, and none can be met that lies within a group."""
        hints = None if self._reusable else self.hints(requested)
        if hints is not None and hints.active is not None:
            self.decisions.refuse(~hints.active & ~self._grouped & self._checked, FAILED)

    def allocate(self, requested: Amounts, kind: Kind, hint: Masks, preferred: Flags, *, more: bool) -> Masks:
        """Allocate; `more`: a later container has memory too. A hint of 0 is no affinity.

        The NUMA nodes that it is allocated on, which may be more than the hint's.
        """
        decide = self.decisions
        if self._missing(requested):
            return hint
        mask = hint.copy()
        none = decide.undecided & (hint == 0)
        if none.any():
            if "memory" not in dict(requested):
                decide.refuse(none, FAILED)
            else:
                self._extend(mask, none, requested, preferred)
        enough = self._has_free(mask, requested)
        short = decide.undecided & ~enough & (hint != 0)
        if short.any():
            if "memory" not in dict(requested):
                decide.refuse(short, FAILED)
            else:
                self._extend(mask, short, requested, preferred)
        single = popcounts(self.counts.zones)[mask] <= 1
        if not single.all():
            subset = np.flatnonzero(~single & decide.undecided)
            violates = np.zeros(len(mask), dtype=np.bool_)
            violates[subset] = ~self._respects(mask[subset], subset)
            decide.refuse(violates & self._checked, FAILED)
            decide.defer(violates, "memory-groups")
        if more and requested:
            self._book(mask, requested, kind, single)
        return mask

    def fitting(self, requested: Amounts, singles: Masks, subset: Subset) -> Flags:
        """(2**zones, subset) whether the mask fits; `singles` as in the hints."""
        zones = self.counts.zones
        unused = ~zones_in(self._used[subset], zones)
        found = np.ones((1 << zones, len(subset)), dtype=np.bool_)
        for name, size in requested:
            found &= masks_reaching(np.where(unused, select(self._free_of(name), subset), ABSENT), size)
        found[0] = False
        found[1 << np.arange(zones)] = zones_in(singles[subset], zones)
        grouped = np.flatnonzero(self._grouped[subset])
        if len(grouped):
            for mask, fits in self._groups(requested, subset[grouped]):
                found[mask[fits], grouped[fits]] = True
        for reusable in self._reusable:
            fits = self._fits_with(reusable, requested)[subset]
            fitting = np.flatnonzero(fits)
            found[reusable.mask[subset][fitting], fitting] = True
        return found

    def several(self, requested: Amounts, subset: Subset) -> Flags:
        """Whether several NUMA nodes fit together: the unused ones, a group, or what is reusable."""
        zones = self.counts.zones
        unused = self._everything & ~self._used[subset]
        found: Flags = popcounts(zones)[unused] >= 2
        if found.any():
            found &= self._has_free_at(unused, requested, subset)
        grouped = np.flatnonzero(self._grouped[subset])
        if len(grouped):
            for _, fits in self._groups(requested, subset[grouped]):
                found[grouped] |= fits
        for reusable in self._reusable:
            found |= self._fits_with(reusable, requested)[subset] & (popcounts(zones)[reusable.mask[subset]] > 1)
        return found

    def unused(self, subset: Subset) -> Flags:
        """Whether all NUMA nodes are free of pods' memory, so that every mask with enough fits."""
        if self._reusable:
            return np.zeros(len(subset), dtype=np.bool_)
        unused: Flags = (self._used[subset] == 0) & ~self._grouped[subset]
        return unused

    def reserved(self) -> tuple[Numbers, Numbers]:
        """(zones, nodes) what pods hold of "memory", and what they can hold."""
        allocatable = self.counts.allocatable(("memory", "memory"))
        return allocatable - self._free_of("memory"), allocatable

    def _hints_of(self, requested: Amounts) -> MemoryHints:
        singles = self._alone
        for name, size in requested:
            singles = singles & self._zones_with(name, size)
        for reusable in self._reusable:
            fits = self._fits_with(reusable, requested)
            single = popcounts(self.counts.zones)[reusable.mask] == 1
            singles = np.where(fits & single, singles | reusable.mask, singles)
        active = singles != 0
        none = np.flatnonzero(~active)
        if len(none):
            active[none] = self.several(requested, none)
        sizes = self.counts.memory_sizes(requested)
        whole = None if active.all() else active
        return MemoryHints(self, requested, singles, sizes, whole, len(requested))

    def _missing(self, requested: Amounts) -> bool:
        """Refuse the nodes that lack a type, whose kubelets would panic; True if all do."""
        zones = self.counts.zones
        for name, _ in requested:
            if ("memory", name) not in self.counts:
                self.decisions.refuse(self.decisions.undecided, PANICS)
                return True
            known = self.counts.section(("memory", name))[zones]
            if not (known > 0).all():
                self.decisions.refuse(known == 0, PANICS)
                self.decisions.defer(known < 0, "page-sizes")
        return False

    def _free_of(self, name: str) -> Numbers:
        found = self._free.get(name)
        if found is None:
            found = self._free[name] = self.counts.section(("memory", name))[: self.counts.zones]
        return found

    def _zones_with(self, name: str, size: int) -> Masks:
        found = self._enough.get((name, size))
        if found is None:
            found = self._enough[name, size] = to_masks(self._free_of(name) >= size)
        return found

    def _groups(self, requested: Amounts, subset: Subset) -> list[tuple[Masks, Flags]]:
        """The groups of some nodes, each as the mask of one NUMA node, and whether it fits."""
        found = []
        for zone in range(self.counts.zones):
            mask = self._cells[zone, subset].astype(np.uint8)
            fits = (self._used[subset] >> np.uint8(zone) & 1 > 0) & (popcounts(self.counts.zones)[mask] > 1)
            if fits.any():
                fits &= self._respects(mask, subset)
                fits &= self._has_free_at(mask, requested, subset)
                found.append((mask, fits))
        return found

    def _respects(self, mask: Masks, subset: Subset) -> Flags:
        """Whether no NUMA node of the mask is in use alone or by another group."""
        zones = self.counts.zones
        inside = zones_in(mask & self._used[subset], zones)
        violated: Flags = (inside & (select(self._cells, subset) != mask)).any(axis=0)
        return ~violated

    def _has_free(self, mask: Masks, requested: Amounts) -> Flags:
        """Whether the NUMA nodes of the mask have enough free, without what can be reused."""
        enough = np.ones(len(mask), dtype=np.bool_)
        for name, size in requested:
            enough &= (mask & self._zones_with(name, size)) != 0
        several = np.flatnonzero(popcounts(self.counts.zones)[mask] != 1)
        if len(several):
            enough[several] = self._has_free_at(mask[several], requested, several)
        return enough

    def _has_free_at(self, mask: Masks, requested: Amounts, subset: Subset) -> Flags:
        inside = zones_in(mask, self.counts.zones).astype(np.int64)
        enough = np.ones(len(subset), dtype=np.bool_)
        for name, size in requested:
            enough &= (select(self._free_of(name), subset) * inside).sum(axis=0) >= size
        return enough

    def _fits_with(self, reusable: _Reusable, requested: Amounts) -> Flags:
        """Whether the mask fits together with what is left on it, and would if the node were empty."""
        zones = self.counts.zones
        inside = zones_in(reusable.mask, zones)
        fits: Flags = reusable.mask != 0
        for name, size in requested:
            allocatable = self.counts.allocatable(("memory", name))
            more = reusable.amounts.get(name, np.int64(0))
            fits &= (allocatable * inside).sum(axis=0) >= size
            fits &= (self._free_of(name) * inside).sum(axis=0) >= size - more
        single = popcounts(zones)[reusable.mask] == 1
        subset = np.flatnonzero(fits)
        allowed = np.where(single, reusable.mask & self._alone != 0, True)
        allowed[subset] &= self._respects(reusable.mask[subset], subset) | single[subset]
        fits &= allowed
        return fits

    def _extend(self, mask: Masks, where: Flags, requested: Amounts, preferred: Flags) -> None:
        """The default hint, or the best that contains the stored one (findBestHint), into `mask`; or refuse."""
        zones = self.counts.zones
        hints = self.hints(requested)
        if hints is None:
            return
        within = mask.copy()
        # One NUMA node that fits is better than all that contain it.
        singles = hints.singles & np.where(within == 0, self._everything, within)
        alone = popcounts(zones)[within] <= 1
        found = np.where(alone, singles & (~singles + np.uint8(1)), np.uint8(0))
        subset = np.flatnonzero(where & (found == 0))
        subset = subset[self.several(requested, subset)]
        if len(subset):
            fits = self.fitting(requested, hints.singles, subset)
            masks = np.arange(1 << zones, dtype=np.uint8)[:, None]
            fits &= (masks & within[subset]) == within[subset]
            sizes = hints.sizes[subset]
            counts = popcounts(zones)
            # Preferred first, then fewer NUMA nodes, then the smaller integer.
            rank = (counts[:, None] != sizes) * np.int32(1 << 16) + (counts.astype(np.int32) << 8)[:, None] + masks
            best = np.where(fits, rank, np.int32(1 << 24)).min(axis=0)
            found[subset] = np.where(best < 1 << 24, best & 255, 0)
        self.decisions.refuse(where & (found == 0), FAILED)
        self.decisions.refuse(where & preferred & (popcounts(zones)[found] != hints.sizes), FAILED)
        mask[where] = found[where]

    def _book(self, mask: Masks, requested: Amounts, kind: Kind, single: Flags) -> None:
        """Book the blocks, the lowest NUMA node first; the nodes of the mask are a group from now on."""
        if not self._owned:
            for name in self.counts.names("memory"):
                self._free[name] = self._free_of(name).copy()
            self._cells = self._cells.copy()
            self._owned = True
        self._enough.clear()
        self._hints.clear()
        zones, count = self.counts.zones, len(mask)
        needed = {}
        for name, size in requested:
            reused = np.zeros(count, dtype=np.int64)
            for reusable in self._reusable:
                reused += np.where(reusable.mask == mask, reusable.amounts.get(name, np.int64(0)), 0)
            needed[name] = np.maximum(0, size - reused)
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
                    taken = np.where(inside[position], np.clip(free[position], 0, amount), 0)
                    free[position] -= taken
                    amount = amount - taken
            self._cells = np.where(inside, mask, self._cells)
            self._alone = np.where(single, self._alone | mask, self._alone & ~mask)
            self._grouped |= ~single
        self._used = self._used | mask
        self._keep_reusable(mask, dict(requested), kind)

    def _keep_reusable(self, mask: Masks, amounts: dict[str, int], kind: Kind) -> None:
        """What is reusable afterwards: an init container's memory, less what sidecars and app containers took."""
        count = len(mask)
        unmatched = np.ones(count, dtype=np.bool_)
        for reusable in self._reusable:
            same = reusable.mask == mask
            unmatched &= ~same
            for name, size in amounts.items():
                before = reusable.amounts.get(name, np.zeros(count, dtype=np.int64))
                after = np.maximum(before, size) if kind == "init" else np.maximum(0, before - size)
                reusable.amounts[name] = np.where(same, after, before)
        if kind == "init":
            left = {name: np.full(count, size, dtype=np.int64) for name, size in amounts.items()}
            self._reusable.append(_Reusable(np.where(unmatched, mask, np.uint8(0)), left))
