"""The part of KubeletConfiguration that decides admissions, and the errors with which a kubelet does not start.

`KubeletConfiguration` is what the file, or `/configz`, says; `settle` checks it against the machine in the order in
which the kubelet builds its managers, and returns it in the form they use. The texts are the kubelet's own.

Upstream: pkg/kubelet/apis/config, cm/topologymanager/policy_options.go, cm/cpumanager/policy_options.go,
cm/memorymanager/memory_manager.go, cm/node_container_manager_linux.go (getNodeAllocatableAbsolute).

Alpha options need a feature gate that is off by default. A kubelet that runs with such an option has it on, so here
a gate counts as on unless it is set to false.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from topowise import cpuset
from topowise.errors import TopowiseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import HUGEPAGES, Amounts, amount_of
from topowise_scheduler.kubelet.machine import Machine
from topowise_scheduler.kubelet.masks import mask_of

TOPOLOGY_POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")
TOPOLOGY_SCOPES: Final = ("container", "pod")
MIN_ALLOWABLE_NUMA_NODES: Final = 8

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_CPU_OPTIONS: Final = {
    "full-pcpus-only": "",
    "strict-cpu-reservation": "",
    "prefer-align-cpus-by-uncorecache": "",
    "distribute-cpus-across-numa": "CPUManagerPolicyBetaOptions",
    "align-by-socket": "CPUManagerPolicyAlphaOptions",
    "distribute-cpus-across-cores": "CPUManagerPolicyAlphaOptions",
}
_EXCLUSIVE_CPU_OPTIONS: Final = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)


class KubeletStartError(TopowiseError):
    """The kubelet would not start with this configuration on this machine; the text is the kubelet's."""


class TopologySettings(msgspec.Struct, frozen=True, gc=False):
    policy: str
    scope: str
    prefer_closest: bool = False
    prefer_most_allocated: bool = False


class CpuSettings(msgspec.Struct, frozen=True, gc=False):
    """Policy static. `reserved_cpus` is the set of reservedSystemCPUs, 0 to take `reserved_milli` by topology."""

    reserved_cpus: int
    reserved_milli: int
    full_pcpus_only: bool = False
    strict_reservation: bool = False
    align_by_uncore: bool = False
    distribute_across_numa: bool = False
    align_by_socket: bool = False
    distribute_across_cores: bool = False


class Settings(msgspec.Struct, frozen=True, gc=False):
    """A configuration the kubelet starts with. `cpu` and `reserved_memory` are None with policy none.

    `reserved` is what is kept from pods, per resource; `reserved_memory` the share of each NUMA node by position.
    """

    topology: TopologySettings
    cpu: CpuSettings | None
    reserved_memory: tuple[Amounts, ...] | None
    reserved: Amounts
    max_pods: int
    pod_level_resources: bool
    pod_level_resource_managers: bool


def settle(config: KubeletConfiguration, machine: Machine) -> Settings:
    """The configuration as the managers use it. Raises KubeletStartError, and ParseError for a malformed quantity."""
    topology = _topology(config, machine)
    reserved = _reserved(config, machine)
    cpu = _cpu(config, machine, reserved, topology.policy)
    reserved_memory = _memory(config, machine, reserved)
    pod_level = config.gate("PodLevelResources", True)
    return Settings(
        topology=topology,
        cpu=cpu,
        reserved_memory=reserved_memory,
        reserved=reserved,
        max_pods=config.maxPods,
        pod_level_resources=pod_level,
        pod_level_resource_managers=pod_level and config.gate("PodLevelResourceManagers", False),
    )


def _topology(config: KubeletConfiguration, machine: Machine) -> TopologySettings:
    """topology_manager.go, NewManager: policy none looks at nothing else."""
    policy, scope = config.topologyManagerPolicy or "none", config.topologyManagerScope or "container"
    if policy == "none":
        return TopologySettings(policy, scope)
    closest = most_allocated = False
    allowable = MIN_ALLOWABLE_NUMA_NODES
    for name, value in (config.topologyManagerPolicyOptions or {}).items():
        match name:
            case "prefer-closest-numa-nodes":
                closest = _boolean(name, value)
            case "max-allowable-numa-nodes":
                allowable = _allowable(name, value)
            case "prefer-most-allocated-numa-node" if config.gate("TopologyManagerPolicyAlphaOptions", True):
                most_allocated = _boolean(name, value)
            case "prefer-most-allocated-numa-node":
                raise KubeletStartError(
                    f'Topology Manager Policy Alpha-level Options not enabled, but option "{name}" provided'
                )
            case _:
                raise KubeletStartError(f'unknown Topology Manager Policy option: "{name}"')
    if closest and any(not node.distances for node in machine.numa):
        raise KubeletStartError("error getting NUMA distances from cadvisor")
    if len(machine.numa) > allowable:
        raise KubeletStartError(f"unsupported on machines with more than {allowable} NUMA Nodes")
    if policy not in TOPOLOGY_POLICIES:
        raise KubeletStartError(f'unknown policy: "{policy}"')
    if scope not in TOPOLOGY_SCOPES:
        raise KubeletStartError(f'unknown scope: "{scope}"')
    return TopologySettings(policy, scope, closest, most_allocated)


