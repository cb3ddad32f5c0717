"""Builds the NodeResourceTopology object of this node from an observation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from topowise import attributes, cpuset, fingerprint, kubeletconfig, nrt, numaplacement
from topowise.attributes import confirmation, cores, devices, holdings, pci_devices
from topowise.errors import ParseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.config import Section
from topowise_exporter import exclusions, zones
from topowise_exporter.dra.slices import Devices, numa_nodes_of_roots, with_devices
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import Allocations, Device, MemoryBlock, PodAllocation
from topowise_exporter.machine.inventory import Cpu, Machine, NumaNode
from topowise_exporter.publish import device_functions
from topowise_exporter.publish.device_functions import nested

_MOST_ZONES: Final = 16


class Publishing(Section, frozen=True):
    """Content of the object beyond zones."""

    fingerprint_method: Literal["auto", "all", "with-exclusive-resources"] = "auto"
    """Pods that the fingerprint counts; `auto` is `with-exclusive-resources` unless the memory manager is off."""
    holdings: bool = True
    """Publish ids of CPUs, memory blocks and devices of every pod. topowise-scheduler predicts exactly with them, by
    amounts without."""
    nested_zones: bool = False
    """Publish zones of type Socket above the NUMA nodes, and of type PCIeRoot below them for root complexes with
    devices. These zones have no resources."""


class Observation(msgspec.Struct, frozen=True):
    """The node as read in a sync: hardware, kubelet configuration and allocations."""

    machine: Machine
    kubelet: KubeletConfiguration
    allocations: Allocations
    devices: Devices = {}
    """Devices of resource claims (DRA); empty if ResourceSlices are not read."""
    version: str = ""
    """The kubelet's version as reported by the kubelet; "" if it was not asked, then the Node's version counts."""
    refused_state_files: Mapping[str, str] = {}
    """State file -> why the kubelet would refuse it at its next start."""
    boot_id: str = ""
    """Id of the machine's present boot; "" if the kernel does not show it."""


class Published(msgspec.Struct, frozen=True):
    """The object, the amounts in it, and a line for each inconsistency in the observation."""

    topology: nrt.NodeResourceTopology
    accounts: zones.Accounts
    problems: tuple[str, ...]


def build(
    node_name: str,
    observation: Observation,
    publishing: Publishing,
    excluded: Exclusions,
    owner: nrt.OwnerReference | None = None,
) -> Published:
    """Returns the object to publish."""
    allocations = exclusions.apply(excluded, observation.allocations)
    machine = zones.nameable(observation.machine)
    accounts_of_all = zones.account(machine, allocations, observation.kubelet)
    accounts_of_all = with_devices(accounts_of_all, observation.devices, machine, allocations.pods)
    accounts = zones.without(accounts_of_all, excluded.has_resource)
    problems = list(accounts.problems)
    method = fingerprint_method(observation.kubelet, publishing, excluded)
    node_attributes = _node_attributes(observation, allocations, accounts, publishing, method)
    zone_attributes = _zone_attributes(machine, allocations, accounts)
    # The vectors of RTE 0.25, by which scheduler-plugins preempts.
    if observation.kubelet.topologyManagerPolicy == "single-numa-node":
        _add_placement(machine, allocations.pods, node_attributes, zone_attributes, problems)
    gaps = _gaps(machine, observation.kubelet.topologyManagerPolicy)
    zone_list = [*zones.zones(machine, accounts, zone_attributes), *gaps]
    if publishing.nested_zones:
        listed = allocations.allocatable.devices
        zone_list = [
            *nested(zone_list, machine, device_functions.located(machine.pci, machine.pci_names, listed), listed)
        ]
    topology = nrt.new(
        node_name,
        zone_list,
        (nrt.Attribute(name, text) for name, text in node_attributes.items()),
        annotations={attributes.PODS_FINGERPRINT_ANNOTATION: node_attributes[attributes.PODS_FINGERPRINT]},
        owner=owner,
    )
    return Published(topology, accounts, tuple(problems))


