"""The ResourceSlices of the cluster by node, and the pools of devices that kube-scheduler sees on a node. Pure.

Upstream: GatherPools in k8s.io/dynamic-resource-allocation/structured/internal, pools_incubating.go (1.36),
pools_incubating.go (1.34, 1.35).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from topowise.bounded import Bounded
from topowise.quantity import nano_value
from topowise_scheduler.options.claims.features import Features
from topowise_scheduler.options.claims.objects import CounterSet, Device, DeviceID, ResourceSlice
from topowise_scheduler.verdicts.kube_scheduler import Node, NodeSelector, selects

# Of all inventories of the process, which may share the results of selectors.
_SERIALS: Final = count()

Counters = dict[str, dict[str, int]]
"""Amounts in billionths by counter set and counter."""

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
    """A device at `index` of its slice. `is_plain`: a single claim gets all of it, whatever capacity it has."""

    id: DeviceID
    device: Device
    stored: Stored
    index: int
    is_plain: bool


class Pool(msgspec.Struct, frozen=True, eq=False):
    """A pool with its devices for a node, in the order of the allocator. An incomplete or invalid pool has no devices
    (1.34 has devices of incomplete pools too). `others` are the devices of the pool that are not for this node, and
    `counters` its shared counters. `not_modelled` names what is not known about the pool."""

    id: PoolID
    devices: tuple[PoolDevice, ...] = ()
    others: tuple[tuple[DeviceID, Device], ...] = ()
    counters: Counters = {}
    is_incomplete: bool = False
    invalid: str = ""
    not_modelled: str = ""


class Inventory:
    """All ResourceSlices of the cluster; the watch puts and removes them. `most_bytes` bounds the pools that are kept
    by node. Not thread-safe."""

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        self._by_name: dict[str, Stored] = {}
        self._by_node: dict[str, dict[str, Stored]] = {}
        self._shared: dict[str, Stored] = {}
        self._by_pool: dict[PoolID, dict[str, Stored]] = {}
        # Drivers with shared counters by the name of the pool.
        self._counting: dict[str, set[str]] = {}
        self._pools: Bounded[str, tuple[Node, Features, tuple[Pool, ...]]] = Bounded(most_bytes, _size)

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
        spec = resource_slice.spec
        self._by_name[stored.name] = stored
        self._home(resource_slice)[stored.name] = stored
        self._by_pool.setdefault(_pool_of(resource_slice), {})[stored.name] = stored
        if spec.sharedCounters:
            self._counting.setdefault(spec.pool.name, set()).add(spec.driver)
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
        if resource_slice.spec.sharedCounters and not any(item.slice.spec.sharedCounters for item in slices.values()):
            self._counting[pool.pool].discard(pool.driver)
            if not self._counting[pool.pool]:
                del self._counting[pool.pool]

    def has_slices(self, node: str) -> bool:
        """Whether a slice is for this node, or for nodes by a selector."""
        return bool(self._shared) or node in self._by_node

    def pools(self, node: Node, features: Features) -> tuple[Pool, ...]:
        """Returns the pools of a node in the order of the allocator, sorted by name."""
        kept = self._pools.get(node.name)
        if kept is not None and (kept[0] is node or _is_same(kept[0], node)) and kept[1] == features:
            return kept[2]
        pools = self._gathered(node, features)
        self._pools.put(node.name, (node, features, pools))
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

    def _gathered(self, node: Node, features: Features) -> tuple[Pool, ...]:
        newest: dict[PoolID, list[Stored]] = {}
        for stored in (*self._by_node.get(node.name, {}).values(), *self._shared.values()):
            if not _is_relevant(stored.slice, node, features):
                continue
            pool = _pool_of(stored.slice)
            slices = newest.get(pool)
            if slices is None or stored.generation > slices[0].generation:
                newest[pool] = [stored]
            elif stored.generation == slices[0].generation:
                slices.append(stored)
        pools = [self._pool(pool, newest[pool], features) for pool in sorted(newest)]
        found = [pool for pool in pools if pool is not None]
        if features.is_sorted:
            found.sort(key=_has_binding_conditions)
        return tuple(found)

    def _pool(self, pool: PoolID, slices: list[Stored], features: Features) -> Pool | None:
        """Returns a pool, None if a newer generation replaces it."""
        slices.sort(key=attrgetter("name"))
        number = slices[0].slice.spec.pool.resourceSliceCount
        every = sorted(self._by_pool[pool].values(), key=attrgetter("name"))
        current = [item for item in every if item.generation == slices[0].generation]
        not_modelled = _not_modelled(current)
        if features.partitionable_devices and len(self._counting.get(pool.pool, ())) > 1:
            not_modelled = not_modelled or f"shared counters of several drivers in pools named {pool.pool}"
        if features.minor == 34:
            invalid = _duplicate_device(slices)
            return Pool(pool, _devices(slices), (), {}, len(slices) != number, invalid, not_modelled)
        others: list[Stored] = []
        if len(slices) != number:
            if any(item.generation > slices[0].generation for item in every):
                return None
            if len(current) != number:
                return Pool(pool, is_incomplete=True, not_modelled=not_modelled)
            names = {item.name for item in slices}
            others = [item for item in current if item.name not in names]
        return _built(pool, slices, others, features, not_modelled)


def _built(
    pool: PoolID, slices: Sequence[Stored], others: Sequence[Stored], features: Features, not_modelled: str
) -> Pool:
    """Returns a complete pool (buildPool)."""
    with_devices = slices
    counters: Counters = {}
    if features.partitionable_devices:
        with_devices = [item for item in slices if not item.slice.spec.sharedCounters]
        sets = [item for stored in slices for item in stored.slice.spec.sharedCounters or ()]
        counters = {item.name: _amounts(item) for item in sets}
        if len(counters) < len(sets):
            return Pool(pool, invalid="duplicate counter set name", not_modelled=not_modelled)
    invalid = _duplicate_device(with_devices)
    if not invalid and features.partitionable_devices:
        invalid = _unknown_counter(counters, (*slices, *others))
    if invalid:
        return Pool(pool, invalid=invalid, not_modelled=not_modelled)
    rest = tuple((item.id, item.device) for item in _devices(others)) if counters else ()
    return Pool(pool, _devices(with_devices), rest, counters, not_modelled=not_modelled)


def node_matches(node: Node, name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """Whether devices with these fields are for the node (NodeMatches)."""
    if name:
        return name == node.name
    return bool(all_nodes) or (selector is not None and selects(selector, node))


def _is_relevant(resource_slice: ResourceSlice, node: Node, features: Features) -> bool:
    spec = resource_slice.spec
    if not features.partitionable_devices and spec.perDeviceNodeSelection is not None:
        return False
    if spec.sharedCounters and features.minor > 34:
        # Counters are needed to use the devices of other slices of the pool. In 1.34 they are in the same slice.
        return features.partitionable_devices
    if spec.nodeName or spec.allNodes or spec.nodeSelector is not None:
        return node_matches(node, spec.nodeName, spec.allNodes, spec.nodeSelector)
    if spec.perDeviceNodeSelection:
        devices = spec.devices or ()
        return any(node_matches(node, item.nodeName, item.allNodes, item.nodeSelector) for item in devices)
    return False


def _devices(slices: Iterable[Stored]) -> tuple[PoolDevice, ...]:
    return tuple(
        PoolDevice(
            DeviceID(stored.slice.spec.driver, stored.slice.spec.pool.name, device.name),
            device,
            stored,
            index,
            _is_plain(device),
        )
        for stored in slices
        for index, device in enumerate(stored.slice.spec.devices or ())
    )


def _is_plain(device: Device) -> bool:
    capacities = (device.capacity or {}).values()
    return not device.allowMultipleAllocations and all(item.requestPolicy is None for item in capacities)


def _amounts(counters: CounterSet) -> dict[str, int]:
    return {name: nano_value(counter.value) for name, counter in (counters.counters or {}).items()}


def _duplicate_device(slices: Iterable[Stored]) -> str:
    names: set[str] = set()
    for stored in slices:
        for device in stored.slice.spec.devices or ():
            if device.name in names:
                return f"duplicate device name {device.name}"
            names.add(device.name)
    return ""


def _unknown_counter(counters: Mapping[str, Mapping[str, int]], slices: Iterable[Stored]) -> str:
    for stored in slices:
        for device in stored.slice.spec.devices or ():
            for consumption in device.consumesCounters or ():
                names = counters.get(consumption.counterSet)
                if names is None:
                    return f"counter set {consumption.counterSet} not found"
                for name in consumption.counters or ():
                    if name not in names:
                        return f"counter {name} not found in counter set {consumption.counterSet}"
    return ""


def _not_modelled(slices: Sequence[Stored]) -> str:
    for stored in slices:
        if stored.slice.not_modelled:
            return f"field {stored.slice.not_modelled[0]} of ResourceSlice {stored.name}"
    counts = {stored.slice.spec.pool.resourceSliceCount for stored in slices}
    # The allocator takes the number of whichever slice its cache lists first.
    return (
        "" if len(counts) == 1 else f"different values of resourceSliceCount in pool {slices[0].slice.spec.pool.name}"
    )


def _has_binding_conditions(pool: Pool) -> bool:
    return any(item.device.bindingConditions is not None for item in pool.devices)


def _pool_of(resource_slice: ResourceSlice) -> PoolID:
    return PoolID(resource_slice.spec.driver, resource_slice.spec.pool.name)


def _is_same(before: Node, node: Node) -> bool:
    return before.labels == node.labels and before.hostname == node.hostname


def _size(_: str, kept: tuple[Node, Features, tuple[Pool, ...]]) -> int:
    return sum(500 + _DEVICE_BYTES * (len(pool.devices) + len(pool.others)) for pool in kept[2])
