"""Why kube-scheduler's own plug-ins refuse a node, as far as the Node object decides it.

The extender's verbs do not need this: they get nodes that passed these plug-ins. Explanations and nominations also
cover nodes that did not pass. So the plug-ins NodeUnschedulable, NodeName, TaintToleration, NodeAffinity and
NodeResourcesFit are here as functions of values, in kube-scheduler's order and with its messages. `unexamined` lists
the criteria that are missing here (other pods, volumes, ports).

Upstream: pkg/scheduler/framework/plugins, staging/src/k8s.io/component-helpers/scheduling/corev1 (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from topowise import digits, pods, quantity
from topowise.placement import GATE, PLACED_ON
from topowise.pods import Amounts, Needs
from topowise.steering import RESOURCE as MARKER

HOSTNAME: Final = "kubernetes.io/hostname"
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the mirror pod of a static pod: deleting the object does not end the pod."""
GUARD_ANNOTATION: Final = "topowise.io/scale-down-guard"
"""Annotation of a Node whose scale-down this service has disabled."""
SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
Unexamined: TypeAlias = Literal[
    "pod affinity", "topology spread", "volumes", "host ports", "resource claims", "scheduling gates"
]
RESOURCE_CLAIMS: Final = "resource claims"
"""The entry of `unexamined` for claims."""
SCHEDULING_GATES: Final = "scheduling gates"
"""The entry of `unexamined` for gates of others."""
_PODS: Final = "pods"
_HARD: Final = ("NoSchedule", "NoExecute")
# Volumes that exist on every node; "name" is the name of the volume, not a source.
_NODE_INDEPENDENT_VOLUMES: Final = frozenset(
    ("name", "configMap", "downwardAPI", "emptyDir", "gitRepo", "hostPath", "image", "nfs", "projected", "secret")
)
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
"""Effect of a taint that kube-scheduler only scores."""


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


_CORDONED: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_NOT_READY: Final = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
SILENT: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class NodeAnnotations(msgspec.Struct, frozen=True, gc=False):
    """The annotations that are read: whether a scale-down of the node is disabled, and whether by this service."""

    guard: str | None = msgspec.field(default=None, name=GUARD_ANNOTATION)
    disabled: str | None = msgspec.field(default=None, name=SCALE_DOWN_DISABLED)


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uid: str = ""
    creationTimestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: NodeAnnotations | None = None


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class NodeInfo(msgspec.Struct, frozen=True, gc=False):
    kubeletVersion: str = ""
    bootID: str = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: pods.Quantities | None = None
    nodeInfo: NodeInfo = NodeInfo()
    conditions: tuple[pods.Condition, ...] | None = None


class NodeObject(msgspec.Struct, frozen=True, gc=False):
    """The decoded fields of a v1.Node."""

    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True; a node without this condition counts as ready."""
        conditions = self.status.conditions or ()
        return all(condition.status == "True" for condition in conditions if condition.type == "Ready")


class Node(msgspec.Struct, frozen=True, gc=False):
    """The stored fields of a v1.Node. `labels` lack the hostname, so that nodes of a pool can share them. `created` is
    RFC 3339. `guard`: who has disabled the scale-down of the
    node, "" if it is not disabled."""

    name: str
    allocatable: Amounts = {}
    labels: dict[str, str] = {}
    hostname: str = ""
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    is_ready: bool = True
    kubelet_version: str = ""
    boot_id: str = ""
    created: str = ""
    guard: Literal["", "ours", "theirs"] = ""

    @property
    def page_sizes(self) -> tuple[str, ...]:
        """The hugepage resources that the kubelet reports, sorted; their amounts may be 0."""
        return tuple(sorted([name for name in self.allocatable if name.startswith(pods.HUGEPAGES)]))

    def label(self, key: str) -> str | None:
        """The value of a label, None without this label."""
        return (self.hostname or None) if key == HOSTNAME else self.labels.get(key)


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """A toleration; an empty key or effect matches any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the toleration tolerates the taint (Toleration.ToleratesTaint)."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and bool(self.key) and self.value == taint.value


