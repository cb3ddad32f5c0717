"""Machines of plans: regular machines, and machines whose NUMA nodes are split or merged (SNC, NPS)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Machine, NumaNode
from topowise_scheduler.overlay.plan.values import PlanError

_OWN: Final = 10
_SAME_SOCKET: Final = 12
_OTHER_SOCKET: Final = 32

Near = Callable[[Sequence[Device]], tuple[Device, ...]]
"""Returns the devices near the NUMA nodes of the new machine."""


def regular(
    *,
    sockets: int,
    numa: int,
    cores: int,
    memory: int,
    devices: Mapping[str, int],
    pages: Mapping[int, int] | None = None,
) -> Machine:
    """Returns a machine of equal NUMA nodes, `cores` of two CPUs and `memory` bytes in sum. `pages`: numbers by KiB."""
    per_node, bytes_per_node = cores // numa, memory // numa
    nodes = tuple(
        NumaNode(
            id=node,
            memory=bytes_per_node,
            cores=tuple(
                Core(node * sockets // numa, (core, core + cores))
                for core in range(node * per_node, (node + 1) * per_node)
            ),
            hugepages={kib: count // numa for kib, count in (pages or {}).items() if count // numa},
            distances=tuple(
                _OWN if to == node else _distance(node * sockets // numa, to * sockets // numa) for to in range(numa)
            ),
        )
        for node in range(numa)
    )
    plugins = tuple(
        DevicePlugin(name, tuple(Device(f"{name}-{number}", (number * numa // count,)) for number in range(count)))
        for name, count in devices.items()
    )
    return Machine(numa=nodes, devices=plugins)


def with_numa_nodes(machine: Machine, count: int) -> Machine:
    """Returns the machine with another number of NUMA nodes, as after a change of SNC or NPS in its firmware.

    A NUMA node is split into equal parts in the order of its cores; its devices are spread over the parts in their
    order, because nothing tells which part a slot belongs to. Raises PlanError if the numbers do not divide.
    """
    nodes = machine.nodes()
    now = len(nodes)
    if any(not node.cores for node in nodes):
        raise PlanError(f"numa: {count}, expected no change on a machine with NUMA nodes without CPUs")
    if count == now:
        return machine
    if count < 1 or (count % now and now % count):
        raise PlanError(f"numa: {count}, expected a multiple or a divisor of the {now} NUMA nodes of the machine")
    return _split(machine, nodes, count // now) if count > now else _merged(machine, nodes, now // count)


def parts_of(nodes: int, count: int) -> list[tuple[int, ...]]:
    """Returns for each present NUMA node, by position, the positions of its NUMA nodes after a split or merge."""
    if count >= nodes:
        factor = count // nodes
        return [tuple(range(position * factor, (position + 1) * factor)) for position in range(nodes)]
    factor = nodes // count
    return [(position // factor,) for position in range(nodes)]


def _split(machine: Machine, nodes: Sequence[NumaNode], parts: int) -> Machine:
    total = len(nodes) * parts
    new: list[NumaNode] = []
    for position, node in enumerate(nodes):
        cores = sorted(node.cores, key=lambda core: (core.uncore or 0, min(core.threads)))
        if len(cores) % parts:
            raise PlanError(
                f"numa: {total}, expected a number that divides the {len(cores)} cores of NUMA node {node.id}"
            )
        size = len(cores) // parts
        for part in range(parts):
            at = position * parts + part
            new.append(
                NumaNode(
                    id=at,
                    memory=node.memory // parts,
                    cores=tuple(cores[part * size : (part + 1) * size]),
                    hugepages={kib: count // parts for kib, count in node.hugepages.items()},
                    distances=tuple(_split_distance(nodes, position, at, to, parts) for to in range(total)),
                )
            )
    positions = {node.id: position for position, node in enumerate(nodes)}

    def spread(devices: Sequence[Device]) -> tuple[Device, ...]:
        near: dict[tuple[int, ...], list[Device]] = {}
        for device in devices:
            near.setdefault(device.numa or (), []).append(device)
        moved: dict[str, Device] = {}
        for numa, group in near.items():
            for number, device in enumerate(group):
                part = number * parts // len(group)
                ids = tuple(positions[node] * parts + part for node in numa if node in positions)
                moved[device.id] = msgspec.structs.replace(device, numa=ids or device.numa)
        return tuple(moved[device.id] for device in devices)

    return _replaced(machine, new, spread)


def _merged(machine: Machine, nodes: Sequence[NumaNode], size: int) -> Machine:
    groups = [nodes[start : start + size] for start in range(0, len(nodes), size)]
    new = [
        NumaNode(
            id=position,
            memory=sum(node.memory for node in group),
            cores=tuple(chain.from_iterable(node.cores for node in group)),
            hugepages=_pages(group),
            distances=tuple(
                _OWN if to == position else _between(nodes, position * size, to * size) for to in range(len(groups))
            ),
        )
        for position, group in enumerate(groups)
    ]
    into = {node.id: position for position, group in enumerate(groups) for node in group}

    def near(devices: Sequence[Device]) -> tuple[Device, ...]:
        return tuple(
            device
            if not device.numa
            else msgspec.structs.replace(
                device, numa=tuple(sorted({into[node] for node in device.numa if node in into}))
            )
            for device in devices
        )

    return _replaced(machine, new, near)


def _replaced(machine: Machine, nodes: Sequence[NumaNode], near: Near) -> Machine:
    plugins = tuple(msgspec.structs.replace(plugin, devices=near(plugin.devices)) for plugin in machine.devices)
    return Machine(
        numa=tuple(nodes),
        devices=plugins,
        num_sockets=machine.sockets(),
        memory_capacity=machine.memory_capacity,
        ephemeral_storage=machine.ephemeral_storage,
    )


def _pages(group: Sequence[NumaNode]) -> dict[int, int]:
    sizes = sorted({kib for node in group for kib in node.hugepages})
    return {kib: sum(node.hugepages.get(kib, 0) for node in group) for kib in sizes}


def _split_distance(nodes: Sequence[NumaNode], position: int, at: int, to: int, parts: int) -> int:
    if at == to:
        return _OWN
    return _SAME_SOCKET if to // parts == position else _between(nodes, position, to // parts)


def _between(nodes: Sequence[NumaNode], start: int, to: int) -> int:
    """Returns the distance of two present NUMA nodes by position."""
    row = nodes[start].distances
    if row is not None and len(row) > to:
        return row[to]
    return _distance(nodes[start].cores[0].socket, nodes[to].cores[0].socket)


def _distance(socket: int, other: int) -> int:
    return _SAME_SOCKET if socket == other else _OTHER_SOCKET
