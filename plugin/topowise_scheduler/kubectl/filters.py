"""What kube-scheduler's own plug-ins have against a node, as far as Node objects tell it.

NodeResourcesFit, NodeUnschedulable, TaintToleration and the node selector; the words are kube-scheduler's. What else it
looks at (affinity, spreading, volumes, ports, resource claims) is not here, and `overlooked` says so.
Source: pkg/scheduler/framework/plugins (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise.pods import Amounts, Needs, amount_of
from topowise_scheduler.kubectl.objects import Node, Taint

_HARD: Final = ("NoSchedule", "NoExecute")
_CORDONED: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_OVERLOOKED: Final = {
    "affinity": "affinity",
    "topologySpreadConstraints": "topology spread",
    "resourceClaims": "resource claims",
}


class Toleration(msgspec.Struct, frozen=True):
    """One toleration; "" means any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the taint is tolerated."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class Demands(msgspec.Struct, frozen=True):
    """What of a pod's spec these filters read."""

    nodeSelector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


def overlooked(spec: Mapping[str, Any]) -> list[str]:
    """What the pod asks of its node that is not looked at here."""
    found = [words for field, words in _OVERLOOKED.items() if spec.get(field)]
    if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
        found.append("volumes")
    return found


class Filters:
    """The nodes with what their pods request; nothing is refused where there are no Node objects."""

    def __init__(self, nodes: Sequence[Node] | None, placed: Iterable[tuple[str, Needs]]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes or ()}
        self._knows = nodes is not None
        self._free: dict[str, Amounts] = {
            name: {resource: amount_of(resource, given) for resource, given in node.status.allocatable.items()}
            for name, node in self._nodes.items()
        }
        for name, needs in placed:
            self.add(name, needs)

    def add(self, name: str, needs: Needs) -> None:
        """A pod is on the node from now on."""
        free = self._free.get(name)
        if free:
            for resource, amount in _asked(needs):
                free[resource] = free.get(resource, 0) - amount

    def refusal(self, name: str, needs: Needs, demands: Demands) -> str:
        """What is against the node, in the order in which kube-scheduler asks; "" if nothing is."""
        node = self._nodes.get(name)
        if node is None:
            return "node(s) without a Node object" if self._knows else ""
        tolerations = demands.tolerations or ()
        taints = [taint for taint in node.spec.taints if taint.effect in _HARD]
        if node.spec.unschedulable and not _is_tolerated(_CORDONED, tolerations):
            return "node(s) were unschedulable"
        for taint in taints:
            if not _is_tolerated(taint, tolerations):
                return f"node(s) had untolerated taint(s) {taint.key}"
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in (demands.nodeSelector or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        free = self._free[name]
        short = [resource for resource, amount in _asked(needs) if free and amount > free.get(resource, 0)]
        return f"Insufficient {', '.join(short)}" if short else ""

    def room(self, name: str, needs: Needs) -> tuple[int, str] | None:
        """How many such pods there is room for by node allocatable, and of what is too little for one more.

        None if it is not known.
        """
        free = self._free.get(name)
        if not free:
            return None
        return min((max(0, free.get(resource, 0) // amount), resource) for resource, amount in _asked(needs))


def _asked(needs: Needs) -> list[tuple[str, int]]:
    return [("pods", 1), *((resource, amount) for resource, amount in needs.requests.items() if amount > 0)]


def _is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(one.covers(taint) for one in tolerations)
