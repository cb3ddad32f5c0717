"""What the API server says of nodes: their NodeResourceTopologies and their Node objects, taken into the states.

Invariant: a node whose object is gone, or is not used, keeps its last report as long as there is the Node.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Final

from topowise.runtime.log import OncePerChange, kv
from topowise_scheduler.ledger.bookings import Bookings
from topowise_scheduler.ledger.gates.gates import Gates
from topowise_scheduler.ledger.gates.unconfirmed import OBJECT_DELETED, OVER_BUDGET
from topowise_scheduler.ledger.node.confirmation import Comparison
from topowise_scheduler.ledger.node.history import Precision
from topowise_scheduler.report import PageSizes, Report, of_node
from topowise_scheduler.verdicts.kube_scheduler import Node

log = logging.getLogger(__name__)

_WISHES: Final[Mapping[bool | None, str]] = {True: "wish_met", False: "wish_not_met", None: "wish_unknown"}


class NodeReports:
    """By name of the node. `events` counts what is compared; `clock` gives seconds, monotonic."""

    def __init__(self, bookings: Bookings, gates: Gates, events: Counter[str], clock: Callable[[], float]) -> None:
        self._bookings = bookings
        self._node_states = bookings.node_states
        self._gates = gates
        self._events = events
        self._clock = clock
        # As the Nodes tell them; the strings are shared.
        self._kubelets: dict[str, tuple[str, PageSizes]] = {}
        self._nodes: set[str] = set()
        # What a kubelet's refusal may depend on, by the Node objects; allocatable amounts are shared.
        self._admitting: dict[str, tuple[object, ...]] = {}
        self.not_ready: set[str] = set()
        """Nodes that are not Ready."""
        self.over_budget: dict[str, str] = {}
        """Nodes whose newest report is more than a report may be (report/budget.py), with the reason."""
        # What was logged of reports, by node: with two exporters at odds its problems come and go.
        self._logged: dict[str, OncePerChange] = {}

    @property
    def nodes(self) -> Set[str]:
        """Names of the Node objects."""
        return self._nodes

    def is_confirmed(self, name: str) -> bool:
        """Returns whether the node is reported, and its report is what its kubelet says."""
        node_state = self._node_states.of(name)
        return node_state is not None and node_state.report is not None and not self._gates.unconfirmed.by_report(name)

    def put(self, report: Report) -> None:
        """Takes a new report of a node."""
        if report.over_budget:
            self._refuse(report)
            return
        if self.over_budget.pop(report.name, "") and self._logged[report.name].over():
            log.info("Report is within its bounds again", extra=kv(node=report.name))
        report = of_node(report, *self._kubelets.get(report.name, (report.node_version, report.page_sizes)))
        node_state = self._node_states.made(report.name)
        before = node_state.report
        self._log_problems(report, before)
        was_quarantined = report.name in self._gates.quarantine.all_nodes
        # A new object is what the refusal waited for. A relist of the same object is not.
        if before is None or before.version != report.version:
            self._gates.quarantine.release(report.name)
        self._gates.unconfirmed.put(report.name, report.unconfirmed, report.boot_id)
        self._gates.slow_admissions.put(report.name, report.empty)
        self._events[f"report_{report.precision}"] += 1
        comparison = node_state.put_report(report, self._clock())
        if comparison is not None:
            self._count(report, comparison)
        if comparison is not None or was_quarantined:
            self._node_states.publish(report.name, node_state)

    def lose(self, name: str, why: str = OBJECT_DELETED) -> None:
        """The node's object was deleted, or is not used. As long as there is the Node, its kubelet is as it was: the
        exporter will write again, and until then the last report stays, with the pods that are booked since."""
        if self.over_budget.pop(name, "") and why == OBJECT_DELETED:
            self._logged.pop(name, None)
        node_state, unconfirmed = self._node_states.of(name), self._gates.unconfirmed
        if name not in self._nodes or node_state is None or node_state.report is None:
            self.drop(name)
        # Reasons of the kubelet itself (a restart) are stronger than a missing object, and close the node.
        elif not unconfirmed.by_report(name) or unconfirmed.is_left_behind(name):
            unconfirmed.put(name, (why,), node_state.report.boot_id)

    def drop(self, name: str) -> None:
        """Forgets the report of a node."""
        self._gates.unconfirmed.put(name, ())
        self._gates.unconfirmed.put_outdated(name, ())
        self._gates.slow_admissions.put(name, None)
        node_state = self._node_states.of(name)
        if node_state is not None and node_state.report is not None:
            self._logged.pop(name, None)
            self._gates.quarantine.release(name)
            self._bookings.drop_report(name, node_state)

    def put_node_object(self, node: Node, wall: float) -> None:
        """Takes a Node; `wall` is in seconds since 1970."""
        is_first = node.name not in self._nodes
        if node.is_ready:
            self.not_ready.discard(node.name)
        else:
            self.not_ready.add(node.name)
        admitting = node.allocatable, node.boot_id, node.kubelet_version, node.is_ready
        if self._admitting.get(node.name) != admitting:
            self._admitting[node.name] = admitting
            self._end_quarantine(node.name)
        self._gates.new_nodes.put(node, is_first=is_first, wall=wall, now=self._clock())
        self.put_node(node.name, node.boot_id)
        self.put_kubelet(node.name, node.kubelet_version, node.page_sizes)

    def _end_quarantine(self, name: str) -> None:
        if name in self._gates.quarantine.all_nodes:
            self._gates.quarantine.release(name)
            self._node_states.note_change(name)
            self._node_states.note_improved(name)

    def put_node(self, name: str, boot_id: str = "") -> None:
        """There is a Node object, which tells of this boot of its machine."""
        self._nodes.add(name)
        self._gates.unconfirmed.put_boot(name, boot_id)

    def put_kubelet(self, name: str, version: str, page_sizes: PageSizes = ()) -> None:
        """Takes the kubelet's version and hugepage sizes from the Node: the node is judged as that kubelet would."""
        self._kubelets[name] = version, page_sizes
        node_state = self._node_states.of(name)
        # A Node comes with every heartbeat; most say what is known.
        if node_state is not None and node_state.judge_as(version, page_sizes):
            self._gates.slow_admissions.put(name, node_state.report.empty if node_state.report else None)
            self._node_states.publish(name, node_state)

    def drop_node(self, name: str) -> None:
        """The Node object is gone, and with it what a deleted report left behind."""
        self._nodes.discard(name)
        self._admitting.pop(name, None)
        self.not_ready.discard(name)
        self._gates.unconfirmed.put_boot(name, "")
        self._gates.new_nodes.drop(name)
        self._kubelets.pop(name, None)
        if self._gates.unconfirmed.is_left_behind(name):
            self.drop(name)

    def _refuse(self, report: Report) -> None:
        """A report that is not used gives a node no more than no report: it is as if the object was deleted."""
        # An object that is rewritten every second must not fill the log.
        is_news = report.name not in self.over_budget
        self.lose(report.name, OVER_BUDGET)
        self.over_budget[report.name] = report.over_budget
        logged = self._logged.setdefault(report.name, OncePerChange(self._clock))
        if is_news and logged.is_change(OVER_BUDGET):
            log.warning("Report is not used", extra=kv(node=report.name, why=report.over_budget))

    def _log_problems(self, report: Report, before: Report | None) -> None:
        if report.problems == (() if before is None else before.problems):
            return
        logged = self._logged.setdefault(report.name, OncePerChange(self._clock))
        if not report.problems:
            logged.over()
        for problem in filter(logged.is_change, report.problems):
            log.warning("Parts of an NRT cannot be used", extra=kv(node=report.name, why=problem))

    def _count(self, report: Report, comparison: Comparison) -> None:
        """Counts and logs what became of predictions."""
        for (namespace, name), precision in comparison.precisions:
            self._events[f"prediction_{precision.label}"] += 1
            if precision is Precision.MISSED:
                log.info(
                    "Pod lies on other NUMA nodes than predicted", extra=kv(node=report.name, pod=f"{namespace}/{name}")
                )
        for is_met, (namespace, pod), why in comparison.demands:
            self._events[_WISHES[is_met]] += 1
            if is_met is False:
                log.info(
                    "Devices of a pod lie farther apart than it wishes",
                    extra=kv(node=report.name, pod=f"{namespace}/{pod}", why=why),
                )
