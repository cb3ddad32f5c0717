"""The CPU manager of many nodes at once (kubelet/cpu_manager.py), by numbers of CPUs per NUMA node.

Which CPUs a container gets decides how many are left on each NUMA node if its hint has several, and how many of an
init container's CPUs the next container takes over. Numbers give bounds there; where a later hint depends on what
lies between them, the node is doubted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.engine.claims import Claim, CountClaim, chosen
from topowise_scheduler.engine.counts import CORES, CPU
from topowise_scheduler.engine.decisions import FAILED, NOT_WHOLE_CORES, Decisions
from topowise_scheduler.engine.lattice import LOWEST, Bits, Flags, bits, popcounts
from topowise_scheduler.engine.sheet import Sheet
from topowise_scheduler.engine.traits import Traits

Numbers = NDArray[np.int64]


class _Reusable:
    """The CPUs of init containers that later ones may take over: between `low` and `high`, all of them on `zone`."""

    __slots__ = ("high", "low", "zone")

    def __init__(self, low: Numbers, high: Numbers, zone: Bits) -> None:
        self.low = low
        self.high = high
        self.zone = zone

    @property
    def perhaps(self) -> Flags:
        """Where there may be some or none."""
        unsure: Flags = (self.high > 0) & (self.low <= 0)
        return unsure


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
        # Available CPUs that are no part of a whole core.
        self._broken: Numbers = self._total - self._whole_low
        self._reusable: _Reusable | None = None
        self._unknown: Flags | None = None
        self._uneven: Flags | None = None
        self._mine = False

    def claim(self, count: int) -> Claim:
        """The hints for so many exclusive CPUs."""
        self.decisions.doubt(self._unknown, "cpus-over-several-nodes")
        self.decisions.doubt(self._uneven, "uneven-cores")
        singles = bits(self.pool >= count)
        bound = None
        if self._reusable is not None:
            bound = np.where(self._reusable.low > 0, self._reusable.zone, np.uint8(0))
            singles = np.where(bound != 0, singles & bound, singles)
        sizes = self.sheet.each(self.sheet.kinds.cpu_sizes(count))
        return CountClaim(self.pool, count, singles, sizes, bound=bound)

    def confirm(self, hint: Bits, preferred: Flags) -> None:
        """Doubt the hints that would be others if CPUs of init containers were left, or were not."""
        if self._reusable is not None:
            same = preferred & (hint == self._reusable.zone)
            self.decisions.doubt(self._reusable.perhaps & ~same, "cpus-of-init-containers")

    def free(self, several: Flags, *, claimed: bool) -> Numbers:
        """(zones, nodes) what nobody holds, for the vote; doubt where it is not known and `several` fit.

        With `claimed` CPUs of init containers leave no choice where there are any.
        """
        self.decisions.doubt(None if self._uneven is None else self._uneven & several, "uneven-cores")
        self.decisions.doubt(None if self._unknown is None else self._unknown & several, "cpus-over-several-nodes")
        reusable = self._reusable
        if reusable is None or claimed:
            return self.pool
        self.decisions.doubt((reusable.low != reusable.high) & several, "cpus-of-init-containers")
        free = self.pool.copy()
        free[LOWEST[reusable.zone], np.arange(free.shape[1])] -= reusable.low
        return free

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
        """Allocate what `check` let pass; `more`: a later container has exclusive CPUs too.

        A hint of 0 is no affinity.
        """
        if not (more or self.traits.distributed):
            return
        zones, even = self.sheet.zones, self._even()
        if zones == 1:
            hint = np.maximum(hint, np.uint8(1))
        zone = LOWEST[hint]
        have = chosen(self.pool, zone)
        within = (popcounts(zones)[hint] == 1) & (have >= count)
        if self._reusable is not None:
            within &= (self._reusable.high <= 0) | (hint == self._reusable.zone)
        if self.traits.distributed:
            self.decisions.doubt(~(within & even), "distributed-cpus")
        if more:
            self._uneven = ~even
            self._unknown = ~within if self._unknown is None else self._unknown | ~within
            self._take(count, kind, hint, zone, np.where(within, have, self._total))

    def _even(self) -> Flags:
        even: Flags = self.sheet.kinds.fixed.section(CORES)[self.sheet.zones + 1, self.sheet.kind] > 0
        return even

    def _take(self, count: int, kind: Kind, hint: Bits, zone: NDArray[np.intp], have: Numbers) -> None:
        if not self._mine:
            self.pool, self._mine = self.pool.copy(), True
        reusable = self._reusable
        anew = np.int64(count) if reusable is None else np.maximum(0, count - reusable.high)
        self._whole_low = self._whole_low - count
        self._whole_high = self._whole_high - np.maximum(0, anew - self._broken)
        if kind == "init":
            counts = np.full(len(have), count, dtype=np.int64)
            if reusable is None:
                self._reusable = _Reusable(counts, counts, hint)
            else:
                fresh = np.where(reusable.high > 0, reusable.zone, hint)
                low, high = np.maximum(reusable.low, counts), np.minimum(reusable.high + count, have)
                self._reusable = _Reusable(low, high, fresh)
            return
        self.pool[zone, np.arange(len(zone))] -= count
        self._total = self._total - count
        if reusable is not None:
            low, high = np.maximum(0, reusable.low - count), np.minimum(reusable.high, have - count)
            self._reusable = _Reusable(low, np.maximum(0, high), reusable.zone)
