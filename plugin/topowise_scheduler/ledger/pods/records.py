"""What the ledger keeps of a pod: some two hundred bytes, most of them shared with pods of the same class.

Pods of one ReplicaSet have equal requests and labels, so each is kept once. A cluster of 150,000 pods has a few
thousand distinct requests.

Invariant: a record never changes and describes one version of its pod. Records of equal `shape` have equal requests. A
record that cannot be read has no `requests` and a `problem`, never requests that are too small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable
from hashlib import blake2b
from typing import Final, Literal, NamedTuple
from weakref import ReferenceType, WeakValueDictionary, ref

import msgspec

from topowise import pods
from topowise.bounded import Bounded, size_of_dict
from topowise.errors import ParseError
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.predicates import LACKS_GATE
from topowise_scheduler.ledger.pods.attracting_pods import attracted_namespaces
from topowise_scheduler.ledger.pods.scheduling_constraints import SchedulingConstraints, constraints_of
from topowise_scheduler.options import device_affinity
from topowise_scheduler.options.claims import annotation as claim_annotation
from topowise_scheduler.options.device_affinity import AffinityTerm
from topowise_scheduler.options.steering.annotation import required_numa_node
from topowise_scheduler.options.steering.numa_affinity import PodTerm, pod_terms
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import kube_scheduler, policy_annotations
from topowise_scheduler.verdicts.refusals import PREFIX

# status.reason of a pod that its kubelet refused (pkg/kubelet/lifecycle, cm/admission).
TOPOLOGY_AFFINITY_ERROR: Final = "TopologyAffinityError"
KUBELET_REFUSALS: Final = frozenset(
    (TOPOLOGY_AFFINITY_ERROR, "UnexpectedAdmissionError", "SMTAlignmentError", LACKS_GATE)
)
# Bound of shared labels. A pod with more labels than `_MOST_LABELS` rarely shares them.
_MAX_LABEL_BYTES: Final = 4 << 20
_MOST_LABELS: Final = 64
# Bytes. A pod has thousands of these only to fill memory; its view says that they are not examined.
_LARGEST_CONSTRAINTS: Final = 1 << 14
MAX_CONTAINERS: Final = 256
"""Pods with more containers are refused: the model books a pod in one step, 20 us for each container."""
LARGE_BYTES: Final = 1 << 17
"""Above this size containers are counted before they are decoded: decoding that many takes a millisecond."""
_MAX_AMOUNTS: Final = 4096
_MAX_TEXT_BYTES: Final = 4 << 20
# A term of eight labels.
_TERM_BYTES: Final = 2048

NOMINATED_ANNOTATION: Final = "topowise.io/nominated"
"""The node that this service nominated; every client may write `status.nominatedNodeName`."""

PLACEHOLDER_SCHEDULER: Final = "topowise-placeholder"
"""schedulerName of placeholders (scale_up/), which no scheduler serves: they wait for nothing that a node has."""

Stage = Literal["pending", "assigned", "ended"]


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod as the ledger needs it.

    `requests`: shared by pods with equal requests; None if they cannot be read, and `problem` says why.
    `shape`: equal for pods with equal requests. `started`: RFC 3339. `refusal`: the kubelet's reason for a refused pod.
    `acknowledged`: the kubelet has accepted the pod. `runs`: containers have started. `leaving`: it is being deleted.
    `waits`: pending, and refused by an extender of this project. `tried`: kube-scheduler found no node for it.
    `nominated_by_us`: this service wrote the nomination (nominations.py).
    `constraints`: known only of a pending pod that may be nominated, or for which kube-scheduler found no node.
    `is_too_large`: more containers or amounts than the model accepts, so `requests` is None.
    `unreadable`: why the annotations cannot be read, which are then ignored; a question about the pod gets an error.
    `group`: names the gang that kube-scheduler places together.
    `attracts`: namespaces of the affinity terms by which kube-scheduler scores other pods (attracting_pods.py).
    `exporter_ready`: whether this pod of an exporter is Ready, None for any other pod.
    `numa_node`: the id of the NUMA node that the pod requires.
    `numa_affinity`: the pods on whose NUMA node, or apart from which, the pod requires or prefers to be.
    `claims`: the names of the pod's ResourceClaims, "" for a claim that is not generated yet.
    `claim_alignment`: what the annotation demands, "" without the annotation.
    `steered`: the NUMA node of the marker devices while the kubelet admits the pod, which no API object has.
    """

    uid: str
    namespace: str
    name: str
    stage: Stage
    node: str
    nominated: str
    requests: PodRequests | None
    shape: bytes
    priority: int
    started: str
    labels: dict[str, str]
    version: str
    demand: policy_annotations.Demand = policy_annotations.NOTHING
    affinity_terms: tuple[AffinityTerm, ...] = ()
    numa_node: int | None = None
    numa_affinity: tuple[PodTerm, ...] = ()
    runs: bool = False
    acknowledged: bool = False
    waits: bool = False
    refusal: str = ""
    problem: str = ""
    tried: bool = False
    leaving: bool = False
    nominated_by_us: bool = False
    constraints: SchedulingConstraints | None = None
    group: str = ""
    is_too_large: bool = False
    exporter_ready: bool | None = None
    attracts: tuple[str, ...] = ()
    unreadable: str = ""
    claims: tuple[str, ...] = ()
    claim_alignment: claim_annotation.Alignment | Literal[""] = ""
    steered: int | None = None

    @property
    def admission_key(self) -> bytes:
        """Returns a key that is equal for pods that every kubelet admits alike: of equal requests and steering."""
        return self.shape if self.steered is None else b"%b-%d" % (self.shape, self.steered)

    def steered_as(self, booked: PodRecord) -> PodRecord:
        """Returns this version of a pod with the steering of its booked version."""
        return self if booked.steered is None else msgspec.structs.replace(self, steered=booked.steered)

    @property
    def needs(self) -> pods.Needs | None:
        """Returns what the pod requests, None if its quantities cannot be read."""
        return None if self.requests is None else self.requests.needs

    @property
    def pod_class(self) -> Hashable:
        """A key of pods that get the same answers everywhere."""
        constraints = b"" if self.constraints is None else self.constraints.key
        return (
            self.shape,
            self.priority,
            self.nominated,
            self.annotated,
            self.claims and (self.namespace, self.claims),
            constraints,
            self.problem + self.unreadable,
        )

    @property
    def annotated(self) -> Annotated:
        """Returns what the annotations demand of the node."""
        return Annotated(self.demand, self.affinity_terms, self.numa_node, self.numa_affinity, self.claim_alignment)

    @property
    def size(self) -> int:
        """Bytes, about, with what pods that ask for the same share."""
        terms = _TERM_BYTES * len(self.numa_affinity)
        return 1024 + (0 if self.requests is None else self.requests.size) + len(self.name) + len(self.problem) + terms

    def view(self, node: Kubelet) -> PodView:
        """Returns the pod as a kubelet with these feature gates sees it. Requires readable quantities."""
        assert self.requests is not None
        return self.requests.view(self.uid, node.settings, self.steered)

    def seen(self, node: Kubelet) -> PodView:
        """Returns the same view without the UID of the pod, shared by pods with equal requests."""
        assert self.requests is not None
        return self.requests.form(node.settings).view


