"""Where devices are on the PCI buses, in a picture: the object has their places, the kubelet's model only their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from topowise.attributes.pci_devices import Located
from topowise_scheduler.view.picture.model import Branch, Device, Devices, Picture

_Path = tuple[str, ...]


class _Tree(NamedTuple):
    """By path: the devices right below it, and the paths that are one step longer; by root complex its NUMA node."""

    devices: Mapping[_Path, tuple[Devices, ...]]
    children: Mapping[_Path, Iterable[_Path]]
    nodes: Mapping[str, int | None]


def with_places(picture: Picture, located: Mapping[str, Located]) -> Picture:
    """The picture with the tree of its devices, by id; without ids (precision "counts") it stays as it is."""
    drawn = [*(group for zone in picture.zones for group in zone.devices), *picture.elsewhere]
    named = [Devices(one.resource, tuple(device for device in one.devices if device.id is not None)) for one in drawn]
    at = _by_path(named, located)
    if not at:
        return picture
    tree = _Tree(at, _children(at), _nodes(located))
    branches = tuple(branch for root in tree.children[()] for branch in _branches(tree, root, 0))
    return msgspec.structs.replace(picture, pci=branches, unplaced=tuple(_unplaced(named, located)))


def _by_path(named: Iterable[Devices], located: Mapping[str, Located]) -> dict[_Path, tuple[Devices, ...]]:
    """The devices right below each bridge, by resource. Places come in the order of buses."""
    found: dict[_Path, dict[str, list[Device]]] = {one.place.path: {} for one in located.values()}
    for group in named:
        for device in group.devices:
            place = located.get(device.id or "")
            if place is not None:
                found[place.place.path].setdefault(group.resource, []).append(device)
    return {
        path: tuple(Devices(resource, tuple(devices)) for resource, devices in sorted(by_resource.items()))
        for path, by_resource in found.items()
        if by_resource
    }


def _nodes(located: Mapping[str, Located]) -> dict[str, int | None]:
    """The NUMA node of each root complex, None where its devices name different ones or none."""
    found: dict[str, set[int | None]] = {}
    for one in located.values():
        found.setdefault(one.place.path[0], set()).add(one.place.numa_node)
    return {root: next(iter(named)) if len(named) == 1 else None for root, named in found.items()}


def _children(paths: Iterable[_Path]) -> dict[_Path, dict[_Path, None]]:
    """In the order in which they come."""
    found: dict[_Path, dict[_Path, None]] = {}
    for path in paths:
        for depth in range(len(path)):
            found.setdefault(path[:depth], {})[path[: depth + 1]] = None
    return found


def _branches(tree: _Tree, path: _Path, depth: int) -> Iterator[Branch]:
    """A bridge and all below it; bridges in a row that only lead to the next one are one line."""
    start = len(path) - 1
    below = [*tree.children.get(path, ())]
    while len(below) == 1 and path not in tree.devices:
        (path,) = below
        below = [*tree.children.get(path, ())]
    yield Branch(
        depth=depth,
        bridges=path[start:],
        numa_node=None if depth else tree.nodes[path[0]],
        devices=tree.devices.get(path, ()),
    )
    for child in below:
        yield from _branches(tree, child, depth + 1)


def _unplaced(named: Iterable[Devices], located: Mapping[str, Located]) -> Iterator[tuple[str, int]]:
    """Resources with the number of their devices whose place nobody knows."""
    counts: dict[str, int] = {}
    for group in named:
        counts[group.resource] = counts.get(group.resource, 0) + sum(one.id not in located for one in group.devices)
    return ((resource, count) for resource, count in sorted(counts.items()) if count)
