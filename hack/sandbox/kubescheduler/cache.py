"""Nodes with their pods, including pods that are assumed while their bind is under way.

Source: pkg/scheduler/backend/cache/cache.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandbox.kubescheduler.pod import PodInfo
from topowise import pods
from topowise_scheduler.verdicts.kube_scheduler import Node

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
