"""What kube-scheduler itself has against a node, before it asks any extender, as far as the Node object tells it.

The verbs need none of this: they are asked about nodes that have passed. Whoever asks for an explanation names nodes
that have not, and a node that is cordoned, or has no GPU at all, "fits" nobody. So the plug-ins NodeUnschedulable,
NodeName, TaintToleration, NodeAffinity and NodeResourcesFit are here once, as functions of values, in the order in
which kube-scheduler asks them and in its words. What else it looks at (other pods, volumes, ports) `unexamined` names.

Upstream: pkg/scheduler/framework/plugins, staging/src/k8s.io/component-helpers/scheduling/corev1 (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from topowise import pods, quantity
from topowise.pods import Amounts, Needs

HOSTNAME: Final = "kubernetes.io/hostname"
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a pod that its kubelet has from a file (static): deleting the object does not end it."""
NO_NODE: Final = "node(s) without a Node object"
_PODS: Final = "pods"
_HARD: Final = ("NoSchedule", "NoExecute")


class Taint(msgspec.Struct, frozen=True, gc=False):
    """One taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


_CORDONED: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_NOT_READY: Final = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
_SILENT: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


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
    """What is read of a v1.Node."""

    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet says so; one without conditions says nothing against it."""
        return all(one.status == "True" for one in self.status.conditions or () if one.type == "Ready")


class Node(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a v1.Node. `labels` are without the hostname, so that nodes of one pool can share them."""

    name: str
    allocatable: Amounts = {}
    labels: dict[str, str] = {}
    hostname: str = ""
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    is_ready: bool = True
    kubelet_version: str = ""
    boot_id: str = ""

    @property
    def page_sizes(self) -> tuple[str, ...]:
        """The hugepages that the kubelet knows, sorted; it may have none of them."""
        return tuple(sorted([name for name in self.allocatable if name.startswith(pods.HUGEPAGES)]))

    def label(self, key: str) -> str | None:
        """The value of a label, None if the node does not have it."""
        return (self.hostname or None) if key == HOSTNAME else self.labels.get(key)


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """One toleration; "" means any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the taint is tolerated."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and bool(self.key) and self.value == taint.value


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """One line of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = ()

    def __str__(self) -> str:
        values = f" [{', '.join(self.values)}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"


class Term(msgspec.Struct, frozen=True, gc=False):
    matchExpressions: tuple[Requirement, ...] | None = ()
    matchFields: tuple[Requirement, ...] | None = ()


class NodeSelector(msgspec.Struct, frozen=True, gc=False):
    nodeSelectorTerms: tuple[Term, ...] | None = ()


class NodeAffinity(msgspec.Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector | None = None
    preferredDuringSchedulingIgnoredDuringExecution: tuple[Any, ...] | None = None


class PodAffinity(msgspec.Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: tuple[Any, ...] | None = ()
    preferredDuringSchedulingIgnoredDuringExecution: tuple[Any, ...] | None = None


class Affinity(msgspec.Struct, frozen=True, gc=False):
    nodeAffinity: NodeAffinity | None = None
    podAffinity: PodAffinity | None = None
    podAntiAffinity: PodAffinity | None = None


class Port(msgspec.Struct, frozen=True, gc=False):
    hostPort: int | None = None


class Container(pods.Container, frozen=True, gc=False):
    ports: tuple[Port, ...] | None = ()


class Spread(msgspec.Struct, frozen=True, gc=False):
    whenUnsatisfiable: str = "DoNotSchedule"


class Spec(pods.Spec, frozen=True, gc=False):
    """What pods.Spec has, and what kube-scheduler's plug-ins read: too much to be decoded of every pod of a cluster."""

    containers: tuple[Container, ...] | None = ()
    nodeSelector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topologySpreadConstraints: tuple[Spread, ...] | None = None
    resourceClaims: tuple[Any, ...] | None = None
    schedulingGates: tuple[Any, ...] | None = None
    volumes: tuple[dict[str, Any], ...] | None = None
    hostNetwork: bool | None = None
    preemptionPolicy: str | None = None
    schedulingGroup: Any = None
    workloadRef: Any = None


class Owner(msgspec.Struct, frozen=True, gc=False):
    """Who has made a pod; its `controller` makes it anew."""

    kind: str = ""
    controller: bool | None = None


class Metadata(pods.Metadata, frozen=True, gc=False):
    """What pods.Metadata has, and owners."""

    ownerReferences: tuple[Owner, ...] | None = None


class Pod(pods.Pod, frozen=True, gc=False):
    """A pod that somebody asks about."""

    metadata: Metadata
    spec: Spec


decode = msgspec.json.Decoder(Pod).decode


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why not: `words` are kube-scheduler's, the same for many nodes; `text` tells what they mean of this one.

    `verdict`: "not now" if it would do were it empty, "never" if it would not, "excluded" if room is not the question.
    """

    verdict: Literal["not now", "never", "excluded"]
    words: str
    text: str


def unbound(pod: Pod) -> Pod:
    """A pod of the cluster as kube-scheduler met it; the nodeName of a manifest is somebody's wish, and stays."""
    if not pod.metadata.uid or not pod.spec.nodeName:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, nodeName=""))


