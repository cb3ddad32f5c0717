"""The ResourceSlices of the cluster by node, and the pools of devices that kube-scheduler sees on a node. Pure.

Upstream: GatherPools in k8s.io/dynamic-resource-allocation/structured/internal/incubating, pools_incubating.go (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from topowise.bounded import Bounded
from topowise.quantity import nano_value
from topowise_scheduler.options.claims.objects import CounterSet, Device, DeviceID, ResourceSlice
from topowise_scheduler.verdicts.kube_scheduler import Node, NodeSelector, selects

# Of all inventories of the process, which may share the results of selectors.
_SERIALS: Final = count()

Counters = dict[str, dict[str, int]]
"""Amounts in billionths by counter set and counter."""

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""The attribute with a device's PCIe root."""
# What the pools of a node take: a few hundred bytes a device.
_DEVICE_BYTES: Final = 300


class PoolID(NamedTuple):
    driver: str
    pool: str


class Stored(msgspec.Struct, frozen=True, eq=False):
    """A slice of the inventory. `serial` is another for each put, so results about the slice can be kept under it."""

    slice: ResourceSlice
    serial: int

    @property
    def name(self) -> str:
        return self.slice.metadata.name

    @property
    def generation(self) -> int:
        return self.slice.spec.pool.generation


class PoolDevice(msgspec.Struct, frozen=True, eq=False):
    """A device at `index` of its slice. `is_plain`: a single claim gets all of it, whatever capacity it has. `root` is
    its PCIe root, or its counter sets, "" if it has neither. `not_modelled`: why it cannot be allocated by us."""

    id: DeviceID
    device: Device
    stored: Stored
    index: int
    is_plain: bool
    root: str
    not_modelled: str

    @property
    def is_shared(self) -> bool:
        """Whether several claims may have a share of the device."""
        return bool(self.device.allowMultipleAllocations)


class Pool(msgspec.Struct, frozen=True, eq=False):
    """A pool with its devices for a node, in the order of kube-scheduler. An incomplete or invalid pool has a `problem`
    ("is incomplete"), and no devices. `others` are the devices of the pool that are not for this node, and `counters`
    its shared counters."""

    id: PoolID
    devices: tuple[PoolDevice, ...] = ()
    others: tuple[tuple[DeviceID, Device], ...] = ()
    counters: Counters = {}
    problem: str = ""


class Inventory:
    """All ResourceSlices of the cluster; the watch puts and removes them. `most_bytes` bounds the pools that are kept
    by node. Not thread-safe."""

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        self._by_name: dict[str, Stored] = {}
        self._by_node: dict[str, dict[str, Stored]] = {}
        self._shared: dict[str, Stored] = {}
        self._by_pool: dict[PoolID, dict[str, Stored]] = {}
        self._pools: Bounded[str, tuple[Node, tuple[Pool, ...]]] = Bounded(most_bytes, _size)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ResourceSlice]:
        return (stored.slice for stored in self._by_name.values())

    @property
    def bytes(self) -> int:
        """What is kept beside the slices, in bytes."""
        return self._pools.bytes

    def put(self, resource_slice: ResourceSlice) -> None:
        """Adds a slice, or replaces the slice of this name."""
        self.remove(resource_slice.name)
        stored = Stored(resource_slice, next(_SERIALS))
        self._by_name[stored.name] = stored
        self._home(resource_slice)[stored.name] = stored
        self._by_pool.setdefault(_pool_of(resource_slice), {})[stored.name] = stored
        self._forget(resource_slice)

    def remove(self, name: str) -> None:
        """Removes a slice; a name without a slice changes nothing."""
        stored = self._by_name.pop(name, None)
        if stored is None:
            return
        resource_slice, pool = stored.slice, _pool_of(stored.slice)
        self._forget(resource_slice)
        self._home(resource_slice).pop(name, None)
        if not self._by_node.get(resource_slice.spec.nodeName or "", True):
            del self._by_node[resource_slice.spec.nodeName or ""]
        slices = self._by_pool[pool]
        del slices[name]
        if not slices:
            del self._by_pool[pool]

    def has_slices(self, node: str) -> bool:
        """Whether a slice is for this node, or for nodes by a selector."""
        return bool(self._shared) or node in self._by_node

    def pools(self, node: Node) -> tuple[Pool, ...]:
        """Returns the pools of a node in the order of kube-scheduler: by name, those with binding conditions last."""
        kept = self._pools.get(node.name)
        if kept is not None and (kept[0] is node or _is_same(kept[0], node)):
            return kept[1]
        pools = self._gathered(node)
        self._pools.put(node.name, (node, pools))
        return pools

    def _home(self, resource_slice: ResourceSlice) -> dict[str, Stored]:
        node = resource_slice.spec.nodeName
        if not node or resource_slice.spec.sharedCounters:
            return self._shared
        return self._by_node.setdefault(node, {})

    def _forget(self, resource_slice: ResourceSlice) -> None:
        """Forgets the pools of all nodes that may see the slice."""
        slices = self._by_pool.get(_pool_of(resource_slice), {}).values()
        nodes = {item.slice.spec.nodeName for item in slices} | {resource_slice.spec.nodeName}
        shared = resource_slice.spec.sharedCounters or any(item.slice.spec.sharedCounters for item in slices)
        if shared or None in nodes or "" in nodes:
            self._pools.clear()
        else:
            for node in nodes:
                self._pools.pop(node or "")

    def _gathered(self, node: Node) -> tuple[Pool, ...]:
        newest: dict[PoolID, list[Stored]] = {}
        for stored in (*self._by_node.get(node.name, {}).values(), *self._shared.values()):
            if not _is_relevant(stored.slice, node):
                continue
            pool = _pool_of(stored.slice)
            slices = newest.get(pool)
            if slices is None or stored.generation > slices[0].generation:
                newest[pool] = [stored]
            elif stored.generation == slices[0].generation:
                slices.append(stored)
        pools = [self._pool(pool, newest[pool]) for pool in sorted(newest)]
        return tuple(
            sorted((pool for pool in pools if pool is not None), key=lambda pool: have_binding_conditions(pool.devices))
        )

    def _pool(self, pool: PoolID, slices: list[Stored]) -> Pool | None:
        """Returns a pool, None if a newer generation replaces it."""
        slices.sort(key=attrgetter("name"))
        every = sorted(self._by_pool[pool].values(), key=attrgetter("name"))
        current = [item for item in every if item.generation == slices[0].generation]
        number = slices[0].slice.spec.pool.resourceSliceCount
        others: list[Stored] = []
        if len(slices) != number:
            if any(item.generation > slices[0].generation for item in every):
                return None
            others = [item for item in current if item not in slices]
        if len({item.slice.spec.pool.resourceSliceCount for item in current}) > 1:
            # Upstream takes the number of any slice.
            return Pool(pool, tuple(_devices(slices, f"different values of resourceSliceCount in pool {pool.pool}")))
        if len(slices) + len(others) != number:
            return Pool(pool, problem="is incomplete")
        return _built(pool, slices, others)


