"""The service's own ledger and answers in simulated time, for plans and for `kubectl topowise`.

Invariant: every answer is that of a topowise-scheduler that has watched the same objects. Each bind and each end is
confirmed before the next event, so that no placement is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings, recognises
from topowise_scheduler.ledger.pods.records import PodRecord, PodStatus, Records
from topowise_scheduler.options.registry import READERS, Enabled
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.report import PodName, Report
from topowise_scheduler.report.nrt_report import FreeResources
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.inter_pod import InterPodIndex
from topowise_scheduler.verdicts.kube_scheduler import NodeObject, Pod

# Longer than any reservation or uncertain placement lasts.
_SETTLED_S: Final = 1000.0


class SimulatedLedger:
    """Nodes and pods at `now` (seconds since 1970), filled once. `notes` has a line for each pod that is not counted.

    Each pod that runs enters the ledger at its start time. So the placements of exactly those pods are uncertain that
    no report can have confirmed yet.
    """

    def __init__(self, strategy: str = "TightFit", *, top_score: int = 10) -> None:
        self._time = 0.0
        self._reports = 0
        self.records = Records(places=True, is_exporter=recognises(None), readers=READERS)
        self._nodes = Nodes()
        self._index = InterPodIndex(self._nodes)
        markers = partial(self._nodes.allocatable, MARKER)
        # A single look cannot show for how long an exporter has been not Ready.
        self.ledger = Ledger(
            Engine(),
            lambda: self._time,
            exporters=ExporterSettings(grace_s=0.0),
            # A note of each answer says that claims are not examined.
            options=Enabled(markers=markers, steers=True, ignores_claims=True).options,
            inter_pod=self._index,
        )
        self.answers = Answers(self.ledger, self.records, strategies.make(strategy, {}, Scoring()), top_score=top_score)
        self.trial = Trial(self.ledger, self.answers, self._nodes)
        self.notes: list[str] = []

    def fill(self, pods: Iterable[Pod], nodes: Iterable[NodeObject], now: float, age: Callable[[str], float]) -> None:
        """Takes the pods that exist, and the Nodes; reports come after it. `age` returns the seconds since the start of
        a pod (RFC 3339)."""
        there = list(pods)
        for pod in there:
            self._index.put(pod)
        for record in sorted(map(self.records.record, there), key=lambda reported: reported.status.started):
            if record.status.stage == "assigned" and record.needs is None:
                self.notes.append(f"warning: pod {record.namespace}/{record.name} is not counted: {record.problem}")
            self._time = now - age(record.status.started)
            self.ledger.put_pod(record, is_news=False)
        self._time = now
        for node in nodes:
            reduced = self._nodes.node(node)
            self._nodes.apply("ADDED", reduced)
            self.ledger.reports.put_node_object(reduced, now)

    def kubelet_of_node(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The kubelet version and the hugepage sizes that a Node reports."""
        return self._nodes.kubelet(name)

    def put_report(self, report: Report) -> None:
        """Takes the report of a node."""
        self.ledger.reports.put(report)

    def assign(self, pod: Pod, name: str) -> str:
        """Assigns the pod to the node, confirmed before any later event; returns its uid. The pod must fit there."""
        record = self.records.record(pod)
        self.bind(record, name)
        return record.uid

    def bind(self, record: PodRecord, name: str, *, steered: int | None = None) -> None:
        """Assigns a pod with this record, to the NUMA node `steered` of the node if it is not None."""
        started = datetime.fromtimestamp(self._time, UTC).isoformat()
        status = PodStatus("assigned", record.status.version, started, acknowledged=True)
        bound = msgspec.structs.replace(record, node=name, status=status, steered=steered)
        self.ledger.put_pod(bound)
        self._settle()

    def end(self, uid: str) -> None:
        """The pod ends, and its kubelet has released it before any later event. A pod that was there before must be
        on a node with an exact report."""
        node = self.ledger.pods.of(uid).node
        node_state = self.ledger.node_states.of(node)
        self.ledger.drop_pod(uid)
        report = None if node_state is None else node_state.report
        if node_state is not None and node_state.kubelet is not None and report is not None:
            # Without a report the ledger would remember NUMA nodes of the other pods, and no CPUs. A report that lists
            # the ended pod would soon count as the present state.
            self._confirm(node_state, report, node_state.kubelet)
        self._settle()

    def kubelet(self, name: str) -> Kubelet | None:
        """The present state of the node, None if it is not reported."""
        node_state = self.ledger.node_states.of(name)
        return None if node_state is None else node_state.kubelet

    def _confirm(self, node_state: NodeState, report: Report, kubelet: Kubelet) -> None:
        """Takes the report that an exporter would publish now; a node that is reported by amounts keeps its report."""
        if report.precision == "exact":
            names = {entry.uid: entry.name for entry in node_state.history.bound()}
            self._reports += 1
            report = msgspec.structs.replace(report, version=f"simulated-{self._reports}")
            self.put_report(reported_state(report, kubelet, names))

    def _settle(self) -> None:
        self._time += _SETTLED_S
        # Only placements settle: in simulated time every report would become outdated.
        for _ in self.ledger.node_states.ticking():
            pass


def reported_state(report: Report, kubelet: Kubelet, names: Mapping[str, PodName]) -> Report:
    """Returns the exact report of a kubelet's present state; `names` are namespace and name of its pods by UID."""
    tables = None if kubelet.memory is None else kubelet.memory.tables
    free = FreeResources(
        None if kubelet.cpu is None else kubelet.cpu.available,
        {} if tables is None else {name: tuple(values) for name, values in tables.free.items()},
        None if tables is None else tuple(tables.assignments),
        None if tables is None else tuple(tables.cells),
    )
    held = {names[uid]: kubelet.placements(uid) for uid in kubelet.active if uid in names}
    return msgspec.structs.replace(report, held=held, free=free, marks=b"", zone_marks=b"", fingerprint="")
