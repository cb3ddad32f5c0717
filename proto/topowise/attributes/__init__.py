"""Names of NRT attributes and the codec of each: what the exporter writes, the scheduler reads with the same function.

The first group is the ecosystem's, verbatim (scheduler-plugins, RTE, KAI). Names under `topowise.io/` carry what an
exact prediction of the kubelet needs and the standard lacks; a reader that does not know them loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topowise import cpuset
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
# Per zone: the physical packages its CPUs belong to.
ZONE_SOCKETS: Final = "topowise.io/sockets"
# On top: CPUs the kubelet keeps for the system.
RESERVED_CPUS: Final = "topowise.io/reserved-cpus"
# On top: how CPUs form cores, and devices and holdings with their ids; see `cores`, `devices` and `holdings` here.
CORES: Final = "topowise.io/cores"
DEVICES: Final = "topowise.io/devices"
HOLDINGS: Final = "topowise.io/holdings"
# On top: where devices are on the PCI buses, and of how many that is left out as the text would be too long; see
# `pci_devices` here.
PCI: Final = "topowise.io/pci"
PCI_OMITTED: Final = "topowise.io/pci-omitted"
# On top: the kubelet's configuration as far as it decides placements; see topowise.kubeletconfig.
KUBELET_CONFIGURATION: Final = "topowise.io/kubelet-configuration"
# On top: the kubelet's version as it tells it itself, else as its Node does ("v1.33.5").
KUBELET_VERSION: Final = "topowise.io/kubelet-version"
# On top: the boot of the machine in which the object was made, as the kernel names it (sys/kernel/random/boot_id);
# the Node has the present one in status.nodeInfo.bootID.
BOOT_ID: Final = "topowise.io/boot-id"
# On top: state files on which the kubelet would not start again; see `refused_state_files` here.
REFUSED_STATE_FILES: Final = "topowise.io/refused-state-files"
# Per zone, with memory manager Static: the nodes of the group it belongs to, and how many blocks lie on it.
MEMORY_CELLS: Final = "topowise.io/memory-cells"
MEMORY_ASSIGNMENTS: Final = "topowise.io/memory-assignments"
# Per zone, where the firmware tells (ACPI HMAT): the NUMA nodes from which its memory is reached best, and the read
# latency in nanoseconds and bandwidth in MiB/s from there.
MEMORY_INITIATORS: Final = "topowise.io/memory-initiators"
MEMORY_READ_LATENCY: Final = "topowise.io/memory-read-latency-ns"
MEMORY_READ_BANDWIDTH: Final = "topowise.io/memory-read-bandwidth-mib"
# On top: which resources' amounts were derived from /sys because the kubelet's manager of them is off ("cpu,memory").
DERIVED: Final = "topowise.io/derived-from-sysfs"
# On top: pods that the kubelet may still be giving more than the object says, and why the object may not be the truth
# any more; see `confirmation` here.
ADMITTING: Final = "topowise.io/admitting"
UNCONFIRMED: Final = "topowise.io/unconfirmed"
# Per zone: "true" on a zone without anything, for an id between those of the machine's NUMA nodes that no node has.
ABSENT: Final = "topowise.io/absent"
# No attribute: resources of zones that begin so count the devices of a DRA driver, whose name follows. Nobody can ask
# for them by that name, pods name them in ResourceClaims.
CLAIMED_DEVICES: Final = "dra.topowise.io/"

POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES: Final = ("container", "pod")

# A level of the deprecated `topologyPolicies`, which NFD and koordlet still write, and the scope that it means.
_LEVELS: Final = {"": "container", "containerlevel": "container", "podlevel": "pod"}


def _folded(word: str) -> str:
    return word.replace("-", "").replace("_", "").lower()


# By any spelling: "SingleNUMANodePodLevel" is of the definition, "SingleNumaNode" of KEP-119, "single-numa-node" the
# kubelet's own.
_WORDS: Final = {_folded(policy) + level: (policy, scope) for policy in POLICIES for level, scope in _LEVELS.items()}


def policy_and_scope(attributes: Mapping[str, str], legacy: Iterable[str] | None = None) -> tuple[str, str]:
    """The Topology Manager's policy and scope; without attributes from `topologyPolicies`, else kubelet's defaults.

    Raises ParseError on words that mean nothing a kubelet has.
    """
    words = [word for word in legacy or () if word]
    inherited = next((_WORDS[_folded(word)] for word in words if _folded(word) in _WORDS), None)
    policy, scope = attributes.get(TOPOLOGY_MANAGER_POLICY), attributes.get(TOPOLOGY_MANAGER_SCOPE)
    if policy is not None:
        found = _WORDS.get(_folded(policy))
        if found is None:
            raise ParseError(f"attribute {TOPOLOGY_MANAGER_POLICY}", policy, f"one of {', '.join(POLICIES)}")
        level = found if inherited is None or found[1] != "container" else inherited
        found = found[0], level[1]
    elif words and inherited is None:
        raise ParseError("topologyPolicies", ", ".join(words), "a policy such as SingleNUMANodeContainerLevel")
    else:
        found = inherited or (POLICIES[0], SCOPES[0])
    if scope is None:
        return found
    if scope.lower() not in SCOPES:
        raise ParseError(f"attribute {TOPOLOGY_MANAGER_SCOPE}", scope, f"one of {', '.join(SCOPES)}")
    return found[0], scope.lower()


def legacy_policy(policy: str, scope: str) -> str:
    """The `topologyPolicies` value that NFD would write; what it has no name for is "None"."""
    level = {"container": "ContainerLevel", "pod": "PodLevel"}.get(scope)
    names = {"best-effort": "BestEffort", "restricted": "Restricted", "single-numa-node": "SingleNUMANode"}
    return names[policy] + level if level and policy in names else "None"


def option_name(option: str) -> str:
    """The attribute of a Topology Manager option: "prefer-closest-numa-nodes" -> "...PreferClosestNumaNodes"."""
    return TOPOLOGY_MANAGER_OPTION_PREFIX + "".join(part.capitalize() for part in option.split("-"))


def write_ids(ids: Iterable[int]) -> str:
    """Sets of CPUs and sockets travel as cpulists."""
    return cpuset.spell(ids)


def read_ids(attributes: Mapping[str, str], name: str) -> frozenset[int] | None:
    """The inverse of `write_ids`; None if the attribute is absent. Raises ParseError."""
    return cpuset.parse(attributes[name]) if name in attributes else None


def write_names(names: Iterable[str]) -> str:
    """Sets of resource names travel sorted, with commas."""
    return ",".join(sorted(names))


def read_names(attributes: Mapping[str, str], name: str) -> frozenset[str]:
    """The inverse of `write_names`; empty if the attribute is absent."""
    return frozenset(part for part in attributes.get(name, "").split(",") if part)