def _built(pool: PoolID, slices: Sequence[Stored], others: Sequence[Stored]) -> Pool:
    """Returns a complete pool (buildPool); `slices` are for the node, the `others` are not."""
    sets = [item for stored in slices for item in stored.slice.spec.sharedCounters or ()]
    counters = {item.name: _amounts(item) for item in sets}
    devices = [device.name for stored in slices for device in stored.slice.spec.devices or ()]
    problem = _unknown_counter(counters, (*slices, *others))
    if len(counters) < len(sets) or len(set(devices)) < len(devices):
        problem = "is invalid: a device or counter set is there twice"
    if problem:
        return Pool(pool, problem=problem)
    unknown = next((item.slice for item in (*slices, *others) if item.slice.not_modelled), None)
    not_modelled = "" if unknown is None else f"field {unknown.not_modelled[0]} of ResourceSlice {unknown.name}"
    rest = tuple((item.id, item.device) for item in _devices(others)) if counters else ()
    return Pool(pool, tuple(_devices(slices, not_modelled)), rest, counters)


def node_matches(node: Node, name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """Whether devices with these fields are for the node (NodeMatches)."""
    if name:
        return name == node.name
    return bool(all_nodes) or (selector is not None and selects(selector, node))


def _is_relevant(resource_slice: ResourceSlice, node: Node) -> bool:
    spec = resource_slice.spec
    if spec.sharedCounters:
        # Counters are needed to use the devices of other slices of the pool.
        return True
    if spec.nodeName or spec.allNodes or spec.nodeSelector is not None:
        return node_matches(node, spec.nodeName, spec.allNodes, spec.nodeSelector)
    return bool(spec.perDeviceNodeSelection) and any(
        node_matches(node, item.nodeName, item.allNodes, item.nodeSelector) for item in spec.devices or ()
    )


def _devices(slices: Iterable[Stored], not_modelled: str = "") -> Iterator[PoolDevice]:
    for stored in slices:
        spec = stored.slice.spec
        for index, device in enumerate(spec.devices or ()):
            key = DeviceID(spec.driver, spec.pool.name, device.name)
            problem = not_modelled
            if device.nodeAllocatableResourceMappings or device.nodeAllocatableResources:
                problem = f"node-allocatable resources of device {'/'.join(key)}"
            yield PoolDevice(key, device, stored, index, _is_plain(device), _root(key, device), problem)


def _root(key: DeviceID, device: Device) -> str:
    attribute = (device.attributes or {}).get(PCIE_ROOT)
    if attribute is not None and attribute.string:
        return attribute.string
    sets = sorted(item.counterSet for item in device.consumesCounters or ())
    return "/".join((*key[:2], *sets)) if sets else ""


def _is_plain(device: Device) -> bool:
    capacities = (device.capacity or {}).values()
    return not device.allowMultipleAllocations and all(item.requestPolicy is None for item in capacities)


def _amounts(counters: CounterSet) -> dict[str, int]:
    return {name: nano_value(counter.value) for name, counter in (counters.counters or {}).items()}


def _unknown_counter(counters: Mapping[str, Mapping[str, int]], slices: Iterable[Stored]) -> str:
    for stored in slices:
        for device in stored.slice.spec.devices or ():
            for consumption in device.consumesCounters or ():
                names = counters.get(consumption.counterSet)
                if names is None:
                    return f"is invalid: it has no counter set {consumption.counterSet}"
                for name in consumption.counters or ():
                    if name not in names:
                        return f"is invalid: counter set {consumption.counterSet} has no counter {name}"
    return ""


def have_binding_conditions(devices: Iterable[PoolDevice]) -> bool:
    """Whether kube-scheduler takes the devices of a pool last."""
    return any(item.device.bindingConditions is not None for item in devices)


def _pool_of(resource_slice: ResourceSlice) -> PoolID:
    return PoolID(resource_slice.spec.driver, resource_slice.spec.pool.name)


def _is_same(before: Node, node: Node) -> bool:
    return before.labels == node.labels and before.hostname == node.hostname


def _size(_: str, kept: tuple[Node, tuple[Pool, ...]]) -> int:
    return sum(500 + _DEVICE_BYTES * (len(pool.devices) + len(pool.others)) for pool in kept[1])
