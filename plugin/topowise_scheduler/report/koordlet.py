"""Translates an object that koordlet wrote last into the ecosystem's attributes.

koordlet (Koordinator's node agent, pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go) writes v1alpha1:
totals of each NUMA node, `topologyPolicies`, and annotations. The reader uses the annotations that keep the totals from
promising too much, and the annotation that shows a kubelet without NUMA managers:

- `kubelet.koordinator.sh/cpu-manager-policy`: with "none" koordlet binds CPUs, so both managers of the kubelet count as
  off. With "static" its reserved CPUs, which the totals contain, are not allocatable.
  `node.koordinator.sh/cpu-topology` has the NUMA node of each reserved CPU.
- Hugepages with a capacity of 0 in every zone are left out: koordlet writes them with its gate HugePageReport off.
- A pods fingerprint among the annotations belongs to another exporter, whose numbers koordlet has overwritten.

The reader ignores `pod-cpu-allocs` (CPUs of pods that the kubelet has bound, without memory and devices), and the pools
of Koordinator's own scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from topowise import attributes, cpuset, documents, nrt, quantity
from topowise.errors import ParseError
from topowise.pods import HUGEPAGES

CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"


class _Cpu(msgspec.Struct, frozen=True, gc=False):
    id: int
    node: int


class _Topology(msgspec.Struct, frozen=True):
    detail: tuple[_Cpu, ...] = ()


class _Policy(msgspec.Struct, frozen=True, rename={"reserved": "reservedCPUs"}):
    policy: str = ""
    reserved: str = ""


def wrote(topology: nrt.NodeResourceTopology) -> bool:
    """Returns whether the zones are koordlet's. Its annotations stay when another exporter writes. Attributes do not
    stay when koordlet writes, because v1alpha1 has none."""
    return CPU_TOPOLOGY in (topology.metadata.annotations or {}) and not topology.attributes


def translated(topology: nrt.NodeResourceTopology, problems: list[str]) -> nrt.NodeResourceTopology:
    """Returns the object as an exporter with attributes would have written it. Problems are appended."""
    annotations = dict(topology.metadata.annotations or {})
    # A stale fingerprint would confirm pods that koordlet's totals do not contain.
    annotations.pop(attributes.PODS_FINGERPRINT_ANNOTATION, None)
    policy, reserved = _Policy(), dict[str, int]()
    try:
        policy = msgspec.json.decode(annotations.get(CPU_MANAGER_POLICY, "{}"), type=_Policy)
        reserved = _reserved(policy, annotations[CPU_TOPOLOGY])
    except (*documents.UNREADABLE, ParseError) as exc:
        problems.append(f"annotations {CPU_MANAGER_POLICY}, {CPU_TOPOLOGY}: {exc}; no CPU counts as reserved")
    policy_attributes = []
    if policy.policy:
        policy_attributes.append(nrt.Attribute(attributes.CPU_MANAGER_POLICY, policy.policy))
    if policy.policy == "none":
        # koordlet binds the CPUs itself, so the kubelet aligns neither CPUs nor memory.
        policy_attributes.append(nrt.Attribute(attributes.MEMORY_MANAGER_POLICY, "None"))
    left_out = _unused_hugepages(topology)
    return msgspec.structs.replace(
        topology,
        metadata=msgspec.structs.replace(topology.metadata, annotations=annotations),
        attributes=tuple(policy_attributes),
        zones=tuple([_zone(zone, reserved, left_out) for zone in topology.zones or ()]),
    )


def _reserved(policy: _Policy, text: str) -> dict[str, int]:
    """Returns the number of reserved CPUs by zone name."""
    if policy.policy != "static" or not policy.reserved:
        return {}
    counts: dict[str, int] = {}
    ids = cpuset.parse(policy.reserved)
    for cpu in msgspec.json.decode(text, type=_Topology).detail:
        if cpu.id in ids:
            name = nrt.zone_name(cpu.node)
            counts[name] = counts.get(name, 0) + 1
    return counts


def _unused_hugepages(topology: nrt.NodeResourceTopology) -> frozenset[str]:
    """Returns the hugepages resources whose capacity is 0 in every zone."""
    zero_everywhere: dict[str, bool] = {}
    for resource in (resource for zone in topology.zones or () for resource in zone.resources or ()):
        if resource.name.startswith(HUGEPAGES):
            zero_everywhere[resource.name] = zero_everywhere.get(resource.name, True) and _is_zero(resource.capacity)
    return frozenset(name for name, is_zero in zero_everywhere.items() if is_zero)


def _is_zero(text: str | int) -> bool:
    try:
        return quantity.milli_value(text) == 0
    except ParseError:
        return False


def _zone(zone: nrt.Zone, reserved: Mapping[str, int], left_out: frozenset[str]) -> nrt.Zone:
    resources = [resource for resource in zone.resources or () if resource.name not in left_out]
    if zone.name in reserved:
        resources = [
            _less_reserved(resource, reserved[zone.name]) if resource.name == "cpu" else resource
            for resource in resources
        ]
    return msgspec.structs.replace(zone, resources=tuple(resources))


def _less_reserved(cpu: nrt.Resource, reserved: int) -> nrt.Resource:
    """Returns a zone's CPUs without the reserved CPUs."""
    try:
        capacity, allocatable, available = map(quantity.milli_value, (cpu.capacity, cpu.allocatable, cpu.available))
    except ParseError:
        return cpu
    # `node.koordinator.sh/enable-numa-reservation` may have subtracted a share already, so the smaller number counts.
    allocatable = max(0, min(allocatable, capacity - 1000 * reserved))
    return msgspec.structs.replace(
        cpu, allocatable=f"{allocatable}m", available=f"{max(0, min(available, allocatable))}m"
    )
