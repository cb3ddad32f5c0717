"""The service's own ledger and answers, filled once from the objects of a cluster or of files.

The module decides nothing: an answer is that of a topowise-scheduler that has watched the same pods. State of a running
service is missing (its reservations, quarantines after kubelet refusals); `--service` asks the service instead.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from topowise import pods
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler import report, strategies
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.pods.exporter_pods import ExporterSettings, recognises
from topowise_scheduler.cluster.pods.records import Records
from topowise_scheduler.configuration import Exporters, Scoring
from topowise_scheduler.engine import Engine
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.preemption import Budgets
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.kubectl import manifests, objects, reasons
from topowise_scheduler.presentation.kubectl.durations import seconds_since
from topowise_scheduler.presentation.kubectl.manifests import Workload
from topowise_scheduler.presentation.kubectl.source import Kubectl
from topowise_scheduler.strategies import scale

NO_PODS: Final = "no Pods in the saved objects: in use is only what the reports list"
FINEST: Final = scale.RAW_MAX
"""A `top_score` that keeps the full resolution of a strategy."""

# Longer than any reservation or uncertain placement lasts.
_SETTLED_S: Final = 1000.0


class Cluster:
    """All nodes as they are at `now` (seconds since 1970). `notes` are lines for stderr.

    Each pod enters the ledger at its start time. So the placements of exactly those pods are uncertain that no report
    can have confirmed yet.
    """

    def __init__(self, there: objects.Objects, now: float, strategy: str = "TightFit", *, top_score: int = 10) -> None:
        # What the ledger would log is in `notes`.
        logging.getLogger("topowise_scheduler").handlers = [logging.NullHandler()]
        self._time = 0.0
        self.records = Records(is_exporter=recognises(None, Exporters().pod_labels))
        # A single look cannot show for how long an exporter has been not Ready.
        nodes = Nodes()
        markers = partial(nodes.allocatable, MARKER)
        self.ledger = Ledger(
            Engine(),
            lambda: self._time,
            exporters=ExporterSettings(grace_s=0.0),
            markers=markers,
            steers=True,
            # A note of each answer says that claims are not examined.
            ignores_claims=True,
        )
        self.answers = Answers(self.ledger, self.records, strategies.make(strategy, {}, Scoring()), top_score=top_score)
        self.objects = there
        self.pods = there.pods or ()
        self.budgets = Budgets(there.budgets)
        self.nodes = there.nodes
        self.notes: list[str] = []
        for record in sorted(map(self.records.record, self.pods), key=lambda reported: reported.started):
            if record.stage == "assigned" and record.needs is None:
                self.notes.append(f"warning: pod {record.namespace}/{record.name} is not counted: {record.problem}")
            self._time = now - max(0.0, seconds_since(record.started, now) or 0.0)
            self.ledger.put_pod(record, is_news=False)
        self._time = self.now = now
        for node in there.nodes or ():
            reduced = nodes.node(node)
            nodes.apply("ADDED", reduced)
            self.ledger.reports.put_node_object(reduced, now)
        self.view = ClusterView(self.ledger, self.answers, nodes)
        problems: list[tuple[str, str]] = []
        for reported in there.reports:
            read = report.read(reported.topology, *nodes.kubelet(reported.topology.metadata.name), size=reported.size)
            problems += [(read.name, problem) for problem in read.problems]
            self.ledger.reports.put(read)
        self.ledger.tick()
        self.notes += reasons.notes(problems)
        if there.pods is None:
            self.notes.append(f"note: {NO_PODS}")

    def assign(self, pod: Pod, name: str) -> str:
        """Assigns the pod to the node, confirmed before any later pod; returns its uid. The pod must fit there."""
        spec = msgspec.structs.replace(pod.spec, nodeName=name)
        started = datetime.fromtimestamp(self._time, UTC).isoformat()
        status = pods.Status(phase="Pending", startTime=started)
        record = self.records.record(msgspec.structs.replace(pod, spec=spec, status=status))
        self.ledger.put_pod(record)
        self._time += _SETTLED_S
        # Only placements settle: in simulated time every report would become outdated.
        for _ in self.ledger.node_states.ticking():
            pass
        return record.uid

    def kubelet(self, name: str) -> Kubelet | None:
        """The present state of the node, None if it is not reported."""
        node_state = self.ledger.node_states.of(name)
        return None if node_state is None else node_state.kubelet


def read(options: argparse.Namespace) -> tuple[objects.Objects, float]:
    """The objects that the options name, and their time."""
    if options.nodes_file:
        there = objects.from_files(options.nodes_file)
        return there, objects.saved_at(there)
    kubectl = Kubectl(options.kubectl)
    budgets = options.command == "defrag"
    return objects.from_cluster(kubectl, pods_path=objects.PODS_PATH, nodes=True, budgets=budgets), time.time()


def open_with_manifests(
    options: argparse.Namespace, strategy: str = "TightFit", *, top_score: int = FINEST
) -> tuple[Cluster, list[Workload], list[str]]:
    """The cluster, the workloads with their priorities, and lines for stderr. Raises SourceError.

    The workloads are those of the manifests or of the named object; without either, the waiting pods.
    """
    workloads, notes = manifests.workloads_of(options) if options.pod or options.file else ([], [])
    there, now = read(options)
    if not (options.pod or options.file):
        manifests.check(options)
        workloads, notes = manifests.waiting(options, there.pods or ())
    workloads, unknown = manifests.prioritised(workloads, _classes(options, there, workloads))
    known = Cluster(there, now, strategy, top_score=top_score)
    if not known.view.names:
        raise objects.no_nodes(options.nodes_file)
    return known, workloads, [*notes, *unknown, *known.notes]


def _classes(options: argparse.Namespace, there: objects.Objects, workloads: Sequence[Workload]) -> dict[str, int]:
    """The values of the priority classes; the cluster is read only if a workload names a class."""
    if options.nodes_file or not any(workload.priority_class for workload in workloads):
        return there.classes
    return objects.priority_classes(Kubectl(options.kubectl))
