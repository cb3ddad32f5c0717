"""Reflectors that keep the ledger current: NRTs, nodes, pods and disruption budgets, each in a task of its own.

Invariant: after a list, the ledger knows of a collection exactly what the list has, apart from pods that the service
has bound since the list began (`Ledger.note_listed`). A list is applied object by object, like the events that were
missed; requests are answered in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from topowise import nrt
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime import clock
from topowise.runtime.log import kv
from topowise_scheduler import report
from topowise_scheduler.ledger.budgets import Budgets, decode_budget
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import PodRecord, Records
from topowise_scheduler.verdicts.kube_scheduler import Node

BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"


log = logging.getLogger(__name__)


class _Unread(NamedTuple):
    """The JSON of a report that waits, because its node is noisy (late_reports.py)."""

    name: str
    version: str
    raw: bytes


Item = TypeVar("Item", _Unread, report.Report | _Unread, PodRecord)


class _Reports:
    """Applies reports to the ledger, one at a time.

    At the start reports wait until the pods are listed. A pod that the report of its node already accounts for makes
    the node state be rebuilt, which costs less once per node than once per pod. A newer report replaces a waiting
    report.
    """

    def __init__(self, ledger: Ledger, nodes: Nodes) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._waiting: dict[str, report.Report | _Unread] = {}
        self._is_released = False

    def decode(self, raw: bytes | msgspec.Raw) -> report.Report | _Unread:
        """Returns a report from its JSON, unread if its node is noisy. Raises msgspec.DecodeError."""
        if self._ledger.late_reports:
            name, version = nrt.decode_identity(raw)
            if self._ledger.late_reports.waits(name):
                return _Unread(name, version, bytes(raw))
        return self._read(raw)

    def _read(self, raw: bytes | msgspec.Raw) -> report.Report:
        name = ""

        def known(of_node: str) -> tuple[str, report.PageSizes, report.Report | None]:
            nonlocal name
            name = of_node
            node_state = self._ledger.node_states.of(of_node)
            return *self._nodes.kubelet(of_node), None if node_state is None else node_state.report

        with self._ledger.late_reports.charged(lambda: name):
            return report.read_bytes(raw, known)

    def _put(self, item: report.Report | _Unread) -> None:
        if isinstance(item, _Unread):
            self._ledger.late_reports.put(item.name, partial(_guarded, self._take, item))
            return
        # The report that waits is older than this report.
        self._ledger.late_reports.drop(item.name)
        with self._ledger.late_reports.charged(lambda: item.name):
            self._ledger.reports.put(item)

    def _take(self, item: _Unread) -> None:
        decoded = self._read(item.raw)
        with self._ledger.late_reports.charged(lambda: item.name):
            self._ledger.reports.put(decoded)

    def replace(self, items: list[report.Report | _Unread]) -> Iterator[None]:
        listed = {item.name: item for item in items}
        for name in {*self._ledger.node_states.reported(), *self._ledger.reports.over_budget}:
            if name not in listed:
                self._ledger.late_reports.drop(name)
                self._ledger.reports.lose(name)
                yield
        self._waiting = listed
        if self._is_released:
            yield from self.release()

    def apply(self, event: EventType, item: report.Report | _Unread) -> None:
        waits = self._waiting.pop(item.name, None) is not None
        if event == "DELETED":
            # A report that waited may have replaced an applied report of the node.
            self._ledger.late_reports.drop(item.name)
            self._ledger.reports.lose(item.name)
        elif waits or not self._is_released:
            self._waiting[item.name] = item
        else:
            self._put(item)

    def release(self) -> Iterator[None]:
        """Applies the waiting reports; called once the pods are listed."""
        self._is_released = True
        while self._waiting:
            item = self._waiting.pop(next(iter(self._waiting)))
            if not self._is_known(item):
                _guarded(self._put, item)
            yield

    def _is_known(self, item: report.Report | _Unread) -> bool:
        """Returns whether the report is applied already: a resourceVersion identifies one content."""
        node_state = self._ledger.node_states.of(item.name)
        return (
            bool(item.version)
            and node_state is not None
            and node_state.report is not None
            and (node_state.report.version == item.version)
        )


class _Nodes:
    def __init__(self, ledger: Ledger, nodes: Nodes) -> None:
        self._ledger = ledger
        self._nodes = nodes

    def replace(self, items: list[Node]) -> Iterator[None]:
        listed = {item.name for item in items}
        for name in {*self._ledger.reports.nodes, *self._nodes} - listed:
            if (gone := self._nodes.get(name)) is not None:
                self._nodes.apply("DELETED", gone)
            self._ledger.reports.drop_node(name)
            yield
        for item in items:
            self.apply("MODIFIED", item)
            yield

    def apply(self, event: EventType, item: Node) -> None:
        self._nodes.apply(event, item)
        if event == "DELETED":
            self._ledger.reports.drop_node(item.name)
        else:
            self._ledger.reports.put_node_object(item, clock.wall())


class _Pods:
    """Applies pods. A list is applied node by node, so that a request meets each node before the list or after it.

    If the list of a node is interrupted, pods that are gone still count. A request may meet a node with too little
    free capacity, and never a node with too much.
    """

    def __init__(self, ledger: Ledger, listed: Callable[[], Iterable[None]]) -> None:
        self._ledger = ledger
        self._listed = listed
        # UIDs by node, "" for pods without a node. A dict of a few dozen UIDs takes half the memory of a set.
        self._uids_by_node: dict[str, dict[str, None]] = {}

    def replace(self, items: list[PodRecord]) -> Iterator[None]:
        by_node: dict[str, list[PodRecord]] = {}
        for item in items:
            by_node.setdefault(item.node, []).append(item)
            yield
        unassigned = by_node.pop("", [])
        # The pods without a node come last: they may be assigned by now, and their departure is known only then.
        unlisted = [node for node in self._uids_by_node if node and node not in by_node]
        for node in [*by_node, *unlisted, ""]:
            yield from self._replace(node, by_node.pop(node, []) if node else unassigned)
        uids = self._uids_by_node
        self._ledger.note_listed(
            [uid for uid, node in self._ledger.pods.assumed() if uid in uids.get(node, ()) or uid in uids.get("", ())]
        )
        yield from self._listed()

    def _replace(self, node: str, items: list[PodRecord]) -> Iterator[None]:
        """Makes these the only pods of a node."""
        before, unassigned = self._uids_by_node.get(node, {}), self._uids_by_node.get("", {})
        now = {item.uid: None for item in items}
        gone = [uid for uid in before if uid not in now]
        if now:
            self._uids_by_node[node] = now
        else:
            self._uids_by_node.pop(node, None)
        if gone and items:
            # The name of a pod is taken again, so the first pod of the name has ended before the second was created.
            names = {(item.namespace, item.name) for item in items}
            ended = {pod.uid for pod in self._ledger.pods_on(node) if (pod.namespace, pod.name) in names}
            for uid in ended.intersection(gone):
                self._drop(uid, node)
        # The closest approximation of the order in which the kubelet admitted them.
        for item in sorted(items, key=lambda pod: (pod.status.started, len(pod.status.version), pod.status.version)):
            # The order of events around a pod that is first seen in a list is unknown.
            is_known = item.uid in before or item.uid in unassigned
            if node:
                unassigned.pop(item.uid, None)
            _guarded(partial(self._ledger.put_pod, is_news=is_known), item)
            yield
        for uid in gone:
            self._drop(uid, node)
            yield

    def _drop(self, uid: str, node: str) -> None:
        """Drops a pod that the list of a node lacks; a pod that another node lists by now stays there."""
        # A pod with the same UID never moves, but an assumed Binding may be on another node.
        if self._ledger.pods.of(uid).node in ("", node) or not node:
            self._ledger.drop_pod(uid)

    def apply(self, event: EventType, item: PodRecord) -> None:
        if event == "DELETED":
            self._forget(item.uid, item.node)
            self._ledger.drop_pod(item.uid)
            return
        if item.node:
            self._forget(item.uid, "")
        self._uids_by_node.setdefault(item.node, {})[item.uid] = None
        self._ledger.put_pod(item)

    def _forget(self, uid: str, node: str) -> None:
        for name in {node, ""}:
            uids = self._uids_by_node.get(name)
            if uids is not None:
                uids.pop(uid, None)
                if not uids:
                    del self._uids_by_node[name]


def _guarded(put: Callable[[Item], None], item: Item) -> None:
    """Applies an object of a list. An object that cannot be applied must not block the rest of the list."""
    try:
        put(item)
    except Exception:
        log.exception("Object cannot be applied, left out", extra=kv(name=item.name))


def reflectors(api: Api, ledger: Ledger, records: Records, budgets: Budgets, nodes: Nodes) -> list[Reflector[Any]]:
    """Returns a reflector for each collection.

    A cluster without the CRD of NRTs has no reported node yet. A cluster with the CRD of Koordinator or of an old RTE
    may serve v1alpha1 only.
    """

    reports = _Reports(ledger, nodes)
    return [
        Reflector(api, "/api/v1/pods", records.decode, _Pods(ledger, reports.release)),
        Reflector(api, "/api/v1/nodes", nodes.decode, _Nodes(ledger, nodes)),
        Reflector(api, nrt.PATH, reports.decode, reports, missing_is_empty=True, instead=(nrt.OLD_PATH,)),
        Reflector(api, BUDGETS_PATH, decode_budget, budgets),
    ]
