"""The NodeResourceTopology object of this node, from one observation of it. Pure."""

from __future__ import annotations

import msgspec

from topowise import attributes, fingerprint, nrt
from topowise_exporter import zones
from topowise_exporter.kubelet.configuration import KubeletConfiguration
from topowise_exporter.kubelet.model import Allocatable, PodAllocation
from topowise_exporter.machine.model import Machine


class Observation(msgspec.Struct, frozen=True):
    """One look at the node: hardware, configuration, and what the kubelet has given to whom."""

    machine: Machine
    kubelet: KubeletConfiguration
    allocatable: Allocatable
    pods: tuple[PodAllocation, ...]


def build(
    node_name: str, seen: Observation, owner: nrt.OwnerReference | None = None
) -> tuple[nrt.NodeResourceTopology, tuple[str, ...]]:
    """The object to publish, and a line for each thing in the observation that did not add up."""
    accounts = zones.account(seen.machine, seen.allocatable, seen.pods, seen.kubelet)
    named = _attributes(seen, accounts)
    topology = nrt.new(
        node_name,
        zones.zones(seen.machine, accounts),
        (nrt.Attribute(name, text) for name, text in named.items()),
        annotations={attributes.PODS_FINGERPRINT_ANNOTATION: named[attributes.PODS_FINGERPRINT]},
        owner=owner,
    )
    return topology, accounts.problems


def _attributes(seen: Observation, accounts: zones.Accounts) -> dict[str, str]:
    kubelet = seen.kubelet
    method = fingerprint_method(kubelet)
    counted = [(pod.namespace, pod.name) for pod in seen.pods if method == fingerprint.ALL or pod.is_exclusive]
    named = {
        attributes.TOPOLOGY_MANAGER_POLICY: kubelet.topology_manager_policy,
        attributes.TOPOLOGY_MANAGER_SCOPE: kubelet.topology_manager_scope,
        attributes.CPU_MANAGER_POLICY: kubelet.cpu_manager_policy,
        attributes.MEMORY_MANAGER_POLICY: kubelet.memory_manager_policy,
        attributes.PODS_FINGERPRINT: fingerprint.of(counted),
        attributes.PODS_FINGERPRINT_METHOD: method,
    }
    for option, text in kubelet.topology_manager_policy_options.items():
        named[attributes.option_name(option)] = text
    if kubelet.reserved_cpus:
        named[attributes.RESERVED_CPUS] = attributes.write_ids(kubelet.reserved_cpus)
    if accounts.derived:
        named[attributes.DERIVED] = attributes.write_names(accounts.derived)
    return named


def fingerprint_method(kubelet: KubeletConfiguration) -> fingerprint.Method:
    """Which pods count. With the memory manager off kubelet lists no memory, so a Guaranteed pod with fractional CPUs
    looks exclusive to a scheduler and not to us: then all pods count, on which both always agree."""
    return fingerprint.ALL if kubelet.memory_manager_policy == "None" else fingerprint.WITH_EXCLUSIVE_RESOURCES
