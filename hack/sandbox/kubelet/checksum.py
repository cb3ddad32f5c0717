"""The checksums of the kubelet's checkpoints: FNV-1a (32 bits) over go-spew's dump of the struct that is written.

pkg/kubelet/checkpointmanager/checksum, k8s.io/utils/dump: "%#v" with sorted keys. A dump names the Go types of struct
fields, not those of elements and keys; a pointer within a map is `<*>`. Kubelets up to 1.36 write these structs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, Final

Json = Mapping[str, Any]

_OFFSET: Final = 2166136261
_PRIME: Final = 16777619
_NO_CHECKSUM: Final = "Checksum:(checksum.Checksum)0"


def of_cpu_state(state: Json) -> int:
    """Of cpu_manager_state as JSON has it; a `checksum` in it is not looked at."""
    entries = _map(state.get("entries") or {}, lambda containers: _map(containers, str))
    return _fnv(
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){state['policyName']} "
        f"DefaultCPUSet:(string){state['defaultCpuSet']} "
        f"Entries:(map[string]map[string]string){entries} {_NO_CHECKSUM}}}"
    )


def of_memory_state(state: Json) -> int:
    """Of memory_manager_state."""
    nodes = {int(node): value for node, value in state["machineState"].items()}
    entries = _map(state.get("entries") or {}, lambda containers: _map(containers, _blocks))
    return _fnv(
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){state['policyName']} "
        f"MachineState:(state.NUMANodeMap){_map(nodes, _node)} "
        f"Entries:(state.ContainerMemoryAssignments){entries} {_NO_CHECKSUM}}}"
    )


def of_device_state(state: Json) -> int:
    """Of the `Data` of kubelet_internal_checkpoint."""
    entries = state["PodDeviceEntries"]
    text = "<nil>" if entries is None else _list(_device_entry(one) for one in entries)
    return _fnv(
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){text} "
        f"RegisteredDevices:(map[string][]string){_map(state['RegisteredDevices'], _list)}}}"
    )


def _node(node: Json) -> str:
    tables = _map(node["memoryMap"], _table)
    return (
        f"<*>{{NumberOfAssignments:(int){node['numberOfAssignments']} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){_list(node['cells'])}}}"
    )


def _table(table: Json) -> str:
    names = ("TotalMemSize", "SystemReserved", "Allocatable", "Reserved", "Free")
    keys = ("total", "systemReserved", "allocatable", "reserved", "free")
    return "<*>{" + " ".join(f"{name}:(uint64){table[key]}" for name, key in zip(names, keys, strict=True)) + "}"


def _blocks(blocks: Iterable[Json]) -> str:
    return _list(
        f"{{NUMAAffinity:([]int){_list(one['numaAffinity'])} Type:(v1.ResourceName){one['type']} "
        f"Size:(uint64){one['size']}}}"
        for one in blocks
    )


def _device_entry(entry: Json) -> str:
    by_node = {int(node): ids for node, ids in entry["DeviceIDs"].items()}
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} DeviceIDs:(checkpoint.DevicesPerNUMA){_map(by_node, _list)} "
        # What a plugin answers is empty in the sandbox.
        "AllocResp:([]uint8)[]}"
    )


def _map(values: Mapping[Any, Any], text: Callable[[Any], str]) -> str:
    return "map[" + " ".join(f"{key}:{text(value)}" for key, value in sorted(values.items())) + "]"


def _list(values: Iterable[object]) -> str:
    return "[" + " ".join(map(str, values)) + "]"


def _fnv(text: str) -> int:
    return reduce(lambda value, byte: (value ^ byte) * _PRIME & 0xFFFFFFFF, text.encode(), _OFFSET)
