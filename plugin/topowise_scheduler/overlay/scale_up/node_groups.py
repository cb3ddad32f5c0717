"""Node groups: nodes with equal values of the group labels, and the empty node that an autoscaler would add to a group.

The empty node of a group is known from its reported nodes: a report has the machine and the kubelet's configuration,
which give the node without pods. Nodes of a group may differ (a new machine image, another kubelet configuration), so a
profile has all distinct kubelets of the group, and a pod must be aligned by each of them. A group without a reported
node has no profile unless it is declared (declared_groups.py): a wrong profile would add useless nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from topowise.pods import Amounts
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import constant_parts, place
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import STARTUP_TAINT
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import MIRROR, Node, Pod, Taint
from topowise_scheduler.verdicts.policy_annotations import POLICIES
from topowise_scheduler.verdicts.refusals import Refusal

GroupLabels = tuple[tuple[str, str], ...]
"""The group labels that a node has, sorted by key."""

# Kubelets of a group that are examined; nodes with more differences are no group.
_MOST_KUBELETS: Final = 8
# Taints that a node gets and loses during its life: a new node has them at most for a short time.
_TEMPORARY_TAINTS: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    STARTUP_TAINT,
)


class Profile(msgspec.Struct, frozen=True):
    """The empty node of a group.

    `source`: the reported node that it is made of, the newest of the group, "" for a declared group. `empty`: a Node
    without name, hostname and temporary taints; its states are the distinct kubelets of the group, with the daemon pods
    of `source`.
    """

    group: GroupLabels
    source: str
    empty: NodeCopy

    @property
    def allocatable(self) -> Amounts:
        """The node allocatable."""
        return {} if self.empty.node is None else self.empty.node.allocatable


def group_of(labels: Mapping[str, str], keys: Sequence[str]) -> GroupLabels:
    """Returns the group of a node with these labels, () for a node without any group label."""
    return tuple([(key, labels[key]) for key in sorted(keys) if key in labels])


def groups(nodes: Iterable[Node], keys: Sequence[str]) -> dict[GroupLabels, list[Node]]:
    """Returns the nodes of each group, the newest first."""
    by_group: dict[GroupLabels, list[Node]] = {}
    for node in nodes:
        if group := group_of(node.labels, keys):
            by_group.setdefault(group, []).append(node)
    for members in by_group.values():
        members.sort(key=lambda node: (node.created, node.name), reverse=True)
    return by_group


def source_of(ledger: Ledger, members: Sequence[Node]) -> Node | None:
    """Returns the newest node of a group whose report its kubelet confirms, None without such a node."""
    return next((node for node in members if ledger.reports.is_confirmed(node.name)), None)


def profile(
    ledger: Ledger, group: GroupLabels, members: Sequence[Node], daemons: Sequence[PodRecord]
) -> Profile | None:
    """Returns the profile of a group, None if no report tells what an empty node of the group is.

    `daemons`: the daemon pods of `source_of` the group.
    """
    source = source_of(ledger, members)
    if source is None:
        return None
    empties: dict[tuple[int, ...], Kubelet] = {}
    for node in members:
        state = ledger.node_states.of(node.name)
        if state is None or state.report is None or not ledger.reports.is_confirmed(node.name):
            continue
        empty = state.report.empty
        # Reports of equal hardware and configuration share these objects.
        empties.setdefault(tuple([id(part) for part in constant_parts(empty)]), empty)
        if len(empties) > _MOST_KUBELETS:
            return None
    used: Amounts = {"pods": 0}
    for needs in [record.needs for record in daemons if record.needs is not None]:
        kube_scheduler.add(used, needs)
    kubelets = tuple([_with_daemons(empty, daemons) for empty in empties.values()])
    return Profile(group, source.name, NodeCopy(kubelets, used, node=template(source)))


def template(node: Node) -> Node:
    """Returns the Node as an autoscaler adds it: without name, hostname, cordon and temporary taints."""
    return msgspec.structs.replace(
        node,
        name="",
        hostname="",
        taints=tuple([taint for taint in node.taints if not _is_temporary(taint)]),
        is_cordoned=False,
        is_ready=True,
        boot_id="",
        created="",
        images=(),
    )


def is_daemon(pod: Pod) -> bool:
    """Returns whether each node of a group runs such a pod: a pod of a DaemonSet, or a static pod."""
    owners = pod.metadata.ownerReferences or ()
    return MIRROR in (pod.metadata.annotations or {}) or any(owner.kind == "DaemonSet" for owner in owners)


def refusal(profile: Profile, record: PodRecord) -> str:
    """Returns why an empty node of the group would refuse the pod, "" if it would take it."""
    placed = profile.empty.admit_new(record)
    if isinstance(placed, NodeCopy):
        return ""
    return "its kubelet cannot align the pod" if placed.check == "kubelet" else placed.text


def policy_refusal(profile: Profile, record: PodRecord) -> Refusal | None:
    """Returns why the Topology Manager policy of the group is not what the annotations of a pod ask for, None if it
    is."""
    policies = {POLICIES.index(kubelet.settings.topology.policy) for kubelet in profile.empty.states}
    rules = record.demands.policy.rules()
    return next((refusal for accepted, refusal in rules if not policies.issubset(accepted)), None)


def _with_daemons(empty: Kubelet, records: Iterable[PodRecord]) -> Kubelet:
    """Returns the node with these pods; a pod that does not fit is left out."""
    state = empty
    for record in records:
        placed = None if record.needs is None else place((state,), record.view)
        state = state if placed is None else placed[0]
    return state


def _is_temporary(taint: Taint) -> bool:
    return taint.key.startswith(_TEMPORARY_TAINTS)
