"""The topology manager of many nodes at once (kubelet/topology_manager.py): hints of all resources become one.

Invariant: what is merged here for a node is what its topology manager merges, whatever the other nodes of the array
are. A resource says which masks fit, and of what size they are preferred (`ResourceHints`).

A preferred hint takes the same preferred mask from every resource, so the sizes all must agree, and mostly the size
is one NUMA node: eight bits a node decide. Only where a pod needs several NUMA nodes, or where best-effort finds no
preferred hint, tables of masks are made, and then for those nodes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.mask_arrays import (
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

# From the NUMA nodes that fit, as bits, the one to take, as a mask.
Pick = Callable[[Masks], Masks]

# Nodes looked at together where tables of masks are made: so many fit into the cache.
_BLOCK = 512

_ALL = np.uint8(255)


class ResourceHints(Protocol):
    """`singles` (nodes,) has the bits of the NUMA nodes that fit alone, `sizes` (nodes,) the preferred size.

    `active` (nodes,) is False where the manager does not care, None if it always does. `lists` is how many lists of
    hints it gives, all equal: the memory manager gives one a type. The methods answer for a `subset` of the nodes.
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
        """Whether no mask of several nodes fits, though one of one node does."""

    def upward_closed(self, subset: Subset) -> Flags:
        """Whether with a mask all larger ones within `cover` fit."""

    def cover(self, subset: Subset) -> Masks:
        """The NUMA nodes in any mask that fits, if one does; right where `upward_closed` or `only_singles`."""


@dataclass(slots=True)
class CountHints:
    """CPUs or devices: a mask fits if its nodes have enough together, and contains `bound`, what is to be reused.

    `values` (zones, nodes) is ABSENT where the manager knows nothing of the resource.
    """

    values: NDArray[np.int64]
    wanted: int
    singles: Masks
    sizes: Masks
    active: Flags | None = None
    bound: Masks | None = None
    lists: int = 1

    def fitting(self, subset: Subset) -> Flags:
        fits = masks_reaching(select(self.values, subset), self.wanted)
        if self.bound is not None:
            bound = self.bound[subset]
            masks = np.arange(len(fits), dtype=np.uint8)[:, None]
            fits &= (masks & bound) == bound
        return fits

    def any_fits(self, subset: Subset) -> Flags:
        values = select(self.values, subset)
        enough: Flags = (np.maximum(values, 0).sum(axis=0) >= self.wanted) & (values >= 0).any(axis=0)
        return enough

    def only_singles(self, subset: Subset) -> Flags:
        return np.zeros(len(subset), dtype=np.bool_)

    def upward_closed(self, subset: Subset) -> Flags:
        if self.bound is None:
            return np.ones(len(subset), dtype=np.bool_)
        free: Flags = self.bound[subset] == 0
        return free

    def cover(self, subset: Subset) -> Masks:
        return to_masks(select(self.values, subset) >= 0)


def lowest(zones: Masks) -> Masks:
    """The lowest bit of each."""
    found: Masks = zones & (~zones + np.uint8(1))
    return found


def merge_single(resources: Sequence[ResourceHints], zones: int, count: int, pick: Pick) -> tuple[Masks, Flags]:
    """Policy single-numa-node: the hint (0 for no affinity) and whether the pod is admitted.

    Every resource must name the same NUMA node. With no resource at all there is no affinity, and on a machine of
    one NUMA node there never is any.
    """
    common, cared = _common_singles(resources, count)
    mask = pick(common * cared)
    admitted: Flags = (mask != 0) | ~cared
    if zones == 1:
        mask = np.zeros_like(mask)
    return mask, admitted


def merge(
    resources: Sequence[ResourceHints], order: MaskOrder, undecided: Flags, best_effort: bool
) -> tuple[Masks, Flags]:
    """Policies restricted and best-effort: the hint and whether it is preferred.

    Where it is not, the hint means something with `best_effort` only.
    """
    default = np.uint8((1 << order.zones) - 1)
    count = len(undecided)
    common, cared = _common_singles(resources, count)
    mask = order.best_single[common & default]
    mask[~cared] = default
    preferred: Flags = mask != 0
    least, most = _sizes(resources, count)
    agreed = least == most
    left = undecided & ~preferred
    if not best_effort:
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
    """The single NUMA nodes that all resources prefer, and whether any resource has hints at all."""
    common = np.full(count, _ALL, dtype=np.uint8)
    cared = np.zeros(count, dtype=np.bool_)
    for hints in resources:
        singles = hints.singles * (hints.sizes == 1)
        if hints.active is None:
            cared[:] = True
        else:
            cared |= hints.active
            singles |= _ALL * ~hints.active
        common &= singles
    return common, cared


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


def _asked(resources: Sequence[ResourceHints], subset: Subset) -> list[tuple[ResourceHints, Flags, Flags]]:
    """With each resource where it has hints, and where some mask fits it."""
    found = []
    for hints in resources:
        active = np.ones(len(subset), dtype=np.bool_) if hints.active is None else hints.active[subset]
        found.append((hints, active, active & hints.any_fits(subset)))
    return found


