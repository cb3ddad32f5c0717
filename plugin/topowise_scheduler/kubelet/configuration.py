"""The part of KubeletConfiguration that affects admissions, and the errors with which a kubelet does not start.

`KubeletConfiguration` is the content of the file or of `/configz`. `settle` checks it against the machine in the order
in which the kubelet builds its managers, and returns the form that the managers use. The error texts are the kubelet's.

Upstream: pkg/kubelet/apis/config, cm/topologymanager/policy_options.go, cm/cpumanager/policy_options.go,
cm/memorymanager/memory_manager.go, cm/node_container_manager_linux.go (getNodeAllocatableAbsolute).

A start depends on the version (behaviour.py, feature_gates.py), and on what else is known of the
kubelet, its `Evidence`: a reported kubelet runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from topowise import cpuset, digits, feature_gates
from topowise.errors import TopowiseError
from topowise.feature_gates import Life
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import Amounts, amount_of
from topowise_scheduler.kubelet.behaviour import DRAFTS, OPTIONS, Behaviour, Manager, Stage
from topowise_scheduler.kubelet.machine import Machine, is_memory
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion

TOPOLOGY_POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")
TOPOLOGY_SCOPES: Final = ("container", "pod")
MIN_ALLOWABLE_NUMA_NODES: Final = 8

_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_EXCLUSIVE_CPU_OPTIONS: Final = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)

Evidence = Literal["runs", "options", "none"]
"""What is known besides the configuration.

"runs": a kubelet runs with it. So its gates exist, the gates of its options are on unless set to false, and it may use
every option of any version or draft. "options": the gates of its options are on unless set to false, as in a scenario.
"none": everything outside the configuration is the version's default.
"""


class KubeletStartError(TopowiseError):
    """The kubelet would not start with this configuration on this machine; the text is the kubelet's."""


class TopologySettings(msgspec.Struct, frozen=True, gc=False):
    policy: str
    scope: str
    prefer_closest: bool = False
    prefer_most_allocated: bool = False
    max_numa_nodes: int = 0
    """max-allowable-numa-nodes, 0 if unset; it affects no decision on a machine that the kubelet accepts."""


class CpuSettings(msgspec.Struct, frozen=True, gc=False):
    """Policy static. `reserved_cpus` is reservedSystemCPUs as a set; if 0, `reserved_milli` is taken by topology."""

    reserved_cpus: int
    reserved_milli: int
    full_pcpus_only: bool = False
    strict_reservation: bool = False
    align_by_uncore: bool = False
    distribute_across_numa: bool = False
    align_by_socket: bool = False
    distribute_across_cores: bool = False


class Settings(msgspec.Struct, frozen=True, gc=False):
    """A valid configuration. `cpu` and `reserved_memory` are None with policy none.

    `reserved` is reserved from pods, per resource; `reserved_memory` is the share of each NUMA node by position.
    `sidecars` False refuses pods with sidecars. `drafts` names the active options that are in no release.
    """

    topology: TopologySettings
    cpu: CpuSettings | None
    reserved_memory: tuple[Amounts, ...] | None
    reserved: Amounts
    max_pods: int
    pod_level_resources: bool
    pod_level_resource_managers: bool
    sidecars: bool = True
    behaviour: Behaviour = NEWEST_RECORDED.behaviour
    drafts: tuple[str, ...] = ()


class _Start(NamedTuple):
    """A kubelet's start: its configuration and version; `gates` are the feature gates that it reads."""

    config: KubeletConfiguration
    version: KubeletVersion
    evidence: Evidence
    lives: Mapping[str, Life]
    gates: Mapping[str, bool]

    def gate(self, name: str) -> bool:
        return feature_gates.is_on(name, self.lives, self.gates)

    def option_gate(self, name: str) -> bool:
        if self.evidence == "none":
            return self.gate(name)
        return self.gates.get(name, True)

    def stages(self, manager: Manager) -> dict[str, Stage]:
        """Returns the known options. A running kubelet with a later version's option has a backport of it."""
        stages = dict(self.version.options)
        by_name: dict[str, Stage] = {}
        for option in OPTIONS:
            if option.manager == manager:
                stage = stages.get(option.name)
                if self.evidence == "runs" and stage is None:
                    stage = "alpha"
                if stage is not None and (stage != "draft" or self.evidence == "runs"):
                    by_name[option.name] = stage
        return by_name


