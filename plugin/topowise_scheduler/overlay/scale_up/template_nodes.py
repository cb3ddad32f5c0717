"""Answers about nodes that the cluster does not have, but that look like a node of a known group.

A patched autoscaler and simulators send whole Node objects with their questions. Such a node is answered from the
profile of its group (node_groups.py): the empty node. The pods that the caller has already placed on the node are not
known. A node that looks like no known group has no answer here.

Nothing is remembered but the nodes of the cluster by group, until a Node changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from topowise_scheduler.ledger.gates.gate import Question
from topowise_scheduler.ledger.nodes import amounts_of
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import Overlay, Unfit
from topowise_scheduler.overlay.scale_up import node_groups
from topowise_scheduler.overlay.scale_up.node_groups import NEW_NODE, GroupLabels, Profile
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.kube_scheduler import Node, NodeObject
from topowise_scheduler.verdicts.refusals import Refusal

# The newest nodes of a group that are examined for a question.
_MOST_MEMBERS: Final = 64
# CPUs and memory of a template are estimates of a cloud provider: they differ by less than a tenth.
_TOLERANCE: Final = 10
_NATIVE: Final = ("cpu", "memory")

_decode: Final = msgspec.json.Decoder(NodeObject).decode


class TemplateNodes:
    """`keys`: the labels that make a group; `declared`: the profiles of declared groups."""

    def __init__(self, cluster: Trial, keys: Sequence[str], declared: Mapping[GroupLabels, Profile]) -> None:
        self._cluster, self._nodes = cluster, cluster.nodes
        self._keys = keys
        self._declared = declared
        self._groups: dict[GroupLabels, list[Node]] = {}
        # What `Nodes.changes` was when the groups were made.
        self._grouped_at = -1

    def with_templates(self, question: Question, objects: Sequence[bytes | msgspec.Raw], first: int = 0) -> Question:
        """Returns the question with the answers about nodes that the cluster does not have. `objects`: the Nodes of the
        question as JSON, from the index `first` on. Raises msgspec.DecodeError."""
        if not question.requests.can_be_aligned or question.record.is_too_large:
            return question
        profiles: dict[GroupLabels, Profile | None] = {}
        by_profile: dict[GroupLabels, Refusal | None] = {}
        templates: dict[int, Refusal | None] = {}
        for at in (np.flatnonzero(question.rows[first:] < 0) + first).tolist():
            if self._nodes.get(question.names[at]) is not None:
                continue
            node = _decode(objects[at - first])
            group = node_groups.group_of(node.metadata.labels or {}, self._keys)
            if group not in profiles:
                profiles[group] = self._profile(group)
            profile = profiles[group]
            if profile is None or not _is_like(node, profile):
                continue
            if group not in by_profile:
                by_profile[group] = self._refusal(profile, question.record)
            templates[at] = by_profile[group]
        return msgspec.structs.replace(question, templates=templates) if templates else question

    def _profile(self, group: GroupLabels) -> Profile | None:
        if not group:
            return None
        if self._grouped_at != self._nodes.changes:
            known = (node for name in self._nodes if (node := self._nodes.get(name)) is not None)
            self._groups, self._grouped_at = node_groups.groups(known, self._keys), self._nodes.changes
        members = list(islice(self._groups.get(group, ()), _MOST_MEMBERS))
        return node_groups.profile(self._cluster.ledger, group, members, ()) or self._declared.get(group)

    def _refusal(self, profile: Profile, record: PodRecord) -> Refusal | None:
        """Returns why the empty node of a group refuses the pod, None if it takes the pod."""
        # kube-scheduler has been asked already, about the Node of the question.
        empty = msgspec.structs.replace(profile.empty, node=None)
        placed = Overlay(self._cluster, {NEW_NODE: empty}).place(record, NEW_NODE)
        if not isinstance(placed, Unfit):
            return None
        if isinstance(placed.reason, Refusal):
            return placed.reason
        # Which devices claims get on a Node of the question, its caller knows.
        return refusals.of(placed.reason, ever=True) if placed.check == "kubelet" else None


def _is_like(node: NodeObject, profile: Profile) -> bool:
    """Returns whether the allocatable amounts of a Node are those of a node of the group: its labels alone would also
    match another size of machine."""
    amounts = amounts_of(node.status.allocatable or {})
    devices = {name: amount for name, amount in amounts.items() if "/" in name}
    of_group = profile.allocatable
    if any(of_group.get(name, 0) != amount for name, amount in devices.items()):
        return False
    return all(
        abs(amounts[name] - of_group[name]) * _TOLERANCE <= of_group[name]
        for name in _NATIVE
        if name in amounts and name in of_group
    )
