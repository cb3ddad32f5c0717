"""Filters on the Node object and on requests, by the product's own functions, and the score LeastAllocated.

The filters are NodeUnschedulable, NodeName, TaintToleration, NodeAffinity and NodeResourcesFit.
Sources: pkg/scheduler/framework/plugins/noderesources/fit.go (fitsRequest), least_allocated.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sandbox.kubescheduler.attempt import Refused
from sandbox.kubescheduler.cache import NodeInfo, non_zero
from sandbox.kubescheduler.pod import PodInfo
from topowise_scheduler.verdicts import kube_scheduler

PLUGIN: Final = "NodeResourcesFit"
EXCLUDING: Final = "NodeUnschedulable, NodeName, TaintToleration, NodeAffinity"
"""Stands for the plug-in of these four that refuses a node."""
_NOT_NAMED: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
_TOP: Final = 100


def check(
    info: PodInfo, node: NodeInfo, beside: Iterable[PodInfo] = (), without: Iterable[PodInfo] = ()
) -> Refused | None:
    """Returns why the node is refused, with more pods (nominated) and without `without` (victims); None if it fits."""
    if node.object is None:
        return Refused((kube_scheduler.NO_NODE.words,), EXCLUDING, ever=True)
    node_names = _required_names(info.pod.spec)
    if node_names and node.name not in node_names:
        return Refused((_NOT_NAMED,), EXCLUDING, ever=True)
    excluded = kube_scheduler.exclusion_of(node.object, info.pod.spec)
    if excluded is not None:
        return Refused((excluded.words,), EXCLUDING, ever=True)
    used = dict(node.used)
    for pods, sign in ((beside, 1), (without, -1)):
        for pod in pods:
            for name, amount in (("pods", 1), *pod.requests.items()):
                used[name] = used.get(name, 0) + sign * amount
    short = kube_scheduler.short(node.object, info.needs, used)
    return None if short is None else Refused(tuple(short.words.split(", ")), PLUGIN, short.verdict == "never")


def _required_names(spec: kube_scheduler.Spec) -> set[str]:
    """Returns the nodes that required affinity names in every term, as for pods of a DaemonSet (PreFilter)."""
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    terms = [
        {name for field in term.matchFields or () if field.operator == "In" for name in field.values or ()}
        for term in (required and required.nodeSelectorTerms) or ()
    ]
    return set().union(*terms) if all(terms) else set()


def accepts(info: PodInfo, node: NodeInfo, plugins: Iterable[str]) -> bool:
    """Returns whether these plug-ins accept the node without pods, as their hints for node events ask."""
    if node.object is None:
        return False
    return not (
        (EXCLUDING in plugins and kube_scheduler.exclusion_of(node.object, info.pod.spec))
        or (PLUGIN in plugins and kube_scheduler.short(node.object, info.needs, {}))
    )


def least_allocated(info: PodInfo, node: NodeInfo) -> int:
    """0..100, more for the emptier node."""
    total = count = 0
    for name, amount in non_zero(info).items():
        capacity = node.allocatable.get(name, 0)
        if not capacity:
            continue
        count += 1
        requested = node.scored[name] + amount
        if requested <= capacity:
            # Rounded down, as Go's integer division of positive numbers does.
            total += (capacity - requested) * _TOP // capacity
    return total // count if count else 0
