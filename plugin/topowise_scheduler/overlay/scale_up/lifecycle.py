"""When a placeholder ends, and with which outcome."""

from __future__ import annotations

from typing import Final, NamedTuple

from topowise_scheduler.overlay.scale_up.placeholders import Outcome, Placeholder

TIME_LIMIT_S: Final = 900.0
"""Seconds from a request until the node is reported: cluster-autoscaler's --max-node-provision-time and Karpenter's
limit of a registration have the same value."""
HOLD_S: Final = 120.0
"""Seconds for which a new node is reserved for the pods it was requested for, from its first report: kube-scheduler
tries them again within a few seconds, and a retry that was just refused within its pause of ten."""


class Facts(NamedTuple):
    """What the cluster shows of a placeholder's pods and node. Times are in seconds.

    `waiting`: pods that wait. `placed`: pods on any node. `on_node`: pods on nodes that were added to the group after
    the placeholder. `has_node`: the placeholder's Node exists. `reported_for`: for how long it is reported, -1 before
    that. `refusal`: why the empty node would not take a pod that waits, or why a kubelet refused a pod, "" if neither.
    """

    age: float
    waiting: int
    placed: int
    on_node: int
    has_node: bool = False
    reported_for: float = -1.0
    refusal: str = ""


class End(NamedTuple):
    """The outcome "" means that the placeholder goes on."""

    outcome: Outcome
    why: str = ""


def end_of(placeholder: Placeholder, facts: Facts) -> End:
    """Returns whether and how a placeholder ends."""
    if facts.refusal:
        return End("useless", f"{placeholder.node} cannot align a pod that it was added for: {facts.refusal}")
    if not facts.waiting:
        if facts.on_node:
            return End("helped", f"{facts.on_node} of its pods are on new nodes")
        where = f"{facts.placed} of its pods are on other nodes" if facts.placed else "its pods are gone"
        return End("unneeded", f"{where}; no pod is on a node that was added")
    if placeholder.node and facts.reported_for >= 0:
        if facts.reported_for < HOLD_S:
            return End("")
        if facts.on_node:
            return End("helped", f"{facts.on_node} of its pods are on new nodes")
        return End("taken", f"other pods use {placeholder.node}")
    if placeholder.node and not facts.has_node:
        return End("late", f"{placeholder.node} is gone")
    if facts.age > TIME_LIMIT_S:
        what = f"{placeholder.node} has no report" if placeholder.node else "no node came"
        return End("late", f"{what} within {TIME_LIMIT_S:g} s")
    return End("")
