"""What RTE, NFD's topology updater and koordlet write of a node whose kubelet is the model, as JSON.

Written after their sources: resource-topology-exporter ef567ef3 (pkg/resourcemonitor, pkg/nrtupdater) with 0.25.0's
numaplacement, node-feature-discovery 76e6cc8c (pkg/resourcemonitor, pkg/nfd-topology-updater), koordinator a7a1b76b
(pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go). Go iterates maps in random order, so lists that are
made of maps come shuffled. Pods of these nodes have no init containers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, NamedTuple

from topowise import cpuset, fingerprint, nrt, numaplacement
from topowise_scheduler.kubelet import Kubelet, Machine
from topowise_scheduler.kubelet.machine import hugepages_resource
from topowise_scheduler.kubelet.masks import members

Json = dict[str, Any]
NameOf = Callable[[str], tuple[str, str]]
"""Namespace and name of a pod by its uid."""

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def decimal_si(number: int) -> str:
    """As resource.NewQuantity(n, DecimalSI) comes out of the API server: 1000 is "1k"."""
    return _canonical(number, 1000, _DECIMAL)


def binary_si(number: int) -> str:
    """As resource.NewQuantity(n, BinarySI): 1024 is "1Ki"; below that the decimal suffixes are none either."""
    return _canonical(number, 1024, _BINARY)


def _canonical(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while number and number % base == 0 and power + 1 < len(suffixes):
        number, power = number // base, power + 1
    return f"{number}{suffixes[power]}"


class Node(NamedTuple):
    """A node as a producer sees it. `holding` are the pods of podresources' List, None for all that run."""

    machine: Machine
    kubelet: Kubelet
    name_of: NameOf
    holding: Collection[str] | None = None

    @property
    def pods(self) -> list[str]:
        """Uids of the pods of List."""
        return sorted(self.kubelet.active if self.holding is None else self.holding)


Amounts = dict[int, dict[str, int]]
"""By NUMA node id and resource: CPUs, bytes, devices."""


def allocatable(kubelet: Kubelet) -> Amounts:
    """Returns the kubelet's GetAllocatableResources, added up; a manager that is off lists nothing."""
    amounts: Amounts = {numa_id: {} for numa_id in kubelet.node_ids}
    for position, numa_id in enumerate(kubelet.node_ids):
        own = amounts[numa_id]
        if kubelet.cpu is not None:
            own["cpu"] = (kubelet.topology.numa_cpus[position] & ~kubelet.cpu.policy.reserved).bit_count()
        if kubelet.memory is not None:
            for name, most in kubelet.memory.policy.allocatable.items():
                if most[position]:
                    own[name] = most[position]
        for name, table in kubelet.devices.tables.items():
            if count := (table.near[position] & table.healthy).bit_count():
                own[name] = count
    return amounts


def used(node: Node) -> Amounts:
    """What containers hold. A block of memory over several nodes counts in full on each, as RTE has it."""
    kubelet = node.kubelet
    amounts: Amounts = {numa_id: Counter() for numa_id in kubelet.node_ids}
    for uid in node.pods:
        for placed in kubelet.placements(uid).values():
            for position, numa_id in enumerate(kubelet.node_ids):
                cpus = (kubelet.topology.numa_cpus[position] & (placed.cpus or 0)).bit_count()
                amounts[numa_id]["cpu"] += cpus
                for name, ids in placed.devices.items():
                    table = kubelet.devices.tables[name]
                    amounts[numa_id][name] += (table.select(ids) & table.near[position]).bit_count()
            for block in placed.memory:
                for numa_id in block.numa:
                    amounts[numa_id][block.type] += block.size
    return amounts


def holds_locally(node: Node, uid: str) -> bool:
    """numalocality.Verify: whether the pod has CPUs, memory or devices of some NUMA node."""
    return any(
        placed.cpus or any(block.size for block in placed.memory) or any(placed.devices.values())
        for placed in node.kubelet.placements(uid).values()
    )


def capacity(machine: Machine) -> Amounts:
    """By /sys: CPUs, MemTotal with hugepages in it, hugepages."""
    return {
        node.id: {
            "cpu": sum(len(core.threads) for core in node.cores),
            "memory": node.memory,
            **{hugepages_resource(kib): kib * 1024 * count for kib, count in node.hugepages.items()},
        }
        for node in machine.nodes()
    }


def policy_of(kubelet: Kubelet) -> tuple[str, str]:
    """Policy and scope of the Topology Manager."""
    return kubelet.settings.topology.policy, kubelet.settings.topology.scope


