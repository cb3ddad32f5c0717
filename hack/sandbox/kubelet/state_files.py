"""The kubelet's checkpoint files, in its own format, written as it writes them (a temporary file, then a rename).

Formats: pkg/kubelet/cm/cpumanager/state/checkpoint.go, .../memorymanager/state/checkpoint.go,
.../devicemanager/checkpoint/checkpoint.go. The device checkpoint is not rewritten when a pod goes, as in the real one.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from sandbox.kubelet.holdings import NodeHoldings
from topowise import cpuset


class StateFiles:
    """Writes a file only if its content changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[str, str] = {}

    def write(self, holdings: NodeHoldings, *, cpu_policy: str, memory_policy: str, admitted: bool) -> None:
        """`admitted`: whether the change was an admission, the only one at which devices are checkpointed."""
        self._put("cpu_manager_state", _cpu_state(holdings, cpu_policy))
        self._put("memory_manager_state", _memory_state(holdings, memory_policy))
        if admitted:
            self._put("device-plugins/kubelet_internal_checkpoint", _device_state(holdings))

    def _put(self, name: str, content: dict[str, object]) -> None:
        # The kubelet's checksum is over a Go dump of the struct; a reader cannot verify it, so any number will do.
        content["checksum"] = zlib.crc32(json.dumps(content, sort_keys=True).encode())
        text = json.dumps(content, separators=(",", ":"))
        if self._written.get(name) == text:
            return
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.tmp")
        scratch.write_text(text)
        scratch.replace(path)
        self._written[name] = text


def _cpu_state(holdings: NodeHoldings, policy: str) -> dict[str, object]:
    entries = {
        pod.uid: {one.name: cpuset.spell(one.cpus) for one in pod.containers if one.cpus} for pod in holdings.pods
    }
    return {
        "policyName": policy,
        "defaultCpuSet": cpuset.spell(holdings.shared_cpus),
        "entries": {uid: held for uid, held in entries.items() if held},
    }


def _memory_state(holdings: NodeHoldings, policy: str) -> dict[str, object]:
    entries = {
        pod.uid: {
            one.name: [{"numaAffinity": block.numa, "type": block.type, "size": block.size} for block in one.memory]
            for one in pod.containers
            if one.memory
        }
        for pod in holdings.pods
    }
    return {
        "policyName": policy,
        "machineState": holdings.memory_tables,
        "entries": {uid: held for uid, held in entries.items() if held},
    }


def _device_state(holdings: NodeHoldings) -> dict[str, object]:
    entries = []
    for pod in holdings.pods:
        for container in pod.containers:
            for resource, ids in container.devices.items():
                by_node: dict[str, list[str]] = {}
                for one in ids:
                    for node in holdings.device_nodes.get((resource, one)) or (-1,):
                        by_node.setdefault(str(node), []).append(one)
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
    for resource, one in holdings.device_nodes:
        registered.setdefault(resource, []).append(one)
    return {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}}
