"""Whose the entries of the state files are, and what follows from that.

A state file names pods by uid and keeps the entries of a dead pod until the next admission; List names pods by
namespace and name and has only live ones, but not their init containers. They are brought together by content: an entry
belongs to a listed pod if a container of the same name holds the same. What matches nobody is dead and is given back
here as the kubelet will before it admits the next pod, unless the pod's directory is still there and the entry was
never matched: such a pod holds only what an init container left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from topowise.checkpoints import MemoryNode
from topowise_exporter.kubelet.allocations import Device, FreeMemory, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.state_files import CpuState, MemoryState

# What one container of a pod holds, and what all of them do.
_Entry = tuple[str, tuple[MemoryBlock, ...]]
_Shape = frozenset[_Entry]


def listed_uids(state: CpuState, pods: Iterable[PodAllocation]) -> frozenset[str]:
    """Uids of pods that List shows with CPUs."""
    shown = {(container.name, container.cpus) for pod in pods for container in pod.containers if container.cpus}
    return frozenset(uid for uid, containers in state.holders.items() if is_listed(containers, shown))


def unlisted_cpus(state: CpuState, pods: Iterable[PodAllocation], live: frozenset[str]) -> dict[str, frozenset[int]]:
    """Uid -> CPUs of live pods that List does not show, which are those of finished init containers."""
    known = frozenset[int]().union(*(pod.cpus for pod in pods))
    held = {
        uid: frozenset[int]().union(*containers.values()) - known
        for uid, containers in state.holders.items()
        if uid in live
    }
    return {uid: cpus for uid, cpus in held.items() if cpus}


def unlisted_devices(
    state: DeviceState, pods: Iterable[PodAllocation], live: frozenset[str]
) -> dict[str, tuple[Device, ...]]:
    """Uid -> devices of live pods that List does not show, which are those of finished init containers."""
    known = {(device.resource, device.id) for pod in pods for device in pod.devices}
    held = {
        uid: tuple(sorted({one for devices in containers.values() for one in devices if _id(one) not in known}))
        for uid, containers in state.holders.items()
        if uid in live
    }
    return {uid: devices for uid, devices in held.items() if devices}


class WholePods:
    """Pods with what they hold as a whole, which List tells from 1.37 on and the state files (podEntries) from 1.36."""

    def __init__(self) -> None:
        self._last: tuple[tuple[PodAllocation, ...], CpuState | None, MemoryState | None] = ((), None, None)
        self._found: tuple[PodAllocation, ...] = ()

    def of(
        self, pods: tuple[PodAllocation, ...], cpu: CpuState | None, memory: MemoryState | None
    ) -> tuple[PodAllocation, ...]:
        """The listed pods; the same object for the same ones."""
        cpus, blocks = {} if cpu is None else cpu.pods, {} if memory is None else memory.pods
        if not (cpus or blocks) or any(pod.own_cpus or pod.own_memory for pod in pods):
            return pods
        given = pods, cpu, memory
        if not all(one is other for one, other in zip(given, self._last, strict=True)):
            uids = _by_entry({*cpus, *blocks}, cpu, memory)
            self._last, self._found = given, tuple([_whole(pod, uids, cpus, blocks) for pod in pods])
        return self._found


_Held = tuple[str, frozenset[int], tuple[MemoryBlock, ...]]


def _by_entry(among: Iterable[str], cpu: CpuState | None, memory: MemoryState | None) -> dict[_Held, list[str]]:
    """The uids whose container of this name holds this."""
    found: dict[_Held, list[str]] = {}
    for uid in sorted(among):
        cpus = {} if cpu is None else cpu.holders.get(uid, {})
        blocks = {} if memory is None else memory.holders.get(uid, {})
        for name in {*cpus, *blocks}:
            held = name, cpus.get(name, frozenset()), listed_blocks(blocks.get(name, ()))
            found.setdefault(held, []).append(uid)
    return found


def _whole(
    pod: PodAllocation,
    uids: Mapping[_Held, list[str]],
    cpus: Mapping[str, frozenset[int]],
    blocks: Mapping[str, tuple[MemoryBlock, ...]],
) -> PodAllocation:
    held = next(((one.name, one.cpus, one.memory) for one in pod.containers if one.cpus or one.memory), None)
    alike = None if held is None else uids.get(held)
    if not alike:
        return pod
    # Of two that hold the same it is all the same which is which, but each has its own.
    uid = alike.pop()
    return msgspec.structs.replace(pod, own_cpus=cpus.get(uid, frozenset()), own_memory=blocks.get(uid, ()))


class Leftovers:
    """Which pods that hold devices and are in List with nothing still live.

    The device manager's checkpoint names pods that ended long ago, and the directory of a pod that has ended stays as
    long as its object. So such a pod is tied to the names that were in List with nothing when it came, and ends with
    the last of them. Of those that were there before us only the ones count that the last object named.
    """

    def __init__(self, remembered: frozenset[str] = frozenset()) -> None:
        self._remembered: frozenset[str] | None = remembered
        self._names: dict[str, frozenset[tuple[str, str]]] = {}

    def living(self, candidates: frozenset[str], pods: Iterable[PodAllocation]) -> frozenset[str]:
        """`candidates` are uids in the checkpoint with a directory that no listed pod has; `pods` are listed."""
        listed = {(pod.namespace, pod.name): bool(pod.containers) for pod in pods}
        idle = frozenset(name for name, holds in listed.items() if not holds)
        news = candidates if self._remembered is None else candidates & self._remembered
        dead = candidates - news - self._names.keys()
        self._remembered = None
        self._names = {uid: self._names.get(uid, frozenset() if uid in dead else idle) for uid in candidates}
        return frozenset(uid for uid, names in self._names.items() if not names.isdisjoint(listed))


def is_listed(containers: Mapping[str, object], shown: Collection[tuple[str, object]]) -> bool:
    """Whether a pod of a state file is one of those in List: some container of the same name holds the same."""
    return any(entry in shown for entry in containers.items())


def live_memory_holders(
    state: MemoryState, pods: Iterable[PodAllocation], known: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Uids of live pods. Finished init containers have given memory back, so a live pod is listed with what it has.

    Replicas hold alike, a dead one and the one that took its place too: each listed pod stands for one uid only, of
    several for one that is `known` to be listed, by all that it holds, else the one with the most entries.
    """
    alike: dict[_Shape, list[str]] = {}
    for uid, containers in sorted(state.holders.items(), reverse=True):
        alike.setdefault(frozenset((name, listed_blocks(blocks)) for name, blocks in containers.items()), []).append(
            uid
        )
    with_entry: dict[_Entry, list[_Shape]] = {}
    for shape in alike:
        for entry in shape:
            with_entry.setdefault(entry, []).append(shape)
    live: list[str] = []
    listed = [{(one.name, one.memory) for one in pod.containers if one.memory} for pod in pods]
    for shown in sorted(listed, key=len, reverse=True):
        candidates = {shape for entry in shown for shape in with_entry.get(entry, ()) if alike[shape]}
        if candidates:
            best = max(
                candidates,
                key=lambda shape: (
                    len(shape & shown),
                    not known.isdisjoint(alike[shape]),
                    len(shape),
                    alike[shape][-1],
                ),
            )
            uid = next((uid for uid in reversed(alike[best]) if uid in known), alike[best][-1])
            alike[best].remove(uid)
            live.append(uid)
    return frozenset(live)


