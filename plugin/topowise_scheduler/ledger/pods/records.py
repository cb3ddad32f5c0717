"""What the ledger keeps of a pod: some two hundred bytes, most of them shared with pods of the same class.

Pods of one ReplicaSet have equal requests and labels, so each is kept once. A cluster of 150,000 pods has a few
thousand distinct requests.

Invariant: a record never changes and describes one version of its pod. Records of equal `shape` have equal requests. A
record that cannot be read has no `requests` and a `problem`, never requests that are too small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import Final, Literal, TypeVar
from weakref import ReferenceType, WeakValueDictionary, ref

import msgspec

from topowise import pods
from topowise.bounded import Bounded, size_of_dict
from topowise.errors import ParseError
from topowise.placement import GATE, GROUP, KUEUE_GROUP, PLACED_ON
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.predicates import LACKS_GATE
from topowise_scheduler.ledger.pods.demands import NO_DEMANDS, Demands, OptionDemand, Reader, demands_of
from topowise_scheduler.ledger.pods.scheduling_constraints import SchedulingConstraints, constraints_of
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import inter_pod, kube_scheduler
from topowise_scheduler.verdicts.inter_pod import InterPodIndex
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
_OWN_GATE: Final = (GATE,)

PLACEHOLDER_SCHEDULER: Final = "topowise-placeholder"
"""schedulerName of placeholders (scale_up/), which no scheduler serves: they wait for nothing that a node has."""

Stage = Literal["pending", "assigned", "ended"]


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    """What has become of a pod, as of a `version` (metadata.resourceVersion).

    `started`: RFC 3339. `nominated`: a node. `gates`: the names of its scheduling gates, `placed_on` the node that this
    service has chosen for it. `waits`: pending, and refused by an extender of this project, or waiting for this
    service alone to open its gate. `tried`: kube-scheduler found no node for it. `acknowledged`:
    the kubelet has accepted the pod. `runs`: containers have started. `leaving`: it is being deleted. `refusal`: the
    kubelet's reason for a refused pod. `exporter_ready`: whether this pod of an exporter is Ready, None for others.
    """

    stage: Stage
    version: str
    started: str
    nominated: str = ""
    gates: tuple[str, ...] = ()
    placed_on: str = ""
    waits: bool = False
    tried: bool = False
    acknowledged: bool = False
    runs: bool = False
    leaving: bool = False
    refusal: str = ""
    exporter_ready: bool | None = None

    @property
    def is_placeable(self) -> bool:
        """Whether the pod waits for this service alone to choose its node (controllers/placement)."""
        return self.gates == _OWN_GATE


class Problem(msgspec.Struct, frozen=True):
    """What cannot be read of a pod, and why: its amounts, also because it has too many (`size`), or its annotations."""

    text: str
    of: Literal["amounts", "size", "annotations"]

    def __str__(self) -> str:
        return self.text


Demand = TypeVar("Demand", bound=OptionDemand)


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod as the ledger needs it.

    `requests`: shared by pods with equal requests; None if they cannot be read, and `problem` says why. Annotations
    that cannot be read are ignored, but a question about the pod gets an error.
    `claims`: the names of its ResourceClaims, "template/number" for a claim that is not generated yet.
    `constraints`: known only of a pending pod that has the gate of this service, that is placed, or for which
    kube-scheduler found no node.
    `group`: names the gang that kube-scheduler places together.
    `steered`: the NUMA node of the marker devices while the kubelet admits the pod, which no API object has.
    """

    uid: str
    namespace: str
    name: str
    node: str
    status: PodStatus
    requests: PodRequests | None
    priority: int
    labels: dict[str, str]
    demands: Demands = NO_DEMANDS
    claims: tuple[str, ...] = ()
    constraints: SchedulingConstraints | None = None
    group: str = ""
    problem: Problem | None = None
    steered: int | None = None

    @property
    def is_too_large(self) -> bool:
        """Whether the pod has more containers or amounts than the model accepts."""
        return self.problem is not None and self.problem.of == "size"

    @property
    def shape(self) -> bytes:
        """Returns a key that is equal for pods with equal requests, b"" if they cannot be read."""
        return b"" if self.requests is None else self.requests.shape

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
            self.status.nominated,
            self.demands,
            self.claims and (self.namespace, self.claims),
            constraints,
            self.problem,
        )

    @property
    def size(self) -> int:
        """Bytes, about, with what pods that ask for the same share."""
        demands = sum([demand.size for demand in self.demands.of_options])
        problem = 0 if self.problem is None else len(self.problem.text)
        return 1024 + (0 if self.requests is None else self.requests.size) + len(self.name) + problem + demands

    def demand(self, default: Demand) -> Demand:
        """Returns the demand of the same type as `default`, which is returned if the pod has none."""
        for demand in self.demands.of_options:
            if type(demand) is type(default):
                return demand
        return default

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

    `places`: whether the service places gated pods. `seen`: called with each decoded pod, before all but its record is
    dropped. `is_exporter`: whether a pod is one of an exporter. `index`: receives each pod, for constraints between
    pods. `readers` of the demands on options.
    """

    def __init__(
        self,
        *,
        places: bool = False,
        seen: Callable[[pods.Pod], None] | None = None,
        is_exporter: Callable[[pods.Metadata], bool] = lambda _: False,
        index: InterPodIndex | None = None,
        readers: Sequence[Reader] = (),
    ) -> None:
        self._places = places
        self._index = index
        self._seen = seen
        self._is_exporter = is_exporter
        self._readers = readers
        # Weak: dropped with the last record that uses them.
        self._requests: WeakValueDictionary[bytes, PodRequests] = WeakValueDictionary()
        # The same by the text of the spec; several texts may mean equal requests.
        self._by_text: Bounded[bytes, ReferenceType[PodRequests]] = Bounded(_MAX_TEXT_BYTES, lambda *_: 0)
        self._labels: Bounded[bytes, dict[str, str]] = Bounded(_MAX_LABEL_BYTES, size_of_dict)
        # Long texts of many pods would fill the memory; pods of a ReplicaSet have equal demands.
        self._demands: Bounded[Demands, Demands] = Bounded(
            _MAX_TEXT_BYTES, lambda demands, _: sum([demand.size for demand in demands.of_options])
        )
        self._constraints: Bounded[bytes, SchedulingConstraints] = Bounded(_MAX_LABEL_BYTES, lambda key, _: len(key))

    def decode(self, raw: bytes | msgspec.Raw) -> PodRecord:
        """Returns the record of a v1.Pod in JSON. Raises msgspec.DecodeError for other JSON."""
        pod = _decode(raw)
        if self._seen is not None:
            self._seen(pod)
        if self._index is not None:
            self._index.put(inter_pod.decode(raw))
        record = self.record(pod)
        is_gated = GATE in record.status.gates
        if record.status.stage != "pending" or not (is_gated or record.status.placed_on or record.status.tried):
            return record
        between = None if self._index is None else self._index.request_of(record.uid)
        constraints = constraints_of(kube_scheduler.decode(raw).spec, between)
        if len(constraints.key) > _LARGEST_CONSTRAINTS and not is_gated:
            return record
        shared = self._constraints.once(constraints.key, lambda: constraints)
        return msgspec.structs.replace(record, constraints=shared)

    def record(self, pod: pods.Pod) -> PodRecord:
        """Returns the record of a pod. An assigned pod needs what its kubelet allocated, which an in-place resize may
        change later than the spec."""
        meta, spec, status = pod.metadata, pod.spec, pod.status or pods.Status()
        too_large, requests, demands = _too_large(spec), None, NO_DEMANDS
        problem = Problem(too_large, "size") if too_large else None
        if problem is None:
            try:
                # The kubelet decides by the allocated amounts, not by the spec (KEP-1287, allocation.Manager).
                requests = self.requests(pods.allocated(pod) if spec.nodeName else pod)
            except ParseError as exc:
                problem = Problem(str(exc), "amounts")
        if requests is not None:
            try:
                demands = self.demands(meta, requests.needs)
            except ParseError as exc:
                problem = Problem(str(exc), "annotations")
        return PodRecord(
            uid=meta.uid,
            namespace=sys.intern(meta.namespace),
            name=meta.name,
            node=sys.intern(spec.nodeName),
            status=self._status(pod, status),
            requests=requests,
            priority=spec.priority or 0,
            labels=self._shared_labels(meta.labels),
            demands=demands,
            claims=pods.claim_names(pod),
            group=_group(pod),
            problem=problem,
        )

    def _status(self, pod: pods.Pod, status: pods.Status) -> PodStatus:
        meta, spec = pod.metadata, pod.spec
        stage: Stage = "ended" if pod.is_terminal else "assigned" if spec.nodeName else "pending"
        gates = tuple([sys.intern(gate.name) for gate in spec.schedulingGates or ()])
        return PodStatus(
            stage=stage,
            version=meta.resourceVersion,
            # Pods of one ReplicaSet start in the same seconds.
            started=sys.intern(status.startTime or meta.creationTimestamp or ""),
            nominated=status.nominatedNodeName,
            gates=gates,
            placed_on=self._placed_on(pod) if stage == "pending" else "",
            waits=stage == "pending" and ((self._places and gates == _OWN_GATE) or _was_refused(status)),
            tried=stage == "pending" and spec.schedulerName != PLACEHOLDER_SCHEDULER and _was_tried(status),
            # The kubelet sets status.startTime with the first status (status_manager.go, updateStatusInternal).
            acknowledged=bool(status.startTime) or status.phase == "Running",
            runs=status.phase == "Running",
            leaving=meta.deletionTimestamp is not None,
            refusal=status.reason if stage == "ended" and status.reason in KUBELET_REFUSALS else "",
            exporter_ready=pod.is_ready if self._is_exporter(meta) else None,
        )

    def _placed_on(self, pod: pods.Pod) -> str:
        return sys.intern((pod.metadata.annotations or {}).get(PLACED_ON, "")) if self._places else ""

    def demands(self, metadata: pods.Metadata, needs: pods.Needs) -> Demands:
        """Returns what a pod demands. Raises ParseError: a record ignores annotations that cannot be read, so a caller
        that decides about a pod calls this method first."""
        demands = demands_of(metadata, needs, self._readers)
        return self._demands.once(demands, lambda: demands) if demands.of_options else demands

    def requests(self, pod: pods.Pod) -> PodRequests:
        """Returns what the pod requests, shared with pods of equal requests. Raises ParseError."""
        text = _digest(_encode(_needs_fields(pod)))
        reference = self._by_text.get(text)
        requests = None if reference is None else reference()
        if requests is None:
            requests = self._requests_of(pod)
            self._by_text.put(text, ref(requests))
        return requests

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

    def _shared_labels(self, labels: dict[str, str] | None) -> dict[str, str]:
        if not labels or len(labels) > _MOST_LABELS:
            return labels or {}
        return self._labels.once(_encode(labels), lambda: labels)


def placement_group(record: PodRecord) -> str:
    """Returns the group with which the pod is to be placed, with its namespace; "" for none."""
    name = record.labels.get(GROUP) or record.labels.get(KUEUE_GROUP)
    return f"{record.namespace}/{name}" if name and record.demands.group_size else ""


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