class Records:
    """Makes records, and keeps what they share. Not thread-safe.

    `nominates`: schedulerNames of pods that the service nominates. `seen`: called with each decoded pod, before all but
    its record is dropped. `is_exporter`: whether a pod is one of an exporter.
    """

    def __init__(
        self,
        nominates: Collection[str] = (),
        seen: Callable[[pods.Pod], None] | None = None,
        is_exporter: Callable[[pods.Metadata], bool] = lambda _: False,
    ) -> None:
        self._nominates = frozenset(nominates)
        self._seen = seen
        self._is_exporter = is_exporter
        # Weak: dropped with the last record that uses them.
        self._requests: WeakValueDictionary[bytes, PodRequests] = WeakValueDictionary()
        # The same by the text of the spec; several texts may mean equal requests.
        self._by_text: Bounded[bytes, ReferenceType[PodRequests]] = Bounded(_MAX_TEXT_BYTES, lambda *_: 0)
        self._labels: Bounded[bytes, dict[str, str]] = Bounded(_MAX_LABEL_BYTES, size_of_dict)
        # Long texts of many pods would fill the memory; pods of a ReplicaSet have equal terms.
        self._numa_affinity: Bounded[tuple[PodTerm, ...], tuple[PodTerm, ...]] = Bounded(
            _MAX_TEXT_BYTES, lambda terms, _: _TERM_BYTES * len(terms)
        )
        self._constraints: Bounded[bytes, SchedulingConstraints] = Bounded(_MAX_LABEL_BYTES, lambda key, _: len(key))

    def decode(self, raw: bytes | msgspec.Raw) -> PodRecord:
        """Returns the record of a v1.Pod in JSON. Raises msgspec.DecodeError for other JSON."""
        pod = _decode(raw)
        if self._seen is not None:
            self._seen(pod)
        record = self.record(pod)
        is_nominated_here = pod.spec.schedulerName in self._nominates and not record.problem
        if record.stage != "pending" or not (is_nominated_here or record.tried):
            return record
        constraints = constraints_of(kube_scheduler.decode(raw).spec)
        if len(constraints.key) > _LARGEST_CONSTRAINTS and not is_nominated_here:
            return record
        shared = self._constraints.once(constraints.key, lambda: constraints)
        return msgspec.structs.replace(record, constraints=shared)

    def record(self, pod: pods.Pod) -> PodRecord:
        """Returns the record of a pod. An assigned pod needs what its kubelet allocated, which an in-place resize may
        change later than the spec."""
        meta, spec, status = pod.metadata, pod.spec, pod.status or pods.Status()
        problem = _too_large(spec)
        is_too_large = bool(problem)
        requests, shape = None, b""
        try:
            # The kubelet decides by the allocated amounts, not by the spec (KEP-1287, allocation.Manager).
            if spec.nodeName and not problem:
                pod = pods.allocated(pod)
            if not problem:
                requests, shape = self.requests(pod)
        except ParseError as exc:
            problem = str(exc)
        declared, unreadable = _NO_ANNOTATIONS, ""
        try:
            declared = _NO_ANNOTATIONS if requests is None else annotated(meta, requests.needs)
        except ParseError as exc:
            unreadable = str(exc)
        stage: Stage = "ended" if pod.is_terminal else "assigned" if spec.nodeName else "pending"
        return PodRecord(
            uid=meta.uid,
            namespace=sys.intern(meta.namespace),
            name=meta.name,
            stage=stage,
            node=sys.intern(spec.nodeName),
            nominated=status.nominatedNodeName,
            requests=requests,
            shape=shape,
            priority=spec.priority or 0,
            # Pods of one ReplicaSet start in the same seconds.
            started=sys.intern(status.startTime or meta.creationTimestamp or ""),
            labels=self._shared_labels(meta.labels),
            version=meta.resourceVersion,
            demand=declared.demand,
            affinity_terms=declared.affinity_terms,
            numa_node=declared.numa_node,
            numa_affinity=self._shared_terms(declared.numa_affinity),
            runs=status.phase == "Running",
            # The kubelet sets status.startTime with the first status (status_manager.go, updateStatusInternal).
            acknowledged=bool(status.startTime) or status.phase == "Running",
            waits=stage == "pending" and _was_refused(status),
            tried=stage == "pending" and spec.schedulerName != PLACEHOLDER_SCHEDULER and _was_tried(status),
            leaving=meta.deletionTimestamp is not None,
            nominated_by_us=_is_nominated_by_us(meta.annotations, status),
            refusal=status.reason if stage == "ended" and status.reason in KUBELET_REFUSALS else "",
            problem=problem,
            is_too_large=is_too_large,
            group=_group(pod),
            exporter_ready=pod.is_ready if self._is_exporter(meta) else None,
            attracts=attracted_namespaces(pod),
            unreadable=unreadable,
            claims=pods.claim_names(pod),
            claim_alignment=declared.claim_alignment,
        )

    def requests(self, pod: pods.Pod) -> tuple[PodRequests, bytes]:
        """Returns what the pod requests, and a text that is equal for equal requests. Raises ParseError."""
        text = _digest(_encode(_needs_fields(pod)))
        reference = self._by_text.get(text)
        requests = None if reference is None else reference()
        if requests is None:
            requests = self._requests_of(pod)
            self._by_text.put(text, ref(requests))
        return requests, requests.shape

    def _requests_of(self, pod: pods.Pod) -> PodRequests:
        needs, ungated = pods.needs(pod), None
        key = shape = _digest(_encode(needs))
        # Kubelets without the gate PodLevelResources see the containers alone (KEP-2837).
        if pod.spec.resources is not None:
            ungated = pods.needs(pod, pod_level_resources=False)
            key += _digest(_encode(ungated))
        requests = self._requests.get(key)
        if requests is None:
            requests = self._requests[key] = PodRequests(needs, ungated, shape)
        return requests

    def _shared_terms(self, terms: tuple[PodTerm, ...]) -> tuple[PodTerm, ...]:
        return self._numa_affinity.once(terms, lambda: terms) if terms else ()

    def _shared_labels(self, labels: dict[str, str] | None) -> dict[str, str]:
        if not labels or len(labels) > _MOST_LABELS:
            return labels or {}
        return self._labels.once(_encode(labels), lambda: labels)


