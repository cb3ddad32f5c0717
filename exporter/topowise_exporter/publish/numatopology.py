"""The Numatopology object of this node, for Volcano's numa-aware plugin. Pure.

Three things differ from Volcano's own resource-exporter, each because of how the plugin reads them:
- Free CPUs leave out the reserved ones, by id, and `resReserved` is only what is not left out that way.
  resource-exporter offers them, and the plugin takes away as many as `resReserved` says, of its own choice
  (`takeByTopology` of cpu_mng.go): often others than the kubelet keeps.
- A core is named by its lowest CPU, as in the kubelet. The kernel's core_id repeats on each socket, and the plugin
  hands out all CPUs of one number together; nor does it take a core for free unless the CPU *of that number* is.
- `podAllocations` names every pod that the kubelet has, those without CPUs of their own with no containers. The plugin
  books each Guaranteed pod that it sends, also one with fractions of CPUs, until the pod is named here, and as long as
  one is missing it takes the CPUs that it guessed for all of them off again (node_info.go,
  RefreshNumaSchedulerInfoByCrd).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topowise import cpuset, nrt, numatopology
from topowise.numaplacement import Container
from topowise.quantity import from_milli
from topowise_exporter import exclusions
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.machine.inventory import Cpu, Machine
from topowise_exporter.publish.topology import Observation


def observed(
    node_name: str, seen: Observation, excluded: Exclusions, owner: nrt.OwnerReference | None = None
) -> numatopology.Numatopology:
    """The object to publish from one reading of the node."""
    allocations = exclusions.apply(excluded, seen.allocations)
    kubelet = seen.kubelet
    unlisted = frozenset[int]().union(*allocations.unlisted.values())
    with_cpus = not excluded.has_resource(numatopology.CPU)
    return build(
        node_name,
        seen.machine,
        cpu_policy=kubelet.cpuManagerPolicy,
        topology_policy=kubelet.topologyManagerPolicy,
        reserved_cpu=from_milli(kubelet.reserved({}).get("cpu", 0)),
        reserved_cpus=kubelet.reserved_cpus,
        allocatable=allocations.allocatable.cpus,
        used=unlisted.union(*(pod.own_cpus for pod in allocations.pods)),
        containers={
            (pod.namespace, pod.name, container.name): container.cpus
            for pod in allocations.pods
            for container in pod.containers
        },
        pods=((pod.namespace, pod.name) for pod in allocations.pods if with_cpus),
        owner=owner,
        with_cpus=with_cpus,
    )


def build(
    node_name: str,
    machine: Machine,
    *,
    cpu_policy: str,
    topology_policy: str,
    reserved_cpu: str,
    reserved_cpus: frozenset[int],
    allocatable: frozenset[int],
    used: frozenset[int],
    containers: Mapping[Container, frozenset[int]],
    pods: Iterable[tuple[str, str]] = (),
    owner: nrt.OwnerReference | None = None,
    with_cpus: bool = True,
) -> numatopology.Numatopology:
    """The object to publish.

    `reserved_cpu` is the quantity that kubeReserved and systemReserved take together, `reserved_cpus` what
    reservedSystemCPUs names. `allocatable` (without reserved ones) and `used` are the kubelet's CPU ids, `containers`
    the exclusive ones of each, `pods` the namespaces and names of all. Without allocatable CPUs (CPU manager `none`)
    all online ones but the named count, and the quantity is left to the reader; `with_cpus=False` says nothing of free
    ones at all. No timestamp is set: the
    writer does that, if it writes.
    """
    online = frozenset(machine.online)
    free = ((allocatable or online) & online) - reserved_cpus - used.union(*containers.values())
    return numatopology.new(
        node_name,
        policies={
            numatopology.CPU_MANAGER_POLICY: cpu_policy,
            numatopology.TOPOLOGY_MANAGER_POLICY: topology_policy,
        },
        reserved={numatopology.CPU: "0" if allocatable or reserved_cpus else reserved_cpu},
        resources={numatopology.CPU: numatopology.ResourceInfo(cpuset.spell(free), len(online))} if with_cpus else {},
        cpus={cpu.id: _info(cpu) for cpu in machine.cpus},
        pods=_pods(containers, online, pods),
        owner=owner,
    )


def same(there: numatopology.Numatopology, wanted: numatopology.Numatopology) -> bool:
    """Content and the owning Node; the time of the change and what others add to the metadata do not count."""
    return _node_uids(wanted) <= _node_uids(there) and numatopology.same_content(there, wanted)


def _node_uids(topology: numatopology.Numatopology) -> frozenset[str]:
    return frozenset(owner.uid for owner in topology.metadata.ownerReferences or () if owner.kind == "Node")


def _info(cpu: Cpu) -> numatopology.CpuInfo:
    # The kernel's -1 ("does not know") is below the schema's minimum.
    return numatopology.CpuInfo(numa=max(0, cpu.node), socket=max(0, cpu.socket), core=cpu.core)


def _pods(
    containers: Mapping[Container, frozenset[int]], online: frozenset[int], pods: Iterable[tuple[str, str]]
) -> Iterable[numatopology.PodAllocation]:
    held: dict[tuple[str, str], list[numatopology.ContainerAllocation]] = {pod: [] for pod in pods}
    for (namespace, pod, container), cpus in containers.items():
        if exclusive := cpus & online:
            allocation = numatopology.ContainerAllocation(container, {numatopology.CPU: cpuset.spell(exclusive)})
            held.setdefault((namespace, pod), []).append(allocation)
    for (namespace, pod), allocations in held.items():
        yield numatopology.PodAllocation(name=pod, namespace=namespace, containerAllocations=tuple(allocations))
