"""Reflectors that keep the ledger true: NRTs, nodes, pods and disruption budgets, each its own task.

Invariant: after a list the ledger knows of a collection what the list has and nothing else, but for what we have bound
since the list was begun (`Ledger.note_listed`). A list is taken in as the events that were missed would be, one object
after the other; questions are answered in between.
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
from topowise.runtime.log import kv
from topowise_scheduler import report
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.pods.records import PodRecord, Records
from topowise_scheduler.kube_scheduler import Node
from topowise_scheduler.preemption import Budgets, decode_budget

BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"


log = logging.getLogger(__name__)


class _Unread(NamedTuple):
    """A report of a node that reports too much (late_reports.py), as its JSON."""

    name: str
    version: str
    raw: bytes


Item = TypeVar("Item", _Unread, report.Report | _Unread, PodRecord)


class _Reports:
    """Reports that are to be put into the ledger, one after the other.

    At the start they wait until the pods are listed: a pod that its node's report already tells of has the state of the
    node made anew, which is better done once a node than once a pod. A report that waits is replaced by a newer one.
    """

    def __init__(self, ledger: Ledger, nodes: Nodes) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._waiting: dict[str, report.Report | _Unread] = {}
        self._is_released = False

    def decode(self, raw: bytes | msgspec.Raw) -> report.Report | _Unread:
        """A report from its JSON, which is read later if its node reports too much. Raises msgspec.DecodeError."""
        if self._ledger.late_reports:
            name, version = nrt.decode_identity(raw)
            if self._ledger.late_reports.waits(name):
                return _Unread(name, version, bytes(raw))
        return self._read(raw)

    def _read(self, raw: bytes | msgspec.Raw) -> report.Report:
        name = ""

        def known(of: str) -> tuple[str, report.PageSizes, report.Report | None]:
            nonlocal name
            name = of
            node_state = self._ledger.node_states.of(of)
            return *self._nodes.kubelet(of), None if node_state is None else node_state.report

        with self._ledger.late_reports.charged(lambda: name):
            return report.read_bytes(raw, known)

    def _put(self, item: report.Report | _Unread) -> None:
        if isinstance(item, _Unread):
            self._ledger.late_reports.put(item.name, partial(_guarded, self._take, item))
            return
        self._ledger.late_reports.drop(item.name)
        with self._ledger.late_reports.charged(lambda: item.name):
            self._ledger.reports.put(item)

    def _take(self, item: _Unread) -> None:
        read = self._read(item.raw)
        with self._ledger.late_reports.charged(lambda: item.name):
            self._ledger.reports.put(read)

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
            # One that has waited may be the second of its node.
            self._ledger.late_reports.drop(item.name)
            self._ledger.reports.lose(item.name)
        elif waits or not self._is_released:
            self._waiting[item.name] = item
        else:
            self._put(item)

    def release(self) -> Iterator[None]:
        """The pods have been listed."""
        self._is_released = True
        while self._waiting:
            item = self._waiting.pop(next(iter(self._waiting)))
            if not self._is_known(item):
                _guarded(self._put, item)
            yield

    def _is_known(self, item: report.Report | _Unread) -> bool:
        """Whether a new list only says again what the last event said: a resourceVersion names one content."""
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
            self._ledger.reports.put_node(item.name, item.boot_id)
            self._ledger.reports.put_kubelet(item.name, item.kubelet_version, item.page_sizes)


class _Pods:
    """A list is gone through node by node, so that what a question meets is each node before it or after it.

    Where it has to be left in the middle of a node, pods that have gone still hold their room: a question may meet a
    node that is fuller than it is, and never one with room that is not there.
    """

    def __init__(self, ledger: Ledger, listed: Callable[[], Iterable[None]]) -> None:
        self._ledger = ledger
        self._listed = listed
        # Uids by node, "" for none. A dict takes half of what a set of a few dozens does.
        self._held: dict[str, dict[str, None]] = {}

    def replace(self, items: list[PodRecord]) -> Iterator[None]:
        by_node: dict[str, list[PodRecord]] = {}
        for item in items:
            by_node.setdefault(item.node, []).append(item)
            yield
        unassigned = by_node.pop("", [])
        # Pods that were on no node may be on one now, so that those that have gone from there are known last.
        for node in [*by_node, *(held for held in self._held if held and held not in by_node), ""]:
            yield from self._replace(node, by_node.pop(node, []) if node else unassigned)
        held = self._held
        self._ledger.note_listed(
            [uid for uid, node in self._ledger.pods.assumed() if uid in held.get(node, ()) or uid in held.get("", ())]
        )
        yield from self._listed()

    def _replace(self, node: str, items: list[PodRecord]) -> Iterator[None]:
        """The pods on a node are exactly these."""
        before, loose = self._held.get(node, {}), self._held.get("", {})
        now = {item.uid: None for item in items}
        gone = [uid for uid in before if uid not in now]
        if now:
            self._held[node] = now
        else:
            self._held.pop(node, None)
        if gone and items:
            # A name that is taken again: its first pod has ended before.
            again = {(item.namespace, item.name) for item in items}
            ended = {one.uid for one in self._ledger.pods_on(node) if (one.namespace, one.name) in again}
            for uid in ended.intersection(gone):
                self._drop(uid, node)
        # In the order in which they came to their nodes, as far as that is known afterwards.
        for item in sorted(items, key=lambda one: (one.started, len(one.version), one.version)):
            # Nobody saw what happened around a pod that is first seen in a list.
            is_known = item.uid in before or item.uid in loose
            if node:
                loose.pop(item.uid, None)
            _guarded(partial(self._ledger.put_pod, is_news=is_known), item)
            yield
        for uid in gone:
            self._drop(uid, node)
            yield

    def _drop(self, uid: str, node: str) -> None:
        """It is not listed where it was; should it be listed elsewhere, it stays there."""
        if self._ledger.pods.of(uid).node in ("", node) or not node:
            self._ledger.drop_pod(uid)

    def apply(self, event: EventType, item: PodRecord) -> None:
        if event == "DELETED":
            self._forget(item.uid, item.node)
            self._ledger.drop_pod(item.uid)
            return
        if item.node:
            self._forget(item.uid, "")
        self._held.setdefault(item.node, {})[item.uid] = None
        self._ledger.put_pod(item)

    def _forget(self, uid: str, node: str) -> None:
        for name in {node, ""}:
            held = self._held.get(name)
            if held is not None:
                held.pop(uid, None)
                if not held:
                    del self._held[name]


def _guarded(put: Callable[[Item], None], item: Item) -> None:
    """One object of a list that cannot be taken in must not keep out the others."""
    try:
        put(item)
    except Exception:
        log.exception("Object cannot be applied, left out", extra=kv(name=item.name))


def reflectors(api: Api, ledger: Ledger, records: Records, budgets: Budgets, nodes: Nodes) -> list[Reflector[Any]]:
    """One for each collection.

    A cluster without the NRT CRD is one in which no node has been reported yet. One with Koordinator's or an old RTE's
    may serve v1alpha1 alone.
    """

    reports = _Reports(ledger, nodes)
    return [
        Reflector(api, "/api/v1/pods", records.decode, _Pods(ledger, reports.release)),
        Reflector(api, "/api/v1/nodes", nodes.decode, _Nodes(ledger, nodes)),
        Reflector(
            api,
            nrt.PATH,
            reports.decode,
            reports,
            missing_is_empty=True,
            instead=(nrt.OLD_PATH,),
        ),
        Reflector(api, BUDGETS_PATH, decode_budget, budgets),
    ]