class Annotated(NamedTuple):
    """What the annotations of a pod demand of its node."""

    demand: policy_annotations.Demand = policy_annotations.NOTHING
    affinity_terms: tuple[AffinityTerm, ...] = ()
    numa_node: int | None = None
    numa_affinity: tuple[PodTerm, ...] = ()
    claim_alignment: claim_annotation.Alignment | Literal[""] = ""


def annotated(metadata: pods.Metadata, needs: pods.Needs) -> Annotated:
    """Returns what the annotations demand. Raises ParseError: a record ignores annotations that cannot be read, so a
    caller that decides about a pod calls this function first."""
    annotations = metadata.annotations
    if not annotations:
        return _NO_ANNOTATIONS
    demand, terms = policy_annotations.demand(annotations), device_affinity.terms_of(annotations, needs)
    numa_node, numa_affinity = required_numa_node(annotations), pod_terms(annotations, metadata)
    return Annotated(demand, terms, numa_node, numa_affinity, claim_annotation.alignment_of(annotations))


_NO_ANNOTATIONS: Final = Annotated()


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def _digest(text: bytes) -> bytes:
    """Returns a digest of fixed length: specs of thousands of bytes would be kept otherwise. Collisions are not
    expected."""
    return blake2b(text, digest_size=16).digest()


