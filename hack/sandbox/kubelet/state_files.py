"""The kubelet's root directory: a directory for each pod that it has admitted, and the checkpoints of its managers, in
their format and written in its way (a temporary file, then a rename).

Formats: pkg/kubelet/cm/cpumanager/state/checkpoint.go, .../memorymanager/state/checkpoint.go,
.../devicemanager/checkpoint/checkpoint.go, pkg/kubelet/allocation/state/checkpoint.go, as kubelets up to 1.36 write
them. Only the checksum is another: a real kubelet hashes a dump of Go structs, this kubelet the JSON of the content. As
in the real kubelet, the end of a pod does not rewrite the device checkpoint.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from sandbox import simulated_time
from sandbox.kubelet.holdings import Block, NodeHoldings
from topowise import cpuset, pods
from topowise.errors import SourceError

CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
DEVICE_STATE: Final = "device-plugins/kubelet_internal_checkpoint"
ALLOCATED_STATE: Final = "allocated_pods_state"

Json = dict[str, Any]


class StateFiles:
    """Writes a file only if its content changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[str, Json] = {}
        self._numbers = count(1)
        self._allocated: dict[str, Json] = {}

    def allocate(self, pod: pods.Pod) -> None:
        """The pod has been admitted as a whole: the allocation manager writes down what it was given."""
        allocations: dict[str, Json] = {}
        for container in (*(pod.spec.initContainers or ()), *(pod.spec.containers or ())):
            amounts = {} if container.resources is None else msgspec.to_builtins(container.resources)
            allocations[container.name] = {
                kind: amount for kind, amount in sorted(amounts.items()) if amount is not None
            }
        self._allocated[pod.metadata.uid] = {"ContainerResources": allocations}
        self._put_allocated()

    def deallocate(self, uid: str) -> None:
        """The pod's object is gone."""
        if self._allocated.pop(uid, None) is not None:
            self._put_allocated()

    def write(self, holdings: NodeHoldings, *, cpu_policy: str, memory_policy: str, admitted: bool) -> bool:
        """`admitted`: whether the device manager has a reason to write too. Returns whether anything was written."""
        cpu, memory = _cpu_state(holdings, cpu_policy), _memory_state(holdings, memory_policy)
        wrote = self._put(CPU_STATE, cpu)
        wrote |= self._put(MEMORY_STATE, memory)
        if admitted:
            wrote |= self._put(DEVICE_STATE, {"Data": _device_state(holdings)})
        return wrote

    def read(self) -> tuple[Json | None, Json | None, Json | None]:
        """Returns the checkpoints of CPU, memory and device manager, None for an absent file. Raises SourceError for a
        damaged file, with which a kubelet does not start."""
        cpu, memory, devices = (self._get(name) for name in (CPU_STATE, MEMORY_STATE, DEVICE_STATE))
        allocated = self._get(ALLOCATED_STATE)
        self._allocated = {} if allocated is None else json.loads(allocated["data"])["entries"]
        return cpu, memory, None if devices is None else devices["Data"]

    def _put_allocated(self) -> None:
        text = json.dumps({"entries": self._allocated}, separators=(",", ":"))
        self._put(ALLOCATED_STATE, {"data": text})

    def _put(self, name: str, content: Json) -> bool:
        if self._written.get(name) == content:
            return False
        field = "Checksum" if name == DEVICE_STATE else "checksum"
        text = json.dumps({**content, field: _checksum(content)}, separators=(",", ":"))
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{next(self._numbers):09d}")
        scratch.write_text(text)
        scratch.replace(path)
        self._written[name] = content
        return True

    def _get(self, name: str) -> Json | None:
        path = self._directory / name
        try:
            content: Json = json.loads(path.read_bytes())
            stored = content.pop("Checksum" if name == DEVICE_STATE else "checksum")
            checksum = _checksum(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SourceError(str(path), f"is no checkpoint: {exc!r}") from exc
        if stored != checksum:
            raise SourceError(str(path), f"checkpoint is corrupted: checksum {stored}, expected {checksum}")
        self._written[name] = content
        return content


def _checksum(content: Json) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _cpu_state(holdings: NodeHoldings, policy: str) -> Json:
    entries = {
        pod.uid: {container.name: cpuset.to_text(container.cpus) for container in pod.containers if container.cpus}
        for pod in holdings.pods
    }
    state = {"policyName": policy, "defaultCpuSet": cpuset.to_text(holdings.shared_cpus)}
    of_pods = {pod.uid: {"cpuSet": cpuset.to_text(pod.cpus)} for pod in holdings.pods if pod.cpus}
    return _with_entries(state, entries, of_pods)


def _memory_state(holdings: NodeHoldings, policy: str) -> Json:
    entries = {
        pod.uid: {container.name: _blocks(container.memory) for container in pod.containers if container.memory}
        for pod in holdings.pods
    }
    of_pods = {pod.uid: {"memoryBlocks": _blocks(pod.memory)} for pod in holdings.pods if pod.memory}
    return _with_entries({"policyName": policy, "machineState": holdings.memory_tables}, entries, of_pods)


def _blocks(blocks: Iterable[Block]) -> list[Json]:
    return [{"numaAffinity": list(block.numa), "type": block.type, "size": block.size} for block in blocks]


def _with_entries(state: Json, entries: dict[str, Json], of_pods: dict[str, Json]) -> Json:
    """Left out when there are none, as by Go's omitempty."""
    filled = {uid: containers for uid, containers in entries.items() if containers}
    parts = {"entries": filled, "podEntries": of_pods}
    return {**state, **{name: part for name, part in parts.items() if part}}


def _device_state(holdings: NodeHoldings) -> Json:
    entries = []
    for pod in holdings.pods:
        for container in pod.containers:
            for resource, ids in container.devices.items():
                by_node: dict[str, list[str]] = {}
                for device in ids:
                    for node in holdings.device_nodes.get((resource, device)) or (-1,):
                        by_node.setdefault(str(node), []).append(device)
                entries.append(
                    {
                        "PodUID": pod.uid,
                        "ContainerName": container.name,
                        "ResourceName": resource,
                        "DeviceIDs": by_node,
                        "AllocResp": "",
                    }
                )
    registered: dict[str, list[str]] = {}
    for resource, device in holdings.device_nodes:
        healthy = registered.setdefault(resource, [])
        if (resource, device) not in holdings.unhealthy:
            healthy.append(device)
    # A nil slice of Go is null.
    return {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}


class Root:
    """`directory` is made if it is not there."""

    def __init__(self, directory: Path) -> None:
        self.files = StateFiles(directory)
        self.socket = directory / "pod-resources/kubelet.sock"
        self._pods = directory / "pods"
        self._pods.mkdir(parents=True, exist_ok=True)

    def pods(self) -> list[str]:
        """Returns the uids of pods that have a directory."""
        return [entry.name for entry in self._pods.iterdir()]

    def make_pod(self, uid: str) -> None:
        """The pod's worker begins (makePodDataDirs)."""
        (self._pods / uid).mkdir(exist_ok=True)

    def remove_pod(self, uid: str) -> None:
        """Nothing of the pod is left (cleanupOrphanedPodDirs)."""
        (self._pods / uid).rmdir()

    def make_socket_file(self) -> None:
        """Creates a plain file in place of a socket: every process recreates it, which signals its start."""
        self.socket.parent.mkdir(exist_ok=True)
        scratch = self.socket.with_name(".kubelet.sock")
        scratch.touch()
        now = simulated_time.utc_now().timestamp()
        os.utime(scratch, (now, now))
        scratch.replace(self.socket)
