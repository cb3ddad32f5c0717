"""What the scheduler knows: pods, nodes with their pods, and attempts with their messages.

A pod is kept as its JSON came, which is what an extender is sent. The pods of a node include those that are assumed
while their bind is under way.
Sources: pkg/scheduler/backend/cache/cache.go, framework/types.go (FitError and NodeToStatus).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Node


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod with its effective requests, in milli-CPU for cpu."""

    raw: bytes
    pod: kube_scheduler.Pod
    needs: pods.Needs

    @property
    def requests(self) -> pods.Amounts:
        return self.needs.requests

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def key(self) -> str:
        """namespace/name"""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    @property
    def path(self) -> str:
        """Of the object in the API."""
        return f"/api/v1/namespaces/{self.pod.metadata.namespace}/pods/{self.pod.metadata.name}"

    @property
    def node(self) -> str:
        """Where it is assigned, "" if nowhere."""
        return self.pod.spec.nodeName

    @property
    def priority(self) -> int:
        return self.pod.spec.priority or 0

    @property
    def nominated(self) -> str:
        """Where preemption makes room for it, "" if nowhere."""
        return "" if self.pod.status is None else self.pod.status.nominatedNodeName

    @property
    def started(self) -> str:
        """Returns the start time in RFC 3339, which orders victims of equal priority."""
        return ("" if self.pod.status is None else self.pod.status.startTime) or ""

    def condition(self) -> pods.Condition | None:
        """PodScheduled."""
        conditions = () if self.pod.status is None else self.pod.status.conditions or ()
        return next((condition for condition in conditions if condition.type == "PodScheduled"), None)


def decode(raw: bytes | msgspec.Raw) -> PodInfo:
    """Raises msgspec.DecodeError, and ParseError for a malformed quantity."""
    pod = kube_scheduler.decode(raw)
    return PodInfo(bytes(raw), pod, pods.needs(pod))


class Refused(msgspec.Struct, frozen=True):
    """A node that will not do. `ever`: UnschedulableAndUnresolvable, so evicting pods from it would not help."""

    reasons: tuple[str, ...]
    plugin: str
    ever: bool = False


class Attempt(msgspec.Struct, frozen=True):
    """A cycle for a pod. `scores` are the extender's, empty without a call. `error` is the error of the whole attempt.

    `nominated` is the node on which preemption evicts pods; `message` is the message of the pod's condition.
    """

    uid: str
    namespace: str
    name: str
    refused: Mapping[str, Refused] = {}
    feasible: tuple[str, ...] = ()
    scores: Mapping[str, int] = {}
    chosen: str | None = None
    nominated: str | None = None
    message: str = ""
    error: str = ""


def fit_error(nodes: int, reasons: Iterable[str], after: str = "") -> str:
    """FitError.Error: reasons with their counts, sorted as text; `after` is PostFilter's message."""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    text = f"0/{nodes} nodes are available:"
    if counted:
        text += f" {', '.join(counted)}."
    return f"{text} {after}" if after else text


def said(refused: Mapping[str, Refused]) -> list[str]:
    """Returns every reason of every node."""
    return [reason for refusal in refused.values() for reason in refusal.reasons]


# pkg/scheduler/util/pod_resources.go: what a pod without requests counts as, for scores only.
_NON_ZERO: Final = {"cpu": 100, "memory": 200 << 20}


class NodeInfo:
    """A node and its pods. `object` is None without a Node object.

    `used` is the sum of the pods' requests, with their number as "pods"; `scored` has defaults for missing requests.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.object: Node | None = None
        self.pods: dict[str, PodInfo] = {}
        self.used: pods.Amounts = {"pods": 0}
        self.scored: pods.Amounts = dict.fromkeys(_NON_ZERO, 0)

    @property
    def allocatable(self) -> pods.Amounts:
        return {} if self.object is None else self.object.allocatable

    def add(self, info: PodInfo) -> None:
        """The pod is here."""
        self.pods[info.uid] = info
        self._count(info, 1)

    def remove(self, uid: str) -> None:
        """The pod is not."""
        info = self.pods.pop(uid, None)
        if info is not None:
            self._count(info, -1)

    def _count(self, info: PodInfo, sign: int) -> None:
        self.used["pods"] += sign
        for name, amount in info.requests.items():
            self.used[name] = self.used.get(name, 0) + sign * amount
        for name, amount in non_zero(info).items():
            self.scored[name] += sign * amount


def non_zero(info: PodInfo) -> pods.Amounts:
    """CPU and memory of a pod for scores."""
    return {name: info.requests.get(name, 0) or default for name, default in _NON_ZERO.items()}


class Cache:
    """All nodes, by name."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._places: dict[str, str] = {}
        self.assumed: set[str] = set()

    def nodes(self) -> Iterator[NodeInfo]:
        """Returns the nodes that have a Node object."""
        return (node for node in self._nodes.values() if node.object is not None)

    def get(self, name: str) -> NodeInfo | None:
        """None if there is no such Node object."""
        node = self._nodes.get(name)
        return node if node is not None and node.object is not None else None

    def put_node(self, node: Node) -> None:
        """Records a new or changed Node."""
        self._nodes.setdefault(node.name, NodeInfo(node.name)).object = node

    def drop_node(self, name: str) -> None:
        """The Node is gone; its pods are still there until they are deleted."""
        if name in self._nodes:
            self._nodes[name].object = None

    def put_pod(self, info: PodInfo) -> None:
        """Records an assigned pod; this confirms an assumed pod."""
        self.drop_pod(info.uid)
        self._place(info, info.node)

    def drop_pod(self, uid: str) -> None:
        """Removes an assigned pod that has ended, or an assumed pod that was not bound."""
        self.assumed.discard(uid)
        place = self._places.pop(uid, None)
        if place is not None:
            self._nodes[place].remove(uid)

    def assume(self, info: PodInfo, node: str) -> None:
        """The pod will be bound to the node."""
        self._place(info, node)
        self.assumed.add(info.uid)

    def place_of(self, uid: str) -> str | None:
        """Returns the node of a pod that is assigned or assumed."""
        return self._places.get(uid)

    def _place(self, info: PodInfo, node: str) -> None:
        self._places[info.uid] = node
        self._nodes.setdefault(node, NodeInfo(node)).add(info)
