"""Reports that are outdated because their exporter is gone or hangs, derived about once a second.

An exporter writes its object only on a change, so the age of a report shows nothing. A report is outdated if no
exporter has been Ready on its node for some time, or if the report lacks a pod that has been running for some time.

Invariant: what `derive` returns for a node follows from the node's history, the exporters' pods, and since when no
exporter has been Ready there.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from topowise_scheduler.ledger.gates.gates import Gates
from topowise_scheduler.ledger.gates.unconfirmed import EXPORTER_DOWN, PODS_UNREPORTED
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.pods.exporter_pods import ExporterPods, ExporterSettings
from topowise_scheduler.ledger.rows.node_states import NodeStates


class OutdatedReports:
    """Not thread-safe. Times are seconds, monotonic."""

    def __init__(
        self, node_states: NodeStates, gates: Gates, exporters: ExporterPods, settings: ExporterSettings
    ) -> None:
        self._node_states = node_states
        self._gates = gates
        self._exporters = exporters
        self._settings = settings
        # Since when no exporter has been Ready, by node that should have one.
        self._down_since: dict[str, float] = {}

    def ticking(self, now: float, nodes: Set[str], not_ready: Set[str]) -> Iterator[None]:
        """Derives the causes of all nodes, in steps of a node; `nodes` are the names of the Node objects, `not_ready`
        of the nodes whose kubelet or network is down: their exporter is no cause of that."""
        self._exporters.forget_gone(nodes)
        reported = self._node_states.reported()
        for name in self._down_since.keys() - set(reported):
            del self._down_since[name]
        for name in reported:
            node_state = self._node_states.of(name)
            if name in not_ready:
                self._down_since.pop(name, None)
                reasons: tuple[str, ...] = ()
            else:
                reasons = () if node_state is None else self._derive(name, node_state, now)
            self._gates.unconfirmed.put_outdated(name, reasons)
            yield

    def _derive(self, name: str, node_state: NodeState, now: float) -> tuple[str, ...]:
        """Returns why the report of the node is outdated, nothing if it is not."""
        reasons = []
        if self._has_exporter(name, node_state):
            self._down_since.pop(name, None)
        elif now - self._down_since.setdefault(name, now) >= self._settings.grace_s:
            reasons.append(EXPORTER_DOWN)
        before = now - self._settings.unreported_s
        if any(_should_be_reported(entry, before) for entry in node_state.history.log) and _names_pods(node_state):
            reasons.append(PODS_UNREPORTED)
        return tuple(reasons)

    def _has_exporter(self, name: str, node_state: NodeState) -> bool:
        """Returns whether an exporter is Ready on the node, or none is expected there: another program reports it."""
        report = node_state.report
        # A boot ID is in the reports of topowise-exporter alone, which may have gone before this service started.
        is_expected = self._exporters.is_covered(name) or (
            self._exporters.is_known and report is not None and bool(report.boot_id)
        )
        return not is_expected or self._exporters.is_ready(name)


def _should_be_reported(entry: Entry, before: float) -> bool:
    """Returns whether a pod that the report lacks has been running since `before`."""
    acknowledged, record = entry.seen.acknowledged, entry.record
    has_time_passed = acknowledged is not None and acknowledged <= before
    return has_time_passed and record.status.runs and not record.status.leaving and entry.seen.resized is None


def _names_pods(node_state: NodeState) -> bool:
    """Returns whether the report identifies its pods. Which pods mere amounts include is only inferred."""
    report = node_state.report
    return report is not None and (report.precision == "exact" or bool(report.fingerprint))
