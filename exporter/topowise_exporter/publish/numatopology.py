"""What NUMA plug-ins of other schedulers read: the Numatopology of the node (Volcano), an annotation of each pod (KAI).

Pure.

The Numatopology differs from the object of Volcano's resource-exporter in three points, because of how the plugin reads
it:
- Free CPUs leave out the reserved CPUs by id, and `resReserved` covers only what is not left out that way.
  resource-exporter lists reserved CPUs as free. The plugin then subtracts as many CPUs as `resReserved` says, of its
  own choice (`takeByTopology` of cpu_mng.go): often other CPUs than the kubelet reserves.
- A core is named by its lowest CPU, as in the kubelet. The kernel's core_id repeats on each socket, and the plugin
  allocates all CPUs of a core number together. It also counts a core as free only if the CPU *of that number* is free.
- `podAllocations` names every pod of the kubelet; pods without exclusive CPUs have no containers in it. The plugin
  books each Guaranteed pod that it binds, also with fractional CPUs, until the pod is named here. While a pod is
  missing, the plugin subtracts the CPUs that it guessed for all of them (node_info.go, RefreshNumaSchedulerInfoByCrd).

Go's `omitempty` drops zeros, so CPU 0 of core 0 on socket 0 and node 0 is `{}`. Schema: volcano.sh/apis
pkg/apis/nodeinfo/v1alpha1; reader: volcano pkg/scheduler/plugins/numaaware.

KAI reads the annotation of its own numa-placement-exporter (pkg/npe/placement of KAI-Scheduler, August 2026), and this
is the same: amounts by zone of resources on exactly one NUMA node. CPUs count by their ids. A device or memory block
with several nodes or none is left out, and so is a pod with nothing else. The exporter knows a pod by name only, and a
new pod of that name may be on another node. So the patch contains this node's name as `spec.nodeName`: the API server
refuses to change it, and so accepts the patch for a pod on this node only. If the annotation is unchanged, the patch is
a no-op without a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from topowise import cpuset, nrt
from topowise.quantity import from_milli
from topowise.text import escaped_json
from topowise_exporter import exclusions
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import PodAllocation
from topowise_exporter.publish.topology import Observation

API_VERSION: Final = "nodeinfo.volcano.sh/v1alpha1"
KIND: Final = "Numatopology"
PATH: Final = f"/apis/{API_VERSION}/numatopologies"
TIMESTAMP_ANNOTATION: Final = "timestamp"
ANNOTATION: Final = "kai.scheduler/numa-placement-observed"


class Numatopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`spec` is plain JSON: the exporter only writes it, and compares it with its last write."""

    apiVersion: str = ""
    kind: str = ""
    metadata: nrt.Metadata
    spec: dict[str, Any] = {}


decode = msgspec.json.Decoder(Numatopology).decode


def observed(
    node_name: str, observation: Observation, excluded: Exclusions, owner: nrt.OwnerReference | None = None
) -> Numatopology:
    """Returns the object to publish, without a timestamp. With the CPU manager off no CPU is allocatable: then all
    online CPUs except those of reservedSystemCPUs are free, and the reader subtracts the sum of kubeReserved and
    systemReserved."""
    allocations = exclusions.apply(excluded, observation.allocations)
    kubelet, machine = observation.kubelet, observation.machine
    includes_cpus = not excluded.has_resource("cpu")
    online, allocatable = frozenset(machine.online), allocations.allocatable.cpus
    used = frozenset[int]().union(*allocations.unlisted.values(), *(pod.cpus for pod in allocations.pods))
    free = cpuset.to_text(((allocatable or online) & online) - kubelet.reserved_cpus - used)
    reserved = "0" if allocatable or kubelet.reserved_cpus else from_milli(kubelet.reserved({}).get("cpu", 0))
    spec = {
        "policies": {
            "CPUManagerPolicy": kubelet.cpuManagerPolicy,
            "TopologyManagerPolicy": kubelet.topologyManagerPolicy,
        },
        "resReserved": {"cpu": reserved},
        "numares": {"cpu": _without_zeros(allocatable=free, capacity=len(online))} if includes_cpus else {},
        # The kernel's -1 ("unknown") is below the schema's minimum.
        "cpuDetail": {
            str(cpu.id): _without_zeros(numa=max(0, cpu.node), socket=max(0, cpu.socket), core=cpu.core)
            for cpu in machine.cpus
        },
        **_without_zeros(podAllocations=_pods(allocations.pods if includes_cpus else (), online)),
    }
    metadata = nrt.Metadata(name=node_name, ownerReferences=(owner,) if owner else None)
    return Numatopology(apiVersion=API_VERSION, kind=KIND, metadata=metadata, spec=spec)