def _allowable(name: str, value: str) -> int:
    # strconv.Atoi: no spaces, no underscores, 64 bits. What is longer is refused there as well.
    if not _INTEGER.fullmatch(value):
        raise KubeletStartError(f'unable to convert policy option to integer "{name}": {value!r:.80}')
    number = int(value)
    if number < MIN_ALLOWABLE_NUMA_NODES:
        raise KubeletStartError(f'the minimum value of "{name}" should not be less than {MIN_ALLOWABLE_NUMA_NODES}')
    return number


def _boolean(name: str, value: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise KubeletStartError(f'bad value for option "{name}": strconv.ParseBool: parsing "{value}": invalid syntax')


def _reserved(config: KubeletConfiguration, machine: Machine) -> Amounts:
    """What is kept from pods per resource; percentages are of the machine's capacity."""
    capacities = {"memory": machine.memory(), "ephemeral-storage": machine.ephemeral_storage or 0}
    return config.reserved(capacities)


def _cpu(config: KubeletConfiguration, machine: Machine, reserved: Amounts, topology_policy: str) -> CpuSettings | None:
    """cpu_manager.go, NewManager, with policy_options.go."""
    given = config.cpuManagerPolicyOptions or {}
    if (config.cpuManagerPolicy or "none") == "none":
        if given:
            shown = " ".join(f"{name}:{value}" for name, value in sorted(given.items()))
            raise KubeletStartError(f"new none policy error: None policy: received unsupported options=map[{shown}]")
        return None
    if config.cpuManagerPolicy != "static":
        raise KubeletStartError(f'unknown policy: "{config.cpuManagerPolicy}"')
    if "cpu" not in reserved:
        raise KubeletStartError("[cpumanager] unable to determine reserved CPU resources for static policy")
    if reserved["cpu"] <= 0:
        raise KubeletStartError(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
        )
    try:
        on = _cpu_options(config, given)
        _check_align_by_socket(on, machine, topology_policy)
    except KubeletStartError as exc:
        raise KubeletStartError(f"new static policy error: {exc}") from exc
    return CpuSettings(
        reserved_cpus=mask_of(cpuset.parse(config.reservedSystemCPUs)),
        reserved_milli=reserved["cpu"],
        full_pcpus_only="full-pcpus-only" in on,
        strict_reservation="strict-cpu-reservation" in on,
        align_by_uncore="prefer-align-cpus-by-uncorecache" in on,
        distribute_across_numa="distribute-cpus-across-numa" in on,
        align_by_socket="align-by-socket" in on,
        distribute_across_cores="distribute-cpus-across-cores" in on,
    )


def _cpu_options(config: KubeletConfiguration, given: Mapping[str, str]) -> frozenset[str]:
    """The options that are on (NewStaticPolicyOptions)."""
    on = set()
    for name, value in given.items():
        gate = _CPU_OPTIONS.get(name)
        if gate is None:
            raise KubeletStartError(f'unsupported cpumanager option: "{name}" ({value})')
        if gate and not config.gate(gate, True):
            level = "Alpha" if "Alpha" in gate else "Beta"
            raise KubeletStartError(
                f'CPU Manager Policy {level}-level Options not enabled, but option "{name}" provided'
            )
        if _boolean(name, value):
            on.add(name)
    for one, other in _EXCLUSIVE_CPU_OPTIONS:
        if one in on and other in on:
            raise KubeletStartError(f"static policy options {one} and {other} can not be used at the same time")
    return frozenset(on)


def _check_align_by_socket(on: frozenset[str], machine: Machine, topology_policy: str) -> None:
    if "align-by-socket" not in on:
        return
    if topology_policy == "single-numa-node":
        raise KubeletStartError(
            "Topology manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
        )
    if machine.sockets() > sum(1 for node in machine.numa if node.cores):
        raise KubeletStartError(
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
        )


def _memory(config: KubeletConfiguration, machine: Machine, reserved: Amounts) -> tuple[Amounts, ...] | None:
    """memory_manager.go, NewManager: what is reserved on the nodes must be what is reserved on the machine."""
    policy = config.memoryManagerPolicy or "None"
    if policy == "None":
        return None
    if policy != "Static":
        raise KubeletStartError(f'unknown policy: "{policy}"')
    per_node: dict[int, Amounts] = {node.id: {} for node in machine.nodes()}
    total: Amounts = {}
    for reservation in config.reservedMemory or ():
        mine = per_node.get(reservation.numaNode)
        if mine is None:
            continue
        for name, given in reservation.limits.items():
            amount = amount_of(name, given)
            mine[name] = mine.get(name, 0) + amount
            total[name] = total.get(name, 0) + amount
    for name in dict.fromkeys((*total, *reserved)):
        if name != "memory" and not name.startswith(HUGEPAGES):
            continue
        if total.get(name, 0) != reserved.get(name, 0):
            raise KubeletStartError(
                f'the total amount "{_decimal(total.get(name, 0))}" of type "{name}" is not equal to the value '
                f'"{_decimal(reserved.get(name, 0))}" determined by Node Allocatable feature'
            )
    if total.get("memory", 0) <= 0:
        raise KubeletStartError("[memorymanager] you should specify the system reserved memory")
    return tuple(per_node.values())


def _decimal(amount: int) -> str:
    """The canonical form of a DecimalSI quantity: 12345 -> "12345", 2000000 -> "2M"."""
    suffixes = ("", "k", "M", "G", "T", "P", "E")
    power = 0
    while amount and amount % 1000 == 0 and power < len(suffixes) - 1:
        amount //= 1000
        power += 1
    return f"{amount}{suffixes[power]}"
