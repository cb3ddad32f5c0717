"""Machines from descriptions: the JSON of `topowise-exporter machine`, and hwloc's XML of version 2 (`lstopo a.xml`).

Neither says which device plugin a PCI function has. GPUs get the resource name of their vendor's plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from xml.etree import ElementTree

import msgspec

from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Machine, NumaNode
from topowise_scheduler.plan.values import PlanError

MOST_BYTES: Final = 16 << 20
_MOST_CPUS: Final = 1 << 14
_VENDORS: Final[Mapping[int, str]] = {0x10DE: "nvidia.com/gpu", 0x1002: "amd.com/gpu"}
# VGA, 3D and other display controllers, and processing accelerators (AMD Instinct).
_GPU_CLASSES: Final = (0x0300, 0x0302, 0x0380, 0x1200)


class _Node(msgspec.Struct, frozen=True):
    id: int
    memory_bytes: int
    cpus: tuple[int, ...] = ()
    hugepages: dict[int, int] = {}
    distances: dict[int, int] = {}


class _Cpu(msgspec.Struct, frozen=True):
    socket: int
    threads: tuple[int, ...]
    l3_id: int | None = None


class _Cpus(msgspec.Struct, frozen=True):
    topology: dict[int, _Cpu]


class _Function(msgspec.Struct, frozen=True, rename={"class_code": "class"}):
    address: str
    class_code: str
    vendor: str
    numa_node: int = -1


class _Json(msgspec.Struct, frozen=True):
    """The used fields of `topowise-exporter machine`."""

    nodes: tuple[_Node, ...]
    cpus: _Cpus
    pci: tuple[_Function, ...] = ()


def read_machine(text: bytes, origin: str) -> Machine:
    """Returns the machine of a description. Raises PlanError."""
    if len(text) > MOST_BYTES:
        raise PlanError(f"{origin}: {len(text)} bytes, expected at most {MOST_BYTES}")
    try:
        return _of_xml(text, origin) if text.lstrip()[:1] == b"<" else _of_json(text)
    except (msgspec.MsgspecError, ElementTree.ParseError, ValueError, KeyError) as exc:
        expected = "the output of `topowise-exporter machine`, or the XML of lstopo"
        raise PlanError(f"{origin}: cannot be read ({exc}), expected {expected}") from exc


def _of_json(text: bytes) -> Machine:
    described = msgspec.json.decode(text, type=_Json, strict=False)
    ids = sorted(node.id for node in described.nodes)
    by_thread = described.cpus.topology
    nodes = []
    for node in described.nodes:
        threads = {by_thread[cpu].threads: by_thread[cpu] for cpu in node.cpus}
        nodes.append(
            NumaNode(
                id=node.id,
                memory=node.memory_bytes,
                cores=tuple(Core(cpu.socket, cores, cpu.l3_id) for cores, cpu in sorted(threads.items())),
                hugepages={size // 1024: count for size, count in node.hugepages.items()},
                distances=tuple(node.distances[to] for to in ids) if node.distances else None,
            )
        )
    functions = (
        (entry.address, int(entry.vendor, 16), int(entry.class_code, 16) >> 8, entry.numa_node)
        for entry in described.pci
    )
    return Machine(numa=tuple(nodes), devices=_plugins(functions))


def _plugins(functions: Iterable[tuple[str, int, int, int]]) -> tuple[DevicePlugin, ...]:
    """Returns the GPUs; `functions` are address, vendor, class without its last byte, and NUMA node (-1: none)."""
    devices: dict[str, list[Device]] = {}
    for address, vendor, kind, numa in sorted(functions):
        resource = _VENDORS.get(vendor)
        if resource is not None and kind in _GPU_CLASSES:
            devices.setdefault(resource, []).append(Device(address, (numa,) if numa >= 0 else None))
    return tuple(DevicePlugin(resource, tuple(listed)) for resource, listed in devices.items())


def _of_xml(text: bytes, origin: str) -> Machine:
    if b"<!ENTITY" in text:
        raise PlanError(f"{origin}: has an entity, expected none in a description of a machine")
    root = ElementTree.fromstring(text)
    if root.tag != "topology" or not root.get("version", "").startswith("2"):
        raise PlanError(f"{origin}: {root.tag} of version {root.get('version', '1')}, expected hwloc's topology 2.x")
    numa: dict[int, dict[str, Any]] = {}
    cores: list[tuple[int, int | None, tuple[int, ...]]] = []
    functions: list[tuple[str, int, int, int]] = []
    for entry, above in _objects(root, ()):
        kind = entry.get("type")
        if kind == "NUMANode":
            pages = {
                int(page.get("size", "0")) // 1024: int(page.get("count", "0")) for page in entry.findall("page_type")
            }
            # The size of a small page counts all memory.
            pages = {kib: count for kib, count in pages.items() if kib > _SMALL_PAGE_KIB and count}
            numa[int(entry.get("os_index", "0"))] = {
                "memory": int(entry.get("local_memory", "0")),
                "cpus": _bits(entry.get("cpuset", "")),
                "pages": pages,
            }
        elif kind == "Core":
            threads = tuple(sorted(int(unit.get("os_index", "0")) for unit in entry.iter("object") if _is_unit(unit)))
            cores.append((_above(above, "Package") or 0, _above(above, "L3Cache"), threads))
        elif kind == "PCIDev":
            functions.append(_function(entry, above))
    if not numa or sum(len(threads) for _, _, threads in cores) > _MOST_CPUS:
        raise PlanError(f"{origin}: {len(numa)} NUMA nodes, expected some, and at most {_MOST_CPUS} CPUs")
    nodes = tuple(
        NumaNode(
            id=number,
            memory=facts["memory"],
            cores=tuple(
                Core(socket, threads, cache) for socket, cache, threads in cores if facts["cpus"] >> threads[0] & 1
            ),
            hugepages=facts["pages"],
        )
        for number, facts in sorted(numa.items())
    )
    return Machine(numa=nodes, devices=_plugins(functions))


_SMALL_PAGE_KIB: Final = 64
Above = tuple[ElementTree.Element, ...]


def _objects(entry: ElementTree.Element, above: Above) -> Iterator[tuple[ElementTree.Element, Above]]:
    for child in entry.findall("object"):
        yield child, above
        yield from _objects(child, (*above, child))


def _is_unit(entry: ElementTree.Element) -> bool:
    return entry.get("type") == "PU"


def _above(above: Above, kind: str) -> int | None:
    """Returns the kernel's number, or hwloc's own, of the nearest object of this type above."""
    found = next((entry for entry in reversed(above) if entry.get("type") == kind), None)
    return None if found is None else int(found.get("os_index") or found.get("gp_index") or 0)


def _bits(text: str) -> int:
    """Returns a set of hwloc, "0x00000001,0xffffffff": words of 32 bits, the highest first."""
    bits = 0
    for word in text.split(","):
        bits = bits << 32 | int(word or "0", 16)
    return bits


def _function(entry: ElementTree.Element, above: Above) -> tuple[str, int, int, int]:
    """Returns the address, vendor, class and NUMA node of "0302 [10de:2330] ...", near the object that it is below."""
    kind, _, rest = (entry.get("pci_type") or "0000 [0000:0000]").partition(" ")
    vendor = rest.removeprefix("[").partition(":")[0]
    nodeset = next((bits for near in reversed(above) if (bits := _bits(near.get("nodeset") or "0x0"))), 0)
    # A device of the whole machine is near no single NUMA node.
    numa = nodeset.bit_length() - 1 if nodeset.bit_count() == 1 else -1
    return entry.get("pci_busid") or entry.get("name") or "", int(vendor, 16), int(kind, 16), numa
