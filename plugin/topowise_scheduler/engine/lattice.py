"""Sets of NUMA nodes as tables: row m of a (2**zones, nodes) array is about mask m, for all nodes at once.

A step along one NUMA node pairs every mask without it with the mask that has it; eight such steps make subset sums,
the sets below or above others, or numbers of combinations (the zeta and Möbius transforms of the subset lattice).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.traits import Distances

Bits = NDArray[np.uint8]
Flags = NDArray[np.bool_]

# Greater than the rank of any mask.
UNRANKED: Final = 255

# Columns up to here are packed by numpy itself, more are faster one zone at a time.
_FEW: Final = 256

# Requests up to here are compared in 16 bits: eight nodes that do not take part stay far below.
_SMALL: Final = 500


@lru_cache(maxsize=16)
def popcounts(zones: int) -> Bits:
    """(2**zones,) the number of nodes in each mask."""
    return np.array([mask.bit_count() for mask in range(1 << zones)], dtype=np.uint8)


# At a mask of up to 8 nodes, the position of its lowest; 0 for none.
LOWEST: Final[NDArray[np.intp]] = np.array([max(0, (mask & -mask).bit_length() - 1) for mask in range(256)])


def bits(fits: Flags) -> Bits:
    """From (zones, nodes) the set of zones of each node, as bits."""
    if fits.shape[1] < _FEW:
        packed: Bits = np.packbits(fits, axis=0, bitorder="little")[0]
        return packed
    found: Bits = fits[0].astype(np.uint8)
    for zone in range(1, len(fits)):
        found |= fits[zone].view(np.uint8) << np.uint8(zone)
    return found


def spread(mask: NDArray[Any], zones: int) -> Flags:
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


def reaching(values: NDArray[np.int64], wanted: int) -> Flags:
    """The masks whose nodes have `wanted` together; none with a node that is OUT, and never the empty one."""
    if wanted <= _SMALL:
        wanted = max(0, wanted)
        # What exceeds the request is cut off, and a node that is OUT outweighs all others.
        values = values.clip(-7 * wanted - 1, wanted).astype(np.int16)
    fits: Flags = sums(values) >= wanted
    fits[0] = False
    return fits


def _pairs(table: NDArray[Any], zone: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of the masks without a zone, and of the same masks with it; of a table in C order, others are copied."""
    paired = table.reshape(-1, 2, table.shape[-1] << zone)
    return paired[:, 0], paired[:, 1]


def marked(fits: Flags, values: Bits) -> Bits:
    """The value where a mask fits, 255 elsewhere; many times faster than `numpy.where`."""
    found: Bits = (fits.view(np.uint8) - np.uint8(1)) | values
    return found


def below(fits: Flags, zones: int) -> Flags:
    """The masks that are part of one that fits."""
    found = fits.copy(order="C")
    for zone in range(zones):
        without, having = _pairs(found, zone)
        without |= having
    return found


def counted_above(fits: Flags, zones: int) -> Bits:
    """How many masks that fit contain each mask."""
    found = fits.astype(np.uint8, order="C")
    for zone in range(zones):
        without, having = _pairs(found, zone)
        without += having
    return found


def exactly(above: NDArray[np.uint16], zones: int) -> NDArray[np.uint16]:
    """From how many pairs lie above each mask, how many are the mask itself."""
    found = above.copy(order="C")
    for zone in range(zones):
        without, having = _pairs(found, zone)
        without -= having
    return found


class Order:
    """Which of two masks the topology manager prefers (HintMerger.compare, prefer-closest-numa-nodes).

    Fewer nodes, then with `distances` closer ones, then the smaller integer. `rank` (2**zones,) is 0 for the best
    mask. `best_single` (256,) is the best mask of one node within a set of nodes, 0 within none.

    Among masks that are not preferred those of `narrowest` nodes come first, then smaller ones, the largest first,
    then larger ones: `sequence` (zones + 1, 2**zones) lists them by narrowest, `place` is its inverse.
    """

    def __init__(self, zones: int, distances: Distances | None) -> None:
        self.zones = zones
        masks = range(1, 1 << zones)

        def fitness(mask: int) -> tuple[int, int, int]:
            nodes = [zone for zone in range(zones) if mask >> zone & 1]
            total = sum(distances[one][other] for one in nodes for other in nodes) if distances else 0
            return len(nodes), total, mask

        ranked = sorted(masks, key=fitness)
        self.rank: Bits = np.full(1 << zones, UNRANKED, dtype=np.uint8)
        self.rank[ranked] = np.arange(len(ranked), dtype=np.uint8)
        self.ranked: Bits = np.array([*ranked, 0], dtype=np.uint8)
        self.best_single: Bits = np.zeros(256, dtype=np.uint8)
        for mask in reversed(ranked):
            if mask.bit_count() == 1:
                self.best_single[[within for within in range(256) if within & mask]] = mask
        self.sequence: Bits = np.zeros((zones + 1, 1 << zones), dtype=np.uint8)
        self.place: Bits = np.full((zones + 1, 1 << zones), UNRANKED, dtype=np.uint8)
        for narrowest in range(zones + 1):
            sizes = [*range(narrowest, 0, -1), *range(narrowest + 1, zones + 1)]
            listed = [mask for size in sizes for mask in ranked if mask.bit_count() == size]
            self.sequence[narrowest, : len(listed)] = listed
            self.place[narrowest, listed] = np.arange(len(listed), dtype=np.uint8)


@lru_cache(maxsize=64)
def order(zones: int, distances: Distances | None) -> Order:
    """The order of a machine, made once."""
    return Order(zones, distances)
