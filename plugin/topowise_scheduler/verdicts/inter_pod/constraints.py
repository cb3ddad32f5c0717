"""What a pod requires of other pods (`Request`), and what other pods and nodes see of it (`PodKind`).

Pods of one ReplicaSet are of one kind and have equal requests. Selectors are normalised, so that equal constraints are
equal keys of the counts that index.py keeps.

Upstream: newAffinityTerm (k8s.io/kube-scheduler/framework/types.go), filterTopologySpreadConstraints
(plugins/podtopologyspread/common.go), GetHostPorts (pkg/scheduler/util/utils.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.inter_pod import objects
from topowise_scheduler.verdicts.kube_scheduler import LabelSelector, NodeAffinity, PodAffinity, Requirement

EVERY_IP: Final = "0.0.0.0"
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label that the API server gives to every namespace: its name."""
NamespaceLabels: TypeAlias = Callable[[str], Mapping[str, str] | None]
"""Returns the labels of a namespace, None if they are not known."""
LARGEST_REQUEST: Final = 1 << 16
"""Bytes of a request in MessagePack. A larger request is not examined."""
LARGEST_KIND: Final = 1 << 14
"""Bytes of a kind in MessagePack. A pod that exceeds them counts as a pod without labels, ports and terms: it has them
only to fill memory, and kube-scheduler still checks its anti-affinity on the node that a pod is given."""
AnyPod: TypeAlias = objects.Pod | kube_scheduler.Pod
UnexaminedKind = Literal["pod affinity", "topology spread", "volumes", "resource claims", "scheduling group"]


class Unexamined(NamedTuple):
    """A requirement that is not examined here; `names` are of its claims, groups or topology keys."""

    kind: UnexaminedKind
    names: tuple[str, ...] = ()


class Term(msgspec.Struct, frozen=True):
    """A required affinity or anti-affinity term: pods in `namespaces`, or in those that `namespace_selector` selects,
    with labels that `selector` selects. A selector None selects nothing."""

    topology_key: str
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None
    selector: LabelSelector | None

    @property
    def reads_labels_of_namespaces(self) -> bool:
        """Whether it depends on labels of namespaces beside their name."""
        requirements = () if self.namespace_selector is None else self.namespace_selector.matchExpressions or ()
        return any(requirement.key != NAMESPACE_NAME for requirement in requirements)

    def reaches(self, namespace: str, labels_of: NamespaceLabels) -> bool | None:
        """Returns whether it is about pods of a namespace, None if the labels of the namespace are not known."""
        if namespace in self.namespaces:
            return True
        if self.namespace_selector is None:
            return False
        labels = labels_of(namespace)
        if labels is None:
            if self.reads_labels_of_namespaces:
                return None
            labels = {}
        return self.namespace_selector.matches({**labels, NAMESPACE_NAME: namespace})

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Returns whether it selects a pod with these labels of a namespace that it is about."""
        return self.selector is not None and self.selector.matches(labels)


class HostPort(NamedTuple):
    ip: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Returns whether two pods on a node cannot have both (HostPortInfo.CheckConflict)."""
        return self[1:] == other[1:] and (self.ip == other.ip or EVERY_IP in (self.ip, other.ip))


