"""Where the placements of a container point: on most nodes to one zone, on a few to several, and on some to none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PerZone = NDArray[np.int64]
Zones = NDArray[np.int64]
"""(nodes,) sets of zones, bit z for position z."""


@dataclass(frozen=True, slots=True)
class PlacedZones:
    """`masks` (nodes,) taken apart: `single` are the nodes with one zone and `flat` its place in (zones, nodes) read
    row by row, `several` those with more and `inside` (zones, several) whether each zone is in the mask, `none` those
    with 0."""

    masks: Zones
    single: NDArray[np.intp]
    flat: NDArray[np.intp]
    several: NDArray[np.intp]
    inside: NDArray[np.int64]
    none: NDArray[np.intp]

    @classmethod
    def of(cls, masks: Zones, zones: int) -> PlacedZones:
        counts = np.bitwise_count(masks)
        single, several = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        # The bits below the only one that is set.
        zone = np.bitwise_count(masks[single] - 1).astype(np.intp)
        return cls(
            masks,
            single,
            zone * masks.size + single,
            several,
            masks[several] >> np.arange(zones)[:, None] & 1,
            np.flatnonzero(counts == 0),
        )

    def at_single(self, amounts: PerZone) -> NDArray[np.int64]:
        """(single,) what (zones, nodes) holds in the one zone."""
        return amounts.take(self.flat)

    def at_several(self, amounts: PerZone) -> NDArray[np.int64]:
        """(several,) the sum of (zones, nodes) over the zones of the mask."""
        total: NDArray[np.int64] = (amounts.take(self.several, axis=1) * self.inside).sum(axis=0)
        return total

    def gather(self, single: PerZone, several: PerZone) -> NDArray[np.int64]:
        """(nodes,) `at_single` of the one and `at_several` of the other, 0 for nodes with neither."""
        if self.single.size == self.masks.size:
            return self.at_single(single)
        found = np.zeros(self.masks.size, np.int64)
        found[self.single] = self.at_single(single)
        if self.several.size:
            found[self.several] = self.at_several(several)
        return found

    def without(self, available: PerZone, amount: int) -> PerZone:
        """(zones, nodes) what is left when each node has given this amount, the lowest zone of its mask first."""
        left = available.copy()
        left.put(self.flat, np.maximum(self.at_single(available) - amount, 0))
        if self.several.size:
            rest = np.full(self.several.size, amount, np.int64)
            for zone, inside in enumerate(self.inside):
                given = np.minimum(left[zone, self.several], rest) * inside
                left[zone, self.several] -= given
                rest -= given
        return left
