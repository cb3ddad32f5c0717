"""The CPU manager of many nodes at once (kubelet/cpu_manager.py), by numbers of CPUs per NUMA node.

Which CPUs a container gets matters to the next one in two ways: how many are left on each NUMA node, and how many of
an init container's CPUs are taken over. Both follow from numbers as long as the kubelet packs CPUs on a machine
without odd cores (packing.py). Elsewhere there are bounds, and where a hint depends on what lies between them the node
is doubted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.engine import packing
from topowise_scheduler.engine.claims import Claim, CountClaim, chosen
from topowise_scheduler.engine.counts import CORES, CPU
from topowise_scheduler.engine.decisions import FAILED, NOT_WHOLE_CORES, Decisions
from topowise_scheduler.engine.lattice import LOWEST, Bits, Flags, bits, popcounts, spread
from topowise_scheduler.engine.sheet import Sheet
from topowise_scheduler.engine.traits import Traits

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Reusable:
    """The CPUs of init containers that later ones may take over (zones, nodes): between `low` and `high`, and on the
    whole node `at_most` (nodes,), which holds also where it is not known from which NUMA nodes they are.

    Of one NUMA node the kubelet takes wholly free cores in a fixed order, then single CPUs of broken cores in a fixed
    order. So containers that take from the same pool take beginnings of the same two rows, `broken` and `whole` are
    how long those are, and what one leaves of another's is known. That is so up to the first container that keeps
    what it takes; from then on both are None.
    """

    low: Numbers
    high: Numbers
    at_most: Numbers
    broken: Numbers | None
    whole: Numbers | None


class Cpus:
    """`pool` (zones, nodes) is what the next container may take: free CPUs and reusable ones."""

    def __init__(self, sheet: Sheet, traits: Traits, decisions: Decisions) -> None:
        self.sheet = sheet
        self.traits = traits
        self.decisions = decisions
        section = sheet.section(CPU)
        zones = sheet.zones
        self.pool: Numbers = section[:zones]
        self._total: Numbers = section[zones]
        self._whole_low: Numbers = section[zones + 1]
        self._whole_high: Numbers = section[zones + 1]
        self._cores: Numbers = section[zones + 2 :]
        # Available CPUs on cores with a reserved one.
        self._beside_reserved: Numbers = self._total - self._whole_low
        self._reusable: _Reusable | None = None
        self._layout: packing.Layout | None = None
        self._unknown: Flags | None = None
        self._uneven: Flags | None = None

    def claim(self, count: int) -> Claim:
        """The hints for so many exclusive CPUs."""
        self._doubt(None)
        singles = bits(self.pool >= count)
        bound = None
        if self._reusable is not None:
            # What init containers had must lie within the mask.
            bound = bits(self._reusable.low > 0)
            within = np.where(popcounts(self.sheet.zones)[bound] > 1, np.uint8(0), singles & bound)
            singles = np.where(bound == 0, singles, within)
        sizes = self.sheet.each(self.sheet.kinds.cpu_sizes(count))
        return CountClaim(self.pool, count, singles, sizes, bound=bound)

    def confirm(self, hint: Bits, preferred: Flags) -> None:
        """Doubt the hints that would be others if CPUs of init containers were left, or were not."""
        reusable = self._reusable
        if reusable is not None:
            perhaps = bits((reusable.high > 0) & (reusable.low <= 0))
            same = preferred & (perhaps & ~hint == 0)
            self.decisions.doubt((perhaps != 0) & ~same, "cpus-of-init-containers")

    def free(self, several: Flags, *, claimed: bool) -> Numbers:
        """(zones, nodes) what nobody holds, for the vote; doubt where it is not known and `several` fit.

        With `claimed` there is a choice only where no CPUs of init containers are left.
        """
        self._doubt(several)
        reusable = self._reusable
        if reusable is None:
            return self.pool
        if not claimed:
            self.decisions.doubt((reusable.low != reusable.high).any(axis=0) & several, "cpus-of-init-containers")
        return self.pool - reusable.low

    def check(self, count: int) -> None:
        """Refuse where no hint would help."""
        zones, decide = self.sheet.zones, self.decisions
        decide.doubt(self._uneven, "uneven-cores")
        if self.traits.full_cores:
            per_core = self.sheet.kinds.fixed.section(CORES)[zones, self.sheet.kind]
            decide.refuse(count % per_core != 0, NOT_WHOLE_CORES)
            decide.refuse(self._whole_high < count, NOT_WHOLE_CORES)
            decide.doubt(self._whole_low < count, "cpus-of-init-containers")
        short = self._total < count
        # Where a socket or core is larger than the average, CPUs that are not free count among those taken.
        decide.doubt(short & ~self._even(), "uneven-cores")
        decide.refuse(short, FAILED)

    def allocate(self, count: int, kind: Kind, hint: Bits, *, more: bool) -> None:
        """Allocate what `check` let pass; `more`: a later container asks for exclusive CPUs or votes.

        A hint of 0 is no affinity.
        """
        if not (more or self.traits.distributed):
            return
        zones, even = self.sheet.zones, self._even()
        if zones == 1:
            hint = np.maximum(hint, np.uint8(1))
        zone = LOWEST[hint]
        within = (popcounts(zones)[hint] == 1) & (chosen(self.pool, zone) >= count)
        if self.traits.distributed:
            self.decisions.doubt(~(within & even), "distributed-cpus")
        if more:
            self._uneven = ~even
            taken = np.zeros_like(self.pool)
            taken[zone, np.arange(len(zone))] = count * within
            self._spread(taken, count, hint, np.flatnonzero(~within & self.decisions.live))
            self._book(taken, count, kind)

    def _doubt(self, where: Flags | None) -> None:
        """Doubt where the pool is not known."""
        for unknown, cause in ((self._uneven, "uneven-cores"), (self._unknown, "cpus-over-several-nodes")):
            if unknown is not None:
                self.decisions.doubt(unknown if where is None else unknown & where, cause)

    def _even(self) -> Flags:
        even: Flags = self.sheet.kinds.fixed.section(CORES)[self.sheet.zones + 1, self.sheet.kind] > 0
        return even

    def _packing(self) -> packing.Layout:
        if self._layout is None:
            self._layout = packing.Layout.of(self.sheet)
        return self._layout

    def _spread(self, taken: Numbers, count: int, hint: Bits, places: NDArray[np.intp]) -> None:
        """What is taken where the hint has several NUMA nodes, none, or one with too little: first within it."""
        if not len(places):
            return
        layout = self._packing()
        if not layout.known[places].all():
            unknown = np.zeros(len(hint), dtype=np.bool_)
            unknown[places] = ~layout.known[places]
            self._unknown = unknown if self._unknown is None else self._unknown | unknown
            places = places[layout.known[places]]
        layout = layout.at(places)
        pool = np.maximum(self.pool[:, places], 0)
        cores = self._cores[:, places]
        inside = spread(hint[places], len(pool))
        aligned = pool * inside
        wanted = np.minimum(count, aligned.sum(axis=0))
        found = packing.take(layout, aligned, cores * inside, wanted)
        rest = np.flatnonzero(wanted < count)
        if len(rest):
            # All within the hint is taken, so that whole cores are left outside only.
            free = pool[:, rest] - found[:, rest]
            outside = cores[:, rest] * (free > 0)
            found[:, rest] += packing.take(layout.at(rest), free, outside, count - wanted[rest])
        taken[:, places] = found

    def _book(self, taken: Numbers, count: int, kind: Kind) -> None:
        layout, reusable = self._packing(), self._reusable
        anew = np.int64(count) if reusable is None else np.maximum(0, count - reusable.at_most)
        self._whole_low = self._whole_low - count
        self._whole_high = self._whole_high - np.maximum(0, anew - self._beside_reserved)
        # Whole cores first, then CPUs of broken ones, then more of whole ones.
        single = taken - layout.per_core * np.minimum(self._cores, taken // layout.per_core)
        broken = np.minimum(single, np.maximum(0, self.pool - layout.per_core * self._cores))
        whole = taken - broken
        if kind == "init":
            self._leave(taken, count, broken, whole)
            return
        if reusable is not None:
            left = np.maximum(0, self.pool - taken)
            low, high = np.maximum(0, reusable.low - taken), np.minimum(reusable.high, left)
            if reusable.broken is not None and reusable.whole is not None:
                left = np.maximum(0, reusable.broken - broken) + np.maximum(0, reusable.whole - whole)
                low, high = np.where(layout.known, left, low), np.where(layout.known, left, high)
            self._reusable = _Reusable(low, high, self._at_most(high, reusable.at_most, count), None, None)
        self.pool = self.pool - taken
        self._total = self._total - count
        self._cores = self._cores - -(-whole // layout.per_core)

    def _at_most(self, high: Numbers, before: Numbers, kept: int) -> Numbers:
        """How many CPUs may be reusable on the whole node, `before` or anew, once some are `kept`."""
        known = high.sum(axis=0)
        bound = np.minimum(before, np.maximum(0, self._total - kept))
        return known if self._unknown is None else np.where(self._unknown, bound, known)

    def _leave(self, taken: Numbers, count: int, broken: Numbers, whole: Numbers) -> None:
        """An init container has taken this."""
        reusable = self._reusable
        if reusable is None:
            everywhere = np.full(taken.shape[1], count, dtype=np.int64)
            self._reusable = _Reusable(taken, taken, everywhere, broken, whole)
            return
        low = np.maximum(reusable.low, taken)
        high = np.minimum(reusable.high + taken, np.maximum(0, self.pool))
        at_most = self._at_most(high, reusable.at_most + count, 0)
        if reusable.broken is None or reusable.whole is None:
            self._reusable = _Reusable(low, high, at_most, None, None)
            return
        broken, whole = np.maximum(reusable.broken, broken), np.maximum(reusable.whole, whole)
        known, left = self._packing().known, broken + whole
        low, high = np.where(known, left, low), np.where(known, left, high)
        self._reusable = _Reusable(low, high, self._at_most(high, at_most, 0), broken, whole)
