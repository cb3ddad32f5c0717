"""From which NUMA nodes CPUs are taken, by numbers (kubelet/cpu_packing.py, takeByTopologyNUMAPacked).

Where no core and no socket is larger than the average, and every NUMA node is on one socket, the kubelet's steps look
at nothing but how many CPUs and how many whole cores each NUMA node has free: whole NUMA nodes and sockets, then whole
cores, then single CPUs, each from the fullest NUMA node on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.counts import CORES
from topowise_scheduler.engine.lattice import Flags
from topowise_scheduler.engine.sheet import Sheet

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Of some nodes: `capacity` (zones, nodes) CPUs, `socket` (zones, nodes); the others (nodes,).

    `known` says where the numbers suffice.
    """

    capacity: Numbers
    per_core: Numbers
    known: Flags
    numa_first: Flags
    per_socket: Numbers
    socket: Numbers

    @classmethod
    def of(cls, sheet: Sheet) -> Layout:
        """That of all nodes of a sheet."""
        section, zones = sheet.fixed(CORES), sheet.zones
        per_core, _, known, numa_first, per_socket = section[zones : zones + 5]
        return cls(
            section[:zones], np.maximum(per_core, 1), known > 0, numa_first > 0, per_socket, section[zones + 5 :]
        )

    def at(self, places: NDArray[np.intp]) -> Layout:
        """That of some of these nodes."""
        return Layout(
            self.capacity[:, places],
            self.per_core[places],
            self.known[places],
            self.numa_first[places],
            self.per_socket[places],
            self.socket[:, places],
        )


def take(layout: Layout, free: Numbers, cores: Numbers, wanted: Numbers) -> Numbers:
    """(zones, nodes) how many CPUs come from each NUMA node; `wanted` (nodes,) is no more than is free.

    `free` (zones, nodes) are the CPUs that may be taken, `cores` the whole cores among them.
    """
    taken = np.zeros_like(free)
    left = wanted.copy()
    _take_sockets(layout, free, taken, left)
    for zone in _in_order(layout, free - taken):
        size = _at(layout.capacity, zone)
        whole = (size > 0) & (_at(free - taken, zone) == size) & (left >= size)
        _book(taken, left, zone, size * whole)
    cores = np.where(taken > 0, 0, cores)
    for zone in _in_order(layout, free - taken):
        count = np.minimum(_at(cores, zone), left // layout.per_core)
        _book(taken, left, zone, count * layout.per_core)
    for zone in _in_order(layout, free - taken):
        _book(taken, left, zone, np.minimum(_at(free - taken, zone), left))
    return taken


def _take_sockets(layout: Layout, free: Numbers, taken: Numbers, left: Numbers) -> None:
    """Whole sockets, where a socket has several NUMA nodes."""
    for place in range(len(free)):
        mine = layout.socket == place
        size = layout.per_socket
        whole = ~layout.numa_first & ((free * mine).sum(axis=0) == size) & (size > 0) & (left >= size)
        taken += free * (mine & whole)
        left -= size * whole


def _in_order(layout: Layout, free: Numbers) -> NDArray[np.intp]:
    """(zones, nodes) the NUMA nodes as the kubelet sorts them: the fewest free CPUs first, and sockets likewise where
    they have several NUMA nodes; those with nothing free last."""
    zones = len(free)
    key = free * zones + np.arange(zones)[:, None]
    if not layout.numa_first.all():
        of_socket = np.zeros_like(free)
        for place in range(zones):
            mine = layout.socket == place
            of_socket += mine * (free * mine).sum(axis=0)
        key += np.where(layout.numa_first, 0, (of_socket * zones + layout.socket) << 24)
    key += (free <= 0) * np.int64(1 << 60)
    return np.argsort(key, axis=0)


def _at(values: Numbers, zone: NDArray[np.intp]) -> Numbers:
    found: Numbers = values[zone, np.arange(values.shape[1])]
    return found


def _book(taken: Numbers, left: Numbers, zone: NDArray[np.intp], count: Numbers) -> None:
    taken[zone, np.arange(taken.shape[1])] += count
    left -= count