def _gaps(machine: Machine, policy: str) -> list[nrt.Zone]:
    """Returns empty zones for NUMA node ids that the machine skips (0, 8): without them scheduler-plugins up to 0.35
    crashes when it scores the first Guaranteed pod. Where its filter does not reject the node, its strategy
    LeastNUMANodes tries every set of zones for a pod that fits none of them. So there must not be many zones."""
    gaps = zones.placeholders(machine)
    return gaps if policy == "single-numa-node" or len(gaps) + len(machine.nodes) <= _MOST_ZONES else []


def fingerprint_method(
    kubelet: KubeletConfiguration, publishing: Publishing, excluded: Exclusions
) -> fingerprint.Method:
    """Returns which pods the fingerprint counts. With the memory manager off, or memory excluded, the exporter sees no
    memory of a Guaranteed pod with fractional CPUs. Such a pod has exclusive resources for a scheduler and not for the
    exporter. Then all pods count."""
    if publishing.fingerprint_method != "auto":
        return publishing.fingerprint_method
    sees_memory = kubelet.memoryManagerPolicy != "None" and not excluded.has_resource("memory")
    return fingerprint.WITH_EXCLUSIVE_RESOURCES if sees_memory else fingerprint.ALL


def _node_attributes(
    observation: Observation,
    allocations: Allocations,
    accounts: zones.Accounts,
    publishing: Publishing,
    method: fingerprint.Method,
) -> dict[str, str]:
    kubelet = observation.kubelet
    zone_resources = frozenset(resource for amounts in accounts.amounts.values() for resource in amounts)
    fingerprint_pods = [
        pod.key for pod in allocations.pods if method == fingerprint.ALL or _is_exclusive(pod, zone_resources)
    ]
    node_attributes = {
        attributes.TOPOLOGY_MANAGER_POLICY: kubelet.topologyManagerPolicy,
        attributes.TOPOLOGY_MANAGER_SCOPE: kubelet.topologyManagerScope,
        attributes.CPU_MANAGER_POLICY: kubelet.cpuManagerPolicy,
        attributes.MEMORY_MANAGER_POLICY: kubelet.memoryManagerPolicy,
        attributes.PODS_FINGERPRINT: fingerprint.of(fingerprint_pods),
        attributes.PODS_FINGERPRINT_METHOD: method,
        attributes.KUBELET_CONFIGURATION: kubeletconfig.encode(kubelet),
        attributes.CORES: _cores_text(observation.machine.cpus),
        **_policy_options(kubelet),
    }
    if observation.version:
        node_attributes[attributes.KUBELET_VERSION] = observation.version
    if observation.boot_id:
        node_attributes[attributes.BOOT_ID] = observation.boot_id
    if observation.refused_state_files:
        node_attributes[attributes.REFUSED_STATE_FILES] = confirmation.refused_text(observation.refused_state_files)
    if kubelet.reserved_cpus:
        node_attributes[attributes.RESERVED_CPUS] = cpuset.to_text(kubelet.reserved_cpus)
    if accounts.derived:
        node_attributes[attributes.DERIVED] = attributes.write_names(accounts.derived)
    if allocations.allocatable.devices or allocations.absent:
        node_attributes[attributes.DEVICES] = devices.write(
            allocations.allocatable.devices, empty=(device.resource for device in allocations.absent)
        )
        _add_pci_functions(observation.machine, allocations.allocatable.devices, node_attributes)
    if observation.devices and (roots := pci_devices.write_roots(numa_nodes_of_roots(observation.machine))):
        node_attributes[attributes.PCIE_ROOTS] = roots
    if allocations.admitting:
        node_attributes[attributes.ADMITTING] = confirmation.write_pods(allocations.admitting)
    if publishing.holdings:
        node_attributes[attributes.HOLDINGS] = holdings.write(_holdings(allocations))
    return node_attributes


def _add_pci_functions(machine: Machine, devices: tuple[Device, ...], node_attributes: dict[str, str]) -> None:
    text, omitted = device_functions.written(machine.pci, machine.pci_names, devices)
    if text != "[]":
        node_attributes[attributes.PCI] = text
    if omitted:
        node_attributes[attributes.PCI_OMITTED] = str(omitted)


