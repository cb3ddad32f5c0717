"""Names of NRT attributes, and the codec of each: the exporter writes and the scheduler reads with the same function.

The first group has the names of the ecosystem (scheduler-plugins, RTE, KAI). Names under `topowise.io/` carry what an
exact prediction of the kubelet needs and the standard lacks; other readers can ignore them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topowise.errors import ParseError

TOPOLOGY_MANAGER_POLICY: Final = "topologyManagerPolicy"
TOPOLOGY_MANAGER_SCOPE: Final = "topologyManagerScope"
TOPOLOGY_MANAGER_MAX_NUMA_NODES: Final = "topologyManagerMaxNUMANodes"
TOPOLOGY_MANAGER_OPTION_PREFIX: Final = "topologyManagerOption"
CPU_MANAGER_POLICY: Final = "cpuManagerPolicy"
MEMORY_MANAGER_POLICY: Final = "memoryManagerPolicy"
PODS_FINGERPRINT: Final = "nodeTopologyPodsFingerprint"
PODS_FINGERPRINT_METHOD: Final = "nodeTopologyPodsFingerprintMethod"

PODS_FINGERPRINT_ANNOTATION: Final = "topology.node.k8s.io/fingerprint"

# Per zone: ids of the online CPUs, and of those that can still be given exclusively.
ZONE_CPUS: Final = "topowise.io/cpus"
ZONE_CPUS_AVAILABLE: Final = "topowise.io/cpus-available"
# Per zone: the physical packages of its CPUs.
ZONE_SOCKETS: Final = "topowise.io/sockets"
# Top level: CPUs that the kubelet reserves for the system.
RESERVED_CPUS: Final = "topowise.io/reserved-cpus"
# Top level: CPU cores, and devices and holdings with their ids; see `cores`, `devices` and `holdings` here.
CORES: Final = "topowise.io/cores"
DEVICES: Final = "topowise.io/devices"
HOLDINGS: Final = "topowise.io/holdings"
# Top level: PCI paths of devices, and the number of devices that are left out to limit the text; see `pci_devices`
# here.
PCI: Final = "topowise.io/pci"
PCI_OMITTED: Final = "topowise.io/pci-omitted"
# Top level, on nodes with devices of resource claims: the NUMA node of each PCIe root; see `pcie_roots` here.
PCIE_ROOTS: Final = "topowise.io/pcie-roots"
# Top level: the fields of the kubelet's configuration that decide placements; see topowise.kubeletconfig.
KUBELET_CONFIGURATION: Final = "topowise.io/kubelet-configuration"
# Top level: the kubelet's version as reported by the kubelet, else by its Node ("v1.33.5").
KUBELET_VERSION: Final = "topowise.io/kubelet-version"
# Top level: id of the machine's boot in which the object was made (sys/kernel/random/boot_id). The Node has the id of
# the present boot in status.nodeInfo.bootID.
BOOT_ID: Final = "topowise.io/boot-id"
# Top level: state files that the kubelet would refuse at its next start; see `refused_state_files` here.
REFUSED_STATE_FILES: Final = "topowise.io/refused-state-files"
# Per zone, with memory manager Static: the nodes of the zone's group, and the number of blocks on it.
MEMORY_CELLS: Final = "topowise.io/memory-cells"
MEMORY_ASSIGNMENTS: Final = "topowise.io/memory-assignments"
# Per zone, if the firmware has an ACPI HMAT: the NUMA nodes with the best access to its memory, and their read latency
# in nanoseconds and bandwidth in MiB/s.
MEMORY_INITIATORS: Final = "topowise.io/memory-initiators"
MEMORY_READ_LATENCY: Final = "topowise.io/memory-read-latency-ns"
MEMORY_READ_BANDWIDTH: Final = "topowise.io/memory-read-bandwidth-mib"
# Top level: resources whose amounts were derived from /sys because the kubelet's manager is off ("cpu,memory").
DERIVED: Final = "topowise.io/derived-from-sysfs"
# Top level: pods whose allocations may be incomplete, and why the object may be outdated; see `confirmation` here.
ADMITTING: Final = "topowise.io/admitting"
UNCONFIRMED: Final = "topowise.io/unconfirmed"
# Per zone: "true" on an empty zone, for an id below the machine's highest NUMA node id that no node has.
ABSENT: Final = "topowise.io/absent"
# Not an attribute, but a prefix of zone resources: they count the devices of the DRA driver whose name follows. Pods
# cannot request them by that name; they name such devices in ResourceClaims.
CLAIMED_DEVICES: Final = "dra.topowise.io/"

POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES: Final = ("container", "pod")

# The level in the deprecated `topologyPolicies`, which NFD and koordlet still write, and the scope that it stands for.
_LEVELS: Final = {"": "container", "containerlevel": "container", "podlevel": "pod"}


def _folded(word: str) -> str:
    return word.replace("-", "").replace("_", "").lower()


# Any spelling is accepted: "SingleNUMANodePodLevel" as in the API definition, "SingleNumaNode" as in KEP-119,
# "single-numa-node" as in the kubelet.
_WORDS: Final = {_folded(policy) + level: (policy, scope) for policy in POLICIES for level, scope in _LEVELS.items()}


def policy_and_scope(attributes: Mapping[str, str], legacy: Iterable[str] | None = None) -> tuple[str, str]:
    """Returns the Topology Manager's policy and scope: from the attributes, else `topologyPolicies`, else the kubelet's
    defaults. Raises ParseError for an unknown policy or scope."""
    words = [word for word in legacy or () if word]
    inherited = next((_WORDS[_folded(word)] for word in words if _folded(word) in _WORDS), None)
    policy, scope = attributes.get(TOPOLOGY_MANAGER_POLICY), attributes.get(TOPOLOGY_MANAGER_SCOPE)
    if policy is not None:
        policy_scope = _WORDS.get(_folded(policy))
        if policy_scope is None:
            raise ParseError(f"attribute {TOPOLOGY_MANAGER_POLICY}", policy, f"one of {', '.join(POLICIES)}")
        level = policy_scope if inherited is None or policy_scope[1] != "container" else inherited
        policy_scope = policy_scope[0], level[1]
    elif words and inherited is None:
        raise ParseError("topologyPolicies", ", ".join(words), "a policy such as SingleNUMANodeContainerLevel")
    else:
        policy_scope = inherited or (POLICIES[0], SCOPES[0])
    if scope is None:
        return policy_scope
    if scope.lower() not in SCOPES:
        raise ParseError(f"attribute {TOPOLOGY_MANAGER_SCOPE}", scope, f"one of {', '.join(SCOPES)}")
    return policy_scope[0], scope.lower()


def option_name(option: str) -> str:
    """Returns the attribute of a Topology Manager option: "prefer-closest-numa-nodes" ->
    "...PreferClosestNumaNodes"."""
    return TOPOLOGY_MANAGER_OPTION_PREFIX + "".join(part.capitalize() for part in option.split("-"))


def write_names(names: Iterable[str]) -> str:
    """Returns resource names sorted, separated by commas."""
    return ",".join(sorted(names))


def read_names(attributes: Mapping[str, str], name: str) -> frozenset[str]:
    """Returns the inverse of `write_names`; empty if the attribute is absent."""
    return frozenset(part for part in attributes.get(name, "").split(",") if part)