def unexamined(spec: Spec) -> tuple[str, ...]:
    """What the pod asks of its node that nothing here looks at."""
    affinity = spec.affinity or Affinity()
    between = [one for one in (affinity.podAffinity, affinity.podAntiAffinity) if one is not None]
    sources = [key for volume in spec.volumes or () for key, given in volume.items() if given is not None]
    ports = [port for container in spec.containers or () for port in container.ports or ()]
    spreads = spec.topologySpreadConstraints or ()
    found = {
        "pod affinity": any(one.requiredDuringSchedulingIgnoredDuringExecution for one in between),
        "topology spread": any(one.whenUnsatisfiable == "DoNotSchedule" for one in spreads),
        "volumes": any(source in ("persistentVolumeClaim", "ephemeral", "csi") for source in sources),
        "host ports": any(spec.hostNetwork or port.hostPort for port in ports),
        "resource claims": bool(spec.resourceClaims),
        "scheduling gates": bool(spec.schedulingGates),
    }
    return tuple([words for words, is_asked in found.items() if is_asked])


def refusal(node: Node, spec: Spec, needs: Needs, used: Mapping[str, int]) -> Refusal | None:
    """What is against the node, None if nothing is. `used` is what its pods request, with their number as "pods"."""
    return kept_off(node, spec) or short(node, needs, used)


def has_room(node: Node, needs: Needs, used: Mapping[str, int]) -> bool:
    """Whether the sums have room for one such pod."""
    return all(amount <= node.allocatable.get(name, 0) - used.get(name, 0) for name, amount in _asked(needs))


