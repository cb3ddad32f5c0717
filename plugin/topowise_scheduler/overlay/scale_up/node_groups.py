"""Node groups: nodes with equal values of the group labels, and the empty node that an autoscaler would add to a group.

The empty node of a group is known from its reported nodes: a report has the machine and the kubelet's configuration,
which give the node without pods. Nodes of a group may differ (a new machine image, another kubelet configuration), so a
profile has all distinct kubelets of the group, and a pod must be aligned by each of them. A group without a reported
node has no profile unless it is declared (`profiles_of`): a wrong profile would add useless nodes.

A packing says how many empty nodes of which groups the pods need, and which pods go to each node. Pods are placed in
order: on the first node of the packing that takes the pod, else on a new node of the first profile that does. For pods
of equal requests and a single group no packing has fewer nodes; for other pods it is first fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import documents, kubeletconfig
from topowise.errors import ConfigError, TopowiseError
from topowise.pods import Amounts, amount_of
from topowise_scheduler import report
from topowise_scheduler.configuration import NodeGroup
from topowise_scheduler.kubelet import Kubelet, version_of
from topowise_scheduler.kubelet.trial import constant_parts
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import STARTUP_TAINT
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import NodeCopy, Overlay, Unfit
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Node, Taint
from topowise_scheduler.verdicts.refusals import Refusal

GroupLabels = tuple[tuple[str, str], ...]
"""The group labels that a node has, sorted by key."""
NEW_NODE: Final = "\0new"
"""The name of a new node on an overlay; no Node has such a name."""
_NRT: Final = "NodeResourceTopology"

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
    """The `empty` node of a group: it is like the newest reported node of the group, or like none in a declared group,
    but without name, hostname and temporary taints. Its states are the distinct kubelets of the group, with the daemon
    pods of that node."""

    group: GroupLabels
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
    return Profile(group, NodeCopy(kubelets, used, like=source.name, node=template(source)))


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
    )


def with_new_node(cluster: Trial, profile: Profile) -> Overlay:
    """Returns the cluster with an empty node of the group, NEW_NODE."""
    return Overlay(cluster, {NEW_NODE: profile.empty})


def refusal(cluster: Trial, profile: Profile, record: PodRecord) -> str:
    """Returns why an empty node of the group would refuse the pod, "" if it would take it, or may."""
    placed = with_new_node(cluster, profile).place(record, NEW_NODE)
    return (placed.text or "its kubelet cannot align the pod") if isinstance(placed, Unfit) else ""


def lacks_devices(cluster: Trial, profile: Profile, record: PodRecord) -> bool:
    """Returns whether an empty node of the group has no devices for the claims of the pod, or none are known."""
    placed = with_new_node(cluster, profile).place(record, NEW_NODE)
    if isinstance(placed, Unfit):
        return placed.check == "gates" and not isinstance(placed.reason, Refusal)
    return not placed.is_certain


def _with_daemons(empty: Kubelet, records: Iterable[PodRecord]) -> Kubelet:
    """Returns the node with these pods; a pod that does not fit is left out."""
    node = NodeCopy((empty,))
    for record in records:
        placed = None if record.needs is None else node.admit(record)
        node = placed if isinstance(placed, NodeCopy) else node
    return node.states[0]


def _is_temporary(taint: Taint) -> bool:
    return taint.key.startswith(_TEMPORARY_TAINTS)


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
        """Places a pod here if it certainly fits. Returns whether it does."""
        placed = self.overlay.place(record, NEW_NODE)
        if isinstance(placed, Unfit) or not placed.is_certain:
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
        key = (cluster.ledger.gates.class_of(record), record.namespace)
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


def profile_of(declared: NodeGroup, files: Mapping[str, bytes], keys: Sequence[str]) -> Profile:
    """Returns the profile of a declared group; `files` are the contents by path. Raises ConfigError.

    The file of a group is a NodeResourceTopology, saved while the group had a node, or the description of a machine, as
    for plans (the output of `topowise-exporter machine`), with the configuration of its kubelet. A reported node of the
    group takes precedence over the declaration.
    """
    group = group_of(declared.labels, keys)
    path = f"scaleUp.declaredGroups, {declared.file}"
    if not group:
        raise ConfigError(path, f"labels has none of groupLabels ({', '.join(keys)}), expected one: it names the group")
    try:
        kubelet = _kubelet(declared, files)
        stated = {name: amount_of(name, text) for name, text in declared.allocatable.items()}
        used = {"pods": 0, **{name: amount_of(name, text) for name, text in declared.used.items()}}
    except TopowiseError as exc:
        raise ConfigError(path, str(exc)) from exc
    allocatable: Amounts = {**kubelet.allocatable(), **stated}
    taints = tuple([Taint(taint.key, taint.value, taint.effect) for taint in declared.taints])
    node = Node("", allocatable=allocatable, labels=dict(declared.labels), taints=taints)
    return Profile(group, NodeCopy((kubelet,), used, like="", node=node))


def profiles_of(
    declared: Sequence[NodeGroup], files: Mapping[str, bytes], keys: Sequence[str]
) -> dict[GroupLabels, Profile]:
    """Returns the profiles of the declared groups. Raises ConfigError."""
    profiles: dict[GroupLabels, Profile] = {}
    for entry in declared:
        profile = profile_of(entry, files, keys)
        if profile.group in profiles:
            raise ConfigError(f"scaleUp.declaredGroups, {entry.file}", "declares a group that an entry before declares")
        profiles[profile.group] = profile
    return profiles


def _kubelet(declared: NodeGroup, files: Mapping[str, bytes]) -> Kubelet:
    """Returns the kubelet without pods. Raises TopowiseError."""
    text = files[declared.file]
    document = documents.load(text)
    if isinstance(document, dict) and document.get("kind") == _NRT:
        return _of_report(declared, document)
    # Imported on demand: only machine descriptions need the planner.
    from topowise_scheduler.overlay.plan import NodeType, read_machine

    machine = read_machine(text, declared.file)
    if not declared.kubelet_config:
        raise ConfigError(
            declared.file, "describes a machine, expected kubeletConfig, the configuration of its kubelet"
        )
    settings = kubeletconfig.parse(files[declared.kubelet_config], source=declared.kubelet_config)
    configuration = kubeletconfig.with_defaults(settings)
    return NodeType(machine, configuration, version_of(declared.kubelet_version)).kubelet()


def _of_report(declared: NodeGroup, document: dict[str, Any]) -> Kubelet:
    try:
        read = report.read_bytes(msgspec.json.encode(document), lambda _: (declared.kubelet_version, (), None))
    except msgspec.DecodeError as exc:
        raise ConfigError(declared.file, f"is no {_NRT}: {exc}") from exc
    if read.over_budget or not document.get("zones") or (read.precision == "counts" and read.problems):
        problems = "; ".join(read.problems) or "it has no zones"
        raise ConfigError(declared.file, f"{problems}, expected a {_NRT} as an exporter writes it")
    return read.empty