def _without_tables(
    resources: Sequence[ResourceHints], order: MaskOrder, subset: Subset, mask: Masks, large: Flags
) -> Subset:
    """Best-effort, no preferred hint of one NUMA node: settle what needs no tables, return the other nodes.

    `large`: a preferred hint of several NUMA nodes is possible still. Three cases:

    * Memory fits on single nodes only, as where all are in use. Every candidate is such a node then, and can be
      reached if all others have a mask with it.
    * Every resource fits on a single node, and all masks above. The best node `t` that all have in some mask is
      reached: by itself, or as {t, a} & {t, b} of two resources that fit on different nodes.
    * No resource fits at all: the kubelet falls back to all nodes.
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
    for hints, _, possible in _asked(resources, subset):
        singles = hints.singles[subset]
        lists += hints.lists * possible
        cover &= np.where(possible, hints.cover(subset), default)
        only = possible & hints.only_singles(subset)
        single_only |= only
        narrow &= np.where(only, singles, default)
        upward &= ~possible | (hints.upward_closed(subset) & (singles != 0))
        union |= np.where(possible, singles, np.uint8(0))
    # With one list of hints only its own masks are reached.
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
    """The hint by tables of masks. `size` is what all resources prefer, 0 where they differ."""
    counts = popcounts(order.zones)[:, None]
    asked = [(one.lists, active, possible, one.fitting(subset)) for one, active, possible in _asked(resources, subset)]
    common = counts == size
    for _, active, _, table in asked:
        common &= table | ~active
    ranks = where_fits(common, order.rank[:, None]).min(axis=0)
    preferred: Flags = ranks != UNRANKED
    mask = np.where(preferred, order.ranked[np.minimum(ranks, len(order.ranked) - 1)], np.uint8(0))
    left = np.flatnonzero(~preferred)
    if best_effort and len(left):
        tables = [(lists, possible, table) for lists, _, possible, table in asked]
        if len(left) < len(subset):
            tables = [(lists, possible[left], table[:, left]) for lists, possible, table in tables]
        mask[left] = _best_reachable(tables, order, len(left))
    return mask, preferred


def _best_reachable(tables: Sequence[tuple[int, Flags, Flags]], order: MaskOrder, count: int) -> Masks:
    """The best mask that is the AND of one fitting mask of each resource; all nodes where there is none."""
    zones = order.zones
    counts = popcounts(zones)[:, None]
    narrowest = np.zeros(count, dtype=np.uint8)
    within = np.ones((1 << zones, count), dtype=np.bool_)
    within[0] = False
    alone = np.zeros_like(within)
    for _, possible, table in tables:
        least = where_fits(table, counts).min(axis=0)
        narrowest = np.where(possible, np.maximum(narrowest, least), narrowest)
        within &= contained_in(table, zones) | ~possible
        alone |= table & possible
    position = np.ascontiguousarray(order.position[narrowest].T)
    # A mask every resource has something above, and one has itself, is reached. A better one may be.
    hoped = where_fits(within, position).min(axis=0)
    found = where_fits(within & alone, position).min(axis=0)
    better = np.flatnonzero(hoped < found)
    if len(better):
        reached = _reached([(lists, possible[better], table[:, better]) for lists, possible, table in tables], zones)
        found[better] = where_fits(reached, position[:, better]).min(axis=0)
    default = np.uint8((1 << zones) - 1)
    best = order.sequence[narrowest, np.minimum(found, (1 << zones) - 1)]
    return np.where(found == UNRANKED, default, best)


def _reached(tables: Sequence[tuple[int, Flags, Flags]], zones: int) -> Flags:
    """Whether a mask is the AND of one fitting mask of each resource, taking in one resource after another.

    Of two families of masks, the pairs above a mask are the product of the masks above it, and the pairs whose AND is
    the mask itself follow by inclusion and exclusion: at most 255 * 255, so 16 bits hold the number exactly.
    """
    reached = np.zeros((1 << zones, tables[0][1].size), dtype=np.bool_)
    reached[-1] = True
    for lists, possible, table in tables:
        above = count_containing(table, zones).astype(np.uint16)
        above[:, ~possible] = 1
        for _ in range(lists):
            reached = without_larger(count_containing(reached, zones) * above, zones) > 0
            reached[0] = False
    return reached


def most_allocated(allocated: Numbers, allocatable: Numbers) -> Numbers:
    """KEP-6007: from (zones, nodes) the score of the scheduler's MostAllocated, 0..100, rounded down."""
    shares = np.minimum(100, allocated * 100 // np.maximum(allocatable, 1))
    return np.where(allocatable > 0, shares, 0)


def elect(fits: Masks, votes: list[Numbers]) -> Masks:
    """KEP-6007: the NUMA node that remains, as a mask, if those that fit meet in ascending order.

    A candidate wins if one manager scores it higher and none lower. This is no maximum: the vote is not transitive.
    """
    count = len(fits)
    every = np.arange(count)
    best = np.zeros(count, dtype=np.intp)
    found = np.zeros(count, dtype=np.bool_)
    zones = len(votes[0]) if votes else 8
    for zone in range(zones):
        fitting: Flags = (fits >> np.uint8(zone) & 1) > 0
        higher = np.zeros(count, dtype=np.bool_)
        lower = np.zeros(count, dtype=np.bool_)
        for vote in votes:
            kept = vote[best, every]
            higher |= vote[zone] > kept
            lower |= vote[zone] < kept
        better = fitting & (~found | (higher & ~lower))
        best[better] = zone
        found |= fitting
    return np.where(found, np.uint8(1) << best.astype(np.uint8), np.uint8(0))
