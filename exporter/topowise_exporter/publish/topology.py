"""The NodeResourceTopology object of this node, from one observation of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from topowise import attributes, cpuset, fingerprint, kubeletconfig, nrt, numaplacement
from topowise.attributes import confirmation, cores, devices, holdings, refused_state_files
from topowise.errors import ParseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.config import Section
from topowise_exporter import exclusions, zones
from topowise_exporter.dra.device_counts import with_devices
from topowise_exporter.dra.slices import Devices
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import Allocations, Device, MemoryBlock, PodAllocation
from topowise_exporter.machine.inventory import Cpu, Machine, NumaNode
from topowise_exporter.publish import device_functions
from topowise_exporter.publish.nested_zones import nested

_MOST_ZONES: Final = 16


class Publishing(Section, frozen=True):
    """What the object says beyond zones."""

    fingerprint_method: Literal["auto", "all", "with-exclusive-resources"] = "auto"
    """Which pods the fingerprint counts; `auto` is `with-exclusive-resources` unless the memory manager is off."""
    holdings: bool = True
    """Ids of CPUs, memory blocks and devices of every pod; topowise-scheduler is exact with them, on counts without."""
    numa_placement: bool = True
    """The numaplacement vectors of RTE 0.25, which scheduler-plugins preempt by (policy single-numa-node only)."""
    placeholder_zones: bool = True
    """Empty zones for NUMA node ids that the machine skips (0, 8): scheduler-plugins up to 0.35 crashes without them at
    the first Guaranteed pod it scores."""
    nested_zones: bool = False
    """Zones of type Socket above the NUMA nodes, and of type PCIeRoot below them for the root complexes that have
    devices; they have no resources."""
    legacy_topology_policies: bool = False
    """The deprecated `topologyPolicies` field, for readers of NRT v1alpha1."""


class Observation(msgspec.Struct, frozen=True):
    """One reading of the node: hardware, configuration, and what the kubelet has given to whom."""

    machine: Machine
    kubelet: KubeletConfiguration
    allocations: Allocations
    devices: Devices = {}
    """Those that pods get by resource claims; none if ResourceSlices are not read."""
    version: str = ""
    """The kubelet's in its own words; "" if it was not asked, and the Node's word is as good."""
    refused_state_files: Mapping[str, str] = {}
    """Why the kubelet would not start again, by file."""
    boot_id: str = ""
    """Of the machine's present boot; "" if the kernel does not tell."""


class Published(msgspec.Struct, frozen=True):
    """The object, the amounts in it, and a line for each thing in the observation that did not add up."""

    topology: nrt.NodeResourceTopology
    accounts: zones.Accounts
    problems: tuple[str, ...]


def build(
    node_name: str,
    seen: Observation,
    publishing: Publishing,
    excluded: Exclusions,
    owner: nrt.OwnerReference | None = None,
) -> Published:
    """The object to publish."""
    allocations = exclusions.apply(excluded, seen.allocations)
    machine = zones.nameable(seen.machine)
    whole = zones.account(machine, allocations, seen.kubelet)
    whole = with_devices(whole, seen.devices, machine, allocations.pods)
    accounts = zones.without(whole, excluded.has_resource)
    problems = list(accounts.problems)
    method = fingerprint_method(seen.kubelet, publishing, excluded)
    on_top = _on_top(seen, allocations, accounts, publishing, method)
    per_zone = _per_zone(machine, allocations, accounts)
    if publishing.numa_placement and seen.kubelet.topologyManagerPolicy == "single-numa-node":
        _add_placement(machine, allocations.pods, on_top, per_zone, problems)
    gaps = _gaps(machine, seen.kubelet.topologyManagerPolicy) if publishing.placeholder_zones else []
    made = [*zones.zones(machine, accounts, per_zone), *gaps]
    if publishing.nested_zones:
        listed = allocations.allocatable.devices
        made = [*nested(made, machine, device_functions.located(machine, listed), listed)]
    topology = nrt.new(
        node_name,
        made,
        (nrt.Attribute(name, text) for name, text in on_top.items()),
        annotations={attributes.PODS_FINGERPRINT_ANNOTATION: on_top[attributes.PODS_FINGERPRINT]},
        owner=owner,
    )
    if publishing.legacy_topology_policies:
        legacy = attributes.legacy_policy(seen.kubelet.topologyManagerPolicy, seen.kubelet.topologyManagerScope)
        topology = msgspec.structs.replace(topology, topologyPolicies=(legacy,))
    return Published(topology, accounts, tuple(problems))


