"""Makes the NRT object that topowise-exporter publishes for a node, from the state of the kubelet model.

The emulated podresources answers equal the real kubelet's: no plain init containers, no blocks of size 0, no unhealthy
devices, and no free devices with an empty topology, which the checkpoint of the device manager has. The state files are
readable by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from topowise import nrt
from topowise.attributes.devices import NOWHERE
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine as hardware
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    ContainerAllocation,
    Device,
    FreeMemory,
    MemoryBlock,
    PodAllocation,
)
from topowise_exporter.publish.topology import Observation, Publishing, build
from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode, Placement
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.memory_manager import Blocks

NameOf = Callable[[str], tuple[str, str]]


def exported(
    machine: Machine,
    config: KubeletConfiguration,
    kubelet: Kubelet,
    name_of: NameOf = lambda uid: ("default", uid),
    *,
    state_files: bool = True,
) -> nrt.NodeResourceTopology:
    """Returns the object for the kubelet's present state; `name_of` gives a pod's namespace and name by uid."""
    seen = Observation(hardware_of(machine), config, _allocations(kubelet, name_of, state_files=state_files))
    return build("n1", seen, Publishing(), Exclusions()).topology


def hardware_of(machine: Machine) -> hardware.Machine:
    nodes = machine.nodes()
    cpus = tuple(
        hardware.Cpu(
            id=cpu,
            node=node.id,
            socket=core.socket,
            die=0,
            core=min(core.threads),
            core_id=0,
            threads=tuple(sorted(core.threads)),
            l3=None,
            l3_id=None,
            uncore=core.uncore,
            kind="",
        )
        for node in nodes
        for core in node.cores
        for cpu in core.threads
    )
    online = tuple(sorted(cpu.id for cpu in cpus))
    return hardware.Machine(
        nodes=tuple(_node(node, nodes) for node in nodes),
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        pci=(),
        online=online,
        present=online,
        possible=online,
        offline=(),
        isolated=(),
    )


def _node(node: NumaNode, nodes: tuple[NumaNode, ...]) -> hardware.NumaNode:
    cpus = tuple(sorted(cpu for core in node.cores for cpu in core.threads))
    pages = {kib * 1024: count for kib, count in node.hugepages.items()}
    row = node.distances or ()
    by_id = len(row) > nodes[-1].id
    return hardware.NumaNode(
        id=node.id,
        cpus=cpus,
        memory_bytes=node.memory,
        hugepages=pages,
        distances={neighbour.id: row[neighbour.id if by_id else position] for position, neighbour in enumerate(nodes)}
        if row
        else {},
        sockets=tuple(sorted({core.socket for core in node.cores})),
        access=hardware.Access(node.initiators, node.read_latency or None, node.read_bandwidth or None)
        if node.initiators
        else None,
    )


def _allocations(kubelet: Kubelet, name_of: NameOf, *, state_files: bool) -> Allocations:
    nodes_of = {
        (resource, device): tuple(
            node for node, at in kubelet.devices.positions.items() if near & table.touching(1 << at)
        )
        or ((NOWHERE,) if near & ~table.without_nodes else ())
        for resource, table in kubelet.devices.tables.items()
        for device, near in ((device, table.select([device])) for device in table.ids)
    }
    healthy = (
        (resource, device)
        for resource, table in kubelet.devices.tables.items()
        for device in table.names(table.healthy if state_files else table.healthy & ~_empty_topologies(table))
    )
    cpus = kubelet.topology.cpus & ~kubelet.cpu.policy.reserved if kubelet.cpu is not None else 0
    allocatable = Allocatable(
        cpus=frozenset(members(cpus)),
        memory=_allocatable_memory(kubelet),
        devices=tuple(Device(resource, one, nodes_of[resource, one]) for resource, one in healthy),
    )
    pods = {uid: _pod(kubelet, uid, name_of(uid), nodes_of) for uid in kubelet.active}
    free_memory = _free_memory(kubelet)
    if not state_files:
        return Allocations(allocatable, tuple(pods.values()))
    left = {uid: _left_devices(kubelet, uid, pod, nodes_of) for uid, pod in pods.items()}
    unlisted = {uid: devices for uid, devices in left.items() if devices}
    return Allocations(
        allocatable,
        tuple(pods.values()),
        _left_over(kubelet, pods),
        free_memory,
        unlisted,
        free_cpus=None if kubelet.cpu is None else frozenset(members(kubelet.cpu.available)),
    )


def _empty_topologies(table: DeviceTable) -> DeviceSet:
    return table.without_nodes & ~table.without_topology


def _left_devices(
    kubelet: Kubelet, uid: str, pod: PodAllocation, nodes_of: Mapping[tuple[str, str], tuple[int, ...]]
) -> tuple[Device, ...]:
    """What only the device manager's checkpoint shows."""
    shown = {(device.resource, device.id) for container in pod.containers for device in container.devices}
    allocated = {
        (name, device)
        for placed in kubelet.placements(uid).values()
        for name, ids in placed.devices.items()
        for device in ids
    }
    return tuple(Device(*key, nodes_of.get(key, ())) for key in sorted(allocated - shown))


