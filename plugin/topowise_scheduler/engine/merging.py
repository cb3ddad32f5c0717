"""The topology manager of many nodes at once (kubelet/topology_manager.py): from the hints of all resources to one.

A preferred hint takes the same preferred mask from every resource, so the sizes all must agree, and mostly the size
is one NUMA node: eight bits a node decide. Only where a pod needs several NUMA nodes, or where best-effort finds no
preferred hint, sets of masks are looked at, and then for those nodes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from topowise_scheduler.engine.claims import Claim, Places
from topowise_scheduler.engine.lattice import (
    UNRANKED,
    Bits,
    Flags,
    Order,
    below,
    counted_above,
    exactly,
    marked,
    popcounts,
)

# From the NUMA nodes that fit, as bits, the one to take, as a mask.
Pick = Callable[[Bits], Bits]

# Nodes looked at together where tables of masks are made: so many fit into the cache.
_BLOCK = 512

_ALL = np.uint8(255)


def lowest(zones: Bits) -> Bits:
    """The lowest bit of each."""
    found: Bits = zones & (~zones + np.uint8(1))
    return found


def merge_single(claims: Sequence[Claim], zones: int, count: int, pick: Pick) -> tuple[Bits, Flags]:
    """Policy single-numa-node: the hint (0 for no affinity) and whether the pod is admitted.

    Every resource must name the same NUMA node. With no resource at all there is no affinity, and on a machine of
    one NUMA node there never is any.
    """
    common, cared = _common_singles(claims, count)
    mask = pick(common * cared)
    admitted: Flags = (mask != 0) | ~cared
    if zones == 1:
        mask = np.zeros_like(mask)
    return mask, admitted


def merge(claims: Sequence[Claim], order: Order, live: Flags, best_effort: bool) -> tuple[Bits, Flags]:
    """Policies restricted and best-effort: the hint and whether it is preferred.

    Where it is not, the hint means something with `best_effort` only.
    """
    default = np.uint8((1 << order.zones) - 1)
    count = len(live)
    common, cared = _common_singles(claims, count)
    mask = order.best_single[common & default]
    mask[~cared] = default
    preferred: Flags = mask != 0
    least, most = _sizes(claims, count)
    agreed = least == most
    left = live & ~preferred
    if not best_effort:
        left &= agreed & (most > 1)
    places = np.flatnonzero(left)
    if len(places) and best_effort:
        places = _without_tables(claims, order, places, mask, agreed & (most > 1))
    for first in range(0, len(places), _BLOCK):
        block = places[first : first + _BLOCK]
        size = np.where(agreed[block], most[block], np.uint8(0))
        mask[block], preferred[block] = _search(claims, order, block, size, best_effort)
    return mask, preferred


def _common_singles(claims: Sequence[Claim], count: int) -> tuple[Bits, Flags]:
    """The single NUMA nodes that all resources prefer, and whether any resource has hints at all."""
    common = np.full(count, _ALL, dtype=np.uint8)
    cared = np.zeros(count, dtype=np.bool_)
    for claim in claims:
        singles = claim.singles * (claim.sizes == 1)
        if claim.active is None:
            cared[:] = True
        else:
            cared |= claim.active
            singles |= _ALL * ~claim.active
        common &= singles
    return common, cared


def _sizes(claims: Sequence[Claim], count: int) -> tuple[Bits, Bits]:
    """The least and the greatest preferred size."""
    least = np.full(count, _ALL, dtype=np.uint8)
    most = np.zeros(count, dtype=np.uint8)
    for claim in claims:
        if claim.active is None:
            np.minimum(least, claim.sizes, out=least)
            np.maximum(most, claim.sizes, out=most)
        else:
            least = np.where(claim.active, np.minimum(least, claim.sizes), least)
            most = np.where(claim.active, np.maximum(most, claim.sizes), most)
    return least, most


def _fitting(claims: Sequence[Claim], places: Places) -> list[tuple[Claim, Flags, Flags]]:
    """With each claim where it has hints, and where some mask fits it."""
    found = []
    for claim in claims:
        active = np.ones(len(places), dtype=np.bool_) if claim.active is None else claim.active[places]
        found.append((claim, active, active & claim.possible(places)))
    return found


def _without_tables(claims: Sequence[Claim], order: Order, places: Places, mask: Bits, large: Flags) -> Places:
    """Best-effort, no preferred hint of one NUMA node: settle what needs no tables, return the other places.

    `large`: a preferred hint of several NUMA nodes is possible still. Three cases:

    * Memory fits on single nodes only, as where all are in use. Every candidate is such a node then, and can be
      reached if all others have a mask with it.
    * Every resource fits on a single node, and all masks above. The best node `t` that all have in some mask is
      reached: by itself, or as {t, a} & {t, b} of two resources that fit on different nodes.
    * No resource fits at all: the kubelet falls back to all nodes.
    """
    fitting = _fitting(claims, places)
    zones = order.zones
    default = np.uint8((1 << zones) - 1)
    count = len(places)
    groups = np.zeros(count, dtype=np.int64)
    cover = np.full(count, default, dtype=np.uint8)
    narrow = np.full(count, default, dtype=np.uint8)
    single_only = np.zeros(count, dtype=np.bool_)
    upward = np.ones(count, dtype=np.bool_)
    union = np.zeros(count, dtype=np.uint8)
    for claim, _, possible in fitting:
        singles = claim.singles[places]
        groups += claim.groups * possible
        cover &= np.where(possible, claim.cover(places), default)
        only = possible & claim.only_singles(places)
        single_only |= only
        narrow &= np.where(only, singles, default)
        upward &= ~possible | (claim.closed(places) & (singles != 0))
        union |= np.where(possible, singles, np.uint8(0))
    # With one list of hints only its own masks are reached.
    cover = np.where(groups == 1, cover & union, cover)
    target = order.best_single[cover]
    reached = (target != 0) & ((target & union != 0) | ((groups > 1) & (popcounts(zones)[union] > 1)))
    settled = (upward & reached) | single_only | (groups == 0)
    best = np.where(single_only, order.best_single[narrow & cover], target)
    best = np.where((groups == 0) | (best == 0), default, best)
    settled &= single_only | ~large[places]
    mask[places[settled]] = best[settled]
    left: Places = places[~settled]
    return left


def _search(claims: Sequence[Claim], order: Order, places: Places, size: Bits, best_effort: bool) -> tuple[Bits, Flags]:
    """The hint by tables of masks. `size` is what all resources prefer, 0 where they differ."""
    counts = popcounts(order.zones)[:, None]
    fitting = [(claim, active, possible, claim.table(places)) for claim, active, possible in _fitting(claims, places)]
    common = counts == size
    for _, active, _, table in fitting:
        common &= table | ~active
    ranks = marked(common, order.rank[:, None]).min(axis=0)
    preferred: Flags = ranks != UNRANKED
    mask = np.where(preferred, order.ranked[np.minimum(ranks, len(order.ranked) - 1)], np.uint8(0))
    left = np.flatnonzero(~preferred)
    if best_effort and len(left):
        tables = [(claim.groups, possible, table) for claim, _, possible, table in fitting]
        if len(left) < len(places):
            tables = [(groups, possible[left], table[:, left]) for groups, possible, table in tables]
        mask[left] = _best_reachable(tables, order, len(left))
    return mask, preferred


def _best_reachable(tables: Sequence[tuple[int, Flags, Flags]], order: Order, count: int) -> Bits:
    """The best mask that is the AND of one fitting mask of each resource; all nodes where there is none."""
    zones = order.zones
    counts = popcounts(zones)[:, None]
    narrowest = np.zeros(count, dtype=np.uint8)
    within = np.ones((1 << zones, count), dtype=np.bool_)
    within[0] = False
    alone = np.zeros_like(within)
    for _, possible, table in tables:
        least = marked(table, counts).min(axis=0)
        narrowest = np.where(possible, np.maximum(narrowest, least), narrowest)
        within &= below(table, zones) | ~possible
        alone |= table & possible
    place = np.ascontiguousarray(order.place[narrowest].T)
    # A mask every resource has something above, and one has itself, is reached. A better one may be.
    hoped = marked(within, place).min(axis=0)
    found = marked(within & alone, place).min(axis=0)
    better = np.flatnonzero(hoped < found)
    if len(better):
        reached = _reached([(groups, possible[better], table[:, better]) for groups, possible, table in tables], zones)
        found[better] = marked(reached, place[:, better]).min(axis=0)
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
    for groups, possible, table in tables:
        above = counted_above(table, zones).astype(np.uint16)
        above[:, ~possible] = 1
        for _ in range(groups):
            reached = exactly(counted_above(reached, zones) * above, zones) > 0
            reached[0] = False
    return reached