def settle(
    config: KubeletConfiguration,
    machine: Machine,
    version: KubeletVersion = NEWEST_RECORDED,
    evidence: Evidence = "runs",
) -> Settings:
    """Returns the configuration in the managers' form. Raises KubeletStartError, and ParseError for a bad quantity."""
    lives, gates = dict(version.gates), config.featureGates or {}
    if version.behaviour.unknown_gates_are_ignored:
        gates = feature_gates.known(lives, gates)
    start = _Start(config, version, evidence, lives, gates)
    _check_gates(start)
    _check_reserved_cpus(start, machine)
    topology = _topology(start, machine)
    # Percentages are of the machine's capacity.
    reserved = config.reserved({"memory": machine.memory(), "ephemeral-storage": machine.ephemeral_storage or 0})
    cpu = _cpu(start, machine, reserved, topology.policy)
    reserved_memory = _memory(start, machine, reserved)
    pod_level = start.gate("PodLevelResources")
    return Settings(
        topology=topology,
        cpu=cpu,
        reserved_memory=reserved_memory,
        reserved=reserved,
        max_pods=config.maxPods,
        pod_level_resources=pod_level,
        pod_level_resource_managers=pod_level and start.gate("PodLevelResourceManagers"),
        sidecars=start.gate("SidecarContainers"),
        behaviour=version.behaviour,
        drafts=_drafts(config, topology.policy),
    )


def _check_gates(start: _Start) -> None:
    # cmd/kubelet/app/server.go reads the gates first; options as a whole have a gate too. Raises KubeletStartError.
    config = start.config
    if start.evidence == "runs":
        # The gates of a running kubelet are valid, even if this version's table lacks them.
        return
    problem = feature_gates.problem(start.lives, start.gates)
    if problem:
        raise KubeletStartError(f"failed to set feature gates from initial flags-based config: {problem}")
    if config.cpuManagerPolicyOptions is not None and not start.gate("CPUManagerPolicyOptions"):
        raise KubeletStartError(
            f"CPU Manager policy options {_go_map(config.cpuManagerPolicyOptions)} require feature gates "
            '"CPUManager", "CPUManagerPolicyOptions" enabled'
        )
    if config.topologyManagerPolicyOptions is not None and not start.gate("TopologyManagerPolicyOptions"):
        raise KubeletStartError(
            f"topology manager policy options {_go_map(config.topologyManagerPolicyOptions)} require feature gates "
            '"TopologyManagerPolicyOptions" enabled'
        )


def _check_reserved_cpus(start: _Start, machine: Machine) -> None:
    # cmd/kubelet/app/server.go, getReservedCPUs: applies to every CPU manager policy. Raises KubeletStartError.
    text = start.config.reservedSystemCPUs
    online = frozenset(cpu for node in machine.numa for core in node.cores for cpu in core.threads)
    if start.evidence != "runs" and not cpuset.parse(text) <= online:
        raise KubeletStartError(f"reserved-cpus: {text} is not a subset of online-cpus: {cpuset.to_text(online)}")


def _drafts(config: KubeletConfiguration, topology_policy: str) -> tuple[str, ...]:
    options = config.topologyManagerPolicyOptions or {} if topology_policy != "none" else {}
    return tuple(name for name in options if name in DRAFTS)


