"""How many empty nodes of which groups the pods need, and which pods go to each node.

Pods are placed in order: on the first node of this packing that takes the pod, else on a new node of the first profile
that does. For pods of equal requests and a single group no packing has fewer nodes; for other pods it is first fit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec

from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile

Suits = Callable[[PodRecord, Profile], bool]
"""Returns whether a pod may go to nodes of a group at all."""


class PlannedNode(msgspec.Struct, eq=False):
    """A node of a group with the pods placed on it, and no other pods but its daemon pods."""

    profile: Profile
    copy: NodeCopy
    records: list[PodRecord] = msgspec.field(default_factory=list)

    @property
    def group(self) -> GroupLabels:
        """The group of the node."""
        return self.profile.group

    def take(self, record: PodRecord) -> bool:
        """Places a pod here if it fits. Returns whether it does."""
        placed = self.copy.admit_new(record)
        if isinstance(placed, NodeCopy):
            self.copy = placed
            self.records.append(record)
        return isinstance(placed, NodeCopy)


class Packing(msgspec.Struct, frozen=True):
    """The new nodes with their pods, and the pods that no empty node of these groups takes."""

    new_nodes: Sequence[PlannedNode]
    unplaced: Sequence[PodRecord]


def empty_node(profile: Profile) -> PlannedNode:
    """Returns a node of a group with no pods but its daemon pods."""
    return PlannedNode(profile, profile.empty)


def pack(
    records: Iterable[PodRecord],
    profiles: Sequence[Profile],
    coming: Sequence[PlannedNode] = (),
    suits: Suits = lambda _record, _profile: True,
) -> Packing:
    """Returns a packing of the pods in this order. Pods are placed on the nodes `coming` too, which change by that."""
    nodes = list(coming)
    unplaced: list[PodRecord] = []
    # By class: the nodes before this index have refused a pod of the class, and nothing leaves a node.
    full: dict[Hashable, int] = {}
    for record in records:
        key = (record.pod_class, record.namespace)
        numbers = range(full.get(key, 0), len(nodes))
        at = next((at for at in numbers if suits(record, nodes[at].profile) and nodes[at].take(record)), None)
        if at is None and (node := _new_node(record, profiles, suits)) is not None:
            at = len(nodes)
            nodes.append(node)
        if at is None:
            unplaced.append(record)
        full[key] = len(nodes) if at is None else at
    return Packing(nodes[len(coming) :], unplaced)


def _new_node(record: PodRecord, profiles: Iterable[Profile], suits: Suits) -> PlannedNode | None:
    """Returns a new node of the first group that takes the pod, with the pod."""
    candidates = (empty_node(profile) for profile in profiles if suits(record, profile))
    return next((node for node in candidates if node.take(record)), None)
