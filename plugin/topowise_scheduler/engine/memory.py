"""The memory manager of many nodes at once (kubelet/memory_manager.py and memory_tables.py).

It decides by amounts and by groups of NUMA nodes, never by ids, so all of it is arithmetic. One node fits alone if it
is in no group; several fit together if none of them is in use, or if they are exactly a group. Nodes in use count as
less than nothing in sums over several, which leaves the groups to be looked at one by one, where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.engine.claims import Places, at
from topowise_scheduler.engine.counts import GROUPS, OUT
from topowise_scheduler.engine.decisions import FAILED, Decisions
from topowise_scheduler.engine.kinds import Sizes
from topowise_scheduler.engine.lattice import LOWEST, Bits, Flags, bits, popcounts, reaching, spread
from topowise_scheduler.engine.shape import Amounts
from topowise_scheduler.engine.sheet import Sheet

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Reusable:
    """What init containers left on one mask (nodes,), 0 for none; `amounts` per type (nodes,)."""

    mask: Bits
    amounts: dict[str, Numbers]


@dataclass(slots=True)
class MemoryClaim:
    """The hints for some amounts: equal for every type. Where nothing fits the manager does not care."""

    memory: Memory
    requested: Amounts
    singles: Bits
    sizes: Sizes
    active: Flags | None
    groups: int

    def table(self, places: Places) -> Flags:
        return self.memory.table(self.requested, self.singles, places)

    def possible(self, places: Places) -> Flags:
        return np.ones(len(places), dtype=np.bool_)

    def only_singles(self, places: Places) -> Flags:
        return ~self.memory.several(self.requested, places)

    def closed(self, places: Places) -> Flags:
        return self.memory.unused(places) & self.memory.several(self.requested, places)

    def cover(self, places: Places) -> Bits:
        everything = np.uint8((1 << self.memory.sheet.zones) - 1)
        return np.where(self.memory.several(self.requested, places), everything, self.singles[places])


class Memory:
    """The tables of all nodes. `used` has the bits of the NUMA nodes in use, `alone` of those in no group."""

    def __init__(self, sheet: Sheet, decisions: Decisions) -> None:
        self.sheet = sheet
        self.decisions = decisions
        zones = sheet.zones
        section = sheet.section(GROUPS)
        self._used: Bits = section[0].astype(np.uint8)
        self._alone: Bits = section[1].astype(np.uint8)
        self._grouped: Flags = section[2] > 0
        self._cells: NDArray[np.int64] = section[3:]
        self._free: dict[str, Numbers] = {}
        self._reusable: list[_Reusable] = []
        self._everything = np.uint8((1 << zones) - 1)
        # The bits of the NUMA nodes that have so much free.
        self._enough: dict[tuple[str, int], Bits] = {}
        self._claims: dict[Amounts, MemoryClaim] = {}
        self._mine = False

    def claim(self, requested: Amounts) -> MemoryClaim | None:
        """The hints for these amounts; None for none at all. Refuses where a type is missing."""
        if not requested or self._missing(requested):
            return None
        found = self._claims.get(requested)
        if found is None:
            found = self._claims[requested] = self._claim(requested)
        return found

    def check(self, requested: Amounts) -> None:
        """Refuse where no hint would help: no mask fits, and none can be met that lies within a group."""
        claim = None if self._reusable else self.claim(requested)
        if claim is not None and claim.active is not None:
            self.decisions.refuse(~claim.active & ~self._grouped, FAILED)

    def allocate(self, requested: Amounts, kind: Kind, hint: Bits, preferred: Flags, *, more: bool) -> None:
        """Allocate; `more`: a later container has memory too. A hint of 0 is no affinity."""
        decide = self.decisions
        if self._missing(requested):
            return
        mask = hint.copy()
        none = decide.live & (hint == 0)
        if none.any():
            if "memory" not in dict(requested):
                decide.refuse(none, FAILED)
            else:
                self._settle(mask, none, requested, preferred)
        enough = self._has_free(mask, requested)
        short = decide.live & ~enough & (hint != 0)
        if short.any():
            if "memory" not in dict(requested):
                decide.refuse(short, FAILED)
            else:
                self._settle(mask, short, requested, preferred)
        single = popcounts(self.sheet.zones)[mask] <= 1
        if not single.all():
            places = np.flatnonzero(~single & decide.live)
            violates = np.zeros(len(mask), dtype=np.bool_)
            violates[places] = ~self._respects(mask[places], places)
            decide.refuse(violates, FAILED)
        if more and requested:
            self._take(mask, requested, kind, single)

    def table(self, requested: Amounts, singles: Bits, places: Places) -> Flags:
        """(2**zones, places) whether the mask fits; `singles` as in the claim."""
        zones = self.sheet.zones
        unused = ~spread(self._used[places], zones)
        found = np.ones((1 << zones, len(places)), dtype=np.bool_)
        for name, size in requested:
            found &= reaching(np.where(unused, at(self._of(name), places), OUT), size)
        found[0] = False
        found[1 << np.arange(zones)] = spread(singles[places], zones)
        grouped = np.flatnonzero(self._grouped[places])
        if len(grouped):
            for mask, fits in self._groups(requested, places[grouped]):
                found[mask[fits], grouped[fits]] = True
        for reusable in self._reusable:
            fits = self._fits_with(reusable, requested)[places]
            fitting = np.flatnonzero(fits)
            found[reusable.mask[places][fitting], fitting] = True
        return found

    def several(self, requested: Amounts, places: Places) -> Flags:
        """Whether several NUMA nodes fit together: the unused ones, a group, or what is reusable."""
        zones = self.sheet.zones
        unused = self._everything & ~self._used[places]
        found: Flags = popcounts(zones)[unused] >= 2
        if found.any():
            found &= self._has_free_at(unused, requested, places)
        grouped = np.flatnonzero(self._grouped[places])
        if len(grouped):
            for _, fits in self._groups(requested, places[grouped]):
                found[grouped] |= fits
        for reusable in self._reusable:
            found |= self._fits_with(reusable, requested)[places] & (popcounts(zones)[reusable.mask[places]] > 1)
        return found

    def unused(self, places: Places) -> Flags:
        """Whether all NUMA nodes are free of pods' memory, so that every mask with enough fits."""
        if self._reusable:
            return np.zeros(len(places), dtype=np.bool_)
        unused: Flags = (self._used[places] == 0) & ~self._grouped[places]
        return unused

    def reserved(self) -> tuple[Numbers, Numbers]:
        """(zones, nodes) what pods hold of "memory", and what they can hold."""
        zones = self.sheet.zones
        allocatable = self.sheet.kinds.empty.section(("memory", "memory"))[:zones, self.sheet.kind]
        return allocatable - self._of("memory"), allocatable

    def _claim(self, requested: Amounts) -> MemoryClaim:
        singles = self._alone
        for name, size in requested:
            singles = singles & self._having(name, size)
        for reusable in self._reusable:
            fits = self._fits_with(reusable, requested)
            single = popcounts(self.sheet.zones)[reusable.mask] == 1
            singles = np.where(fits & single, singles | reusable.mask, singles)
        active = singles != 0
        none = np.flatnonzero(~active)
        if len(none):
            active[none] = self.several(requested, none)
        sizes = self.sheet.each(self.sheet.kinds.memory_sizes(requested))
        whole = None if active.all() else active
        return MemoryClaim(self, requested, singles, sizes, whole, len(requested))

    def _missing(self, requested: Amounts) -> bool:
        """Refuse the nodes that lack a type; True if all do."""
        zones = self.sheet.zones
        for name, _ in requested:
            if ("memory", name) not in self.sheet:
                self.decisions.refuse(self.decisions.live, FAILED)
                return True
            present = self.sheet.section(("memory", name))[zones] > 0
            if not present.all():
                self.decisions.refuse(~present, FAILED)
        return False

    def _of(self, name: str) -> Numbers:
        found = self._free.get(name)
        if found is None:
            found = self._free[name] = self.sheet.section(("memory", name))[: self.sheet.zones]
        return found

    def _having(self, name: str, size: int) -> Bits:
        found = self._enough.get((name, size))
        if found is None:
            found = self._enough[name, size] = bits(self._of(name) >= size)
        return found

    def _groups(self, requested: Amounts, places: Places) -> list[tuple[Bits, Flags]]:
        """The groups of some nodes, each as the mask of one NUMA node, and whether it fits."""
        found = []
        for zone in range(self.sheet.zones):
            mask = self._cells[zone, places].astype(np.uint8)
            fits = (self._used[places] >> np.uint8(zone) & 1 > 0) & (popcounts(self.sheet.zones)[mask] > 1)
            if fits.any():
                fits &= self._respects(mask, places)
                fits &= self._has_free_at(mask, requested, places)
                found.append((mask, fits))
        return found

    def _respects(self, mask: Bits, places: Places) -> Flags:
        """Whether no NUMA node of the mask is in use alone or by another group."""
        zones = self.sheet.zones
        inside = spread(mask & self._used[places], zones)
        violated: Flags = (inside & (at(self._cells, places) != mask)).any(axis=0)
        return ~violated

    def _has_free(self, mask: Bits, requested: Amounts) -> Flags:
        """Whether the NUMA nodes of the mask have enough free, without what can be reused."""
        enough = np.ones(len(mask), dtype=np.bool_)
        for name, size in requested:
            enough &= (mask & self._having(name, size)) != 0
        several = np.flatnonzero(popcounts(self.sheet.zones)[mask] != 1)
        if len(several):
            enough[several] = self._has_free_at(mask[several], requested, several)
        return enough

    def _has_free_at(self, mask: Bits, requested: Amounts, places: Places) -> Flags:
        inside = spread(mask, self.sheet.zones).astype(np.int64)
        enough = np.ones(len(places), dtype=np.bool_)
        for name, size in requested:
            enough &= (at(self._of(name), places) * inside).sum(axis=0) >= size
        return enough

    def _fits_with(self, reusable: _Reusable, requested: Amounts) -> Flags:
        """Whether the mask fits together with what is left on it, and would if the node were empty."""
        zones = self.sheet.zones
        inside = spread(reusable.mask, zones)
        fits: Flags = reusable.mask != 0
        for name, size in requested:
            allocatable = self.sheet.kinds.empty.section(("memory", name))[:zones, self.sheet.kind]
            more = reusable.amounts.get(name, np.int64(0))
            fits &= (allocatable * inside).sum(axis=0) >= size
            fits &= (self._of(name) * inside).sum(axis=0) >= size - more
        single = popcounts(zones)[reusable.mask] == 1
        places = np.flatnonzero(fits)
        allowed = np.where(single, reusable.mask & self._alone != 0, True)
        allowed[places] &= self._respects(reusable.mask[places], places) | single[places]
        fits &= allowed
        return fits

    def _settle(self, mask: Bits, where: Flags, requested: Amounts, preferred: Flags) -> None:
        """The default hint, or the best that contains the stored one (findBestHint), into `mask`; or refuse."""
        zones = self.sheet.zones
        claim = self.claim(requested)
        if claim is None:
            return
        within = mask.copy()
        # One NUMA node that fits is better than all that contain it.
        singles = claim.singles & np.where(within == 0, self._everything, within)
        alone = popcounts(zones)[within] <= 1
        found = np.where(alone, singles & (~singles + np.uint8(1)), np.uint8(0))
        places = np.flatnonzero(where & (found == 0))
        places = places[self.several(requested, places)]
        if len(places):
            fits = self.table(requested, claim.singles, places)
            masks = np.arange(1 << zones, dtype=np.uint8)[:, None]
            fits &= (masks & within[places]) == within[places]
            sizes = claim.sizes[places]
            counts = popcounts(zones)
            # Preferred first, then fewer NUMA nodes, then the smaller integer.
            rank = (counts[:, None] != sizes) * np.int32(1 << 16) + (counts.astype(np.int32) << 8)[:, None] + masks
            best = np.where(fits, rank, np.int32(1 << 24)).min(axis=0)
            found[places] = np.where(best < 1 << 24, best & 255, 0)
        self.decisions.refuse(where & (found == 0), FAILED)
        self.decisions.refuse(where & preferred & (popcounts(zones)[found] != claim.sizes), FAILED)
        mask[where] = found[where]

    def _take(self, mask: Bits, requested: Amounts, kind: Kind, single: Flags) -> None:
        """Book the blocks, the lowest NUMA node first; the nodes of the mask are a group from now on."""
        if not self._mine:
            for name in self.sheet.grid.names("memory"):
                self._free[name] = self._of(name).copy()
            self._cells = self._cells.copy()
            self._mine = True
        self._enough.clear()
        self._claims.clear()
        zones, count = self.sheet.zones, len(mask)
        needed = {}
        for name, size in requested:
            reused = np.zeros(count, dtype=np.int64)
            for reusable in self._reusable:
                reused += np.where(reusable.mask == mask, reusable.amounts.get(name, np.int64(0)), 0)
            needed[name] = np.maximum(0, size - reused)
        if single.all():
            zone, every = LOWEST[mask], np.arange(count)
            for name, amount in needed.items():
                free = self._free[name]
                free[zone, every] -= np.clip(free[zone, every], 0, amount)
            self._cells[zone, every] = mask
            self._alone |= mask
        else:
            inside = spread(mask, zones)
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
        self._leave(mask, dict(requested), kind)

    def _leave(self, mask: Bits, amounts: dict[str, int], kind: Kind) -> None:
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
