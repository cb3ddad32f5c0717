"""ResourceSlices as far as they tell which devices there are and what NUMA node each is near. Pure.

`resource.k8s.io` v1 (1.34) and v1beta2 have a device's fields on the device, v1beta1 (1.32) under `basic`. A pool may
be spread over several slices. A driver that changes a pool raises its `generation` and writes slice by slice: only the
newest generation counts, and only once all of its `resourceSliceCount` slices are there.
API: k8s.io/api/resource/v1, types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from topowise_exporter.kubelet.allocations import Claim

NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
"""KEP-6072: the device's node, or a list that begins with it and goes on with others of the same socket."""
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"

# What drivers wrote before there was a standard name: gpu.amd.com/numaNode and dra.memory/numaNode, dra.cpu/numaNodeID
# (kubernetes-sigs/dra-driver-cpu), and dra.net/numaNode, which dranet and the SR-IOV driver share.
_OWN_NAMES: Final = ("numaNode", "numaNodeID")
_SHARED_NAME: Final = "dra.net/numaNode"
# Effects of a taint that keep new pods away.
_KEPT_AWAY: Final = ("NoSchedule", "NoExecute")


class Device(msgspec.Struct, frozen=True, gc=False):
    """What a driver says of a device; where it lies is found in the machine (topowise_exporter.dra.device_counts).

    `is_whole`: it is given to one claim as a whole. The others are left out of counts: partitions that exclude each
    other (KEP-4815) and devices that are given in parts (KEP-5075) say nothing about what is left by their number.
    `is_open`: no taint keeps new pods away.
    """

    numa_node: int | None = None
    pci_bus_id: str = ""
    pcie_roots: tuple[str, ...] = ()
    is_whole: bool = True
    is_open: bool = True


class Slice(msgspec.Struct, frozen=True):
    """One slice; `of_pool` slices make the pool's generation whole."""

    name: str
    driver: str
    pool: str
    generation: int
    of_pool: int
    devices: Mapping[str, Device]


Devices = Mapping[Claim, Device]
"""By driver, pool and name."""


class _Value(msgspec.Struct, frozen=True, gc=False, rename={"number": "int", "numbers": "ints", "text": "string"}):
    """One of several; booleans and versions tell nothing here. Lists are alpha in 1.36 (KEP-5491)."""

    number: int | None = None
    numbers: tuple[int, ...] | None = None
    text: str | None = None
    strings: tuple[str, ...] | None = None

    @property
    def first_number(self) -> int | None:
        return self.number if self.number is not None else next(iter(self.numbers or ()), None)

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.text is not None else self.strings or ()


class _Taint(msgspec.Struct, frozen=True, gc=False):
    effect: str = ""


class _Facts(msgspec.Struct, frozen=True, rename="camel"):
    attributes: dict[str, _Value] | None = None
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
    """A slice of any served version. Raises msgspec.DecodeError."""
    read = _decode(raw)
    spec = read.spec
    devices = {one.name: _device(one.basic or one, spec.driver) for one in spec.devices or ()}
    pool = spec.pool
    return Slice(read.metadata.name, spec.driver, pool.name, pool.generation, pool.resource_slice_count, devices)


def _device(facts: _Facts, driver: str) -> Device:
    attributes = facts.attributes or {}
    bus = attributes.get(PCI_BUS_ID, _Value()).text
    return Device(
        numa_node=_numa_node(attributes, driver),
        pci_bus_id="" if bus is None else bus.lower(),
        pcie_roots=attributes.get(PCIE_ROOT, _Value()).texts,
        is_whole=not facts.consumes_counters and not facts.allow_multiple_allocations,
        is_open=not any(taint.effect in _KEPT_AWAY for taint in facts.taints or ()),
    )


def _numa_node(attributes: Mapping[str, _Value], driver: str) -> int | None:
    """The first that is a number; a name without a domain is in the driver's."""
    own = (name for bare in _OWN_NAMES for name in (bare, f"{driver}/{bare}"))
    for name in (NUMA_NODE, *own, _SHARED_NAME):
        found = attributes.get(name, _Value()).first_number
        if found is not None:
            return found
    return None


def devices_of(slices: Iterable[Slice], before: Devices) -> Devices:
    """All devices of whole pools. While a driver writes a pool anew, the pool is as it was `before`."""
    pools: dict[tuple[str, str], list[Slice]] = {}
    for one in sorted(slices, key=lambda one: one.name):
        pools.setdefault((one.driver, one.pool), []).append(one)
    found: dict[Claim, Device] = {}
    for (driver, pool), mine in pools.items():
        newest = max(one.generation for one in mine)
        current = [one for one in mine if one.generation == newest]
        if len(current) < max(one.of_pool for one in current):
            found.update((key, known) for key, known in before.items() if (key.driver, key.pool) == (driver, pool))
            continue
        for one in current:
            for name, device in one.devices.items():
                # Two devices of one name make a pool invalid; kube-scheduler gives out none of it.
                found.setdefault(Claim(driver, pool, name), device)
    return found
