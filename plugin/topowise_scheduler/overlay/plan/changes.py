"""Applies a change to nodes: another machine, configuration or version of their kubelets, more nodes, fewer nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from topowise import pods
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise.pods import amount_of
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet, version_of
from topowise_scheduler.kubelet.configuration import Settings
from topowise_scheduler.overlay.plan.machines import parts_of, with_numa_nodes
from topowise_scheduler.overlay.plan.values import Change, Inventory, NodeType, PlanError, PlannedNode
from topowise_scheduler.report import Report
from topowise_scheduler.report.restart_forecast import Change as Restart
from topowise_scheduler.verdicts.kube_scheduler import NodeMetadata, NodeObject, NodeStatus, to_text

_replace = msgspec.structs.replace
_OF_AMOUNTS: Final = ("policy", "scope", "version")
# More than a plan needs: markers never decide there.
_MARKERS: Final = "4096"
_VERSION: Final = "plan"

Kubelets = dict[int, tuple[NodeType, NodeType, Kubelet]]
"""By the id of a type, negative without the change: the type, the changed type, and its kubelet. Equal nodes share
them; the type is kept, so that its id stays its own."""


class ChangedNode(msgspec.Struct, frozen=True):
    """A node after a change, which has a report unless nothing describes its machine.

    `empty` is the changed kubelet without pods, None if the kubelet is as it was.
    """

    node: PlannedNode
    empty: Kubelet | None = None


def changed_nodes(inventory: Inventory, change: Change) -> list[ChangedNode]:
    """Returns the nodes after the change, by name. Raises PlanError for a change that a node does not allow, and
    KubeletStartError if a changed kubelet would not start."""
    known = {node.name: node for node in inventory.nodes}
    for name in (*change.remove, *change.nodes):
        if name not in known:
            raise PlanError(f"node {name!r}: not in the inventory, expected the name of a node")
    kubelets: Kubelets = {}
    chosen, nodes = set(change.nodes), list[ChangedNode]()
    for node in inventory.nodes:
        if node.name in change.remove:
            continue
        applies = (change.is_of_kubelets or change.numa is not None) and (not chosen or node.name in chosen)
        nodes.append(_changed(node, change, kubelets) if applies else _as_it_is(node, kubelets))
    nodes += _added(inventory, known, change, kubelets)
    if change.steering:
        nodes = [_replace(changed, node=_with_markers(changed.node)) for changed in nodes]
    return sorted(nodes, key=lambda changed: changed.node.name)


def changed_type(node_type: NodeType, change: Change) -> NodeType:
    """Returns the type of node after a change of kubelets or of NUMA nodes. Raises PlanError."""
    configuration = node_type.configuration
    if isinstance(configuration, Settings):
        return _of_amounts(node_type, configuration, change)
    machine = node_type.machine
    if change.numa is not None:
        machine = with_numa_nodes(machine, change.numa)
        configuration = _redistributed(configuration, len(node_type.machine.numa), change.numa)
    fields = fields_of(configuration, change)
    version = version_of(change.version) if change.version is not None else node_type.version
    evidence = "none" if change.is_of_kubelets else node_type.evidence
    return _replace(
        node_type,
        machine=machine,
        configuration=_replace(configuration, **fields),
        version=version,
        evidence=evidence,
    )


def restart_of(configuration: KubeletConfiguration, change: Change) -> Restart:
    """Returns the restart that applies a change of kubelets."""
    version = version_of(change.version) if change.version is not None else None
    return Restart(version, fields_of(configuration, change))


def fields_of(configuration: KubeletConfiguration, change: Change) -> dict[str, Any]:
    """Returns the fields of a KubeletConfiguration that the change sets. Raises PlanError and ParseError."""
    fields: dict[str, Any] = {}
    simple = {
        "topologyManagerPolicy": change.policy,
        "topologyManagerScope": change.scope,
        "cpuManagerPolicy": change.cpu_manager,
        "memoryManagerPolicy": change.memory_manager,
        "reservedSystemCPUs": change.reserved_cpus,
    }
    fields.update({name: value for name, value in simple.items() if value is not None})
    if change.topology_options:
        present = configuration.topologyManagerPolicyOptions or {}
        fields["topologyManagerPolicyOptions"] = {**present, **change.topology_options}
    if change.cpu_options:
        fields["cpuManagerPolicyOptions"] = {**(configuration.cpuManagerPolicyOptions or {}), **change.cpu_options}
    if change.reserved_memory:
        fields |= _reserved_memory(configuration, change.reserved_memory)
    elif change.memory_manager == "Static" and not configuration.reservedMemory:
        # The kubelet requires the reservation by NUMA node; most administrators reserve on the first NUMA node.
        total = configuration.reserved({}).get("memory", 0)
        fields["reservedMemory"] = (MemoryReservation(0, {"memory": str(total)}),)
    return fields


def _reserved_memory(configuration: KubeletConfiguration, by_node: Mapping[int, str]) -> dict[str, Any]:
    """Returns reservedMemory, and systemReserved with the rest of that sum: the kubelet compares the two."""
    total = sum(amount_of("memory", text) for text in by_node.values())
    system = dict(configuration.systemReserved or {})
    others = _replace(configuration, systemReserved={**system, "memory": "0"}).reserved({}).get("memory", 0)
    if total < others:
        raise PlanError(
            f"reserved-memory: {to_text('memory', total)} in sum, expected at least {to_text('memory', others)}, which "
            "kubeReserved and evictionHard reserve"
        )
    return {
        "reservedMemory": tuple(MemoryReservation(node, {"memory": text}) for node, text in sorted(by_node.items())),
        "systemReserved": {**system, "memory": str(total - others)},
    }


def _redistributed(configuration: KubeletConfiguration, nodes: int, count: int) -> KubeletConfiguration:
    """Returns the configuration with reservedMemory on the NUMA nodes after a split or merge."""
    if not configuration.reservedMemory:
        return configuration
    parts = parts_of(nodes, count)
    amounts: dict[int, dict[str, int]] = {}
    for entry in configuration.reservedMemory:
        if entry.numaNode >= len(parts):
            raise PlanError(f"reservedMemory: NUMA node {entry.numaNode}, expected ids below {len(parts)} for a split")
        into = parts[entry.numaNode]
        for name, text in entry.limits.items():
            amount = amount_of(name, text)
            for number, position in enumerate(into):
                # The remainder goes to the first part, so that the sum stays.
                share = amount // len(into) + (amount % len(into) if number == 0 else 0)
                of_node = amounts.setdefault(position, {})
                of_node[name] = of_node.get(name, 0) + share
    reserved = tuple(
        MemoryReservation(position, {name: str(amount) for name, amount in of_node.items()})
        for position, of_node in sorted(amounts.items())
    )
    return _replace(configuration, reservedMemory=reserved)


def _of_amounts(node_type: NodeType, settings: Settings, change: Change) -> NodeType:
    """Returns the changed type of a node whose report has amounts only: it has no configuration to change."""
    wanted = {
        "cpu-manager": change.cpu_manager,
        "memory-manager": change.memory_manager,
        "reserved-cpus": change.reserved_cpus,
        "topology options": change.topology_options,
        "cpu options": change.cpu_options,
        "reserved-memory": change.reserved_memory,
        "numa": change.numa,
    }
    impossible = [name for name, value in wanted.items() if value]
    if impossible:
        raise PlanError(
            f"{', '.join(impossible)}: a node is reported by amounts only, expected the report of topowise-exporter "
            f"for any change but {', '.join(_OF_AMOUNTS)}"
        )
    topology = settings.topology
    topology = _replace(topology, policy=change.policy or topology.policy, scope=change.scope or topology.scope)
    version = version_of(change.version) if change.version is not None else node_type.version
    return _replace(
        node_type, configuration=_replace(settings, topology=topology, behaviour=version.behaviour), version=version
    )


def _as_it_is(node: PlannedNode, kubelets: Kubelets) -> ChangedNode:
    """Returns a node that the change does not name; a node without a report gets the report of its type."""
    if node.report is not None or node.type is None:
        return ChangedNode(node)
    known = kubelets.get(-id(node.type))
    if known is None:
        known = kubelets[-id(node.type)] = (node.type, node.type, node.type.kubelet())
    return ChangedNode(_reported(node, known[2]))


def _changed(node: PlannedNode, change: Change, kubelets: Kubelets) -> ChangedNode:
    if node.type is None:
        raise PlanError(f"node {node.name}: its report describes no machine, expected one to change its kubelet")
    known = kubelets.get(id(node.type))
    if known is None:
        changed = changed_type(node.type, change)
        known = kubelets[id(node.type)] = (node.type, changed, changed.kubelet())
    _, changed, empty = known
    return ChangedNode(_reported(_replace(node, type=changed), empty), empty)


def _added(
    inventory: Inventory,
    known: Mapping[str, PlannedNode],
    change: Change,
    kubelets: Kubelets,
) -> Iterator[ChangedNode]:
    """Yields the added nodes. A node that serves as the type lends its labels and taints, not its pods."""
    for name, count in change.add.items():
        like = known.get(name)
        node_type = inventory.types.get(name) or (None if like is None else like.type)
        if node_type is None:
            names = ", ".join(sorted(inventory.types)) or "none"
            raise PlanError(f"add {name!r}: neither a node with a machine nor a type, expected one; types: {names}")
        for number in range(1, count + 1):
            new = PlannedNode(f"{name}-new-{number}", node_type, object=None if like is None else like.object)
            applies = (change.is_of_kubelets or change.numa is not None) and not change.nodes
            if applies:
                yield _changed(new, change, kubelets)
                continue
            yield _as_it_is(new, kubelets)


def _reported(node: PlannedNode, empty: Kubelet) -> PlannedNode:
    """Returns the node with the report of an empty node, and with a Node object that has its allocatable."""
    report = Report(name=node.name, version=_VERSION, precision="exact", empty=empty)
    return _replace(node, report=report, object=node_object(node.name, empty, node.object))


def node_object(name: str, empty: Kubelet, like: NodeObject | None = None) -> NodeObject:
    """Returns the Node of a kubelet; labels, taints and resources that the model lacks are those of `like`."""
    model: pods.Quantities = {
        resource: to_quantity(resource, amount) for resource, amount in empty.allocatable().items()
    }
    if like is None:
        return NodeObject(NodeMetadata(name=name), status=NodeStatus(allocatable=model))
    allocatable = {**(like.status.allocatable or {}), **model}
    return _replace(
        like,
        metadata=_replace(like.metadata, name=name),
        status=_replace(like.status, allocatable=allocatable),
    )


def to_quantity(resource: str, amount: int) -> str:
    """Returns an amount of the model as a quantity."""
    return f"{amount}m" if resource == "cpu" else str(amount)


def _with_markers(node: PlannedNode) -> PlannedNode:
    if node.object is None:
        return node
    status = node.object.status
    allocatable: pods.Quantities = {**(status.allocatable or {}), MARKER: _MARKERS}
    return _replace(node, object=_replace(node.object, status=_replace(status, allocatable=allocatable)))
