"""Nodes whose report is the last true one, and not what their kubelet says now.

A kubelet that restarts lists nothing for seconds, although everything still runs; its exporter keeps the last object
and says so in it (`topowise.io/unconfirmed`). What ended or came since nobody knows, so such a node is *closed* for
pods that its kubelet would have to align or give something of its own. A node whose object was deleted is unconfirmed
too, and so is a node whose object is more than a report may be. Neither is closed: the kubelet is as it was, and what
comes to it and goes is booked as ever. One that was rebooted has other pods than its last report, and perhaps other
hardware.

Invariant: a node is in here exactly as long as its present report says why, or its object is gone and its Node is not,
or its Node tells of another boot than its report.
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
"""The object is more than a report may be: as if it had been deleted."""
REBOOTED: Final = "rebooted"
# Nothing has become of the kubelet.
_LEFT_BEHIND: Final = (OBJECT_DELETED, OVER_BUDGET)
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")


class UnconfirmedNodes:
    """By name, with the reasons. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reasons: dict[str, tuple[str, ...]] = {}
        # What the reports say: the reasons, and the boot they are of; and the boot of which the Nodes tell.
        self._reported: dict[str, tuple[tuple[str, ...], str]] = {}
        self._boots: dict[str, str] = {}
        # The engine's rows of the nodes with a reason, made when they are asked for.
        self._rows: dict[str, NDArray[np.int32]] | None = None

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, node: str, reasons: tuple[str, ...], boot_id: str = "") -> None:
        """Why the node's report is not its kubelet's word, none if it is; and the boot it is of, "" if unknown."""
        if reasons or boot_id:
            self._reported[node] = reasons, sys.intern(boot_id)
        else:
            self._reported.pop(node, None)
        self._update(node)

    def put_boot(self, node: str, boot_id: str) -> None:
        """The boot of which the Node tells, "" if it is gone or does not."""
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
        """The reasons, none for a node that is confirmed."""
        return self._reasons.get(node, ())

    def is_left_behind(self, node: str) -> bool:
        """Whether the report is that of an object that there is not any more, or that is not used."""
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
    named = {name for one in needs.containers for name in one.limits if name not in _NATIVE}
    if reason.startswith(confirmation.DEVICE):
        # Without healthy ones a kubelet refuses even who asks for 0 of them.
        return reason.removeprefix(confirmation.DEVICE) in named
    # A kubelet may give such a pod CPUs, memory or devices of its own; it gives other pods nothing.
    return needs.qos == "Guaranteed" or any(one.limits.get(name) for one in needs.containers for name in named)
