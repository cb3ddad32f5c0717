"""The Numatopology object of this node, for Volcano's numa-aware plugin. Pure.

It differs from the object of Volcano's resource-exporter in three points, because of how the plugin reads it:
- Free CPUs leave out the reserved CPUs by id, and `resReserved` covers only what is not left out that way.
  resource-exporter lists reserved CPUs as free. The plugin then subtracts as many CPUs as `resReserved` says, of its
  own choice (`takeByTopology` of cpu_mng.go): often other CPUs than the kubelet reserves.
- A core is named by its lowest CPU, as in the kubelet. The kernel's core_id repeats on each socket, and the plugin
  allocates all CPUs of a core number together. It also counts a core as free only if the CPU *of that number* is free.
- `podAllocations` names every pod of the kubelet; pods without exclusive CPUs have no containers in it. The plugin
  books each Guaranteed pod that it binds, also with fractional CPUs, until the pod is named here. While a pod is
  missing, the plugin subtracts the CPUs that it guessed for all of them (node_info.go, RefreshNumaSchedulerInfoByCrd).
"""

from __future__ import annotations

from collections.abc import Iterable

from topowise import cpuset, nrt, numatopology
from topowise.quantity import from_milli
from topowise_exporter import exclusions
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import PodAllocation
from topowise_exporter.machine.inventory import Cpu
from topowise_exporter.publish.topology import Observation


def observed(
    node_name: str, observation: Observation, excluded: Exclusions, owner: nrt.OwnerReference | None = None
) -> numatopology.Numatopology:
    """Returns the object to publish, without a timestamp: the writer sets it when it writes. With the CPU manager off
    no CPU is allocatable: then all online CPUs except those of reservedSystemCPUs are free, and the reader subtracts
    the sum of kubeReserved and systemReserved."""
    allocations = exclusions.apply(excluded, observation.allocations)
    kubelet, machine = observation.kubelet, observation.machine
    includes_cpus = not excluded.has_resource(numatopology.CPU)
    online, allocatable = frozenset(machine.online), allocations.allocatable.cpus
    used = frozenset[int]().union(*allocations.unlisted.values(), *(pod.cpus for pod in allocations.pods))
    free = cpuset.to_text(((allocatable or online) & online) - kubelet.reserved_cpus - used)
    reserved = "0" if allocatable or kubelet.reserved_cpus else from_milli(kubelet.reserved({}).get("cpu", 0))
    return numatopology.new(
        node_name,
        policies={
            numatopology.CPU_MANAGER_POLICY: kubelet.cpuManagerPolicy,
            numatopology.TOPOLOGY_MANAGER_POLICY: kubelet.topologyManagerPolicy,
        },
        reserved={numatopology.CPU: reserved},
        resources={numatopology.CPU: numatopology.ResourceInfo(free, len(online))} if includes_cpus else {},
        cpus={cpu.id: _info(cpu) for cpu in machine.cpus},
        pods=_pods(allocations.pods if includes_cpus else (), online),
        owner=owner,
    )


def same(current: numatopology.Numatopology, desired: numatopology.Numatopology) -> bool:
    """Whether content and owning Node are equal; the timestamp and metadata of other writers do not count."""
    return _node_uids(desired) <= _node_uids(current) and numatopology.same_content(current, desired)


def _node_uids(topology: numatopology.Numatopology) -> frozenset[str]:
    return frozenset(owner.uid for owner in topology.metadata.ownerReferences or () if owner.kind == "Node")


def _info(cpu: Cpu) -> numatopology.CpuInfo:
    # The kernel's -1 ("unknown") is below the schema's minimum.
    return numatopology.CpuInfo(numa=max(0, cpu.node), socket=max(0, cpu.socket), core=cpu.core)


def _pods(pods: Iterable[PodAllocation], online: frozenset[int]) -> Iterable[numatopology.PodAllocation]:
    cpus_by_pod: dict[tuple[str, str], dict[str, frozenset[int]]] = {}
    for pod in pods:
        cpus = {container.name: container.cpus & online for container in pod.containers}
        cpus_by_pod.setdefault((pod.namespace, pod.name), {}).update(cpus)
    for (namespace, name), containers in cpus_by_pod.items():
        allocations = [
            numatopology.ContainerAllocation(container, {numatopology.CPU: cpuset.to_text(cpus)})
            for container, cpus in containers.items()
            if cpus
        ]
        yield numatopology.PodAllocation(name=name, namespace=namespace, containerAllocations=tuple(allocations))
