"""The knowledge of a service process: from its lists and watches, and from the calls of kube-scheduler.

The knowledge is read from the bytes at the edge of the service, never from its state, so it is what the service could
know. `Heard.known` returns the knowledge of a node as a value. A restart resets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from topowise import nrt, pods
from topowise.attributes import confirmation
from topowise_scheduler.kubelet import Kubelet

PODS = "/api/v1/pods"
# An answer is a promise for so long (cluster/reservations.py).
PROMISED_S = 30.0
_NEVER = float("-inf")
_BINDING_S = 1.0
# Between events that come at the same time, which have an order all the same.
_INSTANT_S = 1e-9

Certainty = Literal["bound", "promised", "nominated"]


class Look(msgspec.Struct, frozen=True):
    """What an exporter saw: the kubelet as podresources tells it, and the pods whose admission was complete. Pods in
    `leftovers` have ended, and the state files have them still."""

    at: float
    kubelet: Kubelet
    whole: frozenset[str]
    leftovers: frozenset[str] = frozenset()


class ReportHeard(msgspec.Struct, frozen=True):
    """The last object of a node: its version, the doubts that it names, and when it was heard."""

    version: str
    doubts: tuple[str, ...]
    at: float


class PodHeard(msgspec.Struct):
    """A pod as a service process knows it; times are of reception, None for events that it has not received."""

    pod: pods.Pod
    node: str = ""
    since: float = 0.0
    earliest: float = _NEVER
    """The pod cannot have reached its node earlier."""
    runs: float | None = None
    ended: float | None = None
    nominated: str = ""
    unlisted: float | None = None
    """A list lacks it, although the service has bound it."""
    feasible: frozenset[str] = frozenset()
    """The nodes that the last answer about it has left, since `asked`."""
    asked: float = _NEVER
    binding: str = ""
    """The node that the service binds it to, as long as no answer has come."""
    is_own: bool = False
    """The service has bound it, or tried to, and no list or watch has said so yet."""
    is_sent: bool = False
    """Its Binding was sent."""


class KnownPod(msgspec.Struct, frozen=True):
    """A pod that may be on a node. It came there in the window `come`, and if an end was heard it went in `gone`."""

    pod: pods.Pod
    certainty: Certainty
    since: float
    come: tuple[float, float]
    runs: float | None = None
    gone: tuple[float, float] | None = None
    unlisted: bool = False

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


class Refused(msgspec.Struct, frozen=True):
    """A kubelet has refused a pod that it had not admitted before, which the service heard `at`, when it had this
    version of the node's object."""

    at: float
    node: str
    pod: pods.Pod
    version: str