class Spread(msgspec.Struct, frozen=True):
    """A DoNotSchedule constraint, with the `matchLabelKeys` of its pod merged into `selector`."""

    topology_key: str
    max_skew: int
    min_domains: int
    selector: LabelSelector | None
    honours_affinity: bool
    honours_taints: bool

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Returns whether it selects a pod with these labels."""
        return self.selector is not None and self.selector.matches(labels)


class PodKind:
    """What others see of a pod. Pods of equal kind share one object; `rows` counts them by the row of their node.

    `leaving`: they are being deleted. `anti_affinity`: their required anti-affinity terms. `key` is equal for equal
    kinds.
    """

    __slots__ = ("__weakref__", "anti_affinity", "key", "labels", "leaving", "namespace", "ports", "rows")

    def __init__(
        self,
        namespace: str,
        labels: Mapping[str, str],
        ports: tuple[HostPort, ...] = (),
        anti_affinity: tuple[Term, ...] = (),
        *,
        leaving: bool = False,
    ) -> None:
        self.namespace = namespace
        self.labels = labels
        self.ports = ports
        self.anti_affinity = anti_affinity
        self.leaving = leaving
        self.rows: dict[int, int] = {}
        self.key: bytes = _encode([namespace, labels, ports, anti_affinity, leaving])


class Request(msgspec.Struct, frozen=True):
    """What a pod requires of other pods. `node_spec` has its nodeSelector, its required node affinity and its
    tolerations, which say whose pods its spread constraints count.

    `declares_spreads`: it has topologySpreadConstraints, of any kind, so that default constraints do not apply.
    `unexamined`: its requirements on nodes that neither this package nor kube_scheduler.py examines.
    """

    namespace: str
    labels: Mapping[str, str]
    ports: tuple[HostPort, ...]
    affinity: tuple[Term, ...]
    anti_affinity: tuple[Term, ...]
    spreads: tuple[Spread, ...]
    declares_spreads: bool
    node_spec: kube_scheduler.Spec
    unexamined: tuple[Unexamined, ...]

    @property
    def is_constrained(self) -> bool:
        """Whether the pod itself requires anything of other pods."""
        return bool(self.ports or self.affinity or self.anti_affinity or self.spreads)


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def needed_label(selector: LabelSelector | None) -> tuple[str, str] | None:
    """Returns a label that every pod has that a normalised selector selects, None if there is no such label."""
    for requirement in () if selector is None else selector.matchExpressions or ():
        values = requirement.values or ()
        if requirement.operator == "In" and len(values) == 1:
            return requirement.key, values[0]
    return None


def kind_of(pod: AnyPod) -> PodKind:
    """Returns what others see of a pod."""
    meta = pod.metadata
    affinity = pod.spec.affinity or objects.Affinity()
    leaving = meta.deletionTimestamp is not None
    terms = _terms(affinity.podAntiAffinity, meta.namespace)
    kind = PodKind(meta.namespace, meta.labels or {}, _host_ports(pod.spec), terms, leaving=leaving)
    return kind if len(kind.key) <= LARGEST_KIND else PodKind(meta.namespace, {}, leaving=leaving)


def request_of(pod: AnyPod, *, knows_namespaces: bool = False) -> Request:
    """Returns what a pod requires. `knows_namespaces`: the labels of namespaces are known."""
    meta, spec = pod.metadata, pod.spec
    affinity = spec.affinity or objects.Affinity()
    attracting = _terms(affinity.podAffinity, meta.namespace)
    repelling = _terms(affinity.podAntiAffinity, meta.namespace)
    required = _required(affinity.nodeAffinity)
    terms = () if knows_namespaces else [term for term in (*attracting, *repelling) if term.reads_labels_of_namespaces]
    request = Request(
        namespace=meta.namespace,
        labels=meta.labels or {},
        ports=_host_ports(spec),
        affinity=attracting,
        anti_affinity=repelling,
        spreads=tuple(_spreads(spec, meta.labels or {})),
        declares_spreads=bool(spec.topologySpreadConstraints),
        node_spec=kube_scheduler.Spec(
            nodeSelector=spec.nodeSelector,
            affinity=None if required is None else kube_scheduler.Affinity(nodeAffinity=required),
            tolerations=spec.tolerations,
        ),
        unexamined=tuple(_unexamined(spec, terms)),
    )
    return request if len(_encode(request)) <= LARGEST_REQUEST else _TOO_LARGE


_TOO_LARGE: Final = Request(
    namespace="",
    labels={},
    ports=(),
    affinity=(),
    anti_affinity=(),
    spreads=(),
    declares_spreads=True,
    node_spec=kube_scheduler.Spec(),
    unexamined=(Unexamined("pod affinity"), Unexamined("topology spread")),
)


def _unexamined(spec: objects.Spec | kube_scheduler.Spec, terms: Iterable[Term]) -> Iterator[Unexamined]:
    if keys := dict.fromkeys(term.topology_key for term in terms):
        yield Unexamined("pod affinity", tuple(keys))
    if volumes := kube_scheduler.dependent_volumes(spec.volumes or ()):
        yield Unexamined("volumes", tuple(volumes))
    if spec.resourceClaims:
        yield Unexamined("resource claims", tuple([claim.name for claim in spec.resourceClaims]))
    if spec.schedulingGroup is not None:
        yield Unexamined("scheduling group", (spec.schedulingGroup.podGroupName,))
    elif spec.workloadRef is not None:
        yield Unexamined("scheduling group")


def _required(affinity: NodeAffinity | None) -> NodeAffinity | None:
    required = None if affinity is None else affinity.requiredDuringSchedulingIgnoredDuringExecution
    return None if required is None else NodeAffinity(required)


def _host_ports(spec: objects.Spec | kube_scheduler.Spec) -> tuple[HostPort, ...]:
    """Returns the host ports of the containers that run as long as the pod (GetHostPorts)."""
    sidecars = [container for container in spec.initContainers or () if container.restartPolicy == "Always"]
    return tuple(
        [
            HostPort(port.hostIP or EVERY_IP, port.protocol or "TCP", port.hostPort)
            for container in chain(sidecars, spec.containers or ())
            for port in container.ports or ()
            if port.hostPort
        ]
    )


def _terms(affinity: PodAffinity | None, namespace: str) -> tuple[Term, ...]:
    terms = () if affinity is None else affinity.requiredDuringSchedulingIgnoredDuringExecution or ()
    return tuple(
        [
            Term(
                term.topologyKey,
                _namespaces(term, namespace),
                _normalised(term.namespaceSelector),
                _normalised(term.labelSelector),
            )
            for term in terms
        ]
    )


def _namespaces(term: kube_scheduler.PodAffinityTerm, own: str) -> tuple[str, ...]:
    """getNamespacesFromPodAffinityTerm"""
    if not term.namespaces and term.namespaceSelector is None:
        return (own,)
    return tuple(sorted(term.namespaces or ()))


def _spreads(spec: objects.Spec | kube_scheduler.Spec, labels: Mapping[str, str]) -> Iterator[Spread]:
    for constraint in spec.topologySpreadConstraints or ():
        if constraint.whenUnsatisfiable != "DoNotSchedule":
            continue
        merged = {key: labels[key] for key in constraint.matchLabelKeys or () if key in labels}
        yield Spread(
            topology_key=constraint.topologyKey,
            max_skew=constraint.maxSkew,
            min_domains=1 if constraint.minDomains is None else constraint.minDomains,
            selector=_normalised(constraint.labelSelector, merged),
            honours_affinity=(constraint.nodeAffinityPolicy or "Honor") == "Honor",
            honours_taints=(constraint.nodeTaintsPolicy or "Ignore") == "Honor",
        )


def _normalised(selector: LabelSelector | None, more: Mapping[str, str] | None = None) -> LabelSelector | None:
    """Returns an equal selector, which can be hashed: its labels are sorted requirements. `more` labels are added to a
    selector that there is."""
    if selector is None:
        return None
    pairs = {*(selector.matchLabels or {}).items(), *(more or {}).items()}
    requirements = {Requirement(key, "In", (value,)) for key, value in pairs}
    requirements.update(selector.matchExpressions or ())
    return LabelSelector(None, tuple(sorted(requirements, key=_encode)))
