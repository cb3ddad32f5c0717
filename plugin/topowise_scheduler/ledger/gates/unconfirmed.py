"""Nodes whose last correct report is not what their kubelet reports now.

A kubelet that restarts lists no pods for seconds, although all pods still run. Its exporter keeps the last object and
marks it (`topowise.io/unconfirmed`). Pods that ended or came since are unknown, so such a node is *closed* for pods
that its kubelet would have to align or give exclusive resources.

A node whose object was deleted is unconfirmed too, and so is a node whose object exceeds the bounds of a report. Both
stay open: the kubelet has not restarted, and pods that come and go are booked as usual. A node that was rebooted has
other pods than its last report, and perhaps other hardware.

A report becomes outdated unnoticed if its exporter is gone (stale_reports.py). A node without a Ready exporter takes a
pod to align only while its report has all such pods of the node: one pod at a time, not one on top of another. So the
failure of an exporter never closes a node for ever, and a failure of all exporters does not stop the cluster. A report
that lacks a running pod although its exporter is Ready is shown, and closes nothing: the exporter may be slow.

Invariant: a node is unconfirmed exactly while its present report has a reason, or its object is deleted and its Node is
not, or its Node has another boot ID than its report, or its report is outdated.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.attributes import confirmation
from topowise_scheduler.ledger.gates.gate import Draft, Question, limited_resources, may_get_exclusive
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.refusals import Refusal

OBJECT_DELETED: Final = "object-deleted"
OVER_BUDGET: Final = "over-budget"
"""The object exceeds the bounds of a report, and is handled like a deleted object."""
REBOOTED: Final = "rebooted"
EXPORTER_DOWN: Final = "exporter-down"
"""No exporter on the node has been Ready for some time."""
PODS_UNREPORTED: Final = "pods-unreported"
"""The report lacks a pod that has been running for some time."""
_KUBELET: Final = "kubelet"
CAUSES: Final = (_KUBELET, OBJECT_DELETED, OVER_BUDGET, REBOOTED, EXPORTER_DOWN, PODS_UNREPORTED)
"""Causes of the metric; every reason that a report has itself is of its kubelet."""
# The kubelet has not restarted.
_LEFT_BEHIND: Final = (OBJECT_DELETED, OVER_BUDGET)
_OPEN: Final = (*_LEFT_BEHIND, EXPORTER_DOWN, PODS_UNREPORTED)


class UnconfirmedNodes:
    """Unconfirmed nodes by name, with the reasons. Not thread-safe."""

    def __init__(self, engine: Engine, node_states: NodeStates) -> None:
        self._engine = engine
        self._node_states = node_states
        self._reasons: dict[str, tuple[str, ...]] = {}
        # Reasons and boot ID of each report, and the boot ID of each Node.
        self._reported: dict[str, tuple[tuple[str, ...], str]] = {}
        self._boots: dict[str, str] = {}
        # Why reports are outdated.
        self._outdated: dict[str, tuple[str, ...]] = {}
        # The engine's rows of nodes by reason, made on demand.
        self._rows: dict[str, NDArray[np.int32]] | None = None

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, node: str, reasons: tuple[str, ...], boot_id: str = "") -> None:
        """Sets why the report is unconfirmed (no reason if it is confirmed), and its boot ID, "" if unknown."""
        if reasons or boot_id:
            self._reported[node] = reasons, sys.intern(boot_id)
        else:
            self._reported.pop(node, None)
        self._update(node)

    def put_boot(self, node: str, boot_id: str) -> None:
        """Sets the boot ID of the Node, "" if the Node has none or is deleted."""
        if boot_id != self._boots.get(node, ""):
            if boot_id:
                self._boots[node] = sys.intern(boot_id)
            else:
                del self._boots[node]
            self._update(node)

    def put_outdated(self, node: str, reasons: tuple[str, ...]) -> None:
        """Sets why the report is outdated, no reason if it is not."""
        if self._outdated.get(node, ()) == reasons:
            return
        if reasons:
            self._outdated[node] = reasons
        else:
            del self._outdated[node]
        self._update(node)
        self._node_states.note_improved(node)

    def by_report(self, node: str) -> tuple[str, ...]:
        """Returns the reasons in the report and the Node alone."""
        reasons, reported = self._reported.get(node, ((), ""))
        is_rebooted = reported and self._boots.get(node, reported) != reported
        return (*reasons, REBOOTED) if is_rebooted else reasons

    def causes(self) -> Counter[str]:
        """Returns the number of unconfirmed nodes by the first cause of each node."""
        return Counter([reasons[0] if reasons[0] in CAUSES else _KUBELET for reasons in self._reasons.values()])

    def _update(self, node: str) -> None:
        reasons = (*self.by_report(node), *self._outdated.get(node, ()))
        if self._reasons.get(node, ()) != reasons:
            self._rows = None
            self._node_states.note_change(node)
            if reasons:
                self._reasons[node] = reasons
            else:
                del self._reasons[node]

    def why(self, node: str) -> tuple[str, ...]:
        """Returns the reasons, none for a confirmed node."""
        return self._reasons.get(node, ())

    def is_left_behind(self, node: str) -> bool:
        """Returns whether the object of the report is deleted or not used."""
        return any(reason in _LEFT_BEHIND for reason in self.why(node))

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        for rows in self._closed(question.record):
            draft.refuse_rows(question, rows, Refusal.UNCONFIRMED)
        if self._outdated and may_get_exclusive(question.record):
            names = [name for name in self._outdated if self._is_ahead_of_report(question.record, name)]
            if names:
                draft.refuse_rows(question, self._engine.rows(names), Refusal.EXPORTER_DOWN)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        # Most nodes have none of these, and a board asks about each changed node.
        if name in self._reasons and any(_closes(reason, record) for reason in self.why(name)):
            return Refusal.UNCONFIRMED
        is_refused = name in self._outdated and may_get_exclusive(record)
        is_refused = is_refused and self._is_ahead_of_report(record, name, leaving)
        return Refusal.EXPORTER_DOWN if is_refused else None

    def _is_ahead_of_report(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Returns whether no exporter runs on the node, and the node has pods to align that its report lacks."""
        node_state = self._node_states.of(name)
        if node_state is None or EXPORTER_DOWN not in self._outdated.get(name, ()):
            return False
        return any(
            entry.uid != record.uid and entry.uid not in leaving and may_get_exclusive(entry.record)
            for entry in (*node_state.history.log, *node_state.history.expected)
        )

    def _closed(self, record: PodRecord) -> list[NDArray[np.int32]]:
        """Returns the engine's rows of nodes that do not take the pod now, an array for each reason."""
        if not self._reasons:
            return []
        if self._rows is None:
            nodes: dict[str, list[str]] = {}
            for node, reasons in self._reasons.items():
                for reason in reasons:
                    nodes.setdefault(reason, []).append(node)
            self._rows = {reason: self._engine.rows(names) for reason, names in nodes.items()}
        return [rows for reason, rows in self._rows.items() if _closes(reason, record)]


def _closes(reason: str, record: PodRecord) -> bool:
    if record.needs is None or reason in _OPEN:
        return False
    if reason.startswith(confirmation.DEVICE):
        # A kubelet without healthy devices refuses also a request for 0 of them (devicemanager, devicesToAllocate).
        return reason.removeprefix(confirmation.DEVICE) in limited_resources(record.needs)
    return may_get_exclusive(record)
