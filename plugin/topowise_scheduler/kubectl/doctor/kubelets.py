"""Checks kubelets: settings whose effect differs from what users expect, restarts, and pools of nodes.

A restart: whether a kubelet would start again, and what that does to the pods that run on its node. A pool: a pod that
fits one node should fit every node of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from topowise import attributes, digits, kubeletconfig, nrt, pods, quantity
from topowise.attributes import confirmation
from topowise.errors import ParseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import Pod
from topowise_scheduler.explain.text import plural, rough_duration
from topowise_scheduler.kubectl.doctor.finding import Finding, Severity
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.kubelet import cost
from topowise_scheduler.kubelet.hints import SMT_ALIGNMENT
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.panics import hazards
from topowise_scheduler.report import Report, read
from topowise_scheduler.report.restart_forecast import NodeRestart, foresee_all
from topowise_scheduler.report.texts import distances
from topowise_scheduler.verdicts.kube_scheduler import NodeObject

# Severity, value, why, and what mends it.
Words = tuple[Severity, str, str, str]

_MOST_NODES: Final = 8
_LOOP: Final = "it starts again, is given the same pod and panics again, until the pod is deleted"
_STRATEGY: Final = "numa-allocation-strategy"
_SHARED_CPUS: Final[Words] = (
    "warning",
    "cpuManagerPolicy static on a machine whose cores or sockets have different numbers of CPUs",
    "the kubelet computes with the average and may take a core or socket as free that is partly in use: it gives a CPU "
    "to two pods, or a reserved CPU to a pod, and does not start again with such a cpu_manager_state",
    "take all CPUs online, or one of each core offline (nosmt); otherwise use cpuManagerPolicy none on the node",
)
_ALPHA: Final = ("align-by-socket", "distribute-cpus-across-cores", "prefer-most-allocated-numa-node")
_WHY_REFUSED = "a restarted kubelet admits all its pods again, and decides otherwise than when the pods started"
_WHY_STOPS = "it compares the file with machine and configuration at its next start, and exits if they differ"
_WHY_SMT = "full-pcpus-only counts free cores before it finds the CPUs that a container already has"
_POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.cluster.x-k8s.io/pool",
    "node.kubernetes.io/instance-type",
)
_FIELDS: Final = (
    "topologyManagerPolicy",
    "topologyManagerScope",
    "topologyManagerPolicyOptions",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "memoryManagerPolicy",
)


def configuration(raw: Reported) -> KubeletConfiguration | None:
    """The reported configuration of the kubelet; derived from the standard attributes if only these are reported."""
    named = nrt.attributes_of(raw.topology.attributes)
    text = named.get(attributes.KUBELET_CONFIGURATION)
    if text is not None:
        try:
            return kubeletconfig.decode(text)
        except ParseError:
            return None
    if attributes.CPU_MANAGER_POLICY not in named or attributes.MEMORY_MANAGER_POLICY not in named:
        return None
    try:
        policy, scope = attributes.policy_and_scope(named, raw.topology.topologyPolicies)
    except ParseError:
        return None
    return KubeletConfiguration(
        topologyManagerPolicy=policy,
        topologyManagerScope=scope,
        cpuManagerPolicy=named[attributes.CPU_MANAGER_POLICY].lower(),
        memoryManagerPolicy=named[attributes.MEMORY_MANAGER_POLICY].capitalize(),
        topologyManagerPolicyOptions=_options(named),
    )


def check(raw: Reported, report: Report) -> Iterator[Finding]:
    """Checks a node."""
    config = configuration(raw)
    if config is None:
        return
    zones = nrt.numa_zones(raw.topology)
    parts = _of_policy(config, len(zones)), _of_options(config, zones, report), of_restarts(raw), _of_hazards(report)
    for severity, value, why, mend in chain.from_iterable(parts):
        yield Finding("kubelet", severity, "node", (report.name,), value, why, mend)


def _of_policy(config: KubeletConfiguration, zones: int) -> Iterator[Words]:
    policy = config.topologyManagerPolicy or "none"
    has_cpus, has_memory = config.cpuManagerPolicy == "static", config.memoryManagerPolicy == "Static"
    if policy != "none" and not has_cpus:
        yield (
            "warning",
            f"topologyManagerPolicy {policy} with cpuManagerPolicy {config.cpuManagerPolicy or 'none'}",
            "without the static CPU manager no container has CPUs of its own, so there are none to align",
            "set cpuManagerPolicy static (drain the node, delete cpu_manager_state, restart the kubelet)",
        )
    if policy in ("single-numa-node", "restricted") and not has_memory:
        yield (
            "warning",
            f"topologyManagerPolicy {policy} with memoryManagerPolicy {config.memoryManagerPolicy or 'None'}",
            "CPUs and devices are aligned and memory is not: a NUMA node can run out of memory, and its pods then "
            "use the memory of another NUMA node",
            "set memoryManagerPolicy Static with reservedMemory (drain, delete memory_manager_state, restart)",
        )
    if policy == "best-effort" and has_memory:
        yield (
            "warning",
            "topologyManagerPolicy best-effort with memoryManagerPolicy Static",
            "best-effort admits every merge, but the memory manager then joins NUMA nodes to groups if "
            "each has too little, and then refuses pods of a single NUMA node with UnexpectedAdmissionError",
            "use restricted or single-numa-node, or memoryManagerPolicy None",
        )
    if policy == "none" and (has_cpus or has_memory):
        yield (
            "note",
            f"topologyManagerPolicy none with a static {'CPU' if has_cpus else 'memory'} manager",
            "pods get exclusive CPUs or memory, which may be on several NUMA nodes",
            "set topologyManagerPolicy, if pods there care for NUMA nodes",
        )
    if policy != "none" and zones == 1:
        yield (
            "note",
            f"topologyManagerPolicy {policy} and one NUMA node",
            "there is nothing to align; if the machine has several NUMA nodes, its firmware or hypervisor hides them",
            "turn node interleaving off in the firmware, or give the virtual machine its NUMA topology",
        )


def of_restarts(raw: Reported) -> Iterator[Words]:
    """Yields the state files that the kubelet refuses at its next start."""
    for name, why in confirmation.refused_state_files(nrt.attributes_of(raw.topology.attributes)).items():
        yield (
            "error",
            f"kubelet will not start again with its {name}: {why}",
            "it compares the file with machine and configuration at its next start, and exits if they differ",
            f"undo the change, or drain the node, delete {name} and restart the kubelet",
        )


def _of_hazards(report: Report) -> Iterator[Words]:
    for hazard in hazards(report.empty, knows_cores=report.precision == "exact"):
        match hazard:
            case "distances":
                yield _of_distances(report)
            case "page-sizes":
                yield from _of_page_sizes(report)
            case "reserved-memory":
                yield from _of_reserved_memory(report)
            case "distributed-cpus":
                yield (
                    "warning",
                    "full-pcpus-only with distribute-cpus-across-numa",
                    f"a kubelet of {report.kubelet.name} may search for whole cores without end while it admits a pod, "
                    "and then admits nothing any more (kubernetes#140730)",
                    "disable one of the two options, or update the kubelet to 1.38",
                )
            case "shared-cpus":
                yield _SHARED_CPUS


def _of_distances(report: Report) -> Words:
    ids, missing = report.empty.all_node_ids, report.empty.topology_manager.unmeasured_ids
    return (
        "error",
        f"prefer-closest-numa-nodes with NUMA ids {', '.join(map(str, ids))}",
        "the kubelet reads distances by NUMA id and Linux lists them without gaps: for id "
        f"{', '.join(map(str, missing))} there is none, and the kubelet panics when it compares NUMA nodes for a pod; "
        f"{_LOOP}",
        "remove prefer-closest-numa-nodes from topologyManagerPolicyOptions, or number the NUMA nodes without gaps "
        "(firmware, hypervisor); then delete the pod that the kubelet panics on",
    )


def _of_page_sizes(report: Report) -> Iterator[Words]:
    memory, ids = report.empty.memory, report.empty.node_ids
    for name, lacking in memory.policy.lacking.items() if memory is not None else ():
        where = ", ".join([str(ids[position]) for position in members(lacking)])
        yield (
            "warning",
            f"memoryManagerPolicy Static and no {name} on NUMA node {where}",
            "the memory manager looks up the page size on every NUMA node, and the kubelet panics when a Guaranteed "
            f"pod asks for it; {_LOOP}",
            f"keep pods with {name} off the node, or update its Linux to 6.1, where every NUMA node has the page sizes",
        )


def _of_reserved_memory(report: Report) -> Iterator[Words]:
    memory, ids = report.empty.memory, report.empty.node_ids
    for name, wrapped in memory.policy.wrapped.items() if memory is not None else ():
        where = ", ".join([str(ids[position]) for position in members(wrapped)])
        yield (
            "warning",
            f"reservedMemory above the {name} of NUMA node {where}",
            "the kubelet subtracts it as an unsigned number, so it offers nearly 16Ei there: it admits every pod, and "
            f"the pod may be without the {name} that it requested",
            "move the reservation to NUMA nodes that have as much (drain, delete memory_manager_state, restart)",
        )


def _admission_s(report: Report) -> float:
    """Estimated admission time on the empty node, for a Guaranteed container with a CPU, memory and a device each."""
    limits: dict[str, pods.Quantity] = {"cpu": "1", "memory": "64Mi", **dict.fromkeys(report.empty.devices.tables, "1")}
    container = pods.Container("c", pods.Resources(limits=limits))
    needs = pods.needs(pods.Pod(pods.Metadata("sample"), pods.Spec(containers=(container,))))
    return cost.estimate(report.empty, report.empty.view("sample", needs)).seconds


def _of_options(config: KubeletConfiguration, zones: Sequence[tuple[int, nrt.Zone]], report: Report) -> Iterator[Words]:
    options = {**(config.topologyManagerPolicyOptions or {}), **(config.cpuManagerPolicyOptions or {})}
    on = {name for name, value in options.items() if value.lower() in ("true", "t", "1")}
    ids = [numa_id for numa_id, _ in zones]
    if "prefer-closest-numa-nodes" in on and any(distances(zone.costs or (), ids) is None for _, zone in zones):
        yield (
            "warning",
            "prefer-closest-numa-nodes, and no distances reported",
            "the scheduler cannot predict which NUMA nodes the kubelet chooses",
            "let the exporter read /sys/devices/system/node/node*/distance",
        )
    most = options.get("max-allowable-numa-nodes", "")
    if len(zones) > _MOST_NODES or (digits.int64(most) or 0) > _MOST_NODES:
        yield (
            "warning",
            f"{len(zones)} NUMA nodes, max-allowable-numa-nodes {most or 'unset'}",
            f"the kubelet tries every set of NUMA nodes for each container: beyond 8 that takes seconds and more; here "
            f"about {rough_duration(_admission_s(report))} for a pod with a CPU, memory and a device of each kind",
            "have fewer NUMA nodes (NPS or SNC in the firmware), or policy none",
        )
    gates = sorted(name for name, is_on in (config.featureGates or {}).items() if is_on and "Alpha" in name)
    # The strategy has a name, not true or false.
    strategy = {_STRATEGY} if options.get(_STRATEGY, "none") != "none" else set()
    alpha = sorted(on.intersection(_ALPHA) | strategy) + gates
    if alpha:
        yield (
            "note",
            f"in use though alpha: {', '.join(alpha)}",
            "it may change or go with the next version of Kubernetes, and then the kubelet does not start",
            "look at its release notes before an update",
        )


def _options(named: Mapping[str, str]) -> dict[str, str]:
    options = {
        option: named[attributes.option_name(option)]
        for option in ("prefer-closest-numa-nodes", "prefer-most-allocated-numa-node", _STRATEGY)
        if attributes.option_name(option) in named
    }
    most = named.get(attributes.TOPOLOGY_MANAGER_MAX_NUMA_NODES)
    return {**options, "max-allowable-numa-nodes": most} if most else options


def check_restarts(known: Sequence[tuple[Reported, Report]], all_pods: Sequence[Pod]) -> Iterator[Finding]:
    """Checks each exact report. Not named again are state files that the exporter has found invalid (kubelets.py)."""
    named = {report.name for raw, report in known if any(of_restarts(raw))}
    for node in foresee_all([report for _, report in known], all_pods, []):
        if node.error and node.node not in named:
            yield Finding(
                "restart", "warning", "node", (node.node,), f"the kubelet would not start again: {node.error}",
                _with_remark(_WHY_STOPS, node), node.mend,
            )  # fmt: skip
        by_reason: dict[str, list[str]] = {}
        for pod in node.refused:
            if pod.is_running:
                by_reason.setdefault(pod.reason, []).append(pod.pod)
        for reason, names in by_reason.items():
            yield Finding(
                "restart", "warning", "node", (node.node,),
                f"a restart of the kubelet would end {plural(len(names), 'running pod')} with {reason}: "
                f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}",
                _with_remark(_WHY_SMT if reason == SMT_ALIGNMENT else _WHY_REFUSED, node),
                "drain the node before the kubelet restarts; kubectl topowise simulate --restart shows each pod",
            )  # fmt: skip


def _with_remark(why: str, node: NodeRestart) -> str:
    return f"{why}; {node.remark}" if node.remark else why


def restart_lines(there: Objects, node: str) -> list[str]:
    """Returns a line for each finding about a restart of this node's kubelet."""
    raw = there.report(node)
    if raw is None:
        return []
    report = read(raw.topology, there.kubelet_versions.get(node, ""), size=raw.size)
    words = [(severity, value, mend) for severity, value, _, mend in of_restarts(raw)]
    words += [
        (finding.severity, finding.value, finding.mend) for finding in check_restarts([(raw, report)], there.pods or ())
    ]
    return [f"{severity}: node {node}: {value}; {mend}" for severity, value, mend in words]