def _topology(start: _Start, machine: Machine) -> TopologySettings:
    # topology_manager.go, NewManager: policy none reads nothing else.
    config = start.config
    policy, scope = config.topologyManagerPolicy or "none", config.topologyManagerScope or "container"
    options = config.topologyManagerPolicyOptions or {}
    if policy == "none":
        limit = digits.int64(options.get("max-allowable-numa-nodes", ""))
        return TopologySettings(policy, scope, max_numa_nodes=limit or 0)
    closest = most_allocated = False
    max_nodes = 0
    stages = start.stages("topology") if options else {}
    for name, value in options.items():
        _check_topology_option(start, name, stages.get(name))
        match name:
            case "prefer-closest-numa-nodes":
                closest = _boolean(name, value)
            case "max-allowable-numa-nodes":
                max_nodes = _allowable(name, value)
            case "prefer-most-allocated-numa-node":
                most_allocated |= _boolean(name, value)
            case "numa-allocation-strategy":
                most_allocated |= _is_most_allocated(name, value)
    # NewNUMAInfo reads distances only with this option.
    if closest and any(not node.distances for node in machine.numa):
        raise KubeletStartError("error getting NUMA distances from cadvisor")
    allowable = max_nodes or MIN_ALLOWABLE_NUMA_NODES
    if len(machine.numa) > allowable:
        raise KubeletStartError(f"unsupported on machines with more than {allowable} NUMA Nodes")
    if policy not in TOPOLOGY_POLICIES:
        raise KubeletStartError(f'unknown policy: "{policy}"')
    if scope not in TOPOLOGY_SCOPES:
        raise KubeletStartError(f'unknown scope: "{scope}"')
    return TopologySettings(policy, scope, closest, most_allocated, max_nodes)


def _check_topology_option(start: _Start, name: str, stage: Stage | None) -> None:
    # CheckPolicyOptionAvailable of the topology manager.
    if stage is None:
        raise KubeletStartError(f'unknown Topology Manager Policy option: "{name}"')
    level = _missing_gate(start, "TopologyManagerPolicy", stage)
    if level:
        refusal = f'Topology Manager Policy {level}-level Options not enabled, but option "{name}" provided'
        if start.version.behaviour.topology_option_errors_are_lower_case:
            refusal = f'topology manager policy {level.lower()}-level options not enabled, but option "{name}" provided'
        raise KubeletStartError(refusal)


def _missing_gate(start: _Start, prefix: str, stage: Stage) -> str:
    """Returns "Alpha" or "Beta" if an option of this stage lacks its gate, "" if it may be used."""
    if stage == "stable":
        return ""
    level = "Beta" if stage == "beta" else "Alpha"
    return "" if start.option_gate(f"{prefix}{level}Options") else level


def _allowable(name: str, value: str) -> int:
    number = digits.int64(value)
    if number is None:
        raise KubeletStartError(f'unable to convert policy option to integer "{name}": {value!r:.80}')
    if number < MIN_ALLOWABLE_NUMA_NODES:
        raise KubeletStartError(f'the minimum value of "{name}" should not be less than {MIN_ALLOWABLE_NUMA_NODES}')
    return number


def _is_most_allocated(name: str, value: str) -> bool:
    """The draft of a strategy. Its third value is not modelled, and a wrong prediction would be worse than none."""
    if value not in ("none", "most-allocated"):
        why = "not modelled" if value == "least-allocated" else "expected none, most-allocated or least-allocated"
        raise KubeletStartError(f'bad value for option "{name}": {value!r:.80}: {why}')
    return value == "most-allocated"


