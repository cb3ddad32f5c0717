"""NUMA nodes of the containers of an admitted pod, by the model of its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from topowise import cpuset
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.allocated_nodes import nodes_of_cpus, nodes_of_devices
from topowise_scheduler.kubelet.masks import members


class Placed(msgspec.Struct, frozen=True):
    """A container. `numa` are the NUMA nodes of its allocation, empty without exclusive resources.

    `cpus` is a cpulist, "" where CPU ids are not known; `aligned` is False if the merged hint was not preferred.
    """

    numa: tuple[int, ...]
    aligned: bool
    cpus: str
    memory: tuple[tuple[str, tuple[int, ...], int], ...]
    devices: Mapping[str, tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        """The placement as a JSON object."""
        return {
            "numa": list(self.numa),
            "aligned": self.aligned,
            "cpus": self.cpus,
            "memory": [{"type": kind, "numa": list(nodes), "bytes": size} for kind, nodes, size in self.memory],
            "devices": {resource: list(ids) for resource, ids in self.devices.items()},
        }


def of(kubelet: Kubelet, uid: str, *, is_exact: bool) -> dict[str, Placed]:
    """Placements by container, without init containers that end before the app containers start."""
    return {
        name: _of(kubelet, placed, is_exact=is_exact)
        for name, placed in kubelet.placements(uid).items()
        if placed.kind != "init"
    }


def in_words(places: Mapping[str, Placed]) -> str:
    """ "1" if all containers are there, else each container with its NUMA nodes; "-" without exclusive resources."""
    pinned = {name: place for name, place in places.items() if place.numa}
    if not pinned:
        return "-"
    if len({place.numa for place in pinned.values()}) == 1 and len(pinned) == len(places):
        return _nodes(next(iter(pinned.values())))
    return ", ".join(f"{name}: {_nodes(place)}" for name, place in pinned.items())


def _nodes(place: Placed) -> str:
    return "+".join(map(str, place.numa)) + ("" if place.aligned else " (not aligned)")


def _of(kubelet: Kubelet, placed: Placement, *, is_exact: bool) -> Placed:
    mask = nodes_of_cpus(kubelet, placed.cpus or 0)
    for resource, ids in placed.devices.items():
        table = kubelet.devices.tables[resource]
        mask |= nodes_of_devices(table, table.select(ids))
    numa = {kubelet.node_ids[position] for position in members(mask)}
    numa.update(node for block in placed.memory if block.size for node in block.numa)
    return Placed(
        numa=tuple(sorted(numa)),
        aligned=placed.numa is None or placed.preferred or not numa,
        cpus=cpuset.to_text(members(placed.cpus or 0)) if is_exact else "",
        memory=tuple((block.type, block.numa, block.size) for block in placed.memory if block.size),
        devices={name: ids for name, ids in placed.devices.items() if ids} if is_exact else {},
    )