class Requirement(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A requirement of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = ()

    def __str__(self) -> str:
        values = f" [{', '.join(self.values)}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"

    def matches(self, value: str | None) -> bool:
        """labels.Requirement.Matches; requirements that the API server rejects match nothing."""
        values = self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                left, right = digits.int64(value or ""), digits.int64(values[0] if len(values) == 1 else "")
                if left is None or right is None:
                    return False
                return left > right if self.operator == "Gt" else left < right
        return False


class LabelSelector(pods.LabelSelector, frozen=True, gc=False):
    """A selector of labels. All parts must match, so an empty selector selects everything."""

    matchLabels: dict[str, str] | None = None
    matchExpressions: tuple[Requirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with these labels; an invalid selector selects nothing."""
        requirements = self.matchExpressions or ()
        return (
            all(map(_is_valid, requirements))
            and all(labels.get(key) == value for key, value in (self.matchLabels or {}).items())
            and all(requirement.matches(labels.get(requirement.key)) for requirement in requirements)
        )


def _is_valid(requirement: Requirement) -> bool:
    """Whether the operator exists for labels and has values if it needs them: In and NotIn do, Exists and DoesNotExist
    not."""
    if requirement.operator in ("In", "NotIn"):
        return bool(requirement.values)
    return requirement.operator in ("Exists", "DoesNotExist") and not requirement.values


class Term(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    matchExpressions: tuple[Requirement, ...] | None = ()
    matchFields: tuple[Requirement, ...] | None = ()


class NodeSelector(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    nodeSelectorTerms: tuple[Term, ...] | None = ()


class PreferredTerm(msgspec.Struct, frozen=True, gc=False):
    """A preferred term, with its weight from 1 to 100."""

    weight: int = 1
    preference: Term = Term()


class NodeAffinity(msgspec.Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector | None = None
    preferredDuringSchedulingIgnoredDuringExecution: tuple[PreferredTerm, ...] | None = None


class PodAffinityTerm(pods.PodAffinityTerm, frozen=True, gc=False):
    """A required term. The API server has merged `matchLabelKeys` and `mismatchLabelKeys` into `labelSelector`, so
    kube-scheduler does not read them (KEP-3633)."""

    topologyKey: str = ""
    labelSelector: LabelSelector | None = None
    namespaceSelector: LabelSelector | None = None


class PodAffinity(pods.PodAffinity, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: tuple[PodAffinityTerm, ...] | None = None


class Affinity(pods.Affinity, frozen=True, gc=False):
    nodeAffinity: NodeAffinity | None = None
    podAffinity: PodAffinity | None = None
    podAntiAffinity: PodAffinity | None = None


class ContainerPort(msgspec.Struct, frozen=True, gc=False):
    """A port of a container. The API server sets `hostPort` in pods of the host network."""

    hostPort: int | None = None
    hostIP: str | None = None
    protocol: str | None = None


class Container(pods.Container, frozen=True, gc=False):
    ports: tuple[ContainerPort, ...] | None = ()


class TopologySpreadConstraint(msgspec.Struct, frozen=True, gc=False):
    topologyKey: str = ""
    maxSkew: int = 1
    whenUnsatisfiable: str = "DoNotSchedule"
    labelSelector: LabelSelector | None = None
    minDomains: int | None = None
    nodeAffinityPolicy: str | None = None
    nodeTaintsPolicy: str | None = None
    matchLabelKeys: tuple[str, ...] | None = None


class Spec(pods.Spec, frozen=True, gc=False):
    """pods.Spec and the fields that kube-scheduler's plug-ins read, which are too many to decode for every pod."""

    containers: tuple[Container, ...] | None = ()
    initContainers: tuple[Container, ...] | None = ()
    nodeSelector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topologySpreadConstraints: tuple[TopologySpreadConstraint, ...] | None = None
    volumes: tuple[dict[str, Any], ...] | None = None
    hostNetwork: bool | None = None
    preemptionPolicy: str | None = None
    workloadRef: Any = None


class Owner(msgspec.Struct, frozen=True, gc=False):
    """An owner of a pod; a `controller` recreates the pod."""

    kind: str = ""
    controller: bool | None = None


class Metadata(pods.Metadata, frozen=True, gc=False):
    """pods.Metadata and the owners."""

    ownerReferences: tuple[Owner, ...] | None = None


class Pod(pods.Pod, frozen=True, gc=False):
    """The pod of a request."""

    metadata: Metadata
    spec: Spec


decode = msgspec.json.Decoder(Pod).decode


class Objection(msgspec.Struct, frozen=True, gc=False):
    """Why kube-scheduler refuses a node: `words` are its message, `text` adds the details of this node.

    `taint` is the untolerated taint of kind "taint".
    `verdict`: "not now" if the pod fits on the empty node, "never" if not, "excluded" for reasons other than resources.
    Of constraints between pods it is "not now" if the end of other pods can help.
    """

    kind: Literal[
        "no node", "cordon", "name", "taint", "selector", "amounts", "devices", "ports", "spread", "pod affinity"
    ]
    verdict: Literal["not now", "never", "excluded"]
    words: str
    text: str
    taint: Taint | None = None


NO_NODE: Final = Objection("no node", "excluded", "node(s) without a Node object", "node(s) without a Node object")


def unbound(pod: Pod) -> Pod:
    """A pod of the cluster as it was created: without its nodeName, and without the node that a placement of this
    service has named in its affinity. A manifest (no uid) stays as it is."""
    if not pod.metadata.uid:
        return pod
    placed_on = (pod.metadata.annotations or {}).get(PLACED_ON, "")
    affinity = _without_name(pod.spec.affinity, placed_on) if placed_on else pod.spec.affinity
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, nodeName="", affinity=affinity))


