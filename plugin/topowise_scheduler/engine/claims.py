"""Hints of one resource, for many nodes at once: which sets of NUMA nodes fit, and of what size they are preferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.kinds import Sizes
from topowise_scheduler.engine.lattice import Bits, Flags, bits, reaching

Places = NDArray[np.intp]


class Claim(Protocol):
    """`singles` (nodes,) has the bits of the NUMA nodes that fit alone, `sizes` (nodes,) the preferred size.

    `active` (nodes,) is False where the manager does not care, None if it always does. `groups` is how many lists of
    hints it gives, all equal: the memory manager gives one a type. The methods answer for some `places` only.
    """

    singles: Bits
    sizes: Sizes
    active: Flags | None
    groups: int

    def table(self, places: Places) -> Flags:
        """(2**zones, places) whether the mask fits."""

    def possible(self, places: Places) -> Flags:
        """Whether any mask fits."""

    def only_singles(self, places: Places) -> Flags:
        """Whether no mask of several nodes fits, though one of one node does."""

    def closed(self, places: Places) -> Flags:
        """Whether with a mask all larger ones within `cover` fit."""

    def cover(self, places: Places) -> Bits:
        """The NUMA nodes that are in some mask that fits, if any does; right where `closed` or `only_singles`."""


@dataclass(slots=True)
class CountClaim:
    """CPUs or devices: a mask fits if its nodes have enough together, and contains `bound`, what is to be reused.

    `values` (zones, nodes) is OUT where the manager knows nothing of the resource.
    """

    values: NDArray[np.int64]
    wanted: int
    singles: Bits
    sizes: Sizes
    active: Flags | None = None
    bound: Bits | None = None
    groups: int = 1

    def table(self, places: Places) -> Flags:
        fits = reaching(at(self.values, places), self.wanted)
        if self.bound is not None:
            bound = self.bound[places]
            masks = np.arange(len(fits), dtype=np.uint8)[:, None]
            fits &= (masks & bound) == bound
        return fits

    def possible(self, places: Places) -> Flags:
        values = at(self.values, places)
        enough: Flags = (np.maximum(values, 0).sum(axis=0) >= self.wanted) & (values >= 0).any(axis=0)
        return enough

    def only_singles(self, places: Places) -> Flags:
        return np.zeros(len(places), dtype=np.bool_)

    def closed(self, places: Places) -> Flags:
        if self.bound is None:
            return np.ones(len(places), dtype=np.bool_)
        free: Flags = self.bound[places] == 0
        return free

    def cover(self, places: Places) -> Bits:
        return bits(at(self.values, places) >= 0)


def at(values: NDArray[Any], places: Places) -> NDArray[Any]:
    """(zones, places) of (zones, nodes); `places` ascend, so that as many as there are nodes are all."""
    return values if len(places) == values.shape[1] else values.take(places, axis=1)


def chosen(values: NDArray[Any], zone: NDArray[np.intp]) -> NDArray[Any]:
    """From (zones, nodes) the value at one zone of each node."""
    found: NDArray[Any] = values[zone, np.arange(values.shape[1])]
    return found