def _pod(
    kubelet: Kubelet, uid: str, name: tuple[str, str], nodes_of: Mapping[tuple[str, str], tuple[int, ...]]
) -> PodAllocation:
    containers = (
        _container(container, placed, nodes_of)
        for container, placed in kubelet.placements(uid).items()
        if placed.kind != "init"
    )
    own_cpus = kubelet.cpu.bubbles.get(uid, 0) if kubelet.cpu is not None else 0
    own_memory = kubelet.memory.bubbles.get(uid, ()) if kubelet.memory is not None else ()
    return PodAllocation(
        *name,
        containers=tuple(
            container for container in containers if container.cpus or container.memory or container.devices
        ),
        own_cpus=frozenset(members(own_cpus)),
        own_memory=_blocks(kubelet, own_memory),
    )


def _container(
    name: str, placed: Placement, nodes_of: Mapping[tuple[str, str], tuple[int, ...]]
) -> ContainerAllocation:
    return ContainerAllocation(
        name=name,
        cpus=frozenset(members(placed.cpus or 0)),
        memory=tuple(MemoryBlock(block.type, block.numa, block.size) for block in placed.memory if block.size),
        devices=tuple(
            Device(resource, device, nodes_of.get((resource, device), ()))
            for resource, ids in placed.devices.items()
            for device in ids
        ),
    )


def _blocks(kubelet: Kubelet, blocks: Blocks) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(block.type, kubelet.ids(block.mask), block.size) for block in blocks if block.size)


def _left_over(kubelet: Kubelet, pods: Mapping[str, PodAllocation]) -> dict[str, frozenset[int]]:
    """By uid the CPUs that only the CPU manager's state file shows."""
    if kubelet.cpu is None:
        return {}
    shown = frozenset[int]().union(*(pod.cpus for pod in pods.values()))
    allocated = {
        uid: frozenset(cpu for cpus in of_pod.values() for cpu in members(cpus)) - shown
        for uid, of_pod in kubelet.cpu.allocations.items()
    }
    return {uid: cpus for uid, cpus in allocated.items() if cpus}


def _allocatable_memory(kubelet: Kubelet) -> tuple[MemoryBlock, ...]:
    if kubelet.memory is None:
        return ()
    return tuple(
        MemoryBlock(name, (kubelet.node_ids[position],), size)
        for name, sizes in kubelet.memory.policy.allocatable.items()
        for position, size in enumerate(sizes)
        if size > 0
    )


def _free_memory(kubelet: Kubelet) -> FreeMemory | None:
    if kubelet.memory is None:
        return None
    tables, ids = kubelet.memory.tables, kubelet.node_ids
    return FreeMemory(
        free={
            (ids[position], name): size for name, sizes in tables.free.items() for position, size in enumerate(sizes)
        },
        assignments=dict(zip(ids, tables.assignments, strict=True)),
        cells={node: kubelet.ids(cells) for node, cells in zip(ids, tables.cells, strict=True)},
    )
