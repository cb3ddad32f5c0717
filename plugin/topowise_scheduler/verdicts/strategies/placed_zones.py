"""The zones of a container's placements on many nodes: mostly a single zone, sometimes several, sometimes none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PerZone = NDArray[np.int64]
Zones = NDArray[np.int64]
"""(nodes,) sets of zones, bit z for position z."""


@dataclass(frozen=True, slots=True)
class PlacedZones:
    """`masks` (nodes,) by number of zones. `single` are the nodes with a single zone, `flat` the index of that zone in
    a flattened (zones, nodes) array. `several` are the nodes with more zones, `inside` (zones, several) whether each
    zone is in the mask. `none` are the nodes without zones."""

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
        # The position of the only set bit is the number of bits below it.
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
        """(single,) the entry of (zones, nodes) at the single zone."""
        return amounts.take(self.flat)

    def at_several(self, amounts: PerZone) -> NDArray[np.int64]:
        """(several,) the sum of (zones, nodes) over the zones of the mask."""
        total: NDArray[np.int64] = (amounts.take(self.several, axis=1) * self.inside).sum(axis=0)
        return total

    def gather(self, single: PerZone, several: PerZone) -> NDArray[np.int64]:
        """(nodes,) `at_single` of the first argument, `at_several` of the second, 0 for nodes without zones."""
        if self.single.size == self.masks.size:
            return self.at_single(single)
        amounts = np.zeros(self.masks.size, np.int64)
        amounts[self.single] = self.at_single(single)
        if self.several.size:
            amounts[self.several] = self.at_several(several)
        return amounts

    def without(self, available: PerZone, amount: int) -> PerZone:
        """(zones, nodes) the available amounts after each node has allocated `amount`, from its lowest zone on."""
        left = available.copy()
        left.put(self.flat, np.maximum(self.at_single(available) - amount, 0))
        if self.several.size:
            rest = np.full(self.several.size, amount, np.int64)
            for zone, inside in enumerate(self.inside):
                taken = np.minimum(left[zone, self.several], rest) * inside
                left[zone, self.several] -= taken
                rest -= taken
        return left