def _gaps(machine: Machine, policy: str) -> list[nrt.Zone]:
    """The empty zones that go with the others. Where scheduler-plugins' filter does not look at the node, its strategy
    LeastNUMANodes tries every set of zones for a pod that fits in none of them, so there may not be many."""
    gaps = zones.placeholders(machine)
    return gaps if policy == "single-numa-node" or len(gaps) + len(machine.nodes) <= _MOST_ZONES else []


def fingerprint_method(
    kubelet: KubeletConfiguration, publishing: Publishing, excluded: Exclusions
) -> fingerprint.Method:
    """Which pods count. With the memory manager off, or memory left out, there is no memory of a Guaranteed pod with
    fractional CPUs to see: it looks exclusive to a scheduler and not to us. Then all pods count."""
    if publishing.fingerprint_method != "auto":
        return publishing.fingerprint_method
    sees_memory = kubelet.memoryManagerPolicy != "None" and not excluded.has_resource("memory")
    return fingerprint.WITH_EXCLUSIVE_RESOURCES if sees_memory else fingerprint.ALL


def _on_top(
    seen: Observation,
    allocations: Allocations,
    accounts: zones.Accounts,
    publishing: Publishing,
    method: fingerprint.Method,
) -> dict[str, str]:
    kubelet = seen.kubelet
    zoned = frozenset(resource for amounts in accounts.amounts.values() for resource in amounts)
    counted = [
        (pod.namespace, pod.name) for pod in allocations.pods if method == fingerprint.ALL or _is_exclusive(pod, zoned)
    ]
    named = {
        attributes.TOPOLOGY_MANAGER_POLICY: kubelet.topologyManagerPolicy,
        attributes.TOPOLOGY_MANAGER_SCOPE: kubelet.topologyManagerScope,
        attributes.CPU_MANAGER_POLICY: kubelet.cpuManagerPolicy,
        attributes.MEMORY_MANAGER_POLICY: kubelet.memoryManagerPolicy,
        attributes.PODS_FINGERPRINT: fingerprint.of(counted),
        attributes.PODS_FINGERPRINT_METHOD: method,
        attributes.KUBELET_CONFIGURATION: kubeletconfig.encode(kubelet),
        attributes.CORES: _spell_cores(seen.machine.cpus),
        **_policy_options(kubelet),
    }
    if seen.version:
        named[attributes.KUBELET_VERSION] = seen.version
    if seen.boot_id:
        named[attributes.BOOT_ID] = seen.boot_id
    if seen.refused_state_files:
        named[attributes.REFUSED_STATE_FILES] = refused_state_files.write(seen.refused_state_files)
    if kubelet.reserved_cpus:
        named[attributes.RESERVED_CPUS] = attributes.write_ids(kubelet.reserved_cpus)
    if accounts.derived:
        named[attributes.DERIVED] = attributes.write_names(accounts.derived)
    if allocations.allocatable.devices or allocations.absent:
        named[attributes.DEVICES] = devices.write(
            (devices.Device(one.resource, one.id, one.nodes) for one in allocations.allocatable.devices),
            empty=(one.resource for one in allocations.absent),
        )
        _add_places(seen.machine, allocations.allocatable.devices, named)
    if allocations.admitting:
        named[attributes.ADMITTING] = confirmation.write_pods(allocations.admitting)
    if publishing.holdings:
        named[attributes.HOLDINGS] = holdings.write(_holdings(allocations))
    return named


def _add_places(machine: Machine, listed: tuple[Device, ...], named: dict[str, str]) -> None:
    text, omitted = device_functions.written(machine, listed)
    if text != "[]":
        named[attributes.PCI] = text
    if omitted:
        named[attributes.PCI_OMITTED] = str(omitted)