@lru_cache(maxsize=2048)
def _is_exclusive(pod: PodAllocation, zone_resources: frozenset[str]) -> bool:
    """Whether a scheduler counts the pod as exclusive by its spec: CPUs or memory of its own, or a device of a resource
    that any zone has (scheduler-plugins, resourcerequests.IsExclusive)."""
    return pod.holds_cpus_or_memory or any(device.resource in zone_resources for device in pod.devices)


def _policy_options(kubelet: KubeletConfiguration) -> dict[str, str]:
    named = {}
    for option, text in (kubelet.topologyManagerPolicyOptions or {}).items():
        named[attributes.option_name(option)] = text
        if option == "max-allowable-numa-nodes":
            named[attributes.TOPOLOGY_MANAGER_MAX_NUMA_NODES] = text
    return named


def _zone_attributes(machine: Machine, allocations: Allocations, accounts: zones.Accounts) -> dict[int, dict[str, str]]:
    named: dict[int, dict[str, str]] = {}
    for node in machine.nodes:
        mine = named[node.id] = {
            attributes.ZONE_CPUS: cpuset.to_text(node.cpus),
            attributes.ZONE_SOCKETS: cpuset.to_text(socket for socket in node.sockets if socket >= 0),
        }
        mine |= _access(node)
        if node.id in accounts.cpus_available:
            mine[attributes.ZONE_CPUS_AVAILABLE] = cpuset.to_text(accounts.cpus_available[node.id])
        if allocations.free_memory is not None and node.id in allocations.free_memory.cells:
            mine[attributes.MEMORY_CELLS] = cpuset.to_text(allocations.free_memory.cells[node.id])
            mine[attributes.MEMORY_ASSIGNMENTS] = str(allocations.free_memory.assignments[node.id])
    return named


def _access(node: NumaNode) -> dict[str, str]:
    """What the firmware says of the node's memory."""
    if node.access is None:
        return {}
    named = {attributes.MEMORY_INITIATORS: cpuset.to_text(node.access.initiators)}
    if node.access.read_latency_ns is not None:
        named[attributes.MEMORY_READ_LATENCY] = str(node.access.read_latency_ns)
    if node.access.read_bandwidth_mib is not None:
        named[attributes.MEMORY_READ_BANDWIDTH] = str(node.access.read_bandwidth_mib)
    return named


@lru_cache(maxsize=2)
def _cores_text(cpus: tuple[Cpu, ...]) -> str:
    return cores.write(cores.Core(cpu.socket, cpu.uncore, cpu.threads) for cpu in cpus if cpu.id == cpu.core)


def _holdings(allocations: Allocations) -> list[holdings.Pod]:
    listed = [pod_holdings for pod in allocations.pods if (pod_holdings := _pod_holdings(pod)) is not None]
    # CPUs and devices of finished init containers are known by the pod's UID only.
    uids = allocations.unlisted.keys() | allocations.unlisted_devices.keys()
    unlisted = [holdings.Pod("", uid, (_left_over(uid, allocations),)) for uid in uids]
    return [*listed, *unlisted]


def _left_over(uid: str, allocations: Allocations) -> holdings.Container:
    cpus = cpuset.to_text(allocations.unlisted.get(uid, ()))
    return holdings.Container("", cpus, (), _device_ids(allocations.unlisted_devices.get(uid, ())))


# PodAllocation objects stay the same while the pod does not change, so the cache converts changed pods only.
@lru_cache(maxsize=2048)
def _pod_holdings(pod: PodAllocation) -> holdings.Pod | None:
    """Returns the pod's holdings, None for a pod without any."""
    if not pod.holds_cpus_or_memory and not pod.devices:
        return None
    containers = tuple(
        holdings.Container(
            container.name, cpuset.to_text(container.cpus), _blocks(container.memory), _device_ids(container.devices)
        )
        for container in pod.containers
        if container.cpus or container.memory or container.devices
    )
    return holdings.Pod(pod.namespace, pod.name, containers, cpuset.to_text(pod.own_cpus), _blocks(pod.own_memory))


