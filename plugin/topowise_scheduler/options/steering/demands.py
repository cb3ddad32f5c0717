"""Which NUMA nodes of a node meet a term of `topowise.io/numa-affinity`, by the pods on the node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import Mask, union
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.options.steering.choice import Demand, has_amounts
from topowise_scheduler.options.steering.numa_affinity import PodTerm
from topowise_scheduler.verdicts.refusals import Refusal


class Beside(NamedTuple):
    """The NUMA nodes (ids of the kernel) of the selected pods on a node. `is_known` is False if a selected pod may be
    elsewhere. `pods` counts the selected pods that have resources of a NUMA node."""

    numa_nodes: frozenset[int] = frozenset()
    is_known: bool = True
    pods: int = 0


def beside(node: Kubelet, selected: Iterable[tuple[PodView, bool]]) -> Beside:
    """Returns where the selected pods are: each with whether the state of the node is known to be right about it."""
    mask: Mask = 0
    is_known, pods = True, 0
    for pod, is_located in selected:
        if pod.uid in node.active:
            of_pod = union(where.mask for where in allocated_nodes(node, pod.uid).values())
            mask |= of_pod
            is_known = is_known and (is_located or not of_pod)
            pods += bool(of_pod)
        elif has_amounts(node, pod):
            # A report of amounts does not say whose they are, and a pod without room is somewhere else.
            is_known, pods = False, pods + 1
    return Beside(frozenset(node.ids(mask)), is_known, pods)


def demand_of(term: PodTerm, pods: Beside, node_ids: Sequence[int]) -> Demand | None:
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
