"""The allocations of a kubelet's managers after each of their writes.

The kubelet model admits a pod at once. The real kubelet proceeds by container and by manager, with a checkpoint after
each step, which other processes may read. So each state of the model's managers during an admission is recorded. The
CPU manager and the memory manager write twice: first the free resources, then the allocation (policy_static.go,
Allocate of both).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from topowise_scheduler.kubelet import Admission, Kubelet
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.device_manager import DeviceManager
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
