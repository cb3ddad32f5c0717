"""The topology manager of many nodes at once (kubelet/topology_manager.py): merges the hints of all resources.

Invariant: the merged hint of a node equals the hint of its topology manager (HintMerger.Merge) and does not depend on
other nodes of the array. A resource has the masks that fit and their preferred size (`ResourceHints`).

A preferred hint takes the same preferred mask from every resource, so all preferred sizes must be equal. Mostly the
size is a single NUMA node, and eight bits per node decide. Tables of all masks are built only for nodes where a pod
needs several NUMA nodes, or where best-effort has no preferred hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine.mask_arrays import (
    UNRANKED,
    Flags,
    MaskOrder,
    Masks,
    Subset,
    contained_in,
    count_containing,
    masks_reaching,
    popcounts,
    select,
    to_masks,
    where_fits,
    without_larger,
)

Numbers = NDArray[np.int64]

# Chooses a NUMA node from a mask of NUMA nodes that fit.
Pick = Callable[[Masks], Masks]

# Nodes per table of masks; a larger table does not fit into the L2 cache.
_BLOCK = 512

_ALL = np.uint8(255)


class ResourceHints(Protocol):
    """`singles` (nodes,) is the mask of the NUMA nodes that fit alone, `sizes` (nodes,) the preferred size.

    `active` (nodes,) is False where the manager gives no hints, None if it gives hints on all nodes. `lists` is the
    number of equal lists of hints: the memory manager gives a list for each type. The methods are about a `subset` of
    the nodes.
    """

    singles: Masks
    sizes: Masks
    active: Flags | None
    lists: int

    def fitting(self, subset: Subset) -> Flags:
        """(2**zones, subset) whether the mask fits."""

    def any_fits(self, subset: Subset) -> Flags:
        """Whether any mask fits."""

    def only_singles(self, subset: Subset) -> Flags:
        """Whether only masks of a single NUMA node fit."""

    def upward_closed(self, subset: Subset) -> Flags:
        """Whether with a mask every superset within `cover` fits."""

    def cover(self, subset: Subset) -> Masks:
        """The union of the masks that fit; valid where a mask fits, and `upward_closed` or `only_singles`."""


@dataclass(slots=True)
class CountHints:
    """Hints for `count` CPUs or devices: a mask fits if its nodes have enough in sum and it contains `bound`, the NUMA
    nodes of what is reused.

    `values` (zones, nodes) is ABSENT where the manager does not know the resource.
    """

    values: NDArray[np.int64]
    count: int
    singles: Masks
    sizes: Masks
    active: Flags | None = None
    bound: Masks | None = None
    lists: int = 1

    def fitting(self, subset: Subset) -> Flags:
        fits = masks_reaching(select(self.values, subset), self.count)
        if self.bound is not None:
            bound = self.bound[subset]
            masks = np.arange(len(fits), dtype=np.uint8)[:, None]
            fits &= (masks & bound) == bound
        return fits

    def any_fits(self, subset: Subset) -> Flags:
        values = select(self.values, subset)
        enough: Flags = (np.maximum(values, 0).sum(axis=0) >= self.count) & (values >= 0).any(axis=0)
        return enough

    def only_singles(self, subset: Subset) -> Flags:
        return np.zeros(len(subset), dtype=np.bool_)

    def upward_closed(self, subset: Subset) -> Flags:
        if self.bound is None:
            return np.ones(len(subset), dtype=np.bool_)
        unbound: Flags = self.bound[subset] == 0
        return unbound

    def cover(self, subset: Subset) -> Masks:
        return to_masks(select(self.values, subset) >= 0)


def lowest(zones: Masks) -> Masks:
    """The lowest bit of each mask."""
    bits: Masks = zones & (~zones + np.uint8(1))
    return bits


def merge_single(resources: Sequence[ResourceHints], zones: int, count: int, pick: Pick) -> tuple[Masks, Flags]:
    """Policy single-numa-node: the hint (0 for no affinity) and whether the pod is admitted.

    Every resource must have a hint for the same NUMA node (filterSingleNumaHints). Without any resource, and on a
    machine with a single NUMA node, there is no affinity.
    """
    common, has_hints = _common_singles(resources, count)
    mask = pick(common * has_hints)
    admitted: Flags = (mask != 0) | ~has_hints
    # singleNumaNodePolicy.Merge drops an affinity to all NUMA nodes.
    if zones == 1:
        mask = np.zeros_like(mask)
    return mask, admitted


def merge(
    resources: Sequence[ResourceHints], order: MaskOrder, undecided: Flags, best_effort: bool
) -> tuple[Masks, Flags]:
    """Policies restricted and best-effort: the hint and whether it is preferred.

    A hint that is not preferred is valid with `best_effort` only.
    """
    default = np.uint8((1 << order.zones) - 1)
    count = len(undecided)
    common, has_hints = _common_singles(resources, count)
    mask = order.best_single[common & default]
    mask[~has_hints] = default
    preferred: Flags = mask != 0
    least, most = _sizes(resources, count)
    agreed = least == most
    left = undecided & ~preferred
    if not best_effort:
        # Restricted admits preferred hints only, and these need equal sizes.
        left &= agreed & (most > 1)
    subset = np.flatnonzero(left)
    if len(subset) and best_effort:
        subset = _without_tables(resources, order, subset, mask, agreed & (most > 1))
    for first in range(0, len(subset), _BLOCK):
        block = subset[first : first + _BLOCK]
        size = np.where(agreed[block], most[block], np.uint8(0))
        mask[block], preferred[block] = _search(resources, order, block, size, best_effort)
    return mask, preferred


def _common_singles(resources: Sequence[ResourceHints], count: int) -> tuple[Masks, Flags]:
    """The single NUMA nodes that all resources prefer, and whether any resource has hints."""
    common = np.full(count, _ALL, dtype=np.uint8)
    has_hints = np.zeros(count, dtype=np.bool_)
    for hints in resources:
        singles = hints.singles * (hints.sizes == 1)
        if hints.active is None:
            has_hints[:] = True
        else:
            has_hints |= hints.active
            # A provider without hints prefers every mask (filterProvidersHints).
            singles |= _ALL * ~hints.active
        common &= singles
    return common, has_hints


def _sizes(resources: Sequence[ResourceHints], count: int) -> tuple[Masks, Masks]:
    """The least and the greatest preferred size."""
    least = np.full(count, _ALL, dtype=np.uint8)
    most = np.zeros(count, dtype=np.uint8)
    for hints in resources:
        if hints.active is None:
            np.minimum(least, hints.sizes, out=least)
            np.maximum(most, hints.sizes, out=most)
        else:
            least = np.where(hints.active, np.minimum(least, hints.sizes), least)
            most = np.where(hints.active, np.maximum(most, hints.sizes), most)
    return least, most


def _with_flags(resources: Sequence[ResourceHints], subset: Subset) -> list[tuple[ResourceHints, Flags, Flags]]:
    """Each resource, where it has hints (subset,), and where a mask fits (subset,)."""
    flagged = []
    for hints in resources:
        active = np.ones(len(subset), dtype=np.bool_) if hints.active is None else hints.active[subset]
        flagged.append((hints, active, active & hints.any_fits(subset)))
    return flagged


def _without_tables(
    resources: Sequence[ResourceHints], order: MaskOrder, subset: Subset, mask: Masks, large: Flags
) -> Subset:
    """Best-effort without a preferred hint of a single NUMA node: decides nodes that need no tables, returns the rest.

    `large`: a preferred hint of several NUMA nodes is still possible. Three cases need no tables:

    * Memory fits on single nodes only, for example if all nodes are in use. Every candidate is such a node, and is
      the AND of some hints if every resource has a mask with it.
    * Every resource fits on a single node and on all supersets. The best node `t` of the intersection of all covers is
      the AND of some hints: of {t} itself, or of {t, a} and {t, b} of two resources that fit on different nodes.
    * No resource fits: the kubelet falls back to all nodes.
    """
    zones = order.zones
    default = np.uint8((1 << zones) - 1)
    count = len(subset)
    lists = np.zeros(count, dtype=np.int64)
    cover = np.full(count, default, dtype=np.uint8)
    narrow = np.full(count, default, dtype=np.uint8)
    single_only = np.zeros(count, dtype=np.bool_)
    upward = np.ones(count, dtype=np.bool_)
    union = np.zeros(count, dtype=np.uint8)
    for hints, _, possible in _with_flags(resources, subset):
        singles = hints.singles[subset]
        lists += hints.lists * possible
        cover &= np.where(possible, hints.cover(subset), default)
        only = possible & hints.only_singles(subset)
        single_only |= only
        narrow &= np.where(only, singles, default)
        upward &= ~possible | (hints.upward_closed(subset) & (singles != 0))
        union |= np.where(possible, singles, np.uint8(0))
    # With a single list of hints the merged hint is a mask of that list.
    cover = np.where(lists == 1, cover & union, cover)
    target = order.best_single[cover]
    reached = (target != 0) & ((target & union != 0) | ((lists > 1) & (popcounts(zones)[union] > 1)))
    settled = (upward & reached) | single_only | (lists == 0)
    best = np.where(single_only, order.best_single[narrow & cover], target)
    best = np.where((lists == 0) | (best == 0), default, best)
    settled &= single_only | ~large[subset]
    mask[subset[settled]] = best[settled]
    left: Subset = subset[~settled]
    return left


def _search(
    resources: Sequence[ResourceHints], order: MaskOrder, subset: Subset, size: Masks, best_effort: bool
) -> tuple[Masks, Flags]:
    """The hint by tables of masks. `size` is the preferred size of all resources, 0 where they differ."""
    counts = popcounts(order.zones)[:, None]
    fitting = [
        (hints.lists, active, possible, hints.fitting(subset))
        for hints, active, possible in _with_flags(resources, subset)
    ]
    common = counts == size
    for _, active, _, table in fitting:
        # A provider without hints accepts every mask.
        common &= table | ~active
    ranks = where_fits(common, order.rank[:, None]).min(axis=0)
    preferred: Flags = ranks != UNRANKED
    # UNRANKED is beyond the table.
    mask = np.where(preferred, order.ranked[np.minimum(ranks, len(order.ranked) - 1)], np.uint8(0))
    left = np.flatnonzero(~preferred)
    if best_effort and len(left):
        tables = [(lists, possible, table) for lists, _, possible, table in fitting]
        if len(left) < len(subset):
            tables = [(lists, possible[left], table[:, left]) for lists, possible, table in tables]
        mask[left] = _best_reachable(tables, order, len(left))
    return mask, preferred


def _best_reachable(tables: Sequence[tuple[int, Flags, Flags]], order: MaskOrder, count: int) -> Masks:
    """The best AND of a fitting mask of each resource (mergePermutation); all nodes where there is none."""
    zones = order.zones
    counts = popcounts(zones)[:, None]
    narrowest = np.zeros(count, dtype=np.uint8)
    within = np.ones((1 << zones, count), dtype=np.bool_)
    within[0] = False
    alone = np.zeros_like(within)
    for _, possible, table in tables:
        least = where_fits(table, counts).min(axis=0)
        # maxOfMinAffinityCounts: the widest of the narrowest masks of all resources.
        narrowest = np.where(possible, np.maximum(narrowest, least), narrowest)
        within &= contained_in(table, zones) | ~possible
        alone |= table & possible
    position = np.ascontiguousarray(order.position[narrowest].T)
    # A mask is an AND for sure if every resource has a superset and some resource has the mask itself. The best mask
    # with supersets only is a lower bound: where it is better, all ANDs are computed.
    bound = where_fits(within, position).min(axis=0)
    least = where_fits(within & alone, position).min(axis=0)
    better = np.flatnonzero(bound < least)
    if len(better):
        reached = _reached([(lists, possible[better], table[:, better]) for lists, possible, table in tables], zones)
        least[better] = where_fits(reached, position[:, better]).min(axis=0)
    default = np.uint8((1 << zones) - 1)
    best = order.sequence[narrowest, np.minimum(least, (1 << zones) - 1)]
    return np.where(least == UNRANKED, default, best)


def _reached(tables: Sequence[tuple[int, Flags, Flags]], zones: int) -> Flags:
    """(2**zones, nodes) whether a mask is the AND of a fitting mask of each resource, adding resource after resource.

    For two sets of masks, the number of pairs whose AND contains a mask is the product of the numbers of supersets.
    The number of pairs whose AND equals the mask follows by inclusion-exclusion. It is at most 255 * 255, so 16 bits
    suffice.
    """
    reached = np.zeros((1 << zones, tables[0][1].size), dtype=np.bool_)
    reached[-1] = True
    for lists, possible, table in tables:
        above = count_containing(table, zones).astype(np.uint16)
        # A resource without fitting masks does not restrict the AND.
        above[:, ~possible] = 1
        for _ in range(lists):
            reached = without_larger(count_containing(reached, zones) * above, zones) > 0
            # HintMerger.compare ignores an empty AND.
            reached[0] = False
    return reached


def most_allocated(allocated: Numbers, allocatable: Numbers) -> Numbers:
    """KEP-6007: (zones, nodes) the score of the scheduler's MostAllocated, 0 to 100, rounded down."""
    shares = np.minimum(100, allocated * 100 // np.maximum(allocatable, 1))
    return np.where(allocatable > 0, shares, 0)


def elect(fits: Masks, votes: list[Numbers]) -> Masks:
    """KEP-6007: the winner as a mask, if the NUMA nodes that fit are compared in ascending order.

    A candidate wins if some manager scores it higher and no manager scores it lower. The result depends on the order,
    because this relation is not transitive.
    """
    count = len(fits)
    every = np.arange(count)
    best = np.zeros(count, dtype=np.intp)
    has_best = np.zeros(count, dtype=np.bool_)
    zones = len(votes[0]) if votes else 8
    for zone in range(zones):
        fitting: Flags = (fits >> np.uint8(zone) & 1) > 0
        higher = np.zeros(count, dtype=np.bool_)
        lower = np.zeros(count, dtype=np.bool_)
        for vote in votes:
            current = vote[best, every]
            higher |= vote[zone] > current
            lower |= vote[zone] < current
        better = fitting & (~has_best | (higher & ~lower))
        best[better] = zone
        has_best |= fitting
    return np.where(has_best, np.uint8(1) << best.astype(np.uint8), np.uint8(0))
