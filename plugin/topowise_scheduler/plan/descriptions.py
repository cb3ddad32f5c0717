"""Machines from descriptions: the JSON of `topowise-exporter machine`, and hwloc's XML of version 2 (`lstopo a.xml`).

Both give the machine that the kubelet's cAdvisor computes. The JSON has it. From the XML it is computed here as the
exporter computes it from /sys (machine/cpus.py): hwloc keeps the kernel's numbers of packages, cores and caches. Only a
kernel without NUMA is not visible in the XML: hwloc shows a NUMA node there.

Neither says which device plugin a PCI function has. GPUs get the resource name of their vendor's plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Earlier exporters wrote no `uncore`."""

    socket: int
    threads: tuple[int, ...]
    l3_id: int | None = None
    uncore: int | msgspec.UnsetType | None = msgspec.UNSET


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
    memory_bytes: int | None = None


class _Unit(msgspec.Struct, frozen=True):
    """A CPU in the XML: the key of its core in a NUMA node, and its L3 cache with the number of CPUs that share it."""

    id: int
    core: tuple[int, int]
    cache: tuple[int, int] | None


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
                cores=tuple(Core(cpu.socket, cores, _uncore(cpu)) for cores, cpu in sorted(threads.items())),
                hugepages={size // 1024: count for size, count in node.hugepages.items()},
                distances=tuple(node.distances[to] for to in ids) if node.distances else None,
            )
        )
    functions = (
        # A masked /sys shows neither.
        (entry.address, int(entry.vendor or "0", 16), int(entry.class_code or "0", 16) >> 8, entry.numa_node)
        for entry in described.pci
    )
    return Machine(numa=tuple(nodes), devices=_plugins(functions), memory_capacity=described.memory_bytes)


def _uncore(cpu: _Cpu) -> int | None:
    return cpu.l3_id if cpu.uncore is msgspec.UNSET else cpu.uncore


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
    units: list[_Unit] = []
    functions: list[tuple[str, int, int, int]] = []
    for entry, above in _objects(root, ()):
        kind = entry.get("type")
        if kind == "NUMANode":
            sizes = sorted((_number(page, "size"), _number(page, "count")) for page in entry.findall("page_type"))
            numa[_number(entry, "os_index")] = {
                "memory": _number(entry, "local_memory"),
                "cpus": _bits(entry.get("cpuset", "")),
                # The smallest size is that of ordinary pages.
                "pages": {size // 1024: count for size, count in sizes[1:]},
            }
        elif kind == "PU":
            units.append(_unit(entry, above))
        elif kind == "PCIDev":
            functions.append(_function(entry, above))
    if not numa or len(units) > _MOST_CPUS:
        raise PlanError(f"{origin}: {len(numa)} NUMA nodes, expected some, and at most {_MOST_CPUS} CPUs")
    ids = sorted(numa)
    rows = _distances(root, ids)
    nodes = tuple(
        NumaNode(
            id=number,
            memory=numa[number]["memory"],
            cores=_cores([unit for unit in units if numa[number]["cpus"] >> unit.id & 1]),
            hugepages=numa[number]["pages"],
            distances=rows.get(number),
        )
        for number in ids
    )
    return Machine(numa=nodes, devices=_plugins(functions))


def _unit(entry: ElementTree.Element, above: Above) -> _Unit:
    cpu = _number(entry, "os_index")
    core, cache, package = (_nearest(above, kind) for kind in ("Core", "L3Cache", "Package"))
    # A CPU without a numbered core is a core alone.
    number = -1 - cpu if core is None or core.get("os_index") is None else _number(core, "os_index")
    # cAdvisor reads no cache of a CPU if any of its caches has no id.
    numbered = all(near.get("os_index") for near in above if near.get("type", "").endswith("Cache"))
    shared = None
    if cache is not None and numbered:
        shared = _number(cache, "os_index"), _bits(cache.get("cpuset", "")).bit_count()
    return _Unit(cpu, (0 if package is None else _number(package, "os_index"), number), shared)


def _cores(units: Iterable[_Unit]) -> tuple[Core, ...]:
    """Returns the cores of a NUMA node (cAdvisor utils/sysinfo, getCoresInfo and addCacheInfo)."""
    by_core: dict[tuple[int, int], list[_Unit]] = {}
    for unit in sorted(units, key=lambda unit: unit.id):
        by_core.setdefault(unit.core, []).append(unit)
    cores = []
    for (package, _), members in by_core.items():
        cache = min(members, key=lambda unit: str(unit.id)).cache
        is_of_node = cache is not None and cache[1] == len(by_core) * len(members)
        threads = tuple(unit.id for unit in members)
        cores.append(Core(package, threads, None if cache is None or is_of_node else cache[0]))
    return tuple(cores)


def _distances(root: ElementTree.Element, ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Returns the rows of the kernel's distances. hwloc keeps none for a single NUMA node."""
    if len(ids) == 1:
        return {ids[0]: (10,)}
    for table in root.findall("distances2"):
        order, values = (
            [int(word) for part in table.findall(tag) for word in (part.text or "").split()]
            for tag in ("indexes", "u64values")
        )
        if table.get("name") == "NUMALatency" and table.get("indexing") == "os" and sorted(order) == list(ids):
            rows = {row: values[at * len(order) : (at + 1) * len(order)] for at, row in enumerate(order)}
            return {row: tuple(cost for _, cost in sorted(zip(order, rows[row], strict=True))) for row in order}
    return {}


Above = tuple[ElementTree.Element, ...]


def _objects(entry: ElementTree.Element, above: Above) -> Iterator[tuple[ElementTree.Element, Above]]:
    for child in entry.findall("object"):
        yield child, above
        yield from _objects(child, (*above, child))


def _nearest(above: Above, kind: str) -> ElementTree.Element | None:
    return next((entry for entry in reversed(above) if entry.get("type") == kind), None)


def _number(entry: ElementTree.Element, name: str) -> int:
    """Returns an attribute, 0 without it."""
    return int(entry.get(name) or "0")


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
