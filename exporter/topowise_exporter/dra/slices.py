"""Parses ResourceSlices: devices and the location of each (topowise.claimed_devices). Pure.

`resource.k8s.io` v1 (1.34) and v1beta2 have a device's fields on the device, v1beta1 (1.32) under `basic`. A pool may
span several slices. A driver that changes a pool raises its `generation` and writes slice by slice. So only the newest
generation counts, and only once all of its `resourceSliceCount` slices exist. API: k8s.io/api/resource/v1, types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from topowise.claimed_devices import Value, location
from topowise_exporter.kubelet.allocations import Claim

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
