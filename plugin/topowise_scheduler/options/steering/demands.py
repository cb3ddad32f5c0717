"""What the annotations of a pod demand of the NUMA nodes of a node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import Mask, union
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.node.uncertainty import is_chosen
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering.annotation import NO_DEMAND
from topowise_scheduler.options.steering.choice import Demand, has_amounts
from topowise_scheduler.options.steering.numa_affinity import PodTerm
from topowise_scheduler.verdicts.refusals import Refusal


class Beside(NamedTuple):
    """The NUMA nodes (ids of the kernel) of the selected pods on a node. `is_known` is False if a selected pod may be
    elsewhere. `pods` counts the selected pods that have resources of a NUMA node."""

    numa_nodes: frozenset[int] = frozenset()
    is_known: bool = True
    pods: int = 0


def demands_of(record: PodRecord, node_state: NodeState, node: Kubelet, leaving: Collection[str]) -> Iterator[Demand]:
    """Yields the demands of a pod on a node once the pods `leaving` have left, and the NUMA node of a pod that is
    steered."""
    if record.steered is not None:
        yield Demand(frozenset((record.steered,)), "the request to the node")
    demanded = record.demand(NO_DEMAND)
    if demanded.numa_node is not None:
        yield Demand(frozenset((demanded.numa_node,)), f"numa-node {demanded.numa_node}")
    for term in demanded.numa_affinity:
        demand = _demand_of(term, _beside(node_state, record, term, leaving), node.node_ids)
        if demand is not None:
            yield demand


def _beside(node_state: NodeState, record: PodRecord, term: PodTerm, leaving: Collection[str]) -> Beside:
    """Returns where the pods are that a term selects: bound pods, as other pods may go elsewhere."""
    history, node = node_state.history, node_state.kubelet
    if node is None:
        return Beside()
    mask: Mask = 0
    is_known, pods = True, 0
    for entry in (*history.settled.values(), *history.log):
        other = entry.record
        if other.uid == record.uid or other.uid in leaving:
            continue
        if not term.selects(other.namespace, other.name, other.labels):
            continue
        if other.uid in node.active:
            of_pod = union(where.mask for where in allocated_nodes(node, other.uid).values())
            mask |= of_pod
            is_known = is_known and (not of_pod or entry.seen.listed is not None or is_chosen(entry, node))
            pods += bool(of_pod)
        elif has_amounts(node, other.view(node)):
            # A report of amounts does not say whose they are, and a pod without room is somewhere else.
            is_known, pods = False, pods + 1
    return Beside(frozenset(node.ids(mask)), is_known, pods)


def _demand_of(term: PodTerm, pods: Beside, node_ids: Sequence[int]) -> Demand | None:
    """Returns the demand of a term on a node with these selected pods, None if each NUMA node meets the term."""
    why = f"numa-affinity {term}"
    is_required, every = term.strength == "require", frozenset(node_ids)
    if not pods.pods:
        if term.relation == "apart":
            return None
        if term.selects_itself:
            # With a label the next pod of the group knows where the first pod is.
            return Demand(every, f"{why} (the first pod)", is_required=False)
        return Demand(frozenset(), why, is_required, is_required, Refusal.NO_POD_BESIDE)
    if not pods.is_known:
        return Demand(frozenset(), why, is_required, is_required, Refusal.PODS_NOT_LOCATED)
    numa_nodes = pods.numa_nodes if term.relation == "same" else every - pods.numa_nodes
    return Demand(numa_nodes, why, is_required, is_required, Refusal.NONE_APART)
