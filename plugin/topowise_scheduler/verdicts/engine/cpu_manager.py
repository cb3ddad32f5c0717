"""The CPU manager of many nodes at once (kubelet/cpu_manager.py), by number of CPUs per NUMA node.

Invariant: on a node that is not deferred to the model, the free CPUs per NUMA node equal those of its CPU manager after
the same containers.

The allocation of a container affects the next container in two ways: the free CPUs of each NUMA node, and the CPUs of
init containers that are reused. Both follow from amounts where the kubelet packs CPUs on an even machine
(kubelet/cpu_packing.py, takeByTopologyNUMAPacked): no core and no socket is larger than the average, and every NUMA
node is within a socket. There its steps depend only on the free CPUs and whole cores of each NUMA node. Elsewhere there
are bounds. If a hint depends on the values between the bounds, the model decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.verdicts.engine.mask_arrays import (
    LOWEST_ZONE,
    Flags,
    Masks,
    Subset,
    at_zone,
    popcounts,
    to_masks,
    zones_in,
)
from topowise_scheduler.verdicts.engine.node_groups import NodesView
from topowise_scheduler.verdicts.engine.node_vector import CPU, Traits
from topowise_scheduler.verdicts.engine.topology_manager import CountHints, ResourceHints
from topowise_scheduler.verdicts.engine.verdicts import FAILED, NOT_WHOLE_CORES, Decisions

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Reusable:
    """The CPUs of init containers that later containers may reuse (zones, nodes): between `low` and `high`, and
    `at_most` (nodes,) on the whole node, which is also valid where their NUMA nodes are unknown.

    On a NUMA node the kubelet takes wholly free cores in a fixed order, then single CPUs of broken cores in a fixed
    order. So containers that take from the same pool take prefixes of the same two sequences. `broken` and `whole` are
    the lengths of the prefixes, and the overlap of two containers is known. The first container that keeps its CPUs
    changes the pool; from then on both are None.
    """

    low: Numbers
    high: Numbers
    at_most: Numbers
    broken: Numbers | None
    whole: Numbers | None


class CpuManager:
    """`pool` (zones, nodes) are the CPUs that the next container may take: free and reusable CPUs."""

    def __init__(self, nodes: NodesView, traits: Traits, decisions: Decisions) -> None:
        self.nodes = nodes
        self.traits = traits
        self.decisions = decisions
        section = nodes.section(CPU)
        zones = nodes.zones
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
        """The hints for this number of exclusive CPUs (generateCPUTopologyHints)."""
        self._defer_unknown(None)
        singles = to_masks(self.pool >= count)
        bound = None
        if self._reusable is not None:
            # A hint must contain the NUMA nodes of all reusable CPUs.
            bound = to_masks(self._reusable.low > 0)
            # A single NUMA node cannot contain the reusable CPUs of several.
            within = np.where(popcounts(self.nodes.zones)[bound] > 1, np.uint8(0), singles & bound)
            singles = np.where(bound == 0, singles, within)
        return CountHints(self.pool, count, singles, self.nodes.cpu_sizes(count), bound=bound)

    def confirm(self, hint: Masks, preferred: Flags) -> None:
        """Defers nodes whose hints depend on an unknown number of reusable CPUs."""
        reusable = self._reusable
        if reusable is not None:
            uncertain = to_masks((reusable.high > 0) & (reusable.low <= 0))
            is_same = preferred & (uncertain & ~hint == 0)
            self.decisions.defer((uncertain != 0) & ~is_same, "cpus-of-init-containers")

    def free(self, several: Flags, *, requests_cpus: bool) -> Numbers:
        """(zones, nodes) the free CPUs for the vote; defers nodes where they are unknown and `several` nodes fit.

        A container with exclusive CPUs has a choice of NUMA nodes only without reusable CPUs, so with `requests_cpus`
        bounds suffice.
        """
        self._defer_unknown(several)
        reusable = self._reusable
        if reusable is None:
            return self.pool
        if not requests_cpus:
            self.decisions.defer((reusable.low != reusable.high).any(axis=0) & several, "cpus-of-init-containers")
        return self.pool - reusable.low

    def check(self, count: int) -> None:
        """Refuses a container under every hint (staticPolicy.Allocate, takeByTopology)."""
        zones, decide = self.nodes.zones, self.decisions
        # Before any refusal, because amounts are unreliable after an allocation on an uneven machine.
        decide.defer(self._uneven, "uneven-cores")
        if self.traits.full_cores:
            # full-pcpus-only: a multiple of a core's CPUs, and enough of them outside reserved cores.
            per_core = self.nodes.cores(zones)
            decide.refuse(count % per_core != 0, NOT_WHOLE_CORES)
            decide.refuse(self._whole_high < count, NOT_WHOLE_CORES)
            # Between the bounds the reusable whole cores decide.
            decide.defer(self._whole_low < count, "cpus-of-init-containers")
        short = self._total < count
        # With sockets or cores larger than the average, the accumulator also counts CPUs that are not free as taken.
        decide.defer(short & ~self._even(), "uneven-cores")
        decide.refuse(short, FAILED)

    def allocate(self, count: int, kind: Kind, hint: Masks, *, more: bool) -> None:
        """Allocates a container that passed `check`; `more`: a later container requests exclusive CPUs or votes.

        A hint of 0 is no affinity.
        """
        if not (more or self.traits.distributed):
            return
        zones, even = self.nodes.zones, self._even()
        # Without affinity the CPUs still come from the only NUMA node.
        if zones == 1:
            hint = np.maximum(hint, np.uint8(1))
        zone = LOWEST_ZONE[hint]
        within = (popcounts(zones)[hint] == 1) & (at_zone(self.pool, zone) >= count)
        if self.traits.distributed:
            # distribute-cpus-across-numa has no effect within a single NUMA node.
            self.decisions.defer(~(within & even), "distributed-cpus")
        if more:
            self._uneven = ~even
            taken = np.zeros_like(self.pool)
            taken[zone, np.arange(len(zone))] = count * within
            self._spread(taken, count, hint, np.flatnonzero(~within & self.decisions.undecided))
            self._book(taken, count, kind)

    def located(self, count: int, hint: Masks, subset: Subset, known: Flags) -> Masks:
        """(subset,) the NUMA nodes of the CPUs that `allocate` takes. Where ids decide, they are an upper bound and
        `known` (nodes,) is cleared."""
        zones, layout = self.nodes.zones, self._cpu_layout()
        masks = hint[subset]
        within = (popcounts(zones)[masks] == 1) & (at_zone(self.pool[:, subset], LOWEST_ZONE[masks]) >= count)
        sure = within | layout.known[subset]
        if self._unknown is not None:
            sure &= ~self._unknown[subset]
        known[subset[~sure]] = False
        spread = sure & ~within
        if spread.any():
            masks[spread] = to_masks(self._packed(count, hint, subset[spread]) > 0)
        if not sure.all():
            masks[~sure] |= to_masks(self.pool[:, subset[~sure]] > 0)
        return masks

    def _defer_unknown(self, where: Flags | None) -> None:
        """Defers nodes with an unknown pool."""
        for unknown, cause in ((self._uneven, "uneven-cores"), (self._unknown, "cpus-over-several-nodes")):
            if unknown is not None:
                self.decisions.defer(unknown if where is None else unknown & where, cause)

    def _even(self) -> Flags:
        even: Flags = self.nodes.cores(self.nodes.zones + 1) > 0
        return even

    def _cpu_layout(self) -> CpuLayout:
        if self._layout is None:
            self._layout = CpuLayout.of(self.nodes)
        return self._layout

    def _spread(self, taken: Numbers, count: int, hint: Masks, subset: Subset) -> None:
        """Stores the CPUs taken under a hint with several NUMA nodes, none, or a NUMA node with too few CPUs."""
        if not len(subset):
            return
        layout = self._cpu_layout()
        if not layout.known[subset].all():
            unknown = np.zeros(len(hint), dtype=np.bool_)
            # Amounts do not decide here, so later hints of these nodes are deferred.
            unknown[subset] = ~layout.known[subset]
            self._unknown = unknown if self._unknown is None else self._unknown | unknown
            subset = subset[layout.known[subset]]
        taken[:, subset] = self._packed(count, hint, subset)

    def _packed(self, count: int, hint: Masks, subset: Subset) -> Numbers:
        """(zones, subset) the CPUs taken on nodes whose layout is known (allocateCPUs): first within the hint."""
        layout = self._cpu_layout().select(subset)
        pool = np.maximum(self.pool[:, subset], 0)
        cores = self._cores[:, subset]
        inside = zones_in(hint[subset], len(pool))
        aligned = pool * inside
        number = np.minimum(count, aligned.sum(axis=0))
        taken = take_packed(layout, aligned, cores * inside, number)
        rest = np.flatnonzero(number < count)
        if len(rest):
            # All CPUs within the hint are taken, so whole cores remain only outside.
            free = pool[:, rest] - taken[:, rest]
            outside = cores[:, rest] * (free > 0)
            taken[:, rest] += take_packed(layout.select(rest), free, outside, count - number[rest])
        return taken

    def _book(self, taken: Numbers, count: int, kind: Kind) -> None:
        layout, reusable = self._cpu_layout(), self._reusable
        fresh = np.int64(count) if reusable is None else np.maximum(0, count - reusable.at_most)
        # At worst all CPUs come from cores without a reserved CPU, at best cores with a reserved CPU are used up first.
        self._whole_low = self._whole_low - count
        self._whole_high = self._whole_high - np.maximum(0, fresh - self._beside_reserved)
        # takeFullCores, then takeRemainingCPUs: CPUs of broken cores, then of further whole cores.
        single = taken - layout.per_core * np.minimum(self._cores, taken // layout.per_core)
        broken = np.minimum(single, np.maximum(0, self.pool - layout.per_core * self._cores))
        whole = taken - broken
        # The pool keeps the CPUs of an init container, because later containers may reuse them.
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
        # A partly taken core is no longer whole.
        self._cores = self._cores - -(-whole // layout.per_core)

    def _at_most(self, high: Numbers, before: Numbers, kept: int) -> Numbers:
        """The most CPUs that are reusable on the whole node, from `before` or new, once a container has `kept` some."""
        known = high.sum(axis=0)
        bound = np.minimum(before, np.maximum(0, self._total - kept))
        return known if self._unknown is None else np.where(self._unknown, bound, known)

    def _keep_reusable(self, taken: Numbers, count: int, broken: Numbers, whole: Numbers) -> None:
        """Adds an init container's CPUs to the reusable CPUs (updateCPUsToReuse)."""
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
    """The CPU topology of nodes: `capacity` (zones, nodes) CPUs and `socket` (zones, nodes) its position; all other
    fields are (nodes,). `known` is where amounts decide the packing, `numa_first` where NUMA nodes are not smaller than
    sockets (newCPUAccumulator)."""

    capacity: Numbers
    per_core: Numbers
    known: Flags
    numa_first: Flags
    per_socket: Numbers
    socket: Numbers

    @classmethod
    def of(cls, nodes: NodesView) -> CpuLayout:
        """The layouts of all nodes of a view."""
        section, zones = nodes.cores(), nodes.zones
        per_core, _, known, numa_first, per_socket = section[zones : zones + 5]
        # A machine without CPUs has no cores to divide by.
        per_core = np.maximum(per_core, 1)
        return cls(section[:zones], per_core, known > 0, numa_first > 0, per_socket, section[zones + 5 :])

    def select(self, subset: Subset) -> CpuLayout:
        """The layouts of a subset."""
        return CpuLayout(
            self.capacity[:, subset],
            self.per_core[subset],
            self.known[subset],
            self.numa_first[subset],
            self.per_socket[subset],
            self.socket[:, subset],
        )


