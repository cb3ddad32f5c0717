"""The service's own ledger and answers, filled once from the objects of a cluster or of files.

The module decides nothing: an answer is that of a topowise-scheduler that has watched the same pods. State of a running
service is missing (its reservations, quarantines after kubelet refusals); `--service` asks the service instead.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from typing import Final

from topowise_scheduler import report
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.kubectl import manifests, objects, reasons
from topowise_scheduler.kubectl.console import seconds_since
from topowise_scheduler.kubectl.manifests import Workload
from topowise_scheduler.kubectl.source import Kubectl
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.overlay.simulated_ledger import SimulatedLedger
from topowise_scheduler.verdicts.strategies import scale

NO_PODS: Final = "no Pods in the saved objects: in use is only what the reports list"
FINEST: Final = scale.RAW_MAX
"""A `top_score` that keeps the full resolution of a strategy."""


class Cluster(SimulatedLedger):
    """All nodes as they are at `now` (seconds since 1970). `notes` are lines for stderr.

    Each pod enters the ledger at its start time. So the placements of exactly those pods are uncertain that no report
    can have confirmed yet.
    """

    def __init__(self, there: objects.Objects, now: float, strategy: str = "TightFit", *, top_score: int = 10) -> None:
        # What the ledger would log is in `notes`.
        logging.getLogger("topowise_scheduler").handlers = [logging.NullHandler()]
        super().__init__(strategy, top_score=top_score)
        self.view = ClusterView(self.trial)
        self.objects = there
        self.pods = there.pods or ()
        self.budgets = Budgets(there.budgets)
        self.nodes = there.nodes
        self.now = now
        self.fill(self.pods, there.nodes or (), now, lambda started: max(0.0, seconds_since(started, now) or 0.0))
        problems: list[tuple[str, str]] = []
        for reported in there.reports:
            name = reported.topology.metadata.name
            read = report.read(reported.topology, *self.kubelet_of_node(name), size=reported.size)
            problems += [(read.name, problem) for problem in read.problems]
            self.put_report(read)
        self.ledger.tick()
        self.notes += reasons.notes(problems)
        if there.pods is None:
            self.notes.append(f"note: {NO_PODS}")


def read(options: argparse.Namespace) -> tuple[objects.Objects, float]:
    """The objects that the options name, and their time."""
    if options.nodes_file:
        there = objects.from_files(options.nodes_file)
        return there, objects.saved_at(there)
    kubectl = Kubectl(options.kubectl)
    budgets = options.command in ("defrag", "plan")
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
    if not known.trial.names:
        raise objects.no_nodes(options.nodes_file)
    return known, workloads, [*notes, *unknown, *known.notes]


def _classes(options: argparse.Namespace, there: objects.Objects, workloads: Sequence[Workload]) -> dict[str, int]:
    """The values of the priority classes; the cluster is read only if a workload names a class."""
    if options.nodes_file or not any(workload.priority_class for workload in workloads):
        return there.classes
    return objects.priority_classes(Kubectl(options.kubectl))