def exact_memory(state: MemoryState, live: frozenset[str]) -> FreeMemory:
    """What is free once the dead have been released (memorymanager/policy_static.go, releaseContainerMemory)."""
    accounting = _Accounting(state, live)
    for block in _unexplained(state):
        accounting.release(block)
    for uid, containers in sorted(state.holders.items()):
        for _, blocks in sorted(containers.items()) if uid not in live else ():
            for block in blocks:
                accounting.release(block)
    return FreeMemory(accounting.free, accounting.assignments, accounting.cells)


class _Accounting:
    """The tables of the file, as they become."""

    def __init__(self, state: MemoryState, live: frozenset[str]) -> None:
        tables = {
            (node, kind): table for node, entry in state.nodes.items() for kind, table in entry.memory_map.items()
        }
        self.free = {key: table.free for key, table in tables.items()}
        self._held = {key: table.reserved for key, table in tables.items()}
        self.assignments = {node: entry.number_of_assignments for node, entry in state.nodes.items()}
        self.cells = {node: _cells(node, entry) for node, entry in state.nodes.items()}
        # While the kubelet books an app container on its init containers' memory both have it for a moment.
        self._spare = Counter({kind: 0 for _, kind in tables})
        for (_, kind), size in self._held.items():
            self._spare[kind] += size
        for uid in live & state.holders.keys():
            for blocks in state.holders[uid].values():
                for block in blocks:
                    self._spare[block.type] -= block.size

    def release(self, block: MemoryBlock) -> None:
        """As much as anybody holds, from the lowest node on."""
        rest = min(block.size, max(0, self._spare[block.type]))
        self._spare[block.type] -= rest
        for node in block.nodes:
            if node not in self.assignments:
                continue
            self.assignments[node] = max(0, self.assignments[node] - 1)
            if not self.assignments[node]:
                self.cells[node] = (node,)
            given = min(self._held.get((node, block.type), 0), rest)
            if given:
                self._held[node, block.type] -= given
                self.free[node, block.type] += given
                rest -= given


def _unexplained(state: MemoryState) -> list[MemoryBlock]:
    """Blocks that are in the tables and nobody's. The kubelet writes a container's blocks into the tables first and its
    entry a moment later, and takes both away in the other order (SetMachineState, SetMemoryBlocks)."""
    if state.pods:
        # Then the tables have the pod's total, and entries are shares of it.
        return []
    blocks = [block for held in state.holders.values() for mine in held.values() for block in mine]
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
    found = [MemoryBlock(kind, nodes, size) for kind, size in sorted(sizes.items()) if size > 0]
    # Each of them counts once on each of its nodes; those that took nothing count too.
    most = max(extra.values())
    return found[:most] + [MemoryBlock("", nodes, 0)] * (most - len(found))


def _cells(node: int, entry: MemoryNode) -> tuple[int, ...]:
    return tuple(sorted(entry.cells or ())) or (node,)


def listed_blocks(blocks: Iterable[MemoryBlock]) -> tuple[MemoryBlock, ...]:
    """As podresources lists them: without those of size 0."""
    return tuple(sorted(block for block in blocks if block.size))


def _id(device: Device) -> tuple[str, str]:
    return device.resource, device.id
