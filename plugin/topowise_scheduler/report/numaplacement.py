"""Pods of a report of counts whose place is known after all: by numaplacement, each container's NUMA node.

What such a pod asks for is taken from the made-up pod of its zone and held by itself, so that it can end, and be
evicted, for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from topowise import placement
from topowise.errors import ParseError
from topowise.pods import Needs
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.kubelet.pod import ContainerView
from topowise_scheduler.report.nrt_report import Occupant, Placements, PodName, Report


class Located(msgspec.Struct, frozen=True):
    """A pod on the made-up machine: where its containers lie, and what it requests."""

    requests: Mapping[str, int]
    placements: Placements


def locate(
    report: Report, pods: Mapping[str, tuple[PodName, Needs]]
) -> tuple[tuple[Occupant, ...], dict[str, Located]]:
    """The occupants that are left, and the pods by uid that lie where numaplacement says.

    `pods` must be all whose amounts are in the report. Nobody is located if numaplacement tells of other containers
    than these; a pod that asks for more than its zones have in use stays part of the occupants.
    """
    if report.offsets is None:
        return report.occupants, {}
    views = {
        uid: [view for view in report.empty.view(uid, needs).containers if _holds(report.empty, view)]
        for uid, (_, needs) in pods.items()
    }
    containers = {(*pods[uid][0], view.name): (uid, view) for uid, mine in views.items() for view in mine}
    try:
        nodes = placement.resolve(report.offsets, containers)
    except ParseError:
        return report.occupants, {}
    occupants = {occupant.placements[""].numa: occupant for occupant in report.occupants}
    located = {}
    for uid, mine in views.items():
        found = dict(occupants)
        placed: dict[str, Placement] = {}
        for view in mine:
            zone = (nodes[(*pods[uid][0], view.name)],)
            parts = _take(found[zone], view, report.empty, zone) if zone in found else None
            if parts is None:
                break
            found[zone], placed[view.name] = parts
        else:
            if placed:
                occupants = found
                located[uid] = Located(pods[uid][1].requests, placed)
    return tuple(occupants.values()), located


def _holds(node: Kubelet, view: ContainerView) -> bool:
    """Whether the exporter saw the container hold anything; plain init containers are in no list."""
    asks_cpus = bool(view.cpus) and node.cpu is not None
    asks_memory = any((view.memory or {}).values()) and node.memory is not None
    return view.kind != "init" and (asks_cpus or asks_memory or any(_devices(node, view).values()))


def _devices(node: Kubelet, view: ContainerView) -> dict[str, int]:
    return {name: count for name, count in view.limits.items() if name in node.devices.tables}


def _take(
    occupant: Occupant, view: ContainerView, node: Kubelet, zone: tuple[int]
) -> tuple[Occupant, Placement] | None:
    """What the occupant has left, and what the container holds of it; None if the occupant has too little."""
    held = occupant.placements[""]
    requests = dict(occupant.requests)
    cpus = 0
    if node.cpu is not None and view.cpus:
        cpus = mask_of(islice(members(held.cpus or 0), view.cpus))
        requests["cpu"] = requests.get("cpu", 0) - 1000 * view.cpus
    blocks = {block.type: block.size for block in held.memory}
    mine: list[MemoryBlock] = []
    asked = {name: size for name, size in (view.memory or {}).items() if size} if node.memory is not None else {}
    for name, size in asked.items():
        blocks[name] = blocks.get(name, 0) - size
        requests[name] = requests.get(name, 0) - size
        mine.append(MemoryBlock(name, zone, size))
    devices = dict(held.devices)
    given: dict[str, Sequence[str]] = {}
    for name, count in _devices(node, view).items():
        ids = devices.get(name, ())
        given[name], devices[name] = ids[:count], ids[count:]
        requests[name] = requests.get(name, 0) - count
        if len(given[name]) < count:
            return None
    if cpus.bit_count() < view.cpus * (node.cpu is not None) or min([0, *blocks.values(), *requests.values()]) < 0:
        return None
    left = msgspec.structs.replace(
        held,
        cpus=None if held.cpus is None else held.cpus & ~cpus,
        memory=tuple([MemoryBlock(name, zone, size) for name, size in blocks.items() if size]),
        devices=devices,
    )
    taken = Placement(
        kind=view.kind,
        numa=zone,
        preferred=True,
        cpus=cpus or None,
        memory=tuple(mine),
        devices={name: tuple(ids) for name, ids in given.items()},
    )
    return msgspec.structs.replace(occupant, requests=requests, placements={"": left}), taken
