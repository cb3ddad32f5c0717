"""The ledger: what each node can still give, now and not only at its exporter's last report.

An NRT is a report of the past. Every assigned pod that the report cannot know of is booked on top of it, on the zones
the kubelet will take, from the moment the pod's assignment is seen until a report accounts for it. Whether it does is
told by the pods fingerprint: if the digest of the pods we know of equals the report's, all are in its numbers.
The books of a node are made when somebody asks, and kept until one of the node's facts changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from topowise import fingerprint, pods
from topowise.errors import ParseError
from topowise.nrt import NodeResourceTopology
from topowise.runtime.log import V4, kv
from topowise_scheduler.engine import node as node_model
from topowise_scheduler.engine.node import NodeTopology, Zone, is_native
from topowise_scheduler.engine.verdict import Placement, Verdict

log = logging.getLogger(__name__)

Predict = Callable[[NodeTopology, pods.Needs], Verdict]


class _Booked(msgspec.Struct):
    """An assigned pod. `placements` is None until it was needed; `is_reported` once the NRT's numbers include it."""

    namespace: str
    name: str
    needs: pods.Needs
    is_reported: bool = False


class _Node(msgspec.Struct):
    topology: NodeTopology | None = None
    version: str = ""
    pods: dict[str, _Booked] = {}
    books: NodeTopology | None = None


class Ledger:
    """All nodes. Not thread-safe: it lives in the event loop, and every call returns at once."""

    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._nodes: dict[str, _Node] = {}
        self._node_of_pod: dict[str, str] = {}
        self.known: set[str] = set()
        """Names of the Node objects."""
        self.revision = 0
        """Moves with every change, so that answers can be remembered."""

    def topology_of(self, name: str) -> NodeTopology | None:
        """The node with every booking taken off its zones; None if no exporter has reported it."""
        node = self._nodes.get(name)
        if node is None or node.topology is None:
            return None
        if node.books is None:
            node.books = self._make_books(node, node.topology)
        return node.books

    def nodes(self) -> list[str]:
        """Names of all nodes that have been reported, sorted."""
        return sorted(name for name, node in self._nodes.items() if node.topology is not None)

    def put_topology(self, reported: NodeResourceTopology) -> None:
        """A new report of a node."""
        read, problems = node_model.read(reported)
        for problem in problems:
            log.warning("Parts of an NRT cannot be used", extra=kv(node=read.name, why=problem))
        node = self._nodes.setdefault(read.name, _Node(pods={}))
        node.topology = read
        version = reported.metadata.resourceVersion
        if not read.fingerprint and (version != node.version or not version):
            # Without a digest there is no telling; a new report is newer than what was booked before it.
            for booked in node.pods.values():
                booked.is_reported = True
        node.version = version
        self._touch(node)

    def drop_topology(self, name: str) -> None:
        """The report is gone."""
        if node := self._nodes.get(name):
            node.topology = None
            self._touch(node)

    def put_pod(self, pod: pods.Pod, *, is_news: bool = True) -> None:
        """A pod came or changed; it is booked while it is assigned and has not ended.

        `is_news` is False for pods that were there before us: a report without a digest is taken to include them.
        """
        uid = pod.metadata.uid
        where = "" if pod.is_terminal else pod.spec.nodeName
        held = self._node_of_pod.get(uid)
        if held is not None and held != where:
            self.drop_pod(uid)
        if not where or held == where:
            return
        try:
            needs = pods.needs(pod)
        except ParseError as exc:
            log.warning("Pod cannot be booked", extra=kv(pod=f"{pod.metadata.namespace}/{pod.metadata.name}", why=exc))
            return
        node = self._nodes.setdefault(where, _Node(pods={}))
        is_reported = not is_news and node.topology is not None and not node.topology.fingerprint
        node.pods[uid] = _Booked(pod.metadata.namespace, pod.metadata.name, needs, is_reported)
        self._node_of_pod[uid] = where
        self._touch(node)

    def drop_pod(self, uid: str) -> None:
        """A pod ended or was deleted."""
        where = self._node_of_pod.pop(uid, None)
        if where is not None:
            node = self._nodes[where]
            del node.pods[uid]
            self._touch(node)

    def _touch(self, node: _Node) -> None:
        node.books = None
        self.revision += 1
        self._reconcile(node)

    def _reconcile(self, node: _Node) -> None:
        """Marks the pods that the report's numbers include: all, if its digest is that of the pods we know of."""
        reported = node.topology
        if reported is None or not reported.fingerprint:
            return
        counted = [
            (booked.namespace, booked.name)
            for booked in node.pods.values()
            if reported.fingerprint_method == fingerprint.ALL or _is_exclusive(reported, booked.needs)
        ]
        if fingerprint.of(counted) == reported.fingerprint:
            for booked in node.pods.values():
                booked.is_reported = True

    def _make_books(self, node: _Node, reported: NodeTopology) -> NodeTopology:
        books = reported
        for booked in node.pods.values():
            if not booked.is_reported:
                verdict = self._predict(books, booked.needs)
                log.log(V4, "Booked", extra=kv(node=reported.name, pod=booked.name, fits=verdict.fits))
                books = book(books, verdict.placements)
        return books


def book(node: NodeTopology, placements: tuple[Placement, ...]) -> NodeTopology:
    """The node with the placements taken off what its zones can still give."""
    taken: dict[int, dict[str, int]] = {}
    for placement in placements:
        if placement.is_kept:
            zone = taken.setdefault(placement.zone, {})
            for resource, amount in placement.amounts.items():
                zone[resource] = zone.get(resource, 0) + amount
    if not taken:
        return node
    zones = tuple(_less(zone, taken[zone.id]) if zone.id in taken else zone for zone in node.zones)
    return msgspec.structs.replace(node, zones=zones)


def _less(zone: Zone, taken: dict[str, int]) -> Zone:
    available = {resource: max(0, amount - taken.get(resource, 0)) for resource, amount in zone.available.items()}
    return Zone(zone.id, zone.allocatable, available)


def _is_exclusive(node: NodeTopology, needs: pods.Needs) -> bool:
    """Whether method `with-exclusive-resources` counts the pod; init containers that end do not matter for it.

    Source: scheduler-plugins, pkg/noderesourcetopology/resourcerequests (IncludeNonNative, AreExclusiveForPod).
    """
    return any(
        _is_exclusive_amount(node, resource, amount, guaranteed=needs.qos == "Guaranteed")
        for container in needs.containers
        if container.kind != "init"
        for resource, amount in {**container.limits, **container.requests}.items()
        if amount > 0
    )


def _is_exclusive_amount(node: NodeTopology, resource: str, amount: int, *, guaranteed: bool) -> bool:
    if resource == "cpu":
        return guaranteed and amount % 1000 == 0
    if is_native(resource):
        return guaranteed
    return any(resource in zone.allocatable for zone in node.zones)