def _blocks(blocks: Iterable[MemoryBlock]) -> tuple[holdings.Block, ...]:
    return tuple(holdings.Block(block.type, cpuset.to_text(block.nodes), block.size) for block in blocks)


def _device_ids(devices: Iterable[Device]) -> dict[str, tuple[str, ...]]:
    ids: dict[str, tuple[str, ...]] = {}
    for device in devices:
        ids[device.resource] = (*ids.get(device.resource, ()), device.id)
    return ids


def _add_placement(
    machine: Machine,
    pods: Iterable[PodAllocation],
    node_attributes: dict[str, str],
    zone_attributes: Mapping[int, dict[str, str]],
    problems: list[str],
) -> None:
    containers = {
        (pod.namespace, pod.name, container.name): numaplacement.Holdings(
            cpus=tuple(sorted(container.cpus)),
            devices=tuple(device.nodes for device in container.devices),
            memory=tuple(block.nodes for block in container.memory),
        )
        for pod in pods
        for container in pod.containers
        if container.cpus or container.devices or container.memory
    }
    owners = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    try:
        metadata, vectors = numaplacement.encode(numaplacement.placements(containers, owners), zone_attributes)
    except numaplacement.PlacementError as exc:
        problems.append(f"{exc}; numaplacement left out")
        return
    node_attributes[numaplacement.METADATA_ATTRIBUTE] = metadata
    for node_id, vector in vectors.items():
        zone_attributes[node_id][numaplacement.VECTOR_ATTRIBUTE] = vector


def unconfirmed(topology: nrt.NodeResourceTopology, reasons: Iterable[str]) -> nrt.NodeResourceTopology:
    """Returns the object, marked as the last complete object."""
    others = (attribute for attribute in topology.attributes or () if attribute.name != attributes.UNCONFIRMED)
    mark = nrt.Attribute(attributes.UNCONFIRMED, confirmation.write_reasons(reasons))
    return msgspec.structs.replace(
        topology, attributes=tuple(sorted((*others, mark), key=lambda attribute: attribute.name))
    )


def recalled(topology: nrt.NodeResourceTopology) -> nrt.NodeResourceTopology | None:
    """Returns our part of an object on the API server; None if topowise did not write it."""
    node_attributes = nrt.attributes_of(topology.attributes)
    if attributes.KUBELET_CONFIGURATION not in node_attributes or topology.apiVersion != nrt.API_VERSION:
        return None
    pods_fingerprint = (topology.metadata.annotations or {}).get(attributes.PODS_FINGERPRINT_ANNOTATION)
    owners = tuple(owner for owner in topology.metadata.ownerReferences or () if owner.kind == "Node")
    return msgspec.structs.replace(
        topology,
        kind=nrt.KIND,
        metadata=nrt.Metadata(
            name=topology.metadata.name,
            annotations={attributes.PODS_FINGERPRINT_ANNOTATION: pods_fingerprint} if pods_fingerprint else None,
            ownerReferences=owners or None,
        ),
        attributes=tuple(
            attribute for attribute in topology.attributes or () if attribute.name != attributes.UNCONFIRMED
        ),
    )


def owned(topology: nrt.NodeResourceTopology, owner: nrt.OwnerReference | None) -> nrt.NodeResourceTopology:
    """Returns the object with this owner; with None the object keeps its owner."""
    if owner is None:
        return topology
    return msgspec.structs.replace(
        topology, metadata=msgspec.structs.replace(topology.metadata, ownerReferences=(owner,))
    )


def remembered(topology: nrt.NodeResourceTopology) -> tuple[tuple[Device, ...], frozenset[str]]:
    """Returns the devices in an object, and the UIDs of pods that List does not show."""
    node_attributes = nrt.attributes_of(topology.attributes)
    try:
        listed_devices = devices.read(node_attributes.get(attributes.DEVICES, "{}"))
        pods = holdings.read(node_attributes.get(attributes.HOLDINGS, "[]"))
    except ParseError:
        # Another writer has overwritten the attribute.
        return (), frozenset()
    return listed_devices, frozenset(pod.name for pod in pods if not pod.namespace)
