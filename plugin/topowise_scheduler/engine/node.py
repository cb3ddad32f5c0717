"""One node's zones in numbers, read from an NRT of any producer.

A producer may be ours, RTE, NFD or koordlet: zones come in any order, quantities in any spelling, and a resource may be
missing in some zones. Nothing here is an error of the whole object unless nothing in it can be used: an amount that
cannot be read counts as none available, and is reported.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise import attributes, nrt, quantity
from topowise.errors import ParseError


def is_native(resource: str) -> bool:
    """Whether the CPU or the memory manager is in charge; the device manager is of all others."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


class Zone(msgspec.Struct, frozen=True):
    """A NUMA node: what it may give to pods in all, and what it can still give (milli-CPU, bytes, units)."""

    id: int
    allocatable: Mapping[str, int]
    available: Mapping[str, int]


class NodeTopology(msgspec.Struct, frozen=True):
    """A node as its NRT describes it. `aligned` are the resources whose kubelet manager gives hints: what an exporter
    derived from /sys because a manager is off is left out, and so is what appears in no zone."""

    name: str
    policy: str
    scope: str
    zones: tuple[Zone, ...]
    aligned: frozenset[str]
    fingerprint: str = ""
    fingerprint_method: str = "all"


def read(topology: nrt.NodeResourceTopology) -> tuple[NodeTopology, tuple[str, ...]]:
    """The node, and a line for each part of the object that could not be used."""
    problems: list[str] = []
    named = nrt.attributes_of(topology.attributes)
    try:
        policy, scope = attributes.policy_and_scope(named, topology.topologyPolicies)
    except ParseError as exc:
        problems.append(f"{exc}; the node is taken to have no policy")
        policy, scope = "none", "container"
    zones = tuple(_zone(numa_id, zone, problems) for numa_id, zone in nrt.numa_zones(topology))
    listed = frozenset[str]().union(*(zone.allocatable for zone in zones))
    node = NodeTopology(
        name=topology.metadata.name,
        policy=policy,
        scope=scope,
        zones=zones,
        aligned=listed - _unmanaged(named, listed),
        fingerprint=named.get(attributes.PODS_FINGERPRINT, ""),
        fingerprint_method=named.get(attributes.PODS_FINGERPRINT_METHOD, "all"),
    )
    return node, tuple(problems)


def _unmanaged(named: Mapping[str, str], listed: frozenset[str]) -> frozenset[str]:
    """Resources in the zones that this kubelet does not align, because the manager in charge is off."""
    off = set(attributes.read_names(named, attributes.DERIVED))
    if named.get(attributes.CPU_MANAGER_POLICY) == "none":
        off.add("cpu")
    if named.get(attributes.MEMORY_MANAGER_POLICY) == "None":
        off.add("memory")
    if "memory" in off:
        off.update(resource for resource in listed if resource.startswith("hugepages-"))
    return frozenset(off)


def _zone(numa_id: int, zone: nrt.Zone, problems: list[str]) -> Zone:
    allocatable: dict[str, int] = {}
    available: dict[str, int] = {}
    for resource in zone.resources or ():
        try:
            may = quantity.for_resource(resource.name, resource.allocatable)
            can = quantity.for_resource(resource.name, resource.available)
        except ParseError as exc:
            problems.append(f"zone {zone.name}, {resource.name}: {exc}; counted as none available")
            may = can = 0
        allocatable[resource.name] = may
        # NFD publishes negative amounts when more is used than it knows of.
        available[resource.name] = max(0, can)
    return Zone(numa_id, allocatable, available)