@lru_cache(maxsize=2048)
def _is_exclusive(pod: PodAllocation, zoned: frozenset[str]) -> bool:
    """As a scheduler tells it from the pod's spec: CPUs or memory of its own, or a device of a resource that some zone
    has, wherever this one is (scheduler-plugins, resourcerequests.IsExclusive)."""
    return pod.holds_cpus_or_memory or any(device.resource in zoned for device in pod.devices)


def _policy_options(kubelet: KubeletConfiguration) -> dict[str, str]:
    named = {}
    for option, text in (kubelet.topologyManagerPolicyOptions or {}).items():
        named[attributes.option_name(option)] = text
        if option == "max-allowable-numa-nodes":
            named[attributes.TOPOLOGY_MANAGER_MAX_NUMA_NODES] = text
    return named


def _per_zone(machine: Machine, allocations: Allocations, accounts: zones.Accounts) -> dict[int, dict[str, str]]:
    named: dict[int, dict[str, str]] = {}
    for node in machine.nodes:
        mine = named[node.id] = {
            attributes.ZONE_CPUS: attributes.write_ids(node.cpus),
            attributes.ZONE_SOCKETS: attributes.write_ids(socket for socket in node.sockets if socket >= 0),
        }
        mine |= _access(node)
        if node.id in accounts.cpus_available:
            mine[attributes.ZONE_CPUS_AVAILABLE] = attributes.write_ids(accounts.cpus_available[node.id])
        if allocations.free_memory is not None and node.id in allocations.free_memory.cells:
            mine[attributes.MEMORY_CELLS] = attributes.write_ids(allocations.free_memory.cells[node.id])
            mine[attributes.MEMORY_ASSIGNMENTS] = str(allocations.free_memory.assignments[node.id])
    return named


def _access(node: NumaNode) -> dict[str, str]:
    """What the firmware says of the node's memory."""
    if node.access is None:
        return {}
    named = {attributes.MEMORY_INITIATORS: attributes.write_ids(node.access.initiators)}
    if node.access.read_latency_ns is not None:
        named[attributes.MEMORY_READ_LATENCY] = str(node.access.read_latency_ns)
    if node.access.read_bandwidth_mib is not None:
        named[attributes.MEMORY_READ_BANDWIDTH] = str(node.access.read_bandwidth_mib)
    return named


@lru_cache(maxsize=2)
def _spell_cores(cpus: tuple[Cpu, ...]) -> str:
    firsts = [cpu for cpu in cpus if cpu.id == cpu.core]
    on_node = Counter(cpu.node for cpu in firsts)
    return cores.write(cores.Core(cpu.socket, _uncore(cpu, on_node[cpu.node]), cpu.threads) for cpu in firsts)


def _uncore(cpu: Cpu, cores_of_node: int) -> int | None:
    """The L3 by which the kubelet packs CPUs, None where it goes by the socket. cadvisor tells it of no cache without
    an id, and of none that a whole NUMA node shares (utils/sysinfo, addCacheInfo; cpumanager/topology,
    getUncoreCacheID)."""
    is_of_node = cpu.l3 is not None and len(cpu.l3) == cores_of_node * len(cpu.threads)
    return None if is_of_node else cpu.l3_id


def _holdings(allocations: Allocations) -> list[holdings.Pod]:
    listed = [held for pod in allocations.pods if (held := _held_by(pod)) is not None]
    # By uid, as nobody lists them by name: CPUs and devices that finished init containers left their pods.
    uids = allocations.unlisted.keys() | allocations.unlisted_devices.keys()
    unlisted = [holdings.Pod("", uid, (_left_over(uid, allocations),)) for uid in uids]
    return [*listed, *unlisted]


def _left_over(uid: str, allocations: Allocations) -> holdings.Container:
    cpus = cpuset.spell(allocations.unlisted.get(uid, ()))
    return holdings.Container("", cpus, (), _device_ids(allocations.unlisted_devices.get(uid, ())))