def _boolean(name: str, value: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise KubeletStartError(f'bad value for option "{name}": strconv.ParseBool: parsing "{value}": invalid syntax')


def _cpu(start: _Start, machine: Machine, reserved: Amounts, topology_policy: str) -> CpuSettings | None:
    # cpu_manager.go, NewManager, with policy_options.go.
    config = start.config
    options = config.cpuManagerPolicyOptions or {}
    if (config.cpuManagerPolicy or "none") == "none":
        if options:
            shown = _go_map(options)
            raise KubeletStartError(f"new none policy error: None policy: received unsupported options={shown}")
        return None
    if config.cpuManagerPolicy != "static":
        raise KubeletStartError(f'unknown policy: "{config.cpuManagerPolicy}"')
    if "cpu" not in reserved:
        raise KubeletStartError("[cpumanager] unable to determine reserved CPU resources for static policy")
    # An empty reservation would leave no CPUs for the shared pool.
    if reserved["cpu"] <= 0:
        raise KubeletStartError(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
        )
    try:
        on = _cpu_options(start, options)
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


def _cpu_options(start: _Start, options: Mapping[str, str]) -> frozenset[str]:
    """Returns the active options (NewStaticPolicyOptions)."""
    on = set()
    stages = start.stages("cpu") if options else {}
    for name, value in options.items():
        stage = stages.get(name)
        if stage is None:
            raise KubeletStartError(f'unknown CPU Manager Policy option: "{name}"')
        level = _missing_gate(start, "CPUManagerPolicy", stage)
        if level:
            raise KubeletStartError(
                f'CPU Manager Policy {level}-level Options not enabled, but option "{name}" provided'
            )
        if _boolean(name, value):
            on.add(name)
    for option, excluded in _EXCLUSIVE_CPU_OPTIONS:
        if option in on and excluded in on:
            raise KubeletStartError(f"static policy options {option} and {excluded} can not be used at the same time")
    return frozenset(on)


def _check_align_by_socket(on: frozenset[str], machine: Machine, topology_policy: str) -> None:
    if "align-by-socket" not in on:
        return
    # ValidateStaticPolicyOptions; the typo is the kubelet's.
    if topology_policy == "single-numa-node":
        raise KubeletStartError(
            "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
        )
    if machine.sockets() > sum(1 for node in machine.numa if node.cores):
        raise KubeletStartError(
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
        )


def _memory(start: _Start, machine: Machine, reserved: Amounts) -> tuple[Amounts, ...] | None:
    """Checks that the nodes' reservations add up to the machine's (NewManager in memory_manager.go)."""
    config = start.config
    policy = config.memoryManagerPolicy or "None"
    # Versions with a MemoryManager gate build no memory manager without it.
    if policy == "None" or not start.gate("MemoryManager"):
        return None
    if policy == "BestEffort" and start.version.behaviour.memory_policies_are_by_platform:
        raise KubeletStartError('policy "BestEffort" is not available for platform "linux"')
    if policy != "Static":
        raise KubeletStartError(f'unknown policy: "{policy}"')
    per_node: dict[int, Amounts] = {node.id: {} for node in machine.nodes()}
    total: Amounts = {}
    for reservation in config.reservedMemory or ():
        of_node = per_node.get(reservation.numaNode)
        if of_node is None:
            raise KubeletStartError(
                f"the reserved memory configuration references a NUMA node {reservation.numaNode} that does not exist "
                "on this machine"
            )
        for name, text in reservation.limits.items():
            amount = amount_of(name, text)
            of_node[name] = of_node.get(name, 0) + amount
            total[name] = total.get(name, 0) + amount
    # validateReservedMemory.
    for name in dict.fromkeys((*total, *reserved)):
        if not is_memory(name):
            continue
        if total.get(name, 0) != reserved.get(name, 0):
            raise KubeletStartError(
                f'the total amount "{_decimal(total.get(name, 0))}" of type "{name}" is not equal to the value '
                f'"{_decimal(reserved.get(name, 0))}" determined by Node Allocatable feature'
            )
    if total.get("memory", 0) <= 0:
        raise KubeletStartError("[memorymanager] you should specify the system reserved memory")
    return tuple(per_node.values())


def _go_map(options: Mapping[str, str]) -> str:
    """Returns a map as Go prints it."""
    return f"map[{' '.join(f'{name}:{value}' for name, value in sorted(options.items()))}]"


def _decimal(amount: int) -> str:
    """Returns the canonical form of a DecimalSI quantity: 12345 -> "12345", 2000000 -> "2M"."""
    suffixes = ("", "k", "M", "G", "T", "P", "E")
    power = 0
    while amount and amount % 1000 == 0 and power < len(suffixes) - 1:
        amount //= 1000
        power += 1
    return f"{amount}{suffixes[power]}"
