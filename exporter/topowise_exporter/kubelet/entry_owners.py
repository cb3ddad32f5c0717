"""Matches entries of the kubelet's state files to pods, and derives which entries are dead.

A state file names pods by UID and keeps the entries of a dead pod until the next admission. List names live pods by
namespace and name, without their init containers. Both are matched by content: an entry belongs to a listed pod if a
container of the same name holds the same resources. An entry that matches no pod is dead. Its resources count as free,
because the kubelet releases them before it admits the next pod. Exception: while the pod's directory exists and the
entry was never matched, the pod holds what a finished init container left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from topowise.checkpoints import CpuState, MemoryNode, MemoryState
from topowise_exporter.kubelet.allocations import Device, FreeMemory, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState

# One container's name and memory blocks, and the entries of all containers of a pod.
_Entry = tuple[str, tuple[MemoryBlock, ...]]
_Entries = frozenset[_Entry]


def listed_uids(state: CpuState, pods: Iterable[PodAllocation]) -> frozenset[str]:
    """Returns UIDs of pods that List shows with CPUs."""
    listed = {(container.name, container.cpus) for pod in pods for container in pod.containers if container.cpus}
    return frozenset(
        uid for uid, containers in state.holders.items() if any(entry in listed for entry in containers.items())
    )


def free_cpus(
    state: CpuState, pods: Iterable[PodAllocation], live: frozenset[str], allocatable: frozenset[int]
) -> frozenset[int] | None:
    """Returns the allocatable CPUs that are shared once the kubelet has released the CPUs of dead pods. None if List
    shows CPUs that no entry has: then the file is of another moment, or of a kubelet that has just started.

    Where cores have different numbers of CPUs, the kubelet may give a CPU to two pods; once one of them has ended, the
    CPU is shared, although the other pod has it. CPUs without an owner are being allocated or released: the kubelet
    writes the shared CPUs and the entry in sequence. With pod-level CPUs they have no owner for good, because a
    restarted kubelet forgets the CPUs of a pod (AllocatePod in cpumanager/policy_static.go).
    """
    none = frozenset[int]()
    entries = none.union(*state.pods.values(), *(cpus for held in state.holders.values() for cpus in held.values()))
    if not none.union(*(pod.cpus for pod in pods)) <= entries:
        return None
    dead = [state.pods.get(uid) or none.union(*state.holders[uid].values()) for uid in state.holders.keys() - live]
    shared = state.shared.union(*dead)
    if state.pods:
        return allocatable & shared
    owned = none.union(*(cpus for uid in live & state.holders.keys() for cpus in state.holders[uid].values()))
    return allocatable - (owned - shared)


def unlisted_cpus(state: CpuState, pods: Iterable[PodAllocation], live: frozenset[str]) -> dict[str, frozenset[int]]:
    """Returns UID -> CPUs of live pods that List does not show: resources of finished init containers."""
    listed = frozenset[int]().union(*(pod.cpus for pod in pods))
    unlisted = {
        uid: frozenset[int]().union(*containers.values()) - listed
        for uid, containers in state.holders.items()
        if uid in live
    }
    return {uid: cpus for uid, cpus in unlisted.items() if cpus}


def unlisted_devices(
    state: DeviceState, pods: Iterable[PodAllocation], live: frozenset[str]
) -> dict[str, tuple[Device, ...]]:
    """Returns UID -> devices of live pods that List does not show: resources of finished init containers."""
    listed = {(device.resource, device.id) for pod in pods for device in pod.devices}
    unlisted = {
        uid: tuple(
            sorted(
                {
                    device
                    for devices in containers.values()
                    for device in devices
                    if (device.resource, device.id) not in listed
                }
            )
        )
        for uid, containers in state.holders.items()
        if uid in live
    }
    return {uid: devices for uid, devices in unlisted.items() if devices}


class WholePods:
    """Adds pod-level resources to listed pods. List has them from 1.37 on, the state files (podEntries) from 1.36."""

    def __init__(self) -> None:
        self._last: tuple[tuple[PodAllocation, ...], CpuState | None, MemoryState | None] = ((), None, None)
        self._result: tuple[PodAllocation, ...] = ()

    def of(
        self, pods: tuple[PodAllocation, ...], cpu: CpuState | None, memory: MemoryState | None
    ) -> tuple[PodAllocation, ...]:
        """Returns the pods with their pod-level resources; the same object for the same inputs."""
        cpus, blocks = {} if cpu is None else cpu.pods, {} if memory is None else memory.pods
        if not (cpus or blocks) or any(pod.own_cpus or pod.own_memory for pod in pods):
            return pods
        inputs = pods, cpu, memory
        if not all(current is previous for current, previous in zip(inputs, self._last, strict=True)):
            uids = _by_entry({*cpus, *blocks}, cpu, memory)
            self._last, self._result = inputs, tuple([_whole(pod, uids, cpus, blocks) for pod in pods])
        return self._result


_ContainerEntry = tuple[str, frozenset[int], tuple[MemoryBlock, ...]]


def _by_entry(
    uids: Iterable[str], cpu: CpuState | None, memory: MemoryState | None
) -> dict[_ContainerEntry, list[str]]:
    """Returns the UIDs by container name, CPUs and memory blocks."""
    index: dict[_ContainerEntry, list[str]] = {}
    for uid in sorted(uids):
        cpus = {} if cpu is None else cpu.holders.get(uid, {})
        blocks = {} if memory is None else memory.holders.get(uid, {})
        for name in {*cpus, *blocks}:
            entry = name, cpus.get(name, frozenset()), listed_blocks(blocks.get(name, ()))
            index.setdefault(entry, []).append(uid)
    return index


def _whole(
    pod: PodAllocation,
    uids: Mapping[_ContainerEntry, list[str]],
    cpus: Mapping[str, frozenset[int]],
    blocks: Mapping[str, tuple[MemoryBlock, ...]],
) -> PodAllocation:
    entries = ((container.name, container.cpus, container.memory) for container in pod.containers)
    entry = next((entry for entry in entries if entry[1] or entry[2]), None)
    candidates = None if entry is None else uids.get(entry)
    if not candidates:
        return pod
    # Pods with equal entries are interchangeable, but each has its own UID.
    uid = candidates.pop()
    return msgspec.structs.replace(pod, own_cpus=cpus.get(uid, frozenset()), own_memory=blocks.get(uid, ()))


class Leftovers:
    """Decides which pods that hold devices, but have no allocation in List, are still alive.

    The device manager's checkpoint names pods that ended long ago, and the kubelet keeps the directory of an ended pod
    until its API object is gone. So such a pod is tied to the pod names that were in List without allocations when its
    UID appeared. The pod ends with the last of these names. Of the pods that existed before this exporter, only pods
    that the last published object names count.
    """

    def __init__(self, remembered: frozenset[str] = frozenset()) -> None:
        self._remembered: frozenset[str] | None = remembered
        self._names: dict[str, frozenset[tuple[str, str]]] = {}

    def living(self, candidates: frozenset[str], pods: Iterable[PodAllocation]) -> frozenset[str]:
        """Returns the live UIDs. `candidates` are UIDs in the checkpoint that have a directory and that no listed pod
        has; `pods` are the listed pods."""
        listed = {pod.key: bool(pod.containers) for pod in pods}
        idle = frozenset(name for name, holds in listed.items() if not holds)
        news = candidates if self._remembered is None else candidates & self._remembered
        dead = candidates - news - self._names.keys()
        self._remembered = None
        self._names = {uid: self._names.get(uid, frozenset() if uid in dead else idle) for uid in candidates}
        return frozenset(uid for uid, names in self._names.items() if not names.isdisjoint(listed))


def live_memory_holders(
    state: MemoryState, pods: Iterable[PodAllocation], known: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Returns UIDs of live pods. List shows all memory of a live pod, because finished init containers have released
    theirs.

    Replicas hold equal amounts, and so do a dead pod and its replacement. So each listed pod matches one UID only: the
    UID with the most entries in common, of several a UID that is `known` to be listed, then the UID with the most
    entries.
    """
    uids_by_entries: dict[_Entries, list[str]] = {}
    for uid, containers in sorted(state.holders.items(), reverse=True):
        uids_by_entries.setdefault(
            frozenset((name, listed_blocks(blocks)) for name, blocks in containers.items()), []
        ).append(uid)
    with_entry: dict[_Entry, list[_Entries]] = {}
    for entries in uids_by_entries:
        for entry in entries:
            with_entry.setdefault(entry, []).append(entries)
    live: list[str] = []
    listed = [{(container.name, container.memory) for container in pod.containers if container.memory} for pod in pods]
    for memory in sorted(listed, key=len, reverse=True):
        candidates = {entries for entry in memory for entries in with_entry.get(entry, ()) if uids_by_entries[entries]}
        if candidates:
            best = max(
                candidates,
                key=lambda entries: (
                    len(entries & memory),
                    not known.isdisjoint(uids_by_entries[entries]),
                    len(entries),
                    uids_by_entries[entries][-1],
                ),
            )
            uid = next((uid for uid in reversed(uids_by_entries[best]) if uid in known), uids_by_entries[best][-1])
            uids_by_entries[best].remove(uid)
            live.append(uid)
    return frozenset(live)