def check_pools(nodes: Sequence[NodeObject] | None, reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    """Nodes with the same label and hardware, but different kubelet settings."""
    labels = {node.metadata.name: node.metadata.labels or {} for node in nodes or ()}
    pools: dict[tuple[str, ...], list[tuple[Reported, Report]]] = {}
    for raw, report in reports:
        node_labels = labels.get(report.name, {})
        named = next((f"{label}={node_labels[label]}" for label in _POOL_LABELS if label in node_labels), "")
        pools.setdefault((named, *_hardware(raw.topology)), []).append((raw, report))
    for (named, *hardware), pool in pools.items():
        for field in _FIELDS:
            by_value: dict[str, list[str]] = {}
            for raw, report in pool:
                by_value.setdefault(_value(field, raw, report), []).append(report.name)
            by_value.pop("", None)
            if len(by_value) > 1:
                kinds = "; ".join(
                    f"{value} on {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
                    for value, names in sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
                )
                pool_name = named or f"{len(hardware)} NUMA nodes of {hardware[0]}"
                yield Finding(
                    "pools", "warning", "node pool", (pool_name,), f"different {field}: {kinds}",
                    "the nodes have equal hardware, but a pod that fits one node is refused or not aligned by another",
                    "use the same configuration for all kubelets of the pool",
                )  # fmt: skip


def _hardware(topology: nrt.NodeResourceTopology) -> list[str]:
    """The rounded size of each zone: equal machines differ by some bytes."""
    return [_spell(zone) for _, zone in nrt.numa_zones(topology)] or ["no zones"]


def _spell(zone: nrt.Zone) -> str:
    cpus, memory = 0, 0
    for resource in zone.resources or ():
        try:
            if resource.name == "cpu":
                cpus = quantity.value(resource.capacity)
            elif resource.name == "memory":
                memory = round(quantity.value(resource.capacity) / (1 << 32))
        except ParseError:
            continue
    return f"{cpus} CPUs, {4 * memory}Gi"


def _value(field: str, raw: Reported, report: Report) -> str:
    """The text of the field, "" if it is not known."""
    config = configuration(raw)
    if config is None:
        if not report.knows_policy:
            return ""
        scope = report.empty.settings.topology.scope
        return {"topologyManagerPolicy": report.policy, "topologyManagerScope": scope}.get(field, "")
    value = getattr(config, field)
    if isinstance(value, dict) or value is None:
        return ",".join(f"{name}={setting}" for name, setting in sorted((value or {}).items())) or "none"
    return str(value) or "none"