def _costs(machine: Machine, numa_id: int) -> list[Json]:
    row = next(node.distances for node in machine.nodes() if node.id == numa_id)
    return [{"name": nrt.zone_name(neighbour), "value": cost} for neighbour, cost in enumerate(row or ())]


def _zones(node: Node, rng: Random, *, floor: bool, fallback: str) -> list[Json]:
    has, may, holds = capacity(node.machine), allocatable(node.kubelet), used(node)
    zones = []
    for numa_id in node.kubelet.node_ids:
        resources = []
        for name, amount in (may[numa_id] or {fallback: 0}).items():
            free = amount - holds[numa_id][name]
            resources.append(
                {
                    "name": name,
                    "capacity": decimal_si(max(has[numa_id].get(name) or amount, amount)),
                    "allocatable": decimal_si(amount),
                    "available": decimal_si(max(0, free) if floor else free),
                }
            )
        rng.shuffle(resources)
        zones.append(
            {
                "name": nrt.zone_name(numa_id),
                "type": "Node",
                "costs": _costs(node.machine, numa_id),
                "resources": resources,
            }
        )
    return zones


def _pairs(named: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in named.items()]


def rte(node: Node, rng: Random, method: str | None = "with-exclusive-resources", *, trigger: str = "periodic") -> Json:
    """What RTE 0.25.0 sends with a create or update; `method` None is `--pods-fingerprint=false`."""
    policy, scope = policy_of(node.kubelet)
    named: dict[str, str] = {}
    annotations = {"k8stopoawareschedwg/rte-update": trigger}
    zones = _zones(node, rng, floor=True, fallback="cpu")
    if method is not None:
        counted = [uid for uid in node.pods if method == "all" or holds_locally(node, uid)]
        digest = fingerprint.of(node.name_of(uid) for uid in counted)
        named["nodeTopologyPodsFingerprint"] = digest
        named["nodeTopologyPodsFingerprintMethod"] = method
        annotations["topology.node.k8s.io/fingerprint"] = digest
        if policy == "single-numa-node":
            where = _where(node)
            named[numaplacement.METADATA_ATTRIBUTE], vectors = numaplacement.encode(where, node.kubelet.node_ids)
            for zone in zones:
                vector = vectors.get(nrt.zone_id(zone["name"]) or 0)
                if vector is not None:
                    zone["attributes"] = _pairs({numaplacement.VECTOR_ATTRIBUTE: vector})
    named["topologyManagerScope"] = scope
    named["topologyManagerPolicy"] = policy
    return {
        "apiVersion": nrt.API_VERSION,
        "kind": nrt.KIND,
        "metadata": {
            "name": "n1",
            "annotations": annotations,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}],
        },
        "zones": zones,
        "attributes": _pairs(named),
    }


def _where(node: Node) -> dict[numaplacement.Container, int]:
    zones = {}
    for uid in node.pods:
        for container, placed in node.kubelet.placements(uid).items():
            if placed.numa and len(placed.numa) == 1 and holds_locally(node, uid):
                zones[(*node.name_of(uid), container)] = placed.numa[0]
    return zones


_LEGACY = {
    ("best-effort", "container"): "BestEffortContainerLevel",
    ("best-effort", "pod"): "BestEffortPodLevel",
    ("restricted", "container"): "RestrictedContainerLevel",
    ("restricted", "pod"): "RestrictedPodLevel",
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
}


def nfd(node: Node, rng: Random, *, with_fingerprint: bool = True, kinds: Mapping[str, str] | None = None) -> Json:
    """What nfd-topology-updater applies. `kinds` are the CPU lists of hybrid machines ("cpu_core": "0-7")."""
    policy, scope = policy_of(node.kubelet)
    zones = _zones(node, rng, floor=False, fallback="cpu")
    rng.shuffle(zones)
    named = {"topologyManagerPolicy": policy, "topologyManagerScope": scope, **(kinds or {})}
    if with_fingerprint and node.pods:
        named["nodeTopologyPodsFingerprint"] = fingerprint.of(node.name_of(uid) for uid in node.pods)
    return {
        "apiVersion": nrt.API_VERSION,
        "kind": nrt.KIND,
        "metadata": {
            "name": "n1",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "node-feature-discovery", "uid": "uid-ns"}
            ],
        },
        "topologyPolicies": [_LEGACY.get((policy, scope), "None")],
        "zones": zones,
        "attributes": _pairs(named),
    }


