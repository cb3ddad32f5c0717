"""How many empty nodes of which groups the pods need, and which pods go to each node.

Pods are placed in order: on the first node of this packing that takes the pod, else on a new node of the first profile
that does. For pods of equal requests and a single group no packing has fewer nodes; for other pods it is first fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import Overlay, Unfit
from topowise_scheduler.overlay.scale_up.node_groups import NEW_NODE, GroupLabels, Profile, with_new_node
from topowise_scheduler.overlay.trial import Trial


class PlannedNode(msgspec.Struct, eq=False):
    """A new node of a group with the pods placed on it, and no other pods but its daemon pods."""

    profile: Profile
    overlay: Overlay
    records: list[PodRecord] = msgspec.field(default_factory=list)

    @property
    def group(self) -> GroupLabels:
        """The group of the node."""
        return self.profile.group

    def take(self, record: PodRecord) -> bool:
        """Places a pod here if it fits. Returns whether it does."""
        placed = self.overlay.place(record, NEW_NODE)
        if isinstance(placed, Unfit):
            return False
        self.overlay = placed.overlay
        self.records.append(record)
        return True


class Packing(msgspec.Struct, frozen=True):
    """The new nodes with their pods, and the pods that no empty node of these groups takes."""

    new_nodes: Sequence[PlannedNode]
    unplaced: Sequence[PodRecord]


def empty_node(cluster: Trial, profile: Profile) -> PlannedNode:
    """Returns a node of a group with no pods but its daemon pods."""
    return PlannedNode(profile, with_new_node(cluster, profile))


def pack(
    cluster: Trial, records: Iterable[PodRecord], profiles: Sequence[Profile], coming: Sequence[PlannedNode] = ()
) -> Packing:
    """Returns a packing of the pods in this order. Pods are placed on the nodes `coming` too, which change by that."""
    nodes = list(coming)
    unplaced: list[PodRecord] = []
    # By class: the nodes before this index have refused a pod of the class, and nothing leaves a node.
    full: dict[Hashable, int] = {}
    for record in records:
        key = (record.pod_class, record.namespace)
        at = next((at for at in range(full.get(key, 0), len(nodes)) if nodes[at].take(record)), None)
        if at is None:
            at = len(nodes)
            empty = (empty_node(cluster, profile) for profile in profiles)
            new = next((node for node in empty if node.take(record)), None)
            if new is None:
                unplaced.append(record)
            else:
                nodes.append(new)
        full[key] = at
    return Packing(nodes[len(coming) :], unplaced)
