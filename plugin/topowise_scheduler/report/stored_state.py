"""The state that the kubelet's files contain, from the state that a report describes.

A report lacks ended init containers and the owners of some allocations. The files have all of them, so the gaps must
not look like invalid files. The exporter checks the files themselves (attributes.refused_state_files).
"""

from __future__ import annotations

from collections.abc import Iterable

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.memory_tables import MemoryTables
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.restart import memory_problem


def stored_state(node: Kubelet, pods: Iterable[PodView]) -> Kubelet:
    """Returns a copy of the node in which all unavailable CPUs and all accounted memory have an owner."""
    copy = node.fork()
    if copy.cpu is not None:
        for pod in pods:
            _add_init_containers(copy.cpu, pod)
        known = copy.cpu.default
        for containers in copy.cpu.allocations.values():
            for cpus in containers.values():
                known |= cpus
        unowned = CpuManager(copy.cpu.policy).default & ~known
        if unowned:
            copy.cpu.hold("", "", unowned)
    if copy.memory is not None and memory_problem(copy, copy) is not None:
        tables = copy.memory.tables = MemoryTables(copy.memory.policy)
        for by_container in copy.memory.allocations.values():
            for blocks in by_container.values():
                for block in blocks:
                    tables.take(block.type, block.mask, block.size)
    return copy


def _add_init_containers(manager: CpuManager, pod: PodView) -> None:
    """Books CPUs of the pod for its init containers: the pod's other containers reuse these CPUs, or they are left."""
    by_container = manager.allocations.get(pod.uid, {})
    cpus = 0
    for of_container in by_container.values():
        cpus |= of_container
    for container in pod.containers:
        if container.kind == "init" and 0 < container.cpus <= cpus.bit_count() and container.name not in by_container:
            manager.hold(pod.uid, container.name, lowest(cpus, container.cpus))