def koordlet(
    node: Node,
    before: Json | None = None,
    *,
    cpu_manager: Mapping[str, Any] | None = None,
    hugepages: bool = False,
) -> Json:
    """What koordlet writes by its v1alpha1 client over an object that is there: totals, whatever runs.

    `cpu_manager` is the kubelet's (policy, options, reservedCPUs), None with DisableQueryKubeletConfig; `hugepages` is
    the gate HugePageReport.
    """
    policy, scope = policy_of(node.kubelet)
    zones = []
    details = []
    for numa in node.machine.nodes():
        pages = {
            kib: kib * 1024 * count if hugepages else 0
            for kib, count in {2048: 0, 1048576: 0, **numa.hugepages}.items()
        }
        totals = {
            "cpu": decimal_si(sum(len(core.threads) for core in numa.cores)),
            "hugepages-1Gi": binary_si(pages[1048576]),
            "hugepages-2Mi": binary_si(pages[2048]),
            "memory": binary_si(numa.memory - sum(pages.values())),
        }
        resources = [{"name": name, **dict.fromkeys(_THREE, total)} for name, total in sorted(totals.items())]
        # MergeZoneList: other resources stay, at what is allocatable of them; costs and attributes do not.
        resources += [
            {"name": resource["name"], **dict.fromkeys(_THREE, resource["allocatable"])}
            for resource in _resources(before, nrt.zone_name(numa.id))
            if resource["name"] not in totals
        ]
        resources.sort(key=lambda resource: str(resource["name"]))
        zones.append({"name": nrt.zone_name(numa.id), "type": "Node", "resources": resources})
        details += [
            {"id": cpu, "core": min(core.threads), "socket": core.socket, "node": numa.id}
            for core in numa.cores
            for cpu in core.threads
        ]
    metadata = {"name": "n1", **((before or {}).get("metadata") or {})}
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        "kubelet.koordinator.sh/cpu-manager-policy": _compact({k: v for k, v in (cpu_manager or {}).items() if v}),
        "node.koordinator.sh/be-cpu-shared-pools": _compact(_pools(node.kubelet, 0)),
        "node.koordinator.sh/cpu-basic-info": _compact({"cpuModel": "XXX", "hyperThreadEnabled": True}),
        "node.koordinator.sh/cpu-shared-pools": _compact(_pools(node.kubelet, _bound(node))),
        "node.koordinator.sh/cpu-topology": _compact({"detail": sorted(details, key=lambda detail: detail["id"])}),
        "node.koordinator.sh/pod-cpu-allocs": _compact(_allocs(node) or None),
        "node.koordinator.sh/reservation": "{}",
        "node.koordinator.sh/system-qos-resource": "null",
    }
    if before is None:
        metadata["labels"] = {"app.kubernetes.io/managed-by": "Koordinator"}
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    queried = cpu_manager is not None
    return {
        "apiVersion": f"{nrt.GROUP}/{nrt.OLD_VERSION}",
        "kind": nrt.KIND,
        "metadata": metadata,
        "topologyPolicies": [_LEGACY.get((policy, scope), "None") if queried else "None"],
        "zones": zones,
    }


_THREE = ("capacity", "allocatable", "available")


def _resources(topology: Json | None, zone: str) -> list[Json]:
    return [
        resource
        for zone_object in (topology or {}).get("zones") or ()
        if zone_object["name"] == zone
        for resource in zone_object.get("resources") or ()
    ]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _bound(node: Node) -> int:
    bits = 0
    for uid in node.pods:
        for placed in node.kubelet.placements(uid).values():
            bits |= placed.cpus or 0
    return bits


def _pools(kubelet: Kubelet, without: int) -> list[Json]:
    return [
        {"socket": numa_id, "node": numa_id, "cpuset": cpuset.to_text(members(cpus & ~without))}
        for numa_id, cpus in zip(kubelet.node_ids, kubelet.topology.numa_cpus, strict=True)
        if cpus & ~without
    ]


def _allocs(node: Node) -> list[Json]:
    allocations = []
    for uid in node.pods:
        cpus = _bound(node._replace(holding=[uid]))
        if cpus:
            namespace, name = node.name_of(uid)
            ids = cpuset.to_text(members(cpus))
            allocations.append(
                {"namespace": namespace, "name": name, "uid": uid, "cpuset": ids, "managedByKubelet": True}
            )
    return allocations
