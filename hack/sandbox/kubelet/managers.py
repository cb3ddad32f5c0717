"""The allocations of a kubelet's managers: after each of their writes, and as they read them again after a restart.

The kubelet model admits a pod at once. The real kubelet proceeds by container and by manager, with a checkpoint after
each step, which other processes may read. So each state of the model's managers during an admission is recorded. The
CPU manager and the memory manager write twice: first the free resources, then the allocation (policy_static.go,
Allocate of both). After a restart what their files tell is held again, without anything being decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from sandbox.kubelet.state_files import CPU_STATE, MEMORY_STATE, StateFiles
from topowise import cpuset
from topowise.errors import SourceError
from topowise_scheduler.kubelet import Admission, Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.device_manager import DeviceManager
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.memory_manager import Block as Allocated
from topowise_scheduler.kubelet.memory_manager import MemoryManager
from topowise_scheduler.kubelet.pod import PodView


class ManagerStates(msgspec.Struct, frozen=True):
    """The state of each manager; None for a manager that is off. Never changed in place."""

    devices: DeviceManager
    cpu: CpuManager | None
    memory: MemoryManager | None

    @classmethod
    def of(cls, kubelet: Kubelet) -> ManagerStates:
        """As the model has them: without the dead."""
        cpu, memory = kubelet.cpu, kubelet.memory
        return cls(kubelet.devices.fork(), cpu and cpu.fork(), memory and memory.fork())

    @property
    def holders(self) -> list[str]:
        """The uids of all pods with allocations, ended pods included, in the order of their admission."""
        managers = (self.devices, self.cpu, self.memory)
        return list(dict.fromkeys(uid for manager in managers if manager is not None for uid in manager.allocations))

    def kinds(self, uid: str) -> dict[str, str]:
        """Returns the containers of a pod that have allocations; the managers do not know the kind of a container."""
        managers = (self.devices, self.cpu, self.memory)
        return dict.fromkeys(
            (name for manager in managers if manager is not None for name in manager.allocations.get(uid, ())), "app"
        )

    def without_cpus_of(self, uids: set[str]) -> ManagerStates:
        """The CPU manager has dropped these pods."""
        if self.cpu is None or not uids & self.cpu.allocations.keys():
            return self
        cpu = self.cpu.fork()
        for uid in uids:
            cpu.release(uid)
        return msgspec.structs.replace(self, cpu=cpu)

    def without_memory_of(self, uid: str, containers: set[str]) -> ManagerStates:
        """The memory manager has dropped these containers."""
        if self.memory is None or not containers:
            return self
        memory = self.memory.fork()
        memory.remove(uid, sorted(containers))
        return msgspec.structs.replace(self, memory=memory)


def admit(kubelet: Kubelet, seen: PodView) -> tuple[Admission, list[ManagerStates]]:
    """Returns the model's decision, and the managers' states after every write of the admission."""
    watch = _Watch(kubelet)
    managers = kubelet.devices, kubelet.cpu, kubelet.memory
    kubelet.devices = cast(DeviceManager, _Watched(kubelet.devices, watch.devices))
    if kubelet.cpu is not None:
        kubelet.cpu = cast(CpuManager, _Watched(kubelet.cpu, watch.cpu))
    if kubelet.memory is not None:
        kubelet.memory = cast(MemoryManager, _Watched(kubelet.memory, watch.memory))
    try:
        decision = kubelet.admit_view(seen)
    finally:
        kubelet.devices, kubelet.cpu, kubelet.memory = managers
    return decision, watch.steps


class _Watched:
    """A manager of the model that calls back after every allocation."""

    def __init__(self, manager: object, allocated: Callable[[Any, str], None]) -> None:
        self._manager: Any = manager
        self._allocated = allocated

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def allocate(self, pod: PodView, *arguments: Any) -> None:
        self._manager.allocate(pod, *arguments)
        self._allocated(self._manager, pod.uid)

    def allocate_pod(self, pod: PodView, *arguments: Any) -> None:
        self._manager.allocate_pod(pod, *arguments)
        self._allocated(self._manager, pod.uid)


class _Watch:
    def __init__(self, kubelet: Kubelet) -> None:
        self._now = ManagerStates.of(kubelet)
        self.steps: list[ManagerStates] = []

    def devices(self, manager: DeviceManager, uid: str) -> None:
        if manager.allocations.get(uid) is not self._now.devices.allocations.get(uid):
            self._step(devices=manager.fork())

    def cpu(self, manager: CpuManager, uid: str) -> None:
        before = self._now.cpu
        assert before is not None
        if manager.allocations.get(uid) is before.allocations.get(uid):
            return
        if manager.default != before.default:
            taken = manager.fork()
            taken.allocations = before.allocations
            self._step(cpu=taken)
        self._step(cpu=manager.fork())

    def memory(self, manager: MemoryManager, uid: str) -> None:
        before = self._now.memory
        assert before is not None
        if manager.allocations.get(uid) is before.allocations.get(uid):
            return
        taken = manager.fork()
        taken.allocations = before.allocations
        self._step(memory=taken)
        self._step(memory=manager.fork())

    def _step(self, **changed: Any) -> None:
        self._now = msgspec.structs.replace(self._now, **changed)
        self.steps.append(self._now)


Json = dict[str, Any]
_Held = dict[str, dict[str, dict[str, Any]]]


def restored(kubelet: Kubelet, files: StateFiles, cpu_policy: str, memory_policy: str) -> frozenset[str]:
    """Returns the uids of all pods with allocations. Raises SourceError for files that prevent a start."""
    cpu, memory, devices = files.read()
    _check_policy(CPU_STATE, cpu, cpu_policy)
    _check_policy(MEMORY_STATE, memory, memory_policy)
    by_pod: _Held = {}
    for uid, containers in (cpu or {}).get("entries", {}).items():
        for name, cpus in containers.items():
            _of(by_pod, uid, name)["cpus"] = mask_of(cpuset.parse(cpus))
    for uid, containers in (memory or {}).get("entries", {}).items():
        for name, blocks in containers.items():
            _of(by_pod, uid, name)["memory"] = tuple(map(_block, blocks))
    for entry in (devices or {}).get("PodDeviceEntries") or ():
        ids = {device for of_node in entry["DeviceIDs"].values() for device in of_node}
        of_container = _of(by_pod, entry["PodUID"], entry["ContainerName"])
        of_container.setdefault("devices", {})[entry["ResourceName"]] = tuple(sorted(ids))
    for uid, containers in by_pod.items():
        kubelet.hold(uid, {}, {name: _placement(parts) for name, parts in containers.items()})
    _correct_tables(kubelet, (memory or {}).get("machineState") or {})
    _hold_whole(kubelet, (cpu or {}).get("podEntries") or {}, (memory or {}).get("podEntries") or {})
    return frozenset(by_pod)


def _check_policy(name: str, state: Json | None, policy: str) -> None:
    if state is not None and state["policyName"] != policy:
        raise SourceError(
            name, f"configured policy {policy!r} differs from state checkpoint policy {state['policyName']!r}"
        )


def _of(devices: _Held, uid: str, container: str) -> dict[str, Any]:
    return devices.setdefault(uid, {}).setdefault(container, {})


def _placement(parts: dict[str, Any]) -> Placement:
    return Placement("app", None, False, parts.get("cpus"), parts.get("memory", ()), devices=parts.get("devices", {}))


def _block(block: Json) -> MemoryBlock:
    return MemoryBlock(block["type"], tuple(block["numaAffinity"]), block["size"])


def _hold_whole(kubelet: Kubelet, cpus: Json, memory: Json) -> None:
    """What pods have as a whole (gate PodLevelResourceManagers), which they are not given once more."""
    if kubelet.cpu is not None:
        for uid, entry in cpus.items():
            bubble = kubelet.cpu.bubbles[uid] = mask_of(cpuset.parse(entry["cpuSet"]))
            kubelet.cpu.default &= ~bubble
    if kubelet.memory is not None:
        for uid, entry in memory.items():
            kubelet.memory.bubbles[uid] = tuple(
                Allocated(block["type"], _mask(kubelet, block["numaAffinity"]), block["size"])
                for block in entry["memoryBlocks"]
            )


def _correct_tables(kubelet: Kubelet, nodes: Json) -> None:
    """How blocks over several nodes are spread does not follow from the blocks."""
    if kubelet.memory is None or not nodes:
        return
    saved = [nodes[str(node)] for node in kubelet.node_ids]
    kubelet.memory.tables.correct(
        {
            name: [node["memoryMap"].get(name, {"free": 0})["free"] for node in saved]
            for name in kubelet.memory.policy.total
        },
        [node["numberOfAssignments"] for node in saved],
        [_mask(kubelet, node["cells"]) for node in saved],
    )


def _mask(kubelet: Kubelet, nodes: Iterable[int]) -> int:
    """Of NUMA nodes by their ids."""
    return mask_of(map(kubelet.node_ids.index, nodes))
