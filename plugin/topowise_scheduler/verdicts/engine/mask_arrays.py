"""Sets of NUMA nodes as 8-bit masks (upstream's bitmask.BitMask), for many nodes at once.

Invariant: bit z of a mask is the NUMA node at position z, row m of a (2**zones, nodes) array is about mask m, and the
nodes are always the last axis. A step along a NUMA node pairs every mask without the node with the same mask and the
node. Eight such steps compute sums over masks, subsets, supersets or numbers of combinations (the zeta and Möbius
transforms of the subset lattice).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Subset = NDArray[np.intp]
"""Indices of nodes of an array, ascending."""

Distances = tuple[tuple[int, ...], ...]
"""The SLIT of a machine, from NUMA node to NUMA node."""

# Greater than the rank of any mask.
UNRANKED: Final = 255

# Up to this number of nodes np.packbits is faster, above it a loop over the zones.
_FEW: Final = 256

# Requests up to this are compared in 16 bits: 8 * (7 * 500 + 1) does not overflow.
_SMALL: Final = 500


@lru_cache(maxsize=16)
def popcounts(zones: int) -> Masks:
    """(2**zones,) the number of nodes in each mask."""
    return np.array([mask.bit_count() for mask in range(1 << zones)], dtype=np.uint8)


def select(values: NDArray[Any], subset: Subset) -> NDArray[Any]:
    """(zones, subset) of (zones, nodes). A subset as long as the nodes is all of them, and nothing is copied."""
    return values if len(subset) == values.shape[1] else values.take(subset, axis=1)


def at_zone(values: NDArray[Any], zone: NDArray[np.intp]) -> NDArray[Any]:
    """(nodes,) of (zones, nodes): the value at `zone` (nodes,) of each node."""
    selected: NDArray[Any] = values[zone, np.arange(values.shape[1])]
    return selected


# (256,) by mask, the position of its lowest node; 0 for the empty mask.
LOWEST_ZONE: Final[NDArray[np.intp]] = np.array([max(0, (mask & -mask).bit_length() - 1) for mask in range(256)])


def to_masks(fits: Flags) -> Masks:
    """(nodes,) from (zones, nodes): the mask of each node."""
    if fits.shape[1] < _FEW:
        packed: Masks = np.packbits(fits, axis=0, bitorder="little")[0]
        return packed
    masks: Masks = fits[0].astype(np.uint8)
    for zone in range(1, len(fits)):
        masks |= fits[zone].view(np.uint8) << np.uint8(zone)
    return masks


def zones_in(mask: NDArray[Any], zones: int) -> Flags:
    """(zones, nodes) whether the node's mask has the zone."""
    inside: Flags = (mask[None, :] >> np.arange(zones, dtype=mask.dtype)[:, None] & 1) > 0
    return inside


def sums(values: NDArray[Any]) -> NDArray[Any]:
    """(2**zones, nodes) from (zones, nodes): the sum over each mask."""
    zones, nodes = values.shape
    table = np.empty((1 << zones, nodes), dtype=values.dtype)
    table[0] = 0
    for zone in range(zones):
        # The masks with this zone and lower zones follow the masks with lower zones only.
        half = 1 << zone
        np.add(table[:half], values[zone], out=table[half : 2 * half])
    return table


def masks_reaching(values: NDArray[np.int64], count: int) -> Flags:
    """(2**zones, nodes) whether a mask's nodes have `count` in sum; False for the empty mask and with an ABSENT
    node."""
    if count <= _SMALL:
        count = max(0, count)
        # Clipped, because 16 bits halve the memory traffic. An ABSENT node still outweighs the other seven.
        values = values.clip(-7 * count - 1, count).astype(np.int16)
    fits: Flags = sums(values) >= count
    fits[0] = False
    return fits


def _pairs(table: NDArray[Any], zone: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of the masks without a zone, and of the same masks with it. The table must be in C order."""
    paired = table.reshape(-1, 2, table.shape[-1] << zone)
    return paired[:, 0], paired[:, 1]


def where_fits(fits: Flags, values: Masks) -> Masks:
    """The value where a mask fits, 255 elsewhere; many times faster than `numpy.where`."""
    # True - 1 is 0, False - 1 wraps to 255.
    selected: Masks = (fits.view(np.uint8) - np.uint8(1)) | values
    return selected


def contained_in(fits: Flags, zones: int) -> Flags:
    """The subsets of masks that fit."""
    contained = fits.copy(order="C")
    for zone in range(zones):
        without, having = _pairs(contained, zone)
        without |= having
    return contained


def count_containing(fits: Flags, zones: int) -> Masks:
    """The number of masks that fit and contain each mask."""
    numbers = fits.astype(np.uint8, order="C")
    for zone in range(zones):
        without, having = _pairs(numbers, zone)
        without += having
    return numbers


def without_larger(above: NDArray[np.uint16], zones: int) -> NDArray[np.uint16]:
    """From the number of pairs whose AND contains each mask, the number of pairs whose AND is the mask."""
    exact = above.copy(order="C")
    for zone in range(zones):
        without, having = _pairs(exact, zone)
        without -= having
    return exact


class MaskOrder:
    """The order in which the topology manager prefers masks (HintMerger.compare, NUMAInfo.Closest and Narrowest).

    Fewer nodes first, then with `distances` closer nodes, then the smaller integer. `rank` (2**zones,) is 0 for the
    best mask. `best_single` (256,) is the best single node of a set of nodes as a mask, 0 for the empty set.

    Among masks that are not preferred, masks of `narrowest` nodes come first (BestNonPreferredAffinityCount), then
    narrower masks, the widest first, then wider masks: `sequence` (zones + 1, 2**zones) lists them by narrowest,
    `position` is its inverse.
    """

    def __init__(self, zones: int, distances: Distances | None) -> None:
        self.zones = zones
        masks = range(1, 1 << zones)

        def fitness(mask: int) -> tuple[int, int, int]:
            nodes = [zone for zone in range(zones) if mask >> zone & 1]
            # Sums order masks of equal size as upstream's averages do (CalculateAverageFor).
            total = sum(distances[a][b] for a in nodes for b in nodes) if distances else 0
            return len(nodes), total, mask

        ranked = sorted(masks, key=fitness)
        self.rank: Masks = np.full(1 << zones, UNRANKED, dtype=np.uint8)
        self.rank[ranked] = np.arange(len(ranked), dtype=np.uint8)
        self.ranked: Masks = np.array([*ranked, 0], dtype=np.uint8)
        self.best_single: Masks = np.zeros(256, dtype=np.uint8)
        for mask in reversed(ranked):
            if mask.bit_count() == 1:
                self.best_single[[within for within in range(256) if within & mask]] = mask
        self.sequence: Masks = np.zeros((zones + 1, 1 << zones), dtype=np.uint8)
        self.position: Masks = np.full((zones + 1, 1 << zones), UNRANKED, dtype=np.uint8)
        for narrowest in range(zones + 1):
            sizes = [*range(narrowest, 0, -1), *range(narrowest + 1, zones + 1)]
            listed = [mask for size in sizes for mask in ranked if mask.bit_count() == size]
            self.sequence[narrowest, : len(listed)] = listed
            self.position[narrowest, listed] = np.arange(len(listed), dtype=np.uint8)


@lru_cache(maxsize=64)
def order_of(zones: int, distances: Distances | None) -> MaskOrder:
    """The cached order of a machine."""
    return MaskOrder(zones, distances)
