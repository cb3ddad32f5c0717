"""An object that koordlet wrote last, said in the ecosystem's attributes.

koordlet (Koordinator's node agent, pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go) writes v1alpha1:
totals of each NUMA node and `topologyPolicies`, and in annotations what it knows beside. Used of them is what keeps the
totals from promising too much, and what tells that the kubelet decides nothing:

- `kubelet.koordinator.sh/cpu-manager-policy`: with "none" koordlet is the one who binds CPUs, so neither of the
  kubelet's managers is taken to be on; with "static" its reserved CPUs, which the totals contain, are not allocatable.
  `node.koordinator.sh/cpu-topology` tells on which NUMA node each of them is.
- Hugepages that no zone has any of are left out: that is what koordlet writes with its gate HugePageReport off.
- A pods fingerprint among the annotations is another exporter's, whose numbers koordlet has overwritten.

Left alone are `pod-cpu-allocs` (the CPUs of pods that the kubelet has bound: no memory, no devices, and only pods that
are known from the API anyway) and the pools, which are of Koordinator's own scheduler.
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
    """Whether the zones are koordlet's: its annotations stay when another exporter writes, attributes do not when it
    does, as v1alpha1 has none."""
    return CPU_TOPOLOGY in (topology.metadata.annotations or {}) and not topology.attributes


def translated(topology: nrt.NodeResourceTopology, problems: list[str]) -> nrt.NodeResourceTopology:
    """The object as an exporter with attributes would have written it. Problems are added."""
    annotations = dict(topology.metadata.annotations or {})
    annotations.pop(attributes.PODS_FINGERPRINT_ANNOTATION, None)
    policy, reserved = _Policy(), dict[str, int]()
    try:
        policy = msgspec.json.decode(annotations.get(CPU_MANAGER_POLICY, "{}"), type=_Policy)
        reserved = _reserved(policy, annotations[CPU_TOPOLOGY])
    except (*documents.UNREADABLE, ParseError) as exc:
        problems.append(f"annotations {CPU_MANAGER_POLICY}, {CPU_TOPOLOGY}: {exc}; no CPU is taken to be reserved")
    found = []
    if policy.policy:
        found.append(nrt.Attribute(attributes.CPU_MANAGER_POLICY, policy.policy))
    if policy.policy == "none":
        found.append(nrt.Attribute(attributes.MEMORY_MANAGER_POLICY, "None"))
    left_out = _left_out(topology)
    return msgspec.structs.replace(
        topology,
        metadata=msgspec.structs.replace(topology.metadata, annotations=annotations),
        attributes=tuple(found),
        zones=tuple([_zone(zone, reserved, left_out) for zone in topology.zones or ()]),
    )


def _reserved(policy: _Policy, text: str) -> dict[str, int]:
    """How many CPUs of each zone the kubelet gives to no pod."""
    if policy.policy != "static" or not policy.reserved:
        return {}
    found: dict[str, int] = {}
    ids = cpuset.parse(policy.reserved)
    for cpu in msgspec.json.decode(text, type=_Topology).detail:
        if cpu.id in ids:
            name = nrt.zone_name(cpu.node)
            found[name] = found.get(name, 0) + 1
    return found


def _left_out(topology: nrt.NodeResourceTopology) -> frozenset[str]:
    """Hugepages of which every zone says 0."""
    found: dict[str, bool] = {}
    for resource in (one for zone in topology.zones or () for one in zone.resources or ()):
        if resource.name.startswith(HUGEPAGES):
            found[resource.name] = found.get(resource.name, True) and _is_zero(resource.capacity)
    return frozenset(name for name, is_zero in found.items() if is_zero)


def _is_zero(text: str | int) -> bool:
    try:
        return quantity.milli_value(text) == 0
    except ParseError:
        return False


def _zone(zone: nrt.Zone, reserved: Mapping[str, int], left_out: frozenset[str]) -> nrt.Zone:
    kept = [one for one in zone.resources or () if one.name not in left_out]
    if zone.name in reserved:
        kept = [_without(one, reserved[zone.name]) if one.name == "cpu" else one for one in kept]
    return msgspec.structs.replace(zone, resources=tuple(kept))


def _without(cpu: nrt.Resource, reserved: int) -> nrt.Resource:
    """The CPUs of a zone, of which so many are the system's. `node.koordinator.sh/enable-numa-reservation` may have
    taken a share off allocatable already, so the smaller number counts."""
    try:
        capacity, allocatable, available = map(quantity.milli_value, (cpu.capacity, cpu.allocatable, cpu.available))
    except ParseError:
        return cpu
    allocatable = max(0, min(allocatable, capacity - 1000 * reserved))
    return msgspec.structs.replace(
        cpu, allocatable=f"{allocatable}m", available=f"{max(0, min(available, allocatable))}m"
    )
