"""Which NUMA nodes are the fewest that hold an amount, and the closest of those, from counts alone.

All combinations of a size are looked at at once, for all nodes, in the order of gonum's combin.Combinations: a table of
members, and sums that add one member after the other. Only sizes that are needed are built, the smallest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

# How many sums are held at a time.
_CELLS: Final = 1 << 17
_UNREACHABLE: Final = np.iinfo(np.int32).max


def fewest(
    available: Mapping[str, NDArray[np.int64]],
    amounts: Mapping[str, NDArray[np.int64]],
    barred: NDArray[np.bool_],
    distances: NDArray[np.int32],
) -> NDArray[np.int32]:
    """(nodes,) the mask of the fewest zones that together have the amounts, 0 if not even all have.

    `available` are (zones, nodes), `amounts` (nodes,), `barred` (zones, nodes) zones that may not take part,
    `distances` (zones, zones, nodes). Of equally many zones the closest win, of equally close the first combination
    (numaNodesRequired and findSuitableCombination in least_numa.go).
    """
    zones, count = barred.shape
    masks = np.zeros(count, np.int32)
    fits = ~barred
    for name, amount in amounts.items():
        fits &= available[name] >= amount
    one = fits.any(axis=0)
    masks[one] = 1 << fits[:, one].argmax(axis=0)
    if one.all():
        return masks
    sizes = _at_least(available, amounts)
    for size in range(2, zones + 1):
        for nodes in _chunks(np.flatnonzero((masks == 0) & (sizes <= size)), zones, size):
            some = {name: values.take(nodes, axis=1) for name, values in available.items()}
            wanted = {name: values[nodes] for name, values in amounts.items()}
            masks[nodes] = _closest(some, wanted, barred.take(nodes, axis=1), distances.take(nodes, axis=2), size)
    return masks


def are_closest(masks: NDArray[np.int32], distances: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(nodes,) whether no other combination of as many zones is closer; free or not (minAvgDistanceInCombinations)."""
    zones = distances.shape[0]
    sizes = np.bitwise_count(masks)
    # A zone alone is as close to itself as any other.
    close = sizes <= 1
    for size in np.unique(sizes[~close]).tolist():
        for nodes in _chunks(np.flatnonzero(sizes == size), zones, size):
            spans = _spans(distances.take(nodes, axis=2), size)
            own = (_masks(zones, size)[:, None] == masks[nodes]).argmax(axis=0)
            close[nodes] = np.take_along_axis(spans, own[None], axis=0)[0] == spans.min(axis=0)
    return close


def _at_least(
    available: Mapping[str, NDArray[np.int64]], amounts: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.int64]:
    """(nodes,) how many zones are needed for the scarcest amount alone, which no combination of fewer can have."""
    found = []
    for name, amount in amounts.items():
        most = np.cumsum(-np.sort(-available[name], axis=0), axis=0)
        found.append(1 + (most < amount).sum(axis=0))
    sizes: NDArray[np.int64] = np.max(found, axis=0)
    return sizes


def _closest(
    available: Mapping[str, NDArray[np.int64]],
    amounts: Mapping[str, NDArray[np.int64]],
    barred: NDArray[np.bool_],
    distances: NDArray[np.int32],
    size: int,
) -> NDArray[np.int32]:
    zones = barred.shape[0]
    members = _members(zones, size)
    fits = ~barred[members].any(axis=1)
    for name, amount in amounts.items():
        total = available[name][members[:, 0]]
        for member in members.T[1:]:
            total += available[name][member]
        fits &= total >= amount
    spans = np.where(fits, _spans(distances, size), _UNREACHABLE)
    best = _masks(zones, size)[spans.argmin(axis=0)]
    return np.where(fits.any(axis=0), best, 0).astype(np.int32)


def _spans(distances: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """(combinations, nodes), or (combinations, 1) if all nodes are alike, the sum of the distances between all pairs of
    different members. To itself each has 10, so combinations of a size compare as upstream's averages over all pairs,
    each with itself too (nodesAvgDistance)."""
    if (distances == distances[:, :, :1]).all():
        distances = distances[:, :, :1]
    members = _members(distances.shape[0], size)
    both_ways = distances + distances.transpose(1, 0, 2)
    total = np.zeros((len(members), distances.shape[2]), np.int32)
    for one, other in combinations(members.T, 2):
        total += both_ways[one, other]
    return total


def _chunks(nodes: NDArray[np.intp], zones: int, size: int) -> list[NDArray[np.intp]]:
    step = max(1, _CELLS // len(_masks(zones, size)))
    return [nodes[start : start + step] for start in range(0, nodes.size, step)]


@lru_cache(maxsize=64)
def _members(zones: int, size: int) -> NDArray[np.intp]:
    """(combinations, size) the positions of the members."""
    return np.array(list(combinations(range(zones), size)), np.intp)


@lru_cache(maxsize=64)
def _masks(zones: int, size: int) -> NDArray[np.int32]:
    """(combinations,) as bit masks."""
    masks: NDArray[np.int32] = (1 << _members(zones, size)).sum(axis=1).astype(np.int32)
    return masks
