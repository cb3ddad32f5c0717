"""Reflectors that keep the ledger true: NRTs, nodes, pods and disruption budgets, each its own task.

Invariant: after a list the ledger knows of a collection what the list has and nothing else, but for what we have bound
since the list was begun (`Ledger.note_listed`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from topowise import nrt
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.log import kv
from topowise_scheduler import report
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.records import PodRecord, Records
from topowise_scheduler.kube_scheduler import Node
from topowise_scheduler.preemption import Budgets, decode_budget

BUDGETS_PATH = "/apis/policy/v1/poddisruptionbudgets"


log = logging.getLogger(__name__)

Item = TypeVar("Item", report.Report, PodRecord)


class _Reports:
    """At the start reports wait until the pods are listed: a pod that its node's report already tells of has the state
    of the node made anew, which is better done once a node than once a pod."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[str, report.Report] | None = {}

    def replace(self, items: list[report.Report]) -> None:
        listed = {item.name: item for item in items}
        if self._waiting is not None:
            self._waiting = listed
            return
        for name in self._ledger.reported():
            if name not in listed:
                self._ledger.lose_report(name)
        for item in items:
            if not self._is_known(item):
                _guarded(self._ledger.put_report, item)

    def apply(self, event: EventType, item: report.Report) -> None:
        if self._waiting is not None:
            if event == "DELETED":
                self._waiting.pop(item.name, None)
            else:
                self._waiting[item.name] = item
        elif event == "DELETED":
            self._ledger.lose_report(item.name)
        else:
            self._ledger.put_report(item)

    def release(self) -> None:
        """The pods have been listed."""
        if self._waiting is not None:
            listed, self._waiting = list(self._waiting.values()), None
            self.replace(listed)

    def _is_known(self, item: report.Report) -> bool:
        """Whether a new list only says again what the last event said: a resourceVersion names one content."""
        node_state = self._ledger.node_state(item.name)
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

    def replace(self, items: list[Node]) -> None:
        self._nodes.replace(items)
        self._ledger.replace_nodes(set(self._nodes))
        for item in items:
            self._ledger.put_node(item.name, item.boot_id)
            self._ledger.put_kubelet(item.name, item.kubelet_version, item.page_sizes)

    def apply(self, event: EventType, item: Node) -> None:
        self._nodes.apply(event, item)
        if event == "DELETED":
            self._ledger.drop_node(item.name)
        else:
            self._ledger.put_node(item.name, item.boot_id)
            self._ledger.put_kubelet(item.name, item.kubelet_version, item.page_sizes)


class _Pods:
    def __init__(self, ledger: Ledger, listed: Callable[[], None]) -> None:
        self._ledger = ledger
        self._listed = listed
        self._held: set[str] = set()

    def replace(self, items: list[PodRecord]) -> None:
        listed = {item.uid for item in items}
        before, self._held = self._held, listed
        for uid in before - listed:
            self._ledger.drop_pod(uid)
        # In the order in which they came to their nodes, as far as that is known afterwards.
        for item in sorted(items, key=lambda one: (one.started, len(one.version), one.version)):
            # Nobody saw what happened around a pod that is first seen in a list.
            _guarded(partial(self._ledger.put_pod, is_news=item.uid in before), item)
        self._ledger.note_listed(listed)
        self._listed()

    def apply(self, event: EventType, item: PodRecord) -> None:
        if event == "DELETED":
            self._held.discard(item.uid)
            self._ledger.drop_pod(item.uid)
        else:
            self._held.add(item.uid)
            self._ledger.put_pod(item)


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
    decode_topology = nrt.decode

    def decode_report(raw: bytes | msgspec.Raw) -> report.Report:
        topology = decode_topology(raw)
        name = topology.metadata.name
        node_state = ledger.node_state(name)
        before = None if node_state is None else node_state.report
        return report.read(topology, *nodes.kubelet(name), before)

    reports = _Reports(ledger)
    return [
        Reflector(api, "/api/v1/pods", records.decode, _Pods(ledger, reports.release)),
        Reflector(api, "/api/v1/nodes", nodes.decode, _Nodes(ledger, nodes)),
        Reflector(api, nrt.PATH, decode_report, reports, missing_is_empty=True, instead=(nrt.OLD_PATH,)),
        Reflector(api, BUDGETS_PATH, decode_budget, budgets),
    ]
