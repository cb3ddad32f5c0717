"""The CPU manager of many nodes at once (kubelet/cpu_manager.py), by numbers of CPUs per NUMA node.

Invariant: where a node is not deferred to the model, the free CPUs per NUMA node kept here are those its CPU manager
would have left after the same containers.

Which CPUs a container gets matters to the next one in two ways: how many are left on each NUMA node, and how many of
an init container's CPUs are taken over. Both follow from numbers as long as the kubelet packs CPUs on a machine
without odd cores (kubelet/cpu_packing.py, takeByTopologyNUMAPacked): where no core and no socket is larger than the
average, and every NUMA node is on one socket, its steps look at nothing but how many CPUs and how many whole cores each
NUMA node has free. Elsewhere there are bounds, and where a hint depends on what lies between them, the model is asked.
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
    at_zone,
    popcounts,
    to_masks,
    zones_in,
)
from topowise_scheduler.engine.node_groups import NodesView
from topowise_scheduler.engine.node_vector import CPU, Traits
from topowise_scheduler.engine.topology_manager import CountHints, ResourceHints
from topowise_scheduler.engine.verdicts import FAILED, NOT_WHOLE_CORES, Decisions

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


class CpuManager:
    """`pool` (zones, nodes) is what the next container may take: free CPUs and reusable ones."""

    def __init__(self, counts: NodesView, traits: Traits, decisions: Decisions) -> None:
        self.counts = counts
        self.traits = traits
        self.decisions = decisions
        section = counts.section(CPU)
        zones = counts.zones
        self.pool: Numbers = section[:zones]
        self._total: Numbers = section[zones]
        self._whole_low: Numbers = section[zones + 1]
        self._whole_high: Numbers = section[zones + 1]
        self._cores: Numbers = section[zones + 2 :]
        # Available CPUs on cores with a reserved one.
        self._beside_reserved: Numbers = self._total - self._whole_low
        self._reusable: _Reusable | None = None
        self._layout: CpuLayout | None = None
        self._unknown: Flags | None = None
        self._uneven: Flags | None = None

    def hints(self, count: int) -> ResourceHints:
        """The hints for so many exclusive CPUs."""
        self._defer_unknown(None)
        singles = to_masks(self.pool >= count)
        bound = None
        if self._reusable is not None:
            # What init containers had must lie within the mask.
            bound = to_masks(self._reusable.low > 0)
            within = np.where(popcounts(self.counts.zones)[bound] > 1, np.uint8(0), singles & bound)
            singles = np.where(bound == 0, singles, within)
        return CountHints(self.pool, count, singles, self.counts.cpu_sizes(count), bound=bound)

    def confirm(self, hint: Masks, preferred: Flags) -> None:
        """Defer where hints would be others if CPUs of init containers were left, or were not."""
        reusable = self._reusable
        if reusable is not None:
            perhaps = to_masks((reusable.high > 0) & (reusable.low <= 0))
            same = preferred & (perhaps & ~hint == 0)
            self.decisions.defer((perhaps != 0) & ~same, "cpus-of-init-containers")

    def free(self, several: Flags, *, asks_for_cpus: bool) -> Numbers:
        """(zones, nodes) what nobody holds, for the vote; defer where it is not known and `several` fit.

        With `asks_for_cpus` there is a choice only where no CPUs of init containers are left.
        """
        self._defer_unknown(several)
        reusable = self._reusable
        if reusable is None:
            return self.pool
        if not asks_for_cpus:
            self.decisions.defer((reusable.low != reusable.high).any(axis=0) & several, "cpus-of-init-containers")
        return self.pool - reusable.low

    def check(self, count: int) -> None:
        """Refuse where no hint would help."""
        zones, decide = self.counts.zones, self.decisions
        decide.defer(self._uneven, "uneven-cores")
        if self.traits.full_cores:
            per_core = self.counts.cores(zones)
            decide.refuse(count % per_core != 0, NOT_WHOLE_CORES)
            decide.refuse(self._whole_high < count, NOT_WHOLE_CORES)
            decide.defer(self._whole_low < count, "cpus-of-init-containers")
        short = self._total < count
        # Where a socket or core is larger than the average, CPUs that are not free count among those taken.
        decide.defer(short & ~self._even(), "uneven-cores")
        decide.refuse(short, FAILED)

    def allocate(self, count: int, kind: Kind, hint: Masks, *, more: bool) -> None:
        """Allocate what `check` let pass; `more`: a later container asks for exclusive CPUs or votes.

        A hint of 0 is no affinity.
        """
        if not (more or self.traits.distributed):
            return
        zones, even = self.counts.zones, self._even()
        if zones == 1:
            hint = np.maximum(hint, np.uint8(1))
        zone = LOWEST_ZONE[hint]
        within = (popcounts(zones)[hint] == 1) & (at_zone(self.pool, zone) >= count)
        if self.traits.distributed:
            self.decisions.defer(~(within & even), "distributed-cpus")
        if more:
            self._uneven = ~even
            taken = np.zeros_like(self.pool)
            taken[zone, np.arange(len(zone))] = count * within
            self._spread(taken, count, hint, np.flatnonzero(~within & self.decisions.undecided))
            self._book(taken, count, kind)

    def located(self, count: int, hint: Masks, subset: Subset, known: Flags) -> Masks:
        """(subset,) the NUMA nodes from which `allocate` takes so many; where ids decide, `known` (nodes,) is cleared
        and they are all that may be."""
        zones, layout = self.counts.zones, self._cpu_layout()
        found = hint[subset]
        within = (popcounts(zones)[found] == 1) & (at_zone(self.pool[:, subset], LOWEST_ZONE[found]) >= count)
        sure = within | layout.known[subset]
        for unknown in (self._unknown, self._uneven):
            if unknown is not None:
                sure &= ~unknown[subset]
        known[subset[~sure]] = False
        spread = sure & ~within
        if spread.any():
            found[spread] = to_masks(self._packed(count, hint, subset[spread]) > 0)
        if not sure.all():
            found[~sure] |= to_masks(self.pool[:, subset[~sure]] > 0)
        return found

    def _defer_unknown(self, where: Flags | None) -> None:
        """Defer where the pool is not known."""
        for unknown, cause in ((self._uneven, "uneven-cores"), (self._unknown, "cpus-over-several-nodes")):
            if unknown is not None:
                self.decisions.defer(unknown if where is None else unknown & where, cause)

    def _even(self) -> Flags:
        even: Flags = self.counts.cores(self.counts.zones + 1) > 0
        return even

    def _cpu_layout(self) -> CpuLayout:
        if self._layout is None:
            self._layout = CpuLayout.of(self.counts)
        return self._layout

    def _spread(self, taken: Numbers, count: int, hint: Masks, subset: Subset) -> None:
        """What is taken where the hint has several NUMA nodes, none, or one with too little: first within it."""
        if not len(subset):
            return
        layout = self._cpu_layout()
        if not layout.known[subset].all():
            unknown = np.zeros(len(hint), dtype=np.bool_)
            unknown[subset] = ~layout.known[subset]
            self._unknown = unknown if self._unknown is None else self._unknown | unknown
            subset = subset[layout.known[subset]]
        taken[:, subset] = self._packed(count, hint, subset)

    def _packed(self, count: int, hint: Masks, subset: Subset) -> Numbers:
        """(zones, subset) what is taken of nodes whose layout is known."""
        layout = self._cpu_layout().of_some(subset)
        pool = np.maximum(self.pool[:, subset], 0)
        cores = self._cores[:, subset]
        inside = zones_in(hint[subset], len(pool))
        aligned = pool * inside
        wanted = np.minimum(count, aligned.sum(axis=0))
        found = take_packed(layout, aligned, cores * inside, wanted)
        rest = np.flatnonzero(wanted < count)
        if len(rest):
            # All within the hint is taken, so that whole cores are left outside only.
            free = pool[:, rest] - found[:, rest]
            outside = cores[:, rest] * (free > 0)
            found[:, rest] += take_packed(layout.of_some(rest), free, outside, count - wanted[rest])
        return found

    def _book(self, taken: Numbers, count: int, kind: Kind) -> None:
        layout, reusable = self._cpu_layout(), self._reusable
        anew = np.int64(count) if reusable is None else np.maximum(0, count - reusable.at_most)
        self._whole_low = self._whole_low - count
        self._whole_high = self._whole_high - np.maximum(0, anew - self._beside_reserved)
        # Whole cores first, then CPUs of broken ones, then more of whole ones.
        single = taken - layout.per_core * np.minimum(self._cores, taken // layout.per_core)
        broken = np.minimum(single, np.maximum(0, self.pool - layout.per_core * self._cores))
        whole = taken - broken
        if kind == "init":
            self._keep_reusable(taken, count, broken, whole)
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

    def _keep_reusable(self, taken: Numbers, count: int, broken: Numbers, whole: Numbers) -> None:
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
        known, left = self._cpu_layout().known, broken + whole
        low, high = np.where(known, left, low), np.where(known, left, high)
        self._reusable = _Reusable(low, high, self._at_most(high, at_most, 0), broken, whole)


@dataclass(frozen=True, slots=True)
class CpuLayout:
    """Of some nodes: `capacity` (zones, nodes) CPUs, `socket` (zones, nodes); the others (nodes,).

    `known` says where the numbers suffice.
    """

    capacity: Numbers
    per_core: Numbers
    known: Flags
    numa_first: Flags
    per_socket: Numbers
    socket: Numbers

    @classmethod
    def of(cls, counts: NodesView) -> CpuLayout:
        """Of all nodes of a view."""
        section, zones = counts.cores(), counts.zones
        per_core, _, known, numa_first, per_socket = section[zones : zones + 5]
        return cls(
            section[:zones], np.maximum(per_core, 1), known > 0, numa_first > 0, per_socket, section[zones + 5 :]
        )

    def of_some(self, subset: Subset) -> CpuLayout:
        """Of some of these nodes."""
        return CpuLayout(
            self.capacity[:, subset],
            self.per_core[subset],
            self.known[subset],
            self.numa_first[subset],
            self.per_socket[subset],
            self.socket[:, subset],
        )


def take_packed(layout: CpuLayout, free: Numbers, cores: Numbers, wanted: Numbers) -> Numbers:
    """(zones, nodes) how many CPUs come from each NUMA node; `wanted` (nodes,) is no more than is free.

    `free` (zones, nodes) are the CPUs that may be taken, `cores` the whole cores among them.
    """
    taken = np.zeros_like(free)
    left = wanted.copy()
    # Most pods are smaller than a socket and a NUMA node, and are done after the first few of these.
    if ((left >= layout.per_socket) & ~layout.numa_first).any():
        _take_sockets(layout, free, taken, left)
    if ((left >= layout.capacity) & (layout.capacity > 0)).any():
        for zone in _in_order(layout, free - taken):
            size = at_zone(layout.capacity, zone)
            whole = (size > 0) & (at_zone(free - taken, zone) == size) & (left >= size)
            _move(taken, left, zone, size * whole)
    if (left >= layout.per_core).any():
        cores = np.where(taken > 0, 0, cores)
        for zone in _in_order(layout, free - taken):
            count = np.minimum(at_zone(cores, zone), left // layout.per_core)
            _move(taken, left, zone, count * layout.per_core)
            if not (left >= layout.per_core).any():
                break
    if left.any():
        for zone in _in_order(layout, free - taken):
            _move(taken, left, zone, np.minimum(at_zone(free - taken, zone), left))
            if not left.any():
                break
    return taken


def _take_sockets(layout: CpuLayout, free: Numbers, taken: Numbers, left: Numbers) -> None:
    """Whole sockets, where a socket has several NUMA nodes."""
    for socket in range(len(free)):
        mine = layout.socket == socket
        size = layout.per_socket
        whole = ~layout.numa_first & ((free * mine).sum(axis=0) == size) & (size > 0) & (left >= size)
        taken += free * (mine & whole)
        left -= size * whole


def _in_order(layout: CpuLayout, free: Numbers) -> NDArray[np.intp]:
    """(zones, nodes) the NUMA nodes as the kubelet sorts them: the fewest free CPUs first, and sockets likewise where
    they have several NUMA nodes; those with nothing free last."""
    zones = len(free)
    key = free * zones + np.arange(zones)[:, None]
    if not layout.numa_first.all():
        of_socket = np.zeros_like(free)
        for socket in range(zones):
            mine = layout.socket == socket
            of_socket += mine * (free * mine).sum(axis=0)
        key += np.where(layout.numa_first, 0, (of_socket * zones + layout.socket) << 24)
    key += (free <= 0) * np.int64(1 << 60)
    return np.argsort(key, axis=0)


def _move(taken: Numbers, left: Numbers, zone: NDArray[np.intp], count: Numbers) -> None:
    taken[zone, np.arange(taken.shape[1])] += count
    left -= count
