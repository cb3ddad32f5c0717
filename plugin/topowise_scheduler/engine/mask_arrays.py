"""Sets of NUMA nodes, as masks of eight bits, for many nodes at once.

Invariant: bit z of a mask is the NUMA node at position z, row m of a (2**zones, nodes) array is about mask m, and the
nodes are always the last axis. A step along one NUMA node pairs every mask without it with the mask that has it; eight
such steps make sums over masks, the masks that are part of others or contain them, or numbers of combinations (the zeta
and Möbius transforms of the lattice of subsets).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Subset = NDArray[np.intp]
"""Some of the nodes of an array, by their index, ascending."""

Distances = tuple[tuple[int, ...], ...]
"""The SLIT of a machine, from NUMA node to NUMA node."""

# Greater than the rank of any mask.
UNRANKED: Final = 255

# Columns up to here are packed by numpy itself, more are faster one zone at a time.
_FEW: Final = 256

# Requests up to here are compared in 16 bits: eight nodes that do not take part stay far below.
_SMALL: Final = 500


@lru_cache(maxsize=16)
def popcounts(zones: int) -> Masks:
    """(2**zones,) the number of nodes in each mask."""
    return np.array([mask.bit_count() for mask in range(1 << zones)], dtype=np.uint8)


def select(values: NDArray[Any], subset: Subset) -> NDArray[Any]:
    """(zones, subset) of (zones, nodes); as many as there are nodes are all of them."""
    return values if len(subset) == values.shape[1] else values.take(subset, axis=1)


def at_zone(values: NDArray[Any], zone: NDArray[np.intp]) -> NDArray[Any]:
    """From (zones, nodes) the value at one zone of each node."""
    found: NDArray[Any] = values[zone, np.arange(values.shape[1])]
    return found


# At a mask of up to 8 nodes, the position of its lowest; 0 for none.
LOWEST_ZONE: Final[NDArray[np.intp]] = np.array([max(0, (mask & -mask).bit_length() - 1) for mask in range(256)])


def to_masks(fits: Flags) -> Masks:
    """From (zones, nodes) the set of zones of each node."""
    if fits.shape[1] < _FEW:
        packed: Masks = np.packbits(fits, axis=0, bitorder="little")[0]
        return packed
    found: Masks = fits[0].astype(np.uint8)
    for zone in range(1, len(fits)):
        found |= fits[zone].view(np.uint8) << np.uint8(zone)
    return found


def zones_in(mask: NDArray[Any], zones: int) -> Flags:
    """(zones, nodes): whether the node's mask has the zone."""
    found: Flags = (mask[None, :] >> np.arange(zones, dtype=mask.dtype)[:, None] & 1) > 0
    return found


def sums(values: NDArray[Any]) -> NDArray[Any]:
    """From (zones, nodes) the sum over each mask."""
    zones, nodes = values.shape
    table = np.empty((1 << zones, nodes), dtype=values.dtype)
    table[0] = 0
    for zone in range(zones):
        half = 1 << zone
        np.add(table[:half], values[zone], out=table[half : 2 * half])
    return table


def masks_reaching(values: NDArray[np.int64], wanted: int) -> Flags:
    """The masks whose nodes have `wanted` together: never the empty mask, nor a mask with an ABSENT node ."""
    if wanted <= _SMALL:
        wanted = max(0, wanted)
        # What exceeds the request is cut off, and a node that is ABSENT outweighs all others.
        values = values.clip(-7 * wanted - 1, wanted).astype(np.int16)
    fits: Flags = sums(values) >= wanted
    fits[0] = False
    return fits


def _pairs(table: NDArray[Any], zone: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of the masks without a zone, and of the same masks with it; of a table in C order, others are copied."""
    paired = table.reshape(-1, 2, table.shape[-1] << zone)
    return paired[:, 0], paired[:, 1]


def where_fits(fits: Flags, values: Masks) -> Masks:
    """The value where a mask fits, 255 elsewhere; many times faster than `numpy.where`."""
    found: Masks = (fits.view(np.uint8) - np.uint8(1)) | values
    return found


def contained_in(fits: Flags, zones: int) -> Flags:
    """The masks that are contained in one that fits."""
    found = fits.copy(order="C")
    for zone in range(zones):
        without, having = _pairs(found, zone)
        without |= having
    return found


def count_containing(fits: Flags, zones: int) -> Masks:
    """How many masks that fit contain each mask."""
    found = fits.astype(np.uint8, order="C")
    for zone in range(zones):
        without, having = _pairs(found, zone)
        without += having
    return found


def without_larger(above: NDArray[np.uint16], zones: int) -> NDArray[np.uint16]:
    """From how many pairs lie above each mask, how many are the mask itself."""
    found = above.copy(order="C")
    for zone in range(zones):
        without, having = _pairs(found, zone)
        without -= having
    return found


class MaskOrder:
    """Which of two masks the topology manager prefers (HintMerger.compare, prefer-closest-numa-nodes).

    Fewer nodes, then with `distances` closer ones, then the smaller integer. `rank` (2**zones,) is 0 for the best
    mask. `best_single` (256,) is the best mask of one node within a set of nodes, 0 within none.

    Among masks that are not preferred those of `narrowest` nodes come first, then smaller ones, the largest first,
    then larger ones: `sequence` (zones + 1, 2**zones) lists them by narrowest, `position` is its inverse.
    """

    def __init__(self, zones: int, distances: Distances | None) -> None:
        self.zones = zones
        masks = range(1, 1 << zones)

        def fitness(mask: int) -> tuple[int, int, int]:
            nodes = [zone for zone in range(zones) if mask >> zone & 1]
            total = sum(distances[one][other] for one in nodes for other in nodes) if distances else 0
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
    """The order of a machine, made once."""
    return MaskOrder(zones, distances)