def _without_name(affinity: Affinity | None, name: str) -> Affinity | None:
    nodes = None if affinity is None else affinity.nodeAffinity
    required = None if nodes is None else nodes.requiredDuringSchedulingIgnoredDuringExecution
    if affinity is None or nodes is None or required is None:
        return affinity
    named = Requirement("metadata.name", "In", (name,))
    terms = []
    for term in required.nodeSelectorTerms or ():
        fields = list(term.matchFields or ())
        if named in fields:
            fields.remove(named)
            if not (fields or term.matchExpressions):
                # The pod had no required terms.
                continue
        terms.append(msgspec.structs.replace(term, matchFields=tuple(fields)))
    required = NodeSelector(tuple(terms)) if terms else None
    nodes = msgspec.structs.replace(nodes, requiredDuringSchedulingIgnoredDuringExecution=required)
    return msgspec.structs.replace(affinity, nodeAffinity=nodes)


def is_daemon(pod: Pod) -> bool:
    """Returns whether the pod belongs to its node: a static pod, or a pod of a DaemonSet."""
    owners = pod.metadata.ownerReferences or ()
    return MIRROR in (pod.metadata.annotations or {}) or any(owner.kind in ("DaemonSet", "Node") for owner in owners)


def unexamined(spec: Spec) -> tuple[Unexamined, ...]:
    """The pod's requirements on its node that this module does not check; of these, inter_pod checks those on other
    pods where a service has its index."""
    affinity = spec.affinity or Affinity()
    between = [terms for terms in (affinity.podAffinity, affinity.podAntiAffinity) if terms is not None]
    sources = [key for volume in spec.volumes or () for key, source in volume.items() if source is not None]
    ports = [port for container in spec.containers or () for port in container.ports or ()]
    spreads = spec.topologySpreadConstraints or ()
    requirements: dict[Unexamined, bool] = {
        "pod affinity": any(terms.requiredDuringSchedulingIgnoredDuringExecution for terms in between),
        "topology spread": any(constraint.whenUnsatisfiable == "DoNotSchedule" for constraint in spreads),
        "volumes": any(source in ("persistentVolumeClaim", "ephemeral", "csi") for source in sources),
        "host ports": any(spec.hostNetwork or port.hostPort for port in ports),
        RESOURCE_CLAIMS: bool(spec.resourceClaims),
        SCHEDULING_GATES: any(gate.name != GATE for gate in spec.schedulingGates or ()),
    }
    return tuple([words for words, is_required in requirements.items() if is_required])