class Known(msgspec.Struct, frozen=True):
    """The possible knowledge of a node at a moment. `look` is the exporter's look behind the last received object, None
    without an object; `late` is the longest delay from the end of a pod to its reception."""

    node: str
    now: float
    late: float
    look: Look | None
    report: ReportHeard | None
    pods: tuple[KnownPod, ...]
    refused: tuple[Refused, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for moments at which the same was known, but for the time that has passed."""
        version = "" if self.report is None else self.report.version
        return (
            self.node,
            version,
            tuple((pod.uid, pod.certainty, pod.runs, pod.gone, pod.unlisted) for pod in self.pods),
        )


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    resourceVersion: str = ""


class _Attribute(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Report(msgspec.Struct, frozen=True):
    metadata: _Metadata
    attributes: Sequence[_Attribute] = ()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, frozen=True, rename={"more": "continue"}):
    more: str = ""


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class Heard:
    """The recorder. `late` is the longest that the service may take to hear of what has happened on a node."""

    def __init__(self, clock: Callable[[], float], late: float) -> None:
        self._time = clock
        self._last = _NEVER
        self._late = late
        self.begin()

    def _clock(self) -> float:
        self._last = max(self._time(), self._last + _INSTANT_S)
        return self._last

    def begin(self) -> None:
        """A service starts."""
        self.pods: dict[str, PodHeard] = {}
        self.reports: dict[str, ReportHeard] = {}
        self.refused: list[Refused] = []
        self._pages: dict[str, list[msgspec.Raw]] = {}

    # What the API server says

    def page(self, path: str, query: Mapping[str, str], body: bytes) -> None:
        """A page of a list has come; the list counts when its last page has."""
        if path not in (PODS, nrt.PATH):
            return
        page = msgspec.json.decode(body, type=_List)
        items = [*(self._pages.pop(path, []) if "continue" in query else []), *(page.items or ())]
        if page.metadata.more:
            self._pages[path] = items
        elif path == PODS:
            self._pods_listed([pods.decode(raw) for raw in items])
        else:
            for raw in items:
                self._put_report(raw)

    def events(self, path: str, piece: bytes) -> None:
        """Lines of a watch have come."""
        if path not in (PODS, nrt.PATH):
            return
        for line in piece.splitlines():
            event = msgspec.json.decode(line, type=_Event)
            if event.type not in ("ADDED", "MODIFIED", "DELETED"):
                continue
            if path == nrt.PATH:
                # A deleted object leaves what was known: the kubelet is as it was.
                if event.type != "DELETED":
                    self._put_report(event.object)
            else:
                self._put_pod(pods.decode(event.object), is_deleted=event.type == "DELETED")

    # What callers say

    def answered(self, pod: pods.Pod, feasible: frozenset[str]) -> None:
        """A question was answered."""
        heard = self._pod(pod)
        heard.feasible, heard.asked, heard.binding = feasible, self._clock(), ""

    def bind_asked(self, uid: str, node: str) -> None:
        """A bind was asked for."""
        if (heard := self.pods.get(uid)) is not None:
            heard.binding, heard.earliest, heard.is_own, heard.is_sent = node, self._clock(), True, False

    def binding_sent(self, path: str) -> None:
        """The service posts a Binding."""
        for heard in self.pods.values():
            if heard.binding and path.split("/")[-2] == heard.pod.metadata.name:
                heard.is_sent = True

    def bind_answered(self, uid: str, *, is_bound: bool) -> None:
        """A bind was answered. After a failure kube-scheduler tries the pod again, and a Binding without an answer may
        have succeeded: either way the room of the pod is kept."""
        heard = self.pods.get(uid)
        if heard is None:
            return
        if is_bound and not heard.node:
            heard.node, heard.since = heard.binding, self._clock()
        if not is_bound:
            heard.feasible = frozenset({heard.binding})
            heard.asked = self._clock() if heard.is_sent else heard.asked
        heard.binding = ""

    # What follows

    def known(self, node: str, look: Look | None) -> Known:
        """Of one node, now. `look` is that of its `reports`."""
        now = self._clock()
        known_pods = (
            known for heard in self.pods.values() if (known := self._known_pod(heard, node, look, now)) is not None
        )
        in_order = tuple(sorted(known_pods, key=lambda pod: pod.since))
        refused = tuple(refusal for refusal in self.refused if refusal.node == node)
        return Known(node, now, self._late, look, self.reports.get(node), in_order, refused)

    def _known_pod(self, heard: PodHeard, node: str, look: Look | None, now: float) -> KnownPod | None:
        looked = _NEVER if look is None else look.at
        is_there = look is not None and heard.pod.metadata.uid in look.kubelet.active
        if heard.ended is not None:
            if heard.node != node or not (is_there or heard.ended > looked):
                return None
            first = max(heard.ended - self._late, looked)
            come = (max(heard.earliest, looked), heard.ended)
            return KnownPod(heard.pod, "bound", heard.since, come, heard.runs, (min(first, heard.ended), heard.ended))
        if heard.node:
            if heard.node != node:
                return None
            come = (max(heard.earliest, min(looked, now)), now if heard.runs is None else heard.runs)
            is_unlisted = heard.unlisted is not None
            return KnownPod(heard.pod, "bound", heard.since, come, heard.runs, unlisted=is_unlisted)
        # Binds overtake each other.
        soon = now, now + _BINDING_S
        if heard.binding:
            is_here = heard.binding == node
            return KnownPod(heard.pod, "promised", heard.asked, soon) if is_here else None
        if node in heard.feasible and now - heard.asked <= PROMISED_S:
            return KnownPod(heard.pod, "promised", heard.asked, soon)
        return KnownPod(heard.pod, "nominated", now, soon) if heard.nominated == node else None

    def _pod(self, pod: pods.Pod) -> PodHeard:
        return self.pods.setdefault(pod.metadata.uid, PodHeard(pod))

    def _put_pod(self, pod: pods.Pod, *, is_deleted: bool = False, is_listed: bool = False) -> None:
        now, is_new = self._clock(), pod.metadata.uid not in self.pods
        heard = self._pod(pod)
        phase = "" if pod.status is None else pod.status.phase
        heard.nominated = "" if pod.status is None else pod.status.nominatedNodeName
        heard.unlisted = None
        if pod.spec.nodeName and heard.node != pod.spec.nodeName:
            # The pod was bound some time before the watch said so. For a pod of a first list that time is unknown.
            if heard.binding != pod.spec.nodeName:
                heard.earliest = _NEVER if is_new and is_listed else now - self._late
            heard.node, heard.since, heard.binding = pod.spec.nodeName, now, ""
        if pod.spec.nodeName:
            heard.is_own = False
        if heard.runs is None and phase == "Running":
            heard.runs = now
        if heard.ended is None and (is_deleted or pod.is_terminal):
            heard.ended = now
            if phase == "Failed" and heard.node and heard.runs is None:
                report = self.reports.get(heard.node)
                self.refused.append(Refused(now, heard.node, pod, "" if report is None else report.version))

    def _pods_listed(self, items: Sequence[pods.Pod]) -> None:
        for item in items:
            self._put_pod(item, is_listed=True)
        listed = {item.metadata.uid for item in items}
        for uid, heard in self.pods.items():
            if uid in listed or heard.ended is not None:
                continue
            # What the service has bound itself a list may not have yet.
            if heard.is_own and (heard.node or heard.binding):
                heard.unlisted = self._clock()
            else:
                heard.ended = self._clock()

    def _put_report(self, raw: bytes | msgspec.Raw) -> None:
        report = msgspec.json.decode(raw, type=_Report)
        version = report.metadata.resourceVersion
        last = self.reports.get(report.metadata.name)
        if last is None or last.version != version:
            reasons = confirmation.read_reasons({attribute.name: attribute.value for attribute in report.attributes})
            self.reports[report.metadata.name] = ReportHeard(version, reasons, self._clock())