def _needs_fields(pod: pods.Pod) -> tuple[object, ...]:
    """Returns all fields that `pods.needs` reads."""
    spec, status = pod.spec, pod.status
    qos = "" if status is None else status.qosClass
    return spec.initContainers, spec.containers, spec.resources, spec.overhead, qos


def _decode(raw: bytes | msgspec.Raw) -> pods.Pod:
    return too_large(raw) or pods.decode(raw)


def too_large(raw: bytes | msgspec.Raw) -> pods.Pod | None:
    """Returns a pod with more containers than the model accepts, without their requests; None for any other pod."""
    if memoryview(raw).nbytes <= LARGE_BYTES:
        return None
    pod = pods.with_blank_containers(raw)
    return pod if _too_large(pod.spec) else None


def _too_large(spec: pods.Spec) -> str:
    """Returns which bound the pod exceeds, "" if it exceeds none.

    The API server accepts pods of tens of thousands of containers; each verdict would place all of them on every node.
    """
    containers = (*(spec.initContainers or ()), *(spec.containers or ()))
    if len(containers) > MAX_CONTAINERS:
        return f"at most {MAX_CONTAINERS} containers, it has {len(containers)}"
    amounts = sum(
        [
            len(container.resources.requests or ()) + len(container.resources.limits or ())
            for container in containers
            if container.resources is not None
        ]
    )
    return f"at most {_MAX_AMOUNTS} amounts in its containers, it has {amounts}" if amounts > _MAX_AMOUNTS else ""


def _group(pod: pods.Pod) -> str:
    group = pod.spec.schedulingGroup
    return sys.intern(f"{pod.metadata.namespace}/{group.podGroupName}") if group is not None else ""


def _was_refused(status: pods.Status) -> bool:
    """Returns whether the condition that kube-scheduler wrote quotes a refusal of this service."""
    return any(
        condition.type == "PodScheduled" and condition.status == "False" and PREFIX in condition.message
        for condition in status.conditions or ()
    )


def _was_tried(status: pods.Status) -> bool:
    """Returns whether kube-scheduler has tried the pod and found no node. A scheduling gate is no attempt."""
    return any(
        condition.type == "PodScheduled" and condition.status == "False" and condition.reason != "SchedulingGated"
        for condition in status.conditions or ()
    )


def _is_nominated_by_us(annotations: dict[str, str] | None, status: pods.Status) -> bool:
    return bool(status.nominatedNodeName and annotations) and (
        (annotations or {}).get(NOMINATED_ANNOTATION) == status.nominatedNodeName
    )
