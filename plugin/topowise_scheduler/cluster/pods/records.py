"""What is kept of a pod, an object of a few kilobytes: some two hundred bytes, most of them shared with its like.

Pods of one ReplicaSet ask for the same and carry the same labels, so both are kept once for all of them; a cluster of
150,000 pods has a few thousand shapes.

Invariant: a record never changes, and says what one version of its pod said. Records of equal `shape` ask for the same;
what cannot be read is None with a `problem`, and never less than the pod asks for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Final, Literal, NamedTuple
from weakref import ReferenceType, WeakValueDictionary, ref

import msgspec

from topowise import pods
from topowise.bounded import Bounded, size_of_dict
from topowise.errors import ParseError
from topowise_scheduler import device_affinity, kube_scheduler, policy_annotations
from topowise_scheduler.cluster.pods.asks import Asks, asks
from topowise_scheduler.device_affinity import AffinityTerm
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.refusals import PREFIX
from topowise_scheduler.shape import PodRequests

# status.reason of a pod its kubelet would not place (pkg/kubelet/lifecycle, cm/admission).
TOPOLOGY_AFFINITY_ERROR: Final = "TopologyAffinityError"
KUBELET_REFUSALS: Final = frozenset((TOPOLOGY_AFFINITY_ERROR, "UnexpectedAdmissionError", "SMTAlignmentError"))
# Of labels that are shared; those of a pod are some kilobytes, and more of them than this are nobody else's.
_MAX_LABEL_BYTES: Final = 4 << 20
_MOST_LABELS: Final = 64
MAX_CONTAINERS: Final = 256
"""Of a pod that is judged. The model books a pod in one step, which takes 20 us for each container."""
LARGE_BYTES: Final = 1 << 17
"""Of a pod of which it is looked first how many containers it has: decoding so many takes a millisecond."""
_MAX_AMOUNTS: Final = 4096
_MAX_TEXT_BYTES: Final = 4 << 20

NOMINATED_ANNOTATION: Final = "topowise.io/nominated"
"""The node for which we have nominated the pod, beside `status.nominatedNodeName` that anybody may have written."""

Stage = Literal["pending", "assigned", "ended"]


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod as the ledger needs it.

    `requests`, which pods that ask for the same share, is None with `problem` saying why, if its quantities cannot
    be read. `shape` is equal for pods that ask for the same. `refusal` is the kubelet's reason for a pod it did not
    place. `waits` tells a pending pod that an extender of this project has refused; `acknowledged` one that its kubelet
    has taken on, `runs` one whose containers have started. `started` is RFC 3339. `tried`: kube-scheduler has found no
    node for it; `leaving`: it is being deleted; `nominated_by_us`: this project did so (nominations.py). `asks` is only
    known of a pending pod that may be nominated.
    `is_too_large`: it has more containers or amounts than are judged, so that `requests` is None.
    `group` names the pods that kube-scheduler decides with this one, as a gang.
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
    wishes: tuple[AffinityTerm, ...] = ()
    runs: bool = False
    acknowledged: bool = False
    waits: bool = False
    refusal: str = ""
    problem: str = ""
    tried: bool = False
    leaving: bool = False
    nominated_by_us: bool = False
    asks: Asks | None = None
    group: str = ""
    is_too_large: bool = False

    @property
    def needs(self) -> pods.Needs | None:
        """What the pod asks for, None if its quantities cannot be read."""
        return None if self.requests is None else self.requests.needs

    @property
    def size(self) -> int:
        """Bytes, about, with what pods that ask for the same share."""
        return 1024 + (0 if self.requests is None else self.requests.size) + len(self.name) + len(self.problem)

    def view(self, node: Kubelet) -> PodView:
        """The pod as a kubelet with these feature gates sees it; its quantities must have been readable."""
        assert self.requests is not None
        return self.requests.view(self.uid, node.settings)

    def seen(self, node: Kubelet) -> PodView:
        """The same as nobody's in particular, for who does not need its uid."""
        assert self.requests is not None
        return self.requests.form(node.settings).view