def exact_memory(state: MemoryState, live: frozenset[str]) -> FreeMemory:
    """Returns what is free once the kubelet has released the memory of dead pods."""
    accounting = _MemoryTables(state, live)
    for block in _unexplained(state):
        accounting.release(block)
    for uid in sorted(state.holders.keys() - live):
        for block in _booked(state, uid):
            accounting.release(block)
    return FreeMemory(accounting.free, accounting.assignments, accounting.cells)


class _MemoryTables:
    """The memory manager's tables, updated as blocks are released."""

    def __init__(self, state: MemoryState, live: frozenset[str]) -> None:
        tables = {
            (node, kind): table for node, entry in state.nodes.items() for kind, table in entry.memory_map.items()
        }
        self.free = {key: table.free for key, table in tables.items()}
        self._reserved = {key: table.reserved for key, table in tables.items()}
        self.assignments = {node: entry.number_of_assignments for node, entry in state.nodes.items()}
        self.cells = {node: _cells(node, entry) for node, entry in state.nodes.items()}
        # While the kubelet reuses an init container's memory for an app container, both have an entry for a moment.
        self._spare = Counter({kind: 0 for _, kind in tables})
        for (_, kind), size in self._reserved.items():
            self._spare[kind] += size
        for uid in live & state.holders.keys():
            for block in _booked(state, uid):
                self._spare[block.type] -= block.size

    def release(self, block: MemoryBlock) -> None:
        """Releases the part of the block that no live pod needs, lowest NUMA node first."""
        rest = min(block.size, max(0, self._spare[block.type]))
        self._spare[block.type] -= rest
        for node in block.nodes:
            if node not in self.assignments:
                continue
            self.assignments[node] = max(0, self.assignments[node] - 1)
            if not self.assignments[node]:
                self.cells[node] = (node,)
            released = min(self._reserved.get((node, block.type), 0), rest)
            if released:
                self._reserved[node, block.type] -= released
                self.free[node, block.type] += released
                rest -= released


