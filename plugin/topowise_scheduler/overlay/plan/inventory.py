"""The inventory of a plan from the reports, Nodes and pods of a cluster, from amounts of pods without manifests, or
from machines' descriptions: the JSON of `topowise-exporter machine`, which has what the kubelet's cAdvisor computes.

The JSON does not say which device plugin a PCI function has. GPUs get the resource name of their vendor's plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from topowise.errors import TopowiseError
from topowise.pods import Resources
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Machine, NumaNode
from topowise_scheduler.ledger.budgets import Budget
from topowise_scheduler.overlay.plan.values import Inventory, NodeType, PlanError, PlannedNode
from topowise_scheduler.report import Report
from topowise_scheduler.report.amounts_only import AmountsSource
from topowise_scheduler.report.exact import ExactSource
from topowise_scheduler.verdicts.kube_scheduler import Container, Metadata, NodeObject, Pod, Spec


def pod_of(name: str, amounts: Mapping[str, str], *, namespace: str = "default") -> Pod:
    """Returns a Guaranteed pod with a container that requests these quantities by resource."""
    limits = dict(amounts)
    container = Container("main", Resources(requests={**limits}, limits={**limits}))
    return Pod(Metadata(name=name, namespace=namespace), Spec(containers=(container,)))


def inventory_of(
    reports: Iterable[Report],
    nodes: Iterable[NodeObject] = (),
    pods: Sequence[Pod] = (),
    *,
    budgets: Sequence[Budget] = (),
    types: Mapping[str, NodeType] | None = None,
    now: float = 0.0,
) -> Inventory:
    """Returns the nodes that have a report or a Node, with the machine of each. Equal machines share a type."""
    by_name = {report.name: report for report in reports}
    objects = {node.metadata.name: node for node in nodes}
    shared: dict[tuple[int, str], NodeType | None] = {}
    planned = []
    for name in sorted({*by_name, *objects}):
        report = by_name.get(name)
        node_type = None
        if report is not None:
            # Reports of equal hardware and configuration share `empty`.
            key = id(report.empty), report.kubelet.name
            if key not in shared:
                shared[key] = type_of(report)
            node_type = shared[key]
        planned.append(PlannedNode(name, node_type, report, objects.get(name)))
    return Inventory(tuple(planned), tuple(pods), tuple(budgets), types or {}, now)


def type_of(report: Report) -> NodeType | None:
    """Returns the type of a reported node, None if the report does not describe a machine."""
    source = report.source
    try:
        if isinstance(source, ExactSource):
            machine, configuration = source.parts()
            return NodeType(machine, configuration, report.kubelet, "runs")
        if isinstance(source, AmountsSource):
            parts = source.parts(report.kubelet, report.page_sizes)
            return NodeType(parts.machine, parts.settings, report.kubelet, "runs", parts.allocatable)
    except (TopowiseError, ValueError):
        # The report has its problems already; a change of this node says that it is not possible.
        return None
    return None


MOST_BYTES: Final = 16 << 20
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


def read_machine(text: bytes, origin: str) -> Machine:
    """Returns the machine of a description. Raises PlanError."""
    if len(text) > MOST_BYTES:
        raise PlanError(f"{origin}: {len(text)} bytes, expected at most {MOST_BYTES}")
    try:
        return _of_json(text)
    except (msgspec.MsgspecError, ValueError, KeyError) as exc:
        raise PlanError(
            f"{origin}: cannot be read ({exc}), expected the output of `topowise-exporter machine`"
        ) from exc


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
