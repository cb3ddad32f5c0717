"""The checksums of the kubelet's checkpoints: FNV-1a (32 bits) over go-spew's dump of the struct that is written.

pkg/kubelet/checkpointmanager/checksum, k8s.io/utils/dump: "%#v" with sorted keys. A dump names the Go types of struct
fields, not those of elements and keys; a pointer within a map is `<*>`. So a checksum can be made again for structs
that are known, those of kubelets up to 1.36, and one that disagrees tells damage only if no field is unknown: a newer
kubelet's file is as good as ours, and a kubelet that is taken for damaged without being so would cost its node all new
pods. From 1.37 on what counts is one text with a checksum of its own (kubernetes#139102, kubernetes#139626).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from topowise import documents
from topowise.errors import SourceError

Json = Mapping[str, Any]

_CPU_FIELDS: Final = {"policyName", "defaultCpuSet", "entries", "checksum"}
_MEMORY_FIELDS: Final = {"policyName", "machineState", "entries", "checksum"}
_NO_CHECKSUM: Final = "Checksum:(checksum.Checksum)0"
# Twenty milliseconds of our time; a longer dump goes by its form alone.
MOST_DUMPED: Final = 256 << 10


def check_cpu_state(text: bytes, source: str) -> None:
    """Raises SourceError for a cpu_manager_state whose checksum is wrong."""
    _check(text, source, _CPU_FIELDS, _cpu_dumps)


def check_memory_state(text: bytes, source: str) -> None:
    """Raises SourceError for a memory_manager_state whose checksum is wrong."""
    _check(text, source, _MEMORY_FIELDS, _memory_dumps)


def of_cpu_state(state: Json) -> int:
    """Of cpu_manager_state as JSON has it; a `checksum` in it is not looked at."""
    return fnv1a(next(_cpu_dumps(state)))


def of_memory_state(state: Json) -> int:
    """Of memory_manager_state."""
    return fnv1a(next(_memory_dumps(state)))


def fnv1a(text: str) -> int:
    """Of its UTF-8."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _check(text: bytes, source: str, fields: set[str], dumps: Callable[[Json], Iterator[str]]) -> None:
    if len(text) > MOST_DUMPED:
        return
    try:
        state = msgspec.json.decode(text)
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"is not the checkpoint it should be: {exc}") from exc
    data, of_data = state.get("data"), state.get("dataChecksum")
    if isinstance(data, str) and of_data is not None:
        if of_data != (expected_of_data := fnv1a(f"(string){data}")):
            raise SourceError(source, f"has dataChecksum {of_data}, expected {expected_of_data}")
        return
    # A kubelet takes 0 for a file of the time before checksums.
    if not state.get("checksum") or not state.keys() <= fields:
        return
    try:
        expected = [fnv1a(dump) for dump in dumps(state)]
    except (KeyError, TypeError, AttributeError):
        # Fields are missing that every kubelet writes; whether it can be used without is the reader's to say.
        return
    if state["checksum"] not in expected:
        raise SourceError(source, f"has checksum {state['checksum']}, expected {expected[0]}")


def _cpu_dumps(state: Json) -> Iterator[str]:
    """As V2 under the name that older kubelets gave it, under its own, and as V3 without pods that hold CPUs."""
    entries = state.get("entries") or {}
    nested = all(isinstance(held, dict) for held in entries.values())
    kind = "map[string]map[string]string" if nested else "map[string]string"
    fields = (
        f"PolicyName:(string){state['policyName']} DefaultCPUSet:(string){state.get('defaultCpuSet', '')} "
        f"Entries:({kind}){_map(entries, lambda containers: _map(containers, str) if nested else str(containers))} "
    )
    yield f"(*state.CPUManagerCheckpoint){{{fields}{_NO_CHECKSUM}}}"
    yield f"(*state.CPUManagerCheckpointV{2 if nested else 1}){{{fields}{_NO_CHECKSUM}}}"
    yield f"(*state.CPUManagerCheckpoint){{{fields}PodEntries:(state.PodCPUAssignments)map[] {_NO_CHECKSUM}}}"


def _memory_dumps(state: Json) -> Iterator[str]:
    nodes = {int(node): value for node, value in (state.get("machineState") or {}).items()}
    entries = _map(state.get("entries") or {}, lambda containers: _map(containers, _blocks))
    fields = (
        f"PolicyName:(string){state['policyName']} MachineState:(state.NUMANodeMap){_map(nodes, _node)} "
        f"Entries:(state.ContainerMemoryAssignments){entries} "
    )
    yield f"(*state.MemoryManagerCheckpoint){{{fields}{_NO_CHECKSUM}}}"
    yield f"(*state.MemoryManagerCheckpointV1){{{fields}{_NO_CHECKSUM}}}"
    yield f"(*state.MemoryManagerCheckpoint){{{fields}PodEntries:(state.PodMemoryAssignments)map[] {_NO_CHECKSUM}}}"


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


def _map(values: Mapping[Any, Any], text: Callable[[Any], str]) -> str:
    return "map[" + " ".join(f"{key}:{text(value)}" for key, value in sorted(values.items())) + "]"


def _list(values: Iterable[object] | None) -> str:
    return "<nil>" if values is None else "[" + " ".join(map(str, values)) + "]"