def _booked(state: MemoryState, uid: str) -> tuple[MemoryBlock, ...]:
    """Returns the pod's blocks as the tables count them. Containers that share pod-level memory have an entry with all
    of it each, but the tables count the pod's blocks once (memorymanager/policy_static.go, releaseMemory)."""
    containers = sorted(state.holders[uid].items())
    return state.pods.get(uid) or tuple(block for _, blocks in containers for block in blocks)


def _unexplained(state: MemoryState) -> list[MemoryBlock]:
    """Returns blocks that the tables count and no entry explains. The kubelet writes a container's blocks into the
    tables first and its entry a moment later, and removes both in the other order (SetMachineState,
    SetMemoryBlocks)."""
    if state.pods:
        # With pod-level resources the tables count the pod's total, and container entries are shares of it.
        return []
    blocks = [block for pod in state.holders.values() for listed in pod.values() for block in listed]
    counted = Counter(node for block in blocks for node in block.nodes)
    extra = {node: entry.number_of_assignments - counted[node] for node, entry in state.nodes.items()}
    nodes = tuple(sorted(node for node, count in extra.items() if count > 0))
    if not nodes:
        return []
    sizes: Counter[str] = Counter()
    for entry in state.nodes.values():
        for kind, table in entry.memory_map.items():
            sizes[kind] += table.reserved
    for block in blocks:
        sizes[block.type] -= block.size
    unexplained = [MemoryBlock(kind, nodes, size) for kind, size in sorted(sizes.items()) if size > 0]
    # Each block counts an assignment on each of its nodes, also a block that took no memory.
    most = max(extra.values())
    return unexplained[:most] + [MemoryBlock("", nodes, 0)] * (most - len(unexplained))


def _cells(node: int, entry: MemoryNode) -> tuple[int, ...]:
    return tuple(sorted(entry.cells or ())) or (node,)


def listed_blocks(blocks: Iterable[MemoryBlock]) -> tuple[MemoryBlock, ...]:
    """Returns the blocks as podresources lists them: sorted, without blocks of size 0."""
    return tuple(sorted(block for block in blocks if block.size))
