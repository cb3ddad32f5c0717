"""Pods on a node that a verdict for another pod does not count.

A pod does not count against itself. kube-scheduler nominates a pod while it evicts victims for the pod, and a pod of a
higher priority may take that capacity first: for such a pod nominated pods of lower priority do not count.

Invariant: every answer is of the pods as they are booked now.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from topowise_scheduler.ledger.pods.pod_states import PodStates
from topowise_scheduler.ledger.rows.lower_priority_pods import LowerPriorityPods
from topowise_scheduler.ledger.rows.reduced_rows import ReducedNodes

_NO_PODS: Final[frozenset[str]] = frozenset()


class IgnoredPods:
    """Ignored pods, by the pod of a question. UIDs are strings, priorities are those of PriorityClasses."""

    def __init__(self, pods: PodStates, lower_priority: LowerPriorityPods) -> None:
        self._pods = pods
        self._lower_priority = lower_priority

    def on(self, uid: str, priority: int, name: str) -> Set[str]:
        """Returns the pods on a node that do not count for this pod."""
        lower = self.of_lower_priority(priority).get(name, _NO_PODS)
        pod = self._pods.of(uid)
        return lower | {uid} if name in (pod.node, pod.nominated) else lower

    def on_own_nodes(self, uid: str, priority: int) -> Mapping[str, Set[str]]:
        """Returns, by each node where the pod itself is or is expected, the pods that do not count there."""
        pod = self._pods.of(uid)
        if not (pod.node or pod.nominated):
            return {}
        lower = self.of_lower_priority(priority)
        return {name: lower.get(name, frozenset()) | {uid} for name in {pod.node, pod.nominated} - {""}}

    def everywhere(self, uid: str, priority: int) -> Mapping[str, Set[str]]:
        """Returns the pods that do not count, by each node that has any."""
        return {**self.of_lower_priority(priority), **self.on_own_nodes(uid, priority)}

    def of_lower_priority(self, priority: int) -> Mapping[str, Set[str]]:
        """Returns the nominated pods of a lower priority, by node."""
        return self._lower_priority.others(priority)

    def rows(self, priority: int) -> ReducedNodes | None:
        """Returns the engine's rows of nodes without their nominated pods of a lower priority, None without any."""
        return self._lower_priority.apart(priority)