def take_packed(layout: CpuLayout, free: Numbers, cores: Numbers, number: Numbers) -> Numbers:
    """(zones, nodes) the number of CPUs taken from each NUMA node (takeByTopologyNUMAPacked).

    `free` (zones, nodes) are the CPUs that may be taken, `cores` the whole cores among them, and `number` (nodes,) the
    CPUs to take, at most the sum of `free`.
    """
    taken = np.zeros_like(free)
    left = number.copy()
    # The conditions skip whole steps, because most pods are smaller than a socket and a NUMA node.
    if ((left >= layout.per_socket) & ~layout.numa_first).any():
        _take_sockets(layout, free, taken, left)
    if ((left >= layout.capacity) & (layout.capacity > 0)).any():
        for zone in _in_order(layout, free - taken):
            size = at_zone(layout.capacity, zone)
            whole = (size > 0) & (at_zone(free - taken, zone) == size) & (left >= size)
            _move(taken, left, zone, size * whole)
    if (left >= layout.per_core).any():
        # Sockets and NUMA nodes were taken completely, so they have no whole cores left.
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
    """Takes free sockets where a socket has several NUMA nodes (takeFullSockets)."""
    for socket in range(len(free)):
        in_socket = layout.socket == socket
        size = layout.per_socket
        whole = ~layout.numa_first & ((free * in_socket).sum(axis=0) == size) & (size > 0) & (left >= size)
        taken += free * (in_socket & whole)
        left -= size * whole


def _in_order(layout: CpuLayout, free: Numbers) -> NDArray[np.intp]:
    """(zones, nodes) the NUMA nodes in the kubelet's order (sortAvailableNUMANodes): fewest free CPUs first.

    Where a socket has several NUMA nodes, sockets come first in the same order. NUMA nodes without free CPUs are last.
    """
    zones = len(free)
    key = free * zones + np.arange(zones)[:, None]
    if not layout.numa_first.all():
        of_socket = np.zeros_like(free)
        for socket in range(zones):
            in_socket = layout.socket == socket
            of_socket += in_socket * (free * in_socket).sum(axis=0)
        # A NUMA node has fewer than 2**21 CPUs, so the socket's key outweighs the NUMA node's.
        key += np.where(layout.numa_first, 0, (of_socket * zones + layout.socket) << 24)
    key += (free <= 0) * np.int64(1 << 60)
    return np.argsort(key, axis=0)


def _move(taken: Numbers, left: Numbers, zone: NDArray[np.intp], count: Numbers) -> None:
    taken[zone, np.arange(taken.shape[1])] += count
    left -= count