# Pods stay the same objects while nothing about them changes, so a change costs the pods it changes.
@lru_cache(maxsize=2048)
def _held_by(pod: PodAllocation) -> holdings.Pod | None:
    """None for a pod that holds nothing."""
    if not pod.holds_cpus_or_memory and not pod.devices:
        return None
    containers = tuple(
        holdings.Container(
            container.name, cpuset.spell(container.cpus), _blocks(container.memory), _device_ids(container.devices)
        )
        for container in pod.containers
        if container.cpus or container.memory or container.devices
    )
    return holdings.Pod(pod.namespace, pod.name, containers, cpuset.spell(pod.own_cpus), _blocks(pod.own_memory))


def _blocks(blocks: Iterable[MemoryBlock]) -> tuple[holdings.Block, ...]:
    return tuple(holdings.Block(block.type, cpuset.spell(block.nodes), block.size) for block in blocks)


def _device_ids(devices: Iterable[Device]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for device in devices:
        found[device.resource] = (*found.get(device.resource, ()), device.id)
    return found


def _add_placement(
    machine: Machine,
    pods: Iterable[PodAllocation],
    on_top: dict[str, str],
    per_zone: Mapping[int, dict[str, str]],
    problems: list[str],
) -> None:
    held = {
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
        metadata, vectors = numaplacement.encode(numaplacement.placements(held, owners), per_zone)
    except numaplacement.PlacementError as exc:
        problems.append(f"{exc}; numaplacement left out")
        return
    on_top[numaplacement.METADATA_ATTRIBUTE] = metadata
    for node_id, vector in vectors.items():
        per_zone[node_id][numaplacement.VECTOR_ATTRIBUTE] = vector


def unconfirmed(topology: nrt.NodeResourceTopology, reasons: Iterable[str]) -> nrt.NodeResourceTopology:
    """The same object, marked as the last true one."""
    kept = (one for one in topology.attributes or () if one.name != attributes.UNCONFIRMED)
    mark = nrt.Attribute(attributes.UNCONFIRMED, confirmation.write_reasons(reasons))
    return msgspec.structs.replace(topology, attributes=tuple(sorted((*kept, mark), key=lambda one: one.name)))


def recalled(topology: nrt.NodeResourceTopology) -> nrt.NodeResourceTopology | None:
    """Of an object on the API server what we would write; None if it is not one of ours."""
    named = nrt.attributes_of(topology.attributes)
    if attributes.KUBELET_CONFIGURATION not in named or topology.apiVersion != nrt.API_VERSION:
        return None
    held = (topology.metadata.annotations or {}).get(attributes.PODS_FINGERPRINT_ANNOTATION)
    owners = tuple(owner for owner in topology.metadata.ownerReferences or () if owner.kind == "Node")
    return msgspec.structs.replace(
        topology,
        kind=nrt.KIND,
        metadata=nrt.Metadata(
            name=topology.metadata.name,
            annotations={attributes.PODS_FINGERPRINT_ANNOTATION: held} if held else None,
            ownerReferences=owners or None,
        ),
        attributes=tuple(one for one in topology.attributes or () if one.name != attributes.UNCONFIRMED),
    )


def owned(topology: nrt.NodeResourceTopology, owner: nrt.OwnerReference | None) -> nrt.NodeResourceTopology:
    """The same object with this owner; without one it keeps the one it has."""
    if owner is None:
        return topology
    return msgspec.structs.replace(
        topology, metadata=msgspec.structs.replace(topology.metadata, ownerReferences=(owner,))
    )


def remembered(topology: nrt.NodeResourceTopology) -> tuple[tuple[Device, ...], frozenset[str]]:
    """What an object tells of the past: devices, and uids of pods that List does not show."""
    named = nrt.attributes_of(topology.attributes)
    try:
        there = devices.read(named.get(attributes.DEVICES, "{}"))
        pods = holdings.read(named.get(attributes.HOLDINGS, "[]"))
    except ParseError:
        # Somebody has written over it.
        return (), frozenset()
    known = tuple(Device(one.resource, one.id, one.nodes) for one in there)
    return known, frozenset(pod.name for pod in pods if not pod.namespace)
