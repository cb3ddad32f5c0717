"""Nodes whose last correct report is not what their kubelet reports now.

A kubelet that restarts lists no pods for seconds, although all pods still run. Its exporter keeps the last object and
marks it (`topowise.io/unconfirmed`). Pods that ended or came since are unknown, so such a node is *closed* for pods
that its kubelet would have to align or give exclusive resources.

A node whose object was deleted is unconfirmed too, and so is a node whose object exceeds the bounds of a report. Both
stay open: the kubelet has not restarted, and pods that come and go are booked as usual. A node that was rebooted has
other pods than its last report, and perhaps other hardware.

Invariant: a node is unconfirmed exactly while its present report has a reason, or its object is deleted and its Node is
not, or its Node has another boot ID than its report.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.attributes import confirmation
from topowise_scheduler import refusals
from topowise_scheduler.cluster.gates.gate import Draft, Question
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.engine import Engine

OBJECT_DELETED: Final = "object-deleted"
OVER_BUDGET: Final = "over-budget"
"""The object exceeds the bounds of a report, and is handled like a deleted object."""
REBOOTED: Final = "rebooted"
# The kubelet has not restarted.
_LEFT_BEHIND: Final = (OBJECT_DELETED, OVER_BUDGET)
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")


class UnconfirmedNodes:
    """Unconfirmed nodes by name, with the reasons. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reasons: dict[str, tuple[str, ...]] = {}
        # Reasons and boot ID of each report, and the boot ID of each Node.
        self._reported: dict[str, tuple[tuple[str, ...], str]] = {}
        self._boots: dict[str, str] = {}
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

    def _update(self, node: str) -> None:
        reasons, reported = self._reported.get(node, ((), ""))
        if reported and self._boots.get(node, reported) != reported:
            reasons = (*reasons, REBOOTED)
        if self._reasons.get(node, ()) != reasons:
            self._rows = None
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
            draft.refuse_rows(question, rows, refusals.UNCONFIRMED)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """See `Gate`."""
        if any(_closes(reason, record) for reason in self.why(name)):
            return f"the report of {name} is not confirmed by its kubelet ({', '.join(self.why(name))})"
        return ""

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
    needs = record.needs
    if needs is None or reason in _LEFT_BEHIND:
        return False
    named = {name for container in needs.containers for name in container.limits if name not in _NATIVE}
    if reason.startswith(confirmation.DEVICE):
        # A kubelet without healthy devices refuses also a request for 0 of them (devicemanager, devicesToAllocate).
        return reason.removeprefix(confirmation.DEVICE) in named
    # Such a pod may get exclusive CPUs, memory or devices; other pods get none.
    if needs.qos == "Guaranteed":
        return True
    return any(container.limits.get(name) for container in needs.containers for name in named)
