"""A kubelet's managers after a restart: what their files tell is held again, without anything being decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sandbox.kubelet.state_files import CPU_STATE, MEMORY_STATE, StateFiles
from topowise import cpuset
from topowise.errors import SourceError
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.memory_manager import Block as Allocated

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