def dependent_volumes(volumes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the volumes that a node may lack: of the PersistentVolumeClaim if it is one."""
    names = []
    for volume in volumes:
        for source, details in volume.items():
            if details is not None and source not in _NODE_INDEPENDENT_VOLUMES:
                claim = details.get("claimName") if isinstance(details, dict) else None
                names.append(str(claim or volume.get("name") or source))
    return names


def refusal(node: Node, spec: Spec, needs: Needs, used: Mapping[str, int]) -> Objection | None:
    """Why the node is refused, None if it is not. `used` are its pods' requests, with their number as "pods"."""
    return exclusion_of(node, spec) or short(node, needs, used)


def has_room(node: Node, needs: Needs, used: Mapping[str, int]) -> bool:
    """Whether node allocatable suffices for another such pod."""
    allocatable = node.allocatable
    if used.get(_PODS, 0) >= allocatable.get(_PODS, 0):
        return False
    for name, amount in needs.requests.items():
        if amount > 0 and amount > allocatable.get(name, 0) - used.get(name, 0):
            return False
    return True


def add(sums: Amounts, needs: Needs, pods: int = 1) -> None:
    """Adds the requests of so many such pods to the sums of a node, with their number as "pods"; negative: takes them
    away."""
    for resource, amount in needs.requests.items():
        sums[resource] = sums.get(resource, 0) + pods * amount
    sums[_PODS] = sums.get(_PODS, 0) + pods


def room(node: Node, needs: Needs, used: Mapping[str, int]) -> tuple[int, str]:
    """The number of such pods for which node allocatable suffices, and the message for the next pod."""
    return min(
        (max(0, (node.allocatable.get(resource, 0) - used.get(resource, 0)) // amount), _insufficient(resource))
        for resource, amount in _requests(needs)
    )


def to_text(resource: str, amount: int) -> str:
    """An amount as text; CPUs are in thousandths."""
    if resource == "cpu":
        return quantity.from_milli(amount)
    is_bytes = resource in ("memory", "ephemeral-storage") or resource.startswith(pods.HUGEPAGES)
    return quantity.human_bytes(amount) if is_bytes else str(amount)


def exclusion_of(node: Node, spec: Spec) -> Objection | None:
    """Why the node is refused for reasons other than resources, None if it is not."""
    tolerations = spec.tolerations or ()
    if node.is_cordoned and not _is_tolerated(_CORDONED, tolerations):
        return _excluded("cordon", "node(s) were unschedulable", "the node is cordoned")
    if spec.nodeName and spec.nodeName != node.name:
        return _excluded("name", "node(s) didn't match the requested node name", spec.nodeName)
    for taint in _taints(node):
        if not _is_tolerated(taint, tolerations):
            why = ", the node is not ready" if taint.key in SILENT else ""
            return _excluded("taint", "node(s) had untolerated taint(s)", f"{taint}{why}", taint)
    unmatched = _unmatched(node, spec)
    if unmatched is None:
        return None
    return _excluded("selector", "node(s) didn't match Pod's node affinity/selector", unmatched)


def is_selected(node: Node, spec: Spec) -> bool:
    """Whether the node matches the nodeSelector and the required node affinity (RequiredNodeAffinity.Match)."""
    return _unmatched(node, spec) is None


def is_tainted(node: Node, tolerations: Iterable[Toleration]) -> bool:
    """Whether the Node has a hard taint that is not tolerated. The taints of a cordon count once the node controller
    has set them."""
    return any(taint.effect in _HARD and not _is_tolerated(taint, tolerations) for taint in node.taints)


def lacks_devices(problem: str) -> Objection:
    """The objection to a node that has no devices for the claims of the pod (DynamicResources)."""
    return Objection("devices", "not now", "cannot allocate all claims", problem)


def short(node: Node, needs: Needs, used: Mapping[str, int]) -> Objection | None:
    """The resources that the node lacks, in the order of the pod's requests; None if it has enough.

    A node that lists no markers takes pods with markers: kube-scheduler is to ignore them (`ignoredResources`).
    """
    short = [
        (resource, amount, node.allocatable.get(resource, 0))
        for resource, amount in _requests(needs)
        if amount > node.allocatable.get(resource, 0) - used.get(resource, 0)
        and (resource != MARKER or MARKER in node.allocatable)
    ]
    if not short:
        return None
    verdict: Literal["not now", "never"] = "never" if any(amount > of for _, amount, of in short) else "not now"
    words = [_insufficient(resource) for resource, _, _ in short]
    lacks = [_lack(resource, amount, of, used.get(resource, 0)) for resource, amount, of in short]
    return Objection("amounts", verdict, ", ".join(words), "; ".join(map(": ".join, zip(words, lacks, strict=True))))


def _excluded(
    kind: Literal["cordon", "name", "taint", "selector"], words: str, detail: str, taint: Taint | None = None
) -> Objection:
    return Objection(kind, "excluded", words, f"{words}: {detail}", taint)


def _taints(node: Node) -> Iterator[Taint]:
    """The node's hard taints, and the taint that the node controller is about to set on a node that is not ready."""
    if not node.is_ready and not any(taint.key in SILENT for taint in node.taints):
        yield _NOT_READY
    yield from (taint for taint in node.taints if taint.effect in _HARD)


def _is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(toleration.covers(taint) for toleration in tolerations)


def _unmatched(node: Node, spec: Spec) -> str | None:
    """The requirement that the node's labels do not meet, None if they meet all."""
    for key, required_value in (spec.nodeSelector or {}).items():
        if (value := node.label(key)) != required_value:
            actual = "the node has no such label" if value is None else f"the node has {value!r}"
            return f"the pod requires {key}={required_value}, {actual}"
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    if not required:
        return None
    missed = _missed_of_terms(node, required)
    if any(requirement is None for requirement in missed):
        return None
    return f"required: {' or '.join(map(str, missed))}" if missed else "required: terms that match no node"


def selects(selector: NodeSelector, node: Node) -> bool:
    """Whether a node selector matches the node (nodeaffinity.NodeSelector.Match)."""
    return None in _missed_of_terms(node, selector)


def prefers(term: PreferredTerm, node: Node) -> bool:
    """Whether a preferred term matches the node; a term without requirements matches every node."""
    return next(_missed(node, term.preference), None) is None


def _missed_of_terms(node: Node, selector: NodeSelector) -> list[Requirement | None]:
    """The first requirement of each term that the node does not meet, None for a term that matches. Terms are
    alternatives. A term without requirements and an empty list of terms match no node."""
    terms = selector.nodeSelectorTerms or ()
    return [next(_missed(node, term), None) for term in terms if term.matchExpressions or term.matchFields]


def _missed(node: Node, term: Term) -> Iterator[Requirement]:
    for requirement in term.matchExpressions or ():
        if not requirement.matches(node.label(requirement.key)):
            yield requirement
    for requirement in term.matchFields or ():
        # The only field of nodes that the API server accepts.
        if requirement.key != "metadata.name" or not requirement.matches(node.name):
            yield requirement


def _lack(resource: str, amount: int, of: int, used: int) -> str:
    if resource == _PODS:
        return f"{used} of {of} are in use"
    if not of:
        return f"asks for {to_text(resource, amount)}, the node has none"
    free = to_text(resource, max(0, of - used))
    return f"asks for {to_text(resource, amount)}, {free} of {to_text(resource, of)} are free"


def _insufficient(resource: str) -> str:
    return "Too many pods" if resource == _PODS else f"Insufficient {resource}"


def _requests(needs: Needs) -> list[tuple[str, int]]:
    return [(_PODS, 1), *((resource, amount) for resource, amount in needs.requests.items() if amount > 0)]
