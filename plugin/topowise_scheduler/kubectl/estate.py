"""The service's own ledger and answers, filled once from the objects of a cluster or of files.

Nothing here decides anything: what is told is what topowise-scheduler would say if it had watched the same pods come.
What only a running service knows (pods it expects, refusals of kubelets since a report) is not in it; `--service` asks
that one instead.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler import report, strategies
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.records import PodRecord, Records
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine import Engine
from topowise_scheduler.explain import NodeExplanation, not_reported
from topowise_scheduler.kubectl import objects
from topowise_scheduler.kubectl.ages import seconds_since
from topowise_scheduler.kubectl.source import Kubectl
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.strategies import scale

NO_PODS: Final = "no Pods in the saved objects: in use is only what the reports list"
FINEST: Final = scale.RAW_MAX
"""A `top_score` that loses nothing of what a strategy says."""

# After so long nobody doubts any more where a pod lies.
_SETTLED_S: Final = 1000.0


class Estate:
    """All nodes as they are at `now` (seconds since 1970). `notes` are lines for stderr.

    Pods are put in at the times at which they started, so that those are in doubt which no report has had the time to
    confirm, and no others.
    """

    def __init__(self, there: objects.Objects, now: float, strategy: str = "TightFit", *, top_score: int = 10) -> None:
        # What the ledger would log is told by `notes`.
        logging.getLogger("topowise_scheduler").addHandler(logging.NullHandler())
        self._time = 0.0
        self.records = Records()
        self.ledger = Ledger(Engine(), lambda: self._time)
        self.answers = Answers(self.ledger, self.records, strategies.make(strategy, {}, Scoring()), top_score=top_score)
        self.notes: list[str] = []
        for record in sorted(map(self.records.record, there.pods or ()), key=lambda one: one.started):
            if record.stage == "assigned" and record.needs is None:
                self.notes.append(f"warning: pod {record.namespace}/{record.name} is not counted: {record.problem}")
            self._time = now - max(0.0, seconds_since(record.started, now) or 0.0)
            self.ledger.put_pod(record, is_news=False)
        self._time = now
        self.ledger.known = {node.metadata.name for node in there.nodes or ()}
        for one in there.reports:
            told = report.read(one.topology)
            self.notes += [f"warning: {told.name}: {problem}" for problem in told.problems]
            self.ledger.put_report(told)
        if there.pods is None:
            self.notes.append(f"note: {NO_PODS}")
        self.names: Sequence[str] = sorted({*self.ledger.reported(), *self.ledger.known})
        """All nodes, reported or not."""

    def explain(self, pod: pods.Pod, names: Sequence[str]) -> list[NodeExplanation]:
        """What each of these kubelets would do with the pod, if it were not there already.

        Raises ParseError, as all questions do, for a pod whose quantities or annotations cannot be read.
        """
        self.ledger.drop_pod(pod.metadata.uid)
        # Scores are spread over the nodes that are asked about: only these, as the service itself does.
        reported = set(self.ledger.reported())
        asked = [name for name in names if name in reported]
        told = self.answers.explanations(self.answers.question(pod, asked, is_simulation=True))
        return [*told, *(not_reported(name) for name in names if name not in reported)]

    def refusals(self, pod: pods.Pod, names: Sequence[str]) -> dict[str, str]:
        """Why each node refuses the pod, "" for one that does not."""
        verdicts = self.answers.verdicts(self.answers.question(pod, names, is_simulation=True))
        return {name: verdicts.text(at) for at, name in enumerate(names)}

    def best(self, pod: pods.Pod, names: Sequence[str]) -> str:
        """The node of these, on all of which the pod fits, that the strategy prefers; of equal ones the first."""
        scores = self.answers.scores(self.answers.question(pod, names, is_simulation=True))
        return names[int(scores.argmax())]

    def states(self, pod: pods.Pod, name: str) -> list[Kubelet]:
        """Copies of all that a node may look like for this pod, none for one that is not reported."""
        return list(self.answers.states_for(self.answers.question(pod, [name], is_simulation=True), name))

    def assign(self, pod: pods.Pod, name: str) -> PodRecord:
        """The pod is on the node, for good, before anything else happens. It must fit there."""
        spec = msgspec.structs.replace(pod.spec, nodeName=name)
        started = datetime.fromtimestamp(self._time, UTC).isoformat()
        status = pods.Status(phase="Pending", startTime=started)
        record = self.records.record(msgspec.structs.replace(pod, spec=spec, status=status))
        self.ledger.put_pod(record)
        self._time += _SETTLED_S
        self.ledger.tick()
        return record

    def precision(self, name: str) -> str:
        """How exactly the node is known, "" if it is not."""
        books = self.ledger.books(name)
        return "" if books is None or books.report is None else books.report.precision

    def kubelet(self, name: str) -> Kubelet | None:
        """The node as it is, None if it is not reported."""
        books = self.ledger.books(name)
        return None if books is None else books.kubelet


def read(options: argparse.Namespace) -> tuple[objects.Objects, float]:
    """The objects of the files or of the cluster that the options name, and when they were so."""
    if options.nodes_file:
        there = objects.from_files(options.nodes_file)
        return there, objects.saved_at(there)
    kubectl = Kubectl(options.context, options.kubeconfig)
    return objects.from_cluster(kubectl, pods_path=objects.PODS_PATH, nodes=True), time.time()
