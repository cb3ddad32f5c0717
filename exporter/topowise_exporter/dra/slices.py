"""Parses ResourceSlices: devices, the location of each (topowise.claimed_devices), counts by NUMA node. Pure.

`resource.k8s.io` v1 (1.34) and v1beta2 have a device's fields on the device, v1beta1 (1.32) under `basic`. A pool may
span several slices. A driver that changes a pool raises its `generation` and writes slice by slice. So only the newest
generation counts, and only once all of its `resourceSliceCount` slices exist. API: k8s.io/api/resource/v1, types.go.

Counts are capacity, allocatable and available. A device near no NUMA node or near several is in no zone, and neither is
a device that is not allocated as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from topowise.attributes import CLAIMED_DEVICES
from topowise.claimed_devices import NumaNodes, Value, location
from topowise_exporter.kubelet.allocations import Claim, PodAllocation
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.zones import Accounts, Amount

# Taint effects that keep new pods away.
_KEPT_AWAY: Final = ("NoSchedule", "NoExecute")


class Device(msgspec.Struct, frozen=True, gc=False):
    """A device as its driver describes it. `is_whole`: a single claim gets the whole device. Partitions that exclude
    each other (KEP-4815) and devices that are shared in parts (KEP-5075) are not counted: a count does not show what is
    left. `is_open`: no taint keeps new pods away."""

    numa_node: int | None = None
    pci_bus_id: str = ""
    pcie_roots: tuple[str, ...] = ()
    is_whole: bool = True
    is_open: bool = True


class Slice(msgspec.Struct, frozen=True):
    """A ResourceSlice; `of_pool` is the number of slices in a complete generation of the pool."""

    name: str
    driver: str
    pool: str
    generation: int
    of_pool: int
    devices: Mapping[str, Device]


Devices = Mapping[Claim, Device]
"""Devices by driver, pool and name."""


class _Taint(msgspec.Struct, frozen=True, gc=False):
    effect: str = ""


class _Facts(msgspec.Struct, frozen=True, rename="camel"):
    attributes: dict[str, Value] | None = None
    consumes_counters: tuple[msgspec.Raw, ...] | None = None
    allow_multiple_allocations: bool | None = None
    taints: tuple[_Taint, ...] | None = None


class _Device(_Facts, frozen=True, rename="camel"):
    name: str = ""
    basic: _Facts | None = None


class _Pool(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class _Spec(msgspec.Struct, frozen=True):
    driver: str = ""
    pool: _Pool = _Pool()
    devices: tuple[_Device, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec


_decode = msgspec.json.Decoder(_Object).decode


def decode(raw: bytes | msgspec.Raw) -> Slice:
    """Decodes a slice of any served version. Raises msgspec.DecodeError."""
    slice_object = _decode(raw)
    spec = slice_object.spec
    devices = {device.name: _device(device.basic or device, spec.driver) for device in spec.devices or ()}
    pool = spec.pool
    return Slice(
        slice_object.metadata.name, spec.driver, pool.name, pool.generation, pool.resource_slice_count, devices
    )


def _device(facts: _Facts, driver: str) -> Device:
    where = location(facts.attributes or {}, driver)
    return Device(
        numa_node=where.numa_node,
        pci_bus_id=where.pci_bus_id,
        pcie_roots=where.pcie_roots,
        is_whole=not facts.consumes_counters and not facts.allow_multiple_allocations,
        is_open=not any(taint.effect in _KEPT_AWAY for taint in facts.taints or ()),
    )


def devices_of(slices: Iterable[Slice], before: Devices) -> Devices:
    """Returns all devices of complete pools. While a driver rewrites a pool, its devices stay as they were `before`."""
    pools: dict[tuple[str, str], list[Slice]] = {}
    for item in sorted(slices, key=lambda item: item.name):
        pools.setdefault((item.driver, item.pool), []).append(item)
    devices: dict[Claim, Device] = {}
    for (driver, pool), pool_slices in pools.items():
        newest = max(item.generation for item in pool_slices)
        current = [item for item in pool_slices if item.generation == newest]
        if len(current) < max(item.of_pool for item in current):
            devices.update((key, known) for key, known in before.items() if (key.driver, key.pool) == (driver, pool))
            continue
        for item in current:
            for name, device in item.devices.items():
                # A duplicate device name makes a pool invalid, and kube-scheduler allocates nothing of it.
                devices.setdefault(Claim(driver, pool, name), device)
    return devices


class DeviceLocations(NumaNodes):
    """NUMA nodes of a machine's devices."""

    def __init__(self, machine: Machine) -> None:
        nodes = frozenset(node.id for node in machine.nodes)
        functions: dict[str, int] = {}
        self.roots: dict[str, set[int]] = {}
        """PCIe root -> the NUMA nodes that its functions name; nearly always a single node."""
        for function in machine.pci:
            # A function may name a node that the zones leave out.
            if function.numa_node is not None and function.numa_node in nodes:
                functions[function.address] = function.numa_node
                if function.pcie_root is not None:
                    self.roots.setdefault(function.pcie_root, set()).add(function.numa_node)
        super().__init__(nodes, functions.get, self.roots)


def numa_nodes_of_roots(machine: Machine) -> dict[str, int | None]:
    """Returns the NUMA node of each PCIe root, None for a root whose functions name several NUMA nodes or none."""
    named = DeviceLocations(machine).roots
    roots = {function.pcie_root for function in machine.pci if function.pcie_root is not None}
    return {root: next(iter(named[root])) if len(named.get(root, ())) == 1 else None for root in roots}


def allocated_claims(pods: Iterable[PodAllocation]) -> frozenset[Claim]:
    """Returns the allocated devices, each once, however many pods share the claim."""
    return frozenset(claim for pod in pods for container in pod.containers for claim in container.claims)


def with_devices(accounts: Accounts, devices: Devices, machine: Machine, pods: Iterable[PodAllocation]) -> Accounts:
    """Returns the accounts with an additional resource for each driver that has devices on a node."""
    if not devices:
        return accounts
    locations, allocated = DeviceLocations(machine), allocated_claims(pods)
    counts: dict[tuple[int, str], Counter[str]] = {}
    for claim, device in devices.items():
        node_id = locations.of(device) if device.is_whole else None
        if node_id is not None:
            count = counts.setdefault((node_id, CLAIMED_DEVICES + claim.driver), Counter())
            count["capacity"] += 1
            count["allocatable"] += device.is_open
            count["available"] += device.is_open and claim not in allocated
    amounts = {node_id: dict(of_node) for node_id, of_node in accounts.amounts.items()}
    for (node_id, resource), count in counts.items():
        amounts[node_id][resource] = Amount(count["capacity"], count["allocatable"], count["available"])
    return msgspec.structs.replace(accounts, amounts=amounts)


def held_by_node(
    devices: Devices, machine: Machine, pods: Iterable[PodAllocation]
) -> Mapping[tuple[str, int | None], int]:
    """Returns (driver, NUMA node) -> allocated devices. The node is None for a device without slice or NUMA node."""
    counts: Counter[tuple[str, int | None]] = Counter()
    allocated = allocated_claims(pods)
    if not allocated:
        return counts
    locations = DeviceLocations(machine)
    for claim in allocated:
        device = devices.get(claim)
        counts[claim.driver, None if device is None else locations.of(device)] += 1
    return counts
