"""Zones of an NRT: capacity, allocatable and available amounts of each NUMA node.

Pure arithmetic over a Machine and the kubelet's answers, by ids where ids exist: a CPU or device that is listed twice
counts once. If a kubelet manager is off (CPU manager `none`, memory manager `None`, or no kubelet), podresources lists
nothing. Then the amounts are /sys minus the reservations, and `Accounts.derived` names them: without cpu or memory in a
zone, scheduler-plugins refuses every pod that requests them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from topowise import attributes, cpuset, nrt, quantity
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet.allocations import Allocations, MemoryBlock
from topowise_exporter.machine.inventory import Machine, NumaNode

MOST_NODES: Final = 64


class Amount(msgspec.Struct, frozen=True, gc=False):
    """capacity >= allocatable >= available >= 0; milli-CPU for cpu, bytes or units for the rest."""

    capacity: int
    allocatable: int
    available: int


class Accounts(msgspec.Struct, frozen=True):
    """`amounts` by NUMA node id and resource name; `cpus_available` are ids that can still be given exclusively."""

    amounts: Mapping[int, Mapping[str, Amount]]
    cpus_available: Mapping[int, frozenset[int]]
    derived: frozenset[str]
    problems: tuple[str, ...]


def hugepages_name(page_bytes: int) -> str:
    """The resource of a page size, as the kubelet names it: 2097152 -> "hugepages-2Mi"."""
    size, units = page_bytes, ["", "Ki", "Mi", "Gi", "Ti"]
    while size % 1024 == 0 and len(units) > 1:
        size //= 1024
        units.pop(0)
    return f"hugepages-{size}{units[0]}"


def account(machine: Machine, allocations: Allocations, kubelet: KubeletConfiguration) -> Accounts:
    """The amounts of every NUMA node. Resources of nodes that the machine lacks are left out and reported."""
    accounting = _Accounting(machine, allocations, kubelet)
    cpus_available = accounting.count_cpus()
    accounting.count_memory()
    accounting.count_devices()
    return Accounts(accounting.amounts, cpus_available, frozenset(accounting.derived), tuple(accounting.problems))


def without(accounts: Accounts, is_excluded: Callable[[str], bool]) -> Accounts:
    """The accounts without the excluded resources; cpu and memory derived from /sys are resources like any other."""
    amounts = {
        node_id: {resource: amount for resource, amount in resources.items() if not is_excluded(resource)}
        for node_id, resources in accounts.amounts.items()
    }
    derived = frozenset(resource for resource in accounts.derived if not is_excluded(resource))
    free = {} if is_excluded("cpu") else accounts.cpus_available
    return msgspec.structs.replace(accounts, amounts=amounts, cpus_available=free, derived=derived)


def nameable(machine: Machine) -> Machine:
    """The machine without NUMA nodes beyond 63: a kubelet's masks of nodes have 64 bits, so it aligns nothing to them,
    and a zone `node-64` ends the scheduler with scheduler-plugins (pkg/noderesourcetopology/pluginhelpers.go,
    createNUMANodeList: 64 slots, ids up to 64)."""
    if not high_nodes(machine):
        return machine
    nodes = tuple(
        msgspec.structs.replace(
            node, distances={peer: cost for peer, cost in node.distances.items() if peer < MOST_NODES}
        )
        for node in machine.nodes
        if node.id < MOST_NODES
    )
    return msgspec.structs.replace(machine, nodes=nodes)


def high_nodes(machine: Machine) -> tuple[str, ...]:
    """What `nameable` leaves out, for people."""
    return tuple(f"node {node.id}" for node in machine.nodes if node.id >= MOST_NODES)


def zones(machine: Machine, accounts: Accounts, named: Mapping[int, Mapping[str, str]]) -> list[nrt.Zone]:
    """The zones as published: `node-<id>`, costs to every node, resources and attributes sorted by name. `named` are
    the attributes of each node."""
    return [_zone(node, accounts.amounts[node.id], named[node.id]) for node in machine.nodes]


def placeholders(machine: Machine) -> list[nrt.Zone]:
    """A zone with nothing in it for every id below the highest that no node has. scheduler-plugins keeps one score per
    zone and puts it at the zone's id (pkg/noderesourcetopology/score.go, scoreForEachNUMANode; least_numa.go likewise):
    a machine of the nodes 0 and 8 ends its scheduler."""
    there = {node.id for node in machine.nodes}
    mark = (nrt.Attribute(attributes.ABSENT, "true"),)
    return [
        nrt.Zone(name=nrt.zone_name(numa_id), type=nrt.ZONE_TYPE, attributes=mark)
        for numa_id in range(max(there, default=0))
        if numa_id not in there
    ]


def _zone(node: NumaNode, amounts: Mapping[str, Amount], named: Mapping[str, str]) -> nrt.Zone:
    return nrt.Zone(
        name=nrt.zone_name(node.id),
        type=nrt.ZONE_TYPE,
        costs=tuple(nrt.Cost(nrt.zone_name(peer), distance) for peer, distance in sorted(node.distances.items())),
        attributes=tuple(nrt.Attribute(name, text) for name, text in sorted(named.items())),
        resources=tuple(
            nrt.Resource(
                name=resource,
                capacity=quantity.to_text(resource, amount.capacity),
                allocatable=quantity.to_text(resource, amount.allocatable),
                available=quantity.to_text(resource, amount.available),
            )
            for resource, amount in sorted(amounts.items())
        ),
    )


class _Accounting:
    """The state of `account`: its inputs, and the amounts so far."""

    def __init__(self, machine: Machine, allocations: Allocations, kubelet: KubeletConfiguration) -> None:
        self._nodes = machine.nodes
        self._machine_memory = machine.memory_bytes
        self._online = frozenset(machine.online)
        self._allocatable = allocations.allocatable
        # Most pods of a node hold nothing exclusively.
        self._pods = [pod for pod in allocations.pods if pod.has_resources]
        self._unlisted = allocations.unlisted
        self._unlisted_devices = allocations.unlisted_devices
        self._absent = allocations.absent
        self._free_memory = allocations.free_memory
        self._free_cpus = allocations.free_cpus
        self._kubelet = kubelet
        self.amounts: dict[int, dict[str, Amount]] = {node.id: {} for node in machine.nodes}
        self.derived: set[str] = set()
        self.problems: list[str] = []

    def count_cpus(self) -> dict[int, frozenset[int]]:
        """Fills in `cpu`; returns the ids that are free, by node."""
        allocatable = self._allocatable.cpus
        if stray := allocatable - self._online:
            self.problems.append(f"allocatable CPUs {cpuset.to_text(stray)} are not online; left out")
        used = frozenset[int]().union(*(pod.cpus for pod in self._pods), *self._unlisted.values())
        free: dict[int, frozenset[int]] = {}
        share = 0
        if not allocatable:
            self.derived.add("cpu")
            share = self._reserved_milli_per_cpu()
        for node in self._nodes:
            owned = frozenset(node.cpus)
            usable = owned & (allocatable or self._online - self._kubelet.reserved_cpus)
            free[node.id] = usable - used if self._free_cpus is None else usable & self._free_cpus
            self.amounts[node.id]["cpu"] = Amount(
                capacity=1000 * len(owned),
                allocatable=(1000 - share) * len(usable),
                available=(1000 - share) * len(free[node.id]),
            )
        return free

    def _reserved_milli_per_cpu(self) -> int:
        """The part of each CPU that a reservation by amount takes, rounded up; 0 if the CPUs are named instead."""
        if self._kubelet.reserved_cpus or not self._online:
            return 0
        reserved = self._kubelet.reserved({}).get("cpu", 0)
        return min(1000, -(-reserved // len(self._online)))

    def count_memory(self) -> None:
        """Fills in `memory` and every hugepages size."""
        allocatable = self._allocatable_memory()
        usable = allocatable or self._derived_memory()
        free = (
            self._known_free_memory(allocatable)
            if allocatable and self._free_memory is not None
            else self._derived_free_memory(usable)
        )
        for node in self._nodes:
            capacity = {"memory": node.memory_bytes} | _hugepages(node)
            for resource in sorted(capacity.keys() | {name for owner, name in usable if owner == node.id}):
                may_give = usable.get((node.id, resource), 0)
                self.amounts[node.id][resource] = Amount(
                    capacity=max(capacity.get(resource, 0), may_give),
                    allocatable=may_give,
                    available=free.get((node.id, resource), 0),
                )

    def _allocatable_memory(self) -> dict[tuple[int, str], int]:
        """(NUMA node, type) -> bytes from List; empty if the memory manager is off."""
        allocatable: dict[tuple[int, str], int] = {}
        for block in self._allocatable.memory:
            for node_id in block.nodes:
                if node_id in self.amounts:
                    size = block.size
                    if size > quantity.INT64_MAX:
                        self.problems.append(
                            f"the kubelet offers {size} bytes of {block.type} on NUMA node {node_id}: reservedMemory "
                            "and hugepages exceed the memory of the node, and the unsigned difference wraps around; "
                            "published as 0, while the kubelet admits every pod there"
                        )
                        size = 0
                    allocatable[node_id, block.type] = allocatable.get((node_id, block.type), 0) + size
                else:
                    self._stray(f"allocatable {block.type}", node_id)
        return allocatable

    def _derived_memory(self) -> dict[tuple[int, str], int]:
        """Like `_allocatable_memory`, from /sys: capacity minus reservations, by node or in proportion."""
        self.derived.add("memory")
        kubelet = self._kubelet
        derived: dict[tuple[int, str], int] = {}
        total = sum(node.memory_bytes for node in self._nodes)
        # A kernel without NUMA shows the memory of the machine only: each NUMA node gets an equal part.
        part = 0 if total or not self._nodes else self._machine_memory // len(self._nodes)
        memory_of = {node.id: node.memory_bytes or part for node in self._nodes}
        total = total or self._machine_memory
        by_amount = kubelet.reserved({"memory": total}).get("memory", 0)
        for node in self._nodes:
            pages = _hugepages(node)
            share = -(-by_amount * memory_of[node.id] // total) if total else 0
            reserved = kubelet.reserved_on(node.id, "memory") if kubelet.reservedMemory else share
            derived[node.id, "memory"] = max(0, memory_of[node.id] - sum(pages.values()) - reserved)
            for resource, size in pages.items():
                derived[node.id, resource] = max(0, size - kubelet.reserved_on(node.id, resource))
        return derived

    def _known_free_memory(self, usable: dict[tuple[int, str], int]) -> dict[tuple[int, str], int]:
        """Free memory in the memory manager's state file, which is also exact for blocks over several nodes."""
        if self._free_memory is None:
            raise AssertionError("the memory manager's state is not known")
        free = {}
        for key, most in usable.items():
            size = self._free_memory.free.get(key, most)
            free[key] = max(0, min(size, most))
            # What has wrapped around is reported as allocatable already.
            if size != free[key] and (most or size > 0):
                node_id, resource = key
                self.problems.append(
                    f"the memory manager has {size} bytes of {resource} free on NUMA node {node_id}, "
                    f"of {most} allocatable; counted as {free[key]}"
                )
        return free

    def _derived_free_memory(self, usable: dict[tuple[int, str], int]) -> dict[tuple[int, str], int]:
        """Free memory if the memory manager fills the NUMA nodes of a block in order of their ids."""
        free = dict(usable)
        blocks = [block for pod in self._pods for block in pod.memory if block.nodes]
        # Blocks on a single node are known exactly, so they are subtracted before blocks over several nodes.
        for block in sorted(blocks, key=lambda block: (len(block.nodes), block)):
            self._take(block, free)
        return free

    def _take(self, block: MemoryBlock, free: dict[tuple[int, str], int]) -> None:
        """Subtracts a block as the memory manager does: from the lowest node first."""
        missing = block.size
        for node_id in block.nodes:
            taken = min(missing, free.get((node_id, block.type), 0))
            if taken:
                free[node_id, block.type] -= taken
                missing -= taken
        if missing:
            self.problems.append(
                f"{missing} bytes of {block.type} in use on NUMA nodes {cpuset.to_text(block.nodes)} "
                "exceed what is allocatable there; counted as none available"
            )

    def count_devices(self) -> None:
        """Fills in every device resource that has an affinity to some node."""
        allocated = (*(pod.devices for pod in self._pods), *self._unlisted_devices.values())
        used = {(device.resource, device.id) for devices in allocated for device in devices}
        total: Counter[tuple[int, str]] = Counter()
        free: Counter[tuple[int, str]] = Counter()
        for device in self._allocatable.devices:
            # A device near two nodes can be given to a pod on either, so it counts on both.
            for node_id in device.nodes:
                if node_id not in self.amounts:
                    self._stray(f"device {device.resource}/{device.id}", node_id)
                    continue
                total[node_id, device.resource] += 1
                free[node_id, device.resource] += (device.resource, device.id) not in used
        for (node_id, resource), count in total.items():
            self.amounts[node_id][resource] = Amount(count, count, free[node_id, resource])
        # A resource whose plug-in is missing for a while stays in the zones, with none allocatable.
        gone = Counter((node_id, device.resource) for device in self._absent for node_id in device.nodes)
        for (node_id, resource), count in gone.items():
            if node_id in self.amounts:
                self.amounts[node_id].setdefault(resource, Amount(count, 0, 0))

    def _stray(self, thing: str, node_id: int) -> None:
        if node_id >= MOST_NODES:
            # The whole node is left out, and reported once.
            return
        self.problems.append(f"{thing} is on NUMA node {node_id}, which /sys does not show; left out")


def _hugepages(node: NumaNode) -> dict[str, int]:
    return {hugepages_name(size): size * count for size, count in node.hugepages.items()}