class Records:
    """Makes records, and keeps what they share. `nominates` are the schedulerNames of pods that we nominate; `seen` is
    told of each pod that is decoded, before all but its record is forgotten. Not thread-safe.
    """

    def __init__(self, nominates: Collection[str] = (), seen: Callable[[pods.Pod], None] | None = None) -> None:
        self._nominates = frozenset(nominates)
        self._seen = seen
        # A shape goes with the last of its pods.
        self._requests: WeakValueDictionary[bytes, PodRequests] = WeakValueDictionary()
        # The same by what pods say, of which there may be several spellings.
        self._by_text: Bounded[bytes, ReferenceType[PodRequests]] = Bounded(_MAX_TEXT_BYTES, lambda *_: 0)
        self._labels: Bounded[bytes, dict[str, str]] = Bounded(_MAX_LABEL_BYTES, size_of_dict)
        self._asks: Bounded[bytes, Asks] = Bounded(_MAX_LABEL_BYTES, lambda key, _: len(key))

    def decode(self, raw: bytes | msgspec.Raw) -> PodRecord:
        """A record from the JSON of a v1.Pod. Raises msgspec.DecodeError for what is not a pod."""
        pod = _decoded(raw)
        if self._seen is not None:
            self._seen(pod)
        record = self.record(pod)
        if record.problem or record.stage != "pending" or pod.spec.schedulerName not in self._nominates:
            return record
        found = asks(kube_scheduler.decode(raw).spec)
        return msgspec.structs.replace(record, asks=self._asks.once(found.key, lambda: found))

    def record(self, pod: pods.Pod) -> PodRecord:
        """The record of a pod. On a node it needs what its kubelet has given it, whatever its spec wishes now."""
        meta, spec, status = pod.metadata, pod.spec, pod.status or pods.Status()
        problem = _too_large(spec)
        is_too_large = bool(problem)
        requests, shape = None, b""
        try:
            if spec.nodeName and not problem:
                pod = pods.allocated(pod)
            if not problem:
                requests, shape = self.requests(pod)
        except ParseError as exc:
            problem = str(exc)
        asked = _readable(meta.annotations, requests)
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
            demand=asked.demand,
            wishes=asked.wishes,
            runs=status.phase == "Running",
            acknowledged=bool(status.startTime) or status.phase == "Running",
            waits=stage == "pending" and _was_refused(status),
            tried=stage == "pending" and _was_tried(status),
            leaving=meta.deletionTimestamp is not None,
            nominated_by_us=_is_ours(meta.annotations, status),
            refusal=status.reason if stage == "ended" and status.reason in KUBELET_REFUSALS else "",
            problem=problem,
            is_too_large=is_too_large,
            group=_group(pod),
        )

    def requests(self, pod: pods.Pod) -> tuple[PodRequests, bytes]:
        """What the pod asks for, and a text that is equal for equal needs. Raises ParseError."""
        text = _digest(_encode(_asked(pod)))
        known = self._by_text.get(text)
        requests = None if known is None else known()
        if requests is None:
            requests = self._of_needs(pod)
            self._by_text.put(text, ref(requests))
        return requests, requests.shape

    def _of_needs(self, pod: pods.Pod) -> PodRequests:
        needs, ungated = pods.needs(pod), None
        key = shape = _digest(_encode(needs))
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


class Annotated(NamedTuple):
    """What a pod asks for by annotations."""

    demand: policy_annotations.Demand = policy_annotations.NOTHING
    wishes: tuple[AffinityTerm, ...] = ()


def annotated(annotations: Mapping[str, str] | None, needs: pods.Needs) -> Annotated:
    """What they ask for. Raises ParseError: a record takes such that cannot be read for none, so who decides about a
    pod asks here first."""
    if not annotations:
        return _NOTHING
    return Annotated(policy_annotations.demand(annotations), device_affinity.terms_of(annotations, needs))


def _readable(annotations: Mapping[str, str] | None, requests: PodRequests | None) -> Annotated:
    try:
        return _NOTHING if requests is None else annotated(annotations, requests.needs)
    except ParseError:
        return _NOTHING


_NOTHING: Final = Annotated()


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def _digest(text: bytes) -> bytes:
    """Of fixed length, as it is kept for pods of thousands of bytes too; two texts with the same are not found."""
    return blake2b(text, digest_size=16).digest()


def _asked(pod: pods.Pod) -> tuple[object, ...]:
    """All that `pods.needs` looks at."""
    spec, status = pod.spec, pod.status
    qos = "" if status is None else status.qosClass
    return spec.initContainers, spec.containers, spec.resources, spec.overhead, qos


def _decoded(raw: bytes | msgspec.Raw) -> pods.Pod:
    return too_large(raw) or pods.decode(raw)


def too_large(raw: bytes | msgspec.Raw) -> pods.Pod | None:
    """A pod of more containers than are judged, without what they ask for; None for any other pod."""
    if memoryview(raw).nbytes <= LARGE_BYTES:
        return None
    pod = pods.with_blank_containers(raw)
    return pod if _too_large(pod.spec) else None


def _too_large(spec: pods.Spec) -> str:
    """What was expected of a pod that nobody judges, "" if it is none.

    The API server takes pods of tens of thousands of containers, each of which would be placed on every node.
    """
    containers = (*(spec.initContainers or ()), *(spec.containers or ()))
    if len(containers) > MAX_CONTAINERS:
        return f"at most {MAX_CONTAINERS} containers, it has {len(containers)}"
    amounts = sum(
        [
            len(one.resources.requests or ()) + len(one.resources.limits or ())
            for one in containers
            if one.resources is not None
        ]
    )
    return f"at most {_MAX_AMOUNTS} amounts in its containers, it has {amounts}" if amounts > _MAX_AMOUNTS else ""


def _group(pod: pods.Pod) -> str:
    group = pod.spec.schedulingGroup
    return sys.intern(f"{pod.metadata.namespace}/{group.podGroupName}") if group is not None else ""


def _was_refused(status: pods.Status) -> bool:
    """Whether kube-scheduler's own words about the pod quote one of our refusals."""
    return any(
        one.type == "PodScheduled" and one.status == "False" and PREFIX in one.message
        for one in status.conditions or ()
    )


def _was_tried(status: pods.Status) -> bool:
    """Whether kube-scheduler has tried the pod in vain; a gate is no try."""
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.reason != "SchedulingGated"
        for one in status.conditions or ()
    )


def _is_ours(annotations: dict[str, str] | None, status: pods.Status) -> bool:
    return bool(status.nominatedNodeName and annotations) and (
        (annotations or {}).get(NOMINATED_ANNOTATION) == status.nominatedNodeName
    )