def stamped(topology: Numatopology, seconds: int) -> Numatopology:
    """Returns the object with the time of its change, which resource-exporter sets at every update."""
    metadata = msgspec.structs.replace(topology.metadata, annotations={TIMESTAMP_ANNOTATION: str(seconds)})
    return msgspec.structs.replace(topology, metadata=metadata)


def same(current: Numatopology, desired: Numatopology) -> bool:
    """Whether content and owning Node are equal; the timestamp and metadata of other writers do not count."""
    return _node_uids(desired) <= _node_uids(current) and current.spec == desired.spec


def _node_uids(topology: Numatopology) -> frozenset[str]:
    return frozenset(owner.uid for owner in topology.metadata.ownerReferences or () if owner.kind == "Node")


def _without_zeros(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value}


def _pods(pods: Iterable[PodAllocation], online: frozenset[int]) -> list[dict[str, object]]:
    cpus_by_pod: dict[tuple[str, str], dict[str, str]] = {}
    for pod in pods:
        cpus = {container.name: cpuset.to_text(container.cpus & online) for container in pod.containers}
        cpus_by_pod.setdefault(pod.key, {}).update(cpus)
    return [
        _without_zeros(
            name=name,
            namespace=namespace,
            containerAllocations=[
                {"name": container, "allocations": {"cpu": cpus}}
                for container, cpus in sorted(containers.items())
                if cpus
            ],
        )
        for (namespace, name), containers in sorted(cpus_by_pod.items())
    ]


class Zone(msgspec.Struct, frozen=True):
    """A zone of the annotation."""

    zone: str
    amount: dict[str, str]


def placement(pod: PodAllocation, node_of_cpu: Mapping[int, int]) -> str | None:
    """Returns the annotation's text; None if no resource of the pod is on exactly one NUMA node."""
    amounts: dict[int, dict[str, int]] = {}

    def add(node: int, resource: str, amount: int) -> None:
        amounts_of_zone = amounts.setdefault(node, {})
        amounts_of_zone[resource] = amounts_of_zone.get(resource, 0) + amount

    for cpu in pod.cpus:
        if cpu in node_of_cpu:
            add(node_of_cpu[cpu], "cpu", 1)
    for block in pod.memory:
        if len(block.nodes) == 1 and block.size:
            add(block.nodes[0], block.type, block.size)
    for device in pod.devices:
        if len(device.nodes) == 1:
            add(device.nodes[0], device.resource, 1)
    if not amounts:
        return None
    zones = [
        Zone(nrt.zone_name(node), {resource: str(amount) for resource, amount in sorted(amounts_of_zone.items())})
        for node, amounts_of_zone in amounts.items()
    ]
    return escaped_json(str(msgspec.json.encode(sorted(zones, key=lambda zone: zone.zone)), "utf-8"))


def patch(node_name: str, text: str) -> bytes:
    """Returns the merge patch that annotates a pod if it is on the node."""
    return msgspec.json.encode({"metadata": {"annotations": {ANNOTATION: text}}, "spec": {"nodeName": node_name}})