def room(node: Node, needs: Needs, used: Mapping[str, int]) -> tuple[int, str]:
    """How many such pods the sums have room for, and the words for what is too little for one more."""
    return min(
        (max(0, (node.allocatable.get(resource, 0) - used.get(resource, 0)) // amount), _insufficient(resource))
        for resource, amount in _asked(needs)
    )


def spell(resource: str, amount: int) -> str:
    """An amount for people; CPUs are given in thousandths."""
    if resource == "cpu":
        return quantity.from_milli(amount)
    is_bytes = resource in ("memory", "ephemeral-storage") or resource.startswith(pods.HUGEPAGES)
    return quantity.human_bytes(amount) if is_bytes else str(amount)


def kept_off(node: Node, spec: Spec) -> Refusal | None:
    """What is against the node whatever room it has."""
    tolerations = spec.tolerations or ()
    if node.is_cordoned and not _is_tolerated(_CORDONED, tolerations):
        return _excluded("node(s) were unschedulable", "the node is cordoned")
    if spec.nodeName and spec.nodeName != node.name:
        return _excluded("node(s) didn't match the requested node name", spec.nodeName)
    for taint in _taints(node):
        if not _is_tolerated(taint, tolerations):
            why = ", the node is not ready" if taint.key in _SILENT else ""
            return _excluded("node(s) had untolerated taint(s)", f"{taint}{why}")
    unmatched = _unmatched(node, spec)
    if unmatched is None:
        return None
    return _excluded("node(s) didn't match Pod's node affinity/selector", unmatched)


def short(node: Node, needs: Needs, used: Mapping[str, int]) -> Refusal | None:
    """All that the node has too little of, in the order of the pod's requests; None if there is room."""
    short = [
        (resource, amount, node.allocatable.get(resource, 0))
        for resource, amount in _asked(needs)
        if amount > node.allocatable.get(resource, 0) - used.get(resource, 0)
    ]
    if not short:
        return None
    verdict: Literal["not now", "never"] = "never" if any(amount > of for _, amount, of in short) else "not now"
    words = [_insufficient(resource) for resource, _, _ in short]
    lacks = [_lack(resource, amount, of, used.get(resource, 0)) for resource, amount, of in short]
    return Refusal(verdict, ", ".join(words), "; ".join(map(": ".join, zip(words, lacks, strict=True))))


def _excluded(words: str, detail: str) -> Refusal:
    return Refusal("excluded", words, f"{words}: {detail}")


def _taints(node: Node) -> Iterator[Taint]:
    """With the one that a node gets in the moment after its kubelet was found not to be ready."""
    if not node.is_ready and not any(taint.key in _SILENT for taint in node.taints):
        yield _NOT_READY
    yield from (taint for taint in node.taints if taint.effect in _HARD)


def _is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(one.covers(taint) for one in tolerations)


def _unmatched(node: Node, spec: Spec) -> str | None:
    """What the node's labels are not, None if they are all that is asked for."""
    for key, wanted in (spec.nodeSelector or {}).items():
        if (given := node.label(key)) != wanted:
            return f"{key}={wanted} is asked for, {'it has no such label' if given is None else f'it is {given!r}'}"
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    if not required:
        return None
    # Terms are alternatives; one without requirements selects nothing, and so does an empty list of them.
    terms = required.nodeSelectorTerms or ()
    missed = [next(_missed(node, term), None) for term in terms if term.matchExpressions or term.matchFields]
    if any(one is None for one in missed):
        return None
    return f"required: {' or '.join(map(str, missed))}" if missed else "required: nothing that any node matches"


def _missed(node: Node, term: Term) -> Iterator[Requirement]:
    for one in term.matchExpressions or ():
        if not _matches(one, node.label(one.key)):
            yield one
    for one in term.matchFields or ():
        # The only field there is.
        if one.key != "metadata.name" or not _matches(one, node.name):
            yield one


def _matches(one: Requirement, given: str | None) -> bool:
    """labels.Requirement.Matches; what the API server would not let through matches nothing."""
    values = one.values or ()
    match one.operator:
        case "In":
            return given in values
        case "NotIn":
            return given not in values
        case "Exists":
            return given is not None
        case "DoesNotExist":
            return given is None
        case "Gt" | "Lt":
            try:
                left, right = int(given or ""), int(values[0] if len(values) == 1 else "")
            except ValueError:
                return False
            return left > right if one.operator == "Gt" else left < right
    return False


def _lack(resource: str, amount: int, of: int, used: int) -> str:
    if resource == _PODS:
        return f"{used} of {of} are there"
    if not of:
        return f"asks for {spell(resource, amount)}, the node has none"
    return f"asks for {spell(resource, amount)}, {spell(resource, max(0, of - used))} of {spell(resource, of)} are free"


def _insufficient(resource: str) -> str:
    return "Too many pods" if resource == _PODS else f"Insufficient {resource}"


def _asked(needs: Needs) -> list[tuple[str, int]]:
    return [(_PODS, 1), *((resource, amount) for resource, amount in needs.requests.items() if amount > 0)]
