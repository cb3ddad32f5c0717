"""Checksums of the kubelet's checkpoints: FNV-1a (32 bits) over go-spew's dump of the struct that is written.

Upstream: pkg/kubelet/checkpointmanager/checksum, k8s.io/utils/dump ("%#v" with sorted keys). A dump names the Go types
of struct fields, but not those of elements and keys; a pointer within a map is `<*>`. So the checksum can be recomputed
for known structs only, those of kubelets up to 1.36. A mismatch means damage only if no field is unknown: a file of a
newer kubelet is valid, and a kubelet that is wrongly taken for damaged would cost its node all new pods. From 1.37 on
the content is one text with a checksum of its own (kubernetes#139102, kubernetes#139626).
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
# A dump of this length takes 20 ms. The checksum of a longer dump is not checked.
MOST_DUMPED: Final = 256 << 10


def check_cpu_state(text: bytes, source: str) -> None:
    """Raises SourceError for a cpu_manager_state whose checksum is wrong."""
    _check(text, source, _CPU_FIELDS, cpu_dumps)


def check_memory_state(text: bytes, source: str) -> None:
    """Raises SourceError for a memory_manager_state whose checksum is wrong."""
    _check(text, source, _MEMORY_FIELDS, memory_dumps)


def fnv1a(text: str) -> int:
    """Returns the FNV-1a hash of the text's UTF-8."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _check(text: bytes, source: str, fields: set[str], dumps: Callable[[Json], Iterator[str]]) -> None:
    if len(text) > MOST_DUMPED:
        return
    try:
        state = msgspec.json.decode(text, type=dict[str, Any])
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"is not a checkpoint of a known format: {exc}") from exc
    data, data_checksum = state.get("data"), state.get("dataChecksum")
    if isinstance(data, str) and data_checksum is not None:
        if data_checksum != (expected_data_checksum := fnv1a(f"(string){data}")):
            raise SourceError(source, f"has dataChecksum {data_checksum}, expected {expected_data_checksum}")
        return
    # A kubelet accepts 0, which files of the time before checksums have.
    if not state.get("checksum") or not state.keys() <= fields:
        return
    try:
        expected = [fnv1a(dump) for dump in dumps(state)]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        # A field is missing that every kubelet writes, or has another form. The parser of the file decides whether it
        # is usable without.
        return
    if state["checksum"] not in expected:
        raise SourceError(source, f"has checksum {state['checksum']}, expected {expected[0]}")


def cpu_dumps(state: Json) -> Iterator[str]:
    """Yields the dumps of V2 under its older name and its own name, and of V3 without pod-level CPUs."""
    entries = state.get("entries") or {}
    nested = all(isinstance(containers, dict) for containers in entries.values())
    kind = "map[string]map[string]string" if nested else "map[string]string"
    fields = (
        f"PolicyName:(string){state['policyName']} DefaultCPUSet:(string){state.get('defaultCpuSet', '')} "
        f"Entries:({kind}){_map(entries, lambda containers: _map(containers, str) if nested else str(containers))} "
    )
    yield f"(*state.CPUManagerCheckpoint){{{fields}{_NO_CHECKSUM}}}"
    yield f"(*state.CPUManagerCheckpointV{2 if nested else 1}){{{fields}{_NO_CHECKSUM}}}"
    yield f"(*state.CPUManagerCheckpoint){{{fields}PodEntries:(state.PodCPUAssignments)map[] {_NO_CHECKSUM}}}"


def memory_dumps(state: Json) -> Iterator[str]:
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
        f"{{NUMAAffinity:([]int){_list(block['numaAffinity'])} Type:(v1.ResourceName){block['type']} "
        f"Size:(uint64){block['size']}}}"
        for block in blocks
    )


def _map(values: Mapping[Any, Any], text: Callable[[Any], str]) -> str:
    return "map[" + " ".join(f"{key}:{text(value)}" for key, value in sorted(values.items())) + "]"


def _list(values: Iterable[object] | None) -> str:
    return "<nil>" if values is None else "[" + " ".join(map(str, values)) + "]"
