"""`kubectl topowise simulate`: where the pods of manifests would go, in order, and which pods fit nowhere.

The order is that of kube-scheduler's queue: by priority, then by position. No pod is evicted. `--restart` shows what a
restart of all kubelets does, also with other settings.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise.errors import SourceError
from topowise.runtime.output import Progress
from topowise.text import Line, Styled
from topowise_scheduler.explain import refusal_texts
from topowise_scheduler.explain.text import first_of, plural
from topowise_scheduler.explain.waiting import waiting_pod
from topowise_scheduler.explain.waiting_texts import next_step
from topowise_scheduler.kubectl import cluster, json_output, objects, reasons
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console, Output, columns
from topowise_scheduler.kubectl.explain import ordered
from topowise_scheduler.kubectl.manifests import Workload, not_looked_at
from topowise_scheduler.kubelet import version_of
from topowise_scheduler.kubelet.allocated_nodes import Placed, in_words, placements
from topowise_scheduler.report import read
from topowise_scheduler.report.restart_forecast import REFUSES, STOPS, Change, foresee_all
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Reason

_MAX_REASONS: Final = 5
_NOWHERE: Final = "(nowhere)"


class SimulatedPod(msgspec.Struct, frozen=True):
    """The result for a pod: the node and its placement, or "" and the refusal of each node.

    `reasons` has longer texts than `refusals`, for the first refused pod of each workload.
    """

    pod: str
    origin: str
    priority: int
    node: str = ""
    containers: Mapping[str, Placed] = {}
    refusals: Mapping[str, Reason] = {}
    reasons: Mapping[str, str] = {}
    next_step: str = ""

    @property
    def summary(self) -> str:
        """The refusals, as kube-scheduler sums them up."""
        return refusal_texts.unschedulable(Counter(self.refusals.values()))

    def as_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        document: dict[str, Any] = {"pod": self.pod, "from": self.origin, "priority": self.priority, "node": self.node}
        if self.node:
            document["containers"] = {name: place.as_json() for name, place in self.containers.items()}
        else:
            document["nextStep"] = self.next_step
            document["refusals"] = {
                name: self.reasons.get(name) or refusal_texts.text(reason) for name, reason in self.refusals.items()
            }
        return document


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    change = change_of(options)
    if change is not None:
        return restart(options, console, change)
    known, workloads, notes = cluster.open_with_manifests(options, options.strategy)
    notes += not_looked_at(workloads)
    for workload in workloads if not (options.pod or options.file) else ():
        # Each waiting pod is placed below, so its nomination must not count as another pod.
        known.ledger.drop_pod(workload.pod.metadata.uid)
    placed = Simulation(known).place(workloads, Progress())
    refused = [pod for pod in placed if not pod.node]
    status = 1 if refused else 0
    document: dict[str, Any] = {
        "strategy": options.strategy,
        "placed": len(placed) - len(refused),
        "refused": len(refused),
        "pods": [pod.as_json() for pod in placed],
    }
    body = json_output.printed(options.output, document)
    if body is not None:
        return Output(body, status, notes)
    header, rows = _rows(placed, is_wide=options.output == "wide")

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD) if cell == _NOWHERE else cell

    lines: list[Line] = [*columns(header, rows, width=console.width, paint=paint), ""]
    used = len({pod.node for pod in placed if pod.node})
    lines.append(
        f"{len(placed) - len(refused)} of {len(placed)} pods placed on {used} of "
        f"{plural(len(known.trial.names), 'node')} by {options.strategy}."
    )
    for pod in refused:
        if pod.reasons:
            lines += ["", f"{pod.pod} fits nowhere then:", *_refused(pod, console), f"  Next step: {pod.next_step}"]
    return Output(lines, status, notes)


def _rows(placed: Sequence[SimulatedPod], *, is_wide: bool) -> tuple[list[str], list[list[str]]]:
    """Header and rows; `is_wide` adds origin and priority."""
    header = ["POD", *(["FROM", "PRIORITY"] if is_wide else []), "NODE", "NUMA NODES"]
    return header, [
        [
            pod.pod,
            *([pod.origin, str(pod.priority)] if is_wide else []),
            pod.node or _NOWHERE,
            reasons.cell(in_words(pod.containers) if pod.node else pod.summary, is_wide=is_wide),
        ]
        for pod in placed
    ]


class Simulation:
    """A cluster that is filled pod by pod."""

    def __init__(self, known: cluster.Cluster) -> None:
        self._cluster = known
        self._view, self._trial = known.view, known.trial
        # kube-scheduler's refusals for the present workload: between two copies only a single node changes.
        self._against: dict[str, str] = {}
        self._serial = -1
        self._changed: list[str] = []

    def place(
        self, workloads: Sequence[Workload], progress: Callable[[str], None] = lambda _: None
    ) -> list[SimulatedPod]:
        """Places all workloads, by priority and then in order."""
        total = sum(workload.count for workload in workloads)
        # If a pod does not fit, further copies of it do not fit either.
        nowhere: dict[int, SimulatedPod] = {}
        placed: list[SimulatedPod] = []
        for workload in sorted(workloads, key=lambda workloads: -(workloads.pod.spec.priority or 0)):
            if workload.is_on_every_node:
                placed += self._on_every_node(workload)
                continue
            for pod in map(workload.numbered, range(workload.count)):
                progress(f"pod {len(placed) + 1} of {total}")
                before = nowhere.get(workload.serial)
                if before is not None:
                    placed.append(msgspec.structs.replace(before, pod=_name(pod), reasons={}))
                    continue
                placed_pod = self._place(workload, pod, self._refusals(workload, pod))
                if not placed_pod.node:
                    nowhere[workload.serial] = placed_pod
                placed.append(placed_pod)
        return placed

    def _on_every_node(self, workload: Workload) -> Iterator[SimulatedPod]:
        """A pod on each node that kube-scheduler does not exclude: the DaemonSet's controller makes no other pods."""
        record = self._trial.record(workload.pod)
        for number, (name, objection) in enumerate([*self._trial.refusals(record, self._trial.names)]):
            if objection is None or objection.verdict != "excluded":
                pod = workload.numbered(number)
                reason = objection.words if objection else self._view.kubelet_refusals(pod, [name])[name]
                yield self._place(workload, pod, {name: reason or ""})

    def _place(self, workload: Workload, pod: Pod, refusals: Mapping[str, Reason]) -> SimulatedPod:
        """Places the pod on the best node without a refusal."""
        simulated = SimulatedPod(_name(pod), workload.origin, pod.spec.priority or 0)
        fitting = [name for name, refusal in refusals.items() if not refusal]
        if not fitting:
            texts = {why.node: why.text for why in ordered(self._view.explanations(pod, list(refusals)))}
            step = next_step(waiting_pod(self._view, self._trial.record(pod)).step)
            return msgspec.structs.replace(simulated, refusals=refusals, reasons=texts, next_step=step)
        node = self._view.best(pod, fitting)
        uid = self._cluster.assign(pod, node)
        self._changed = [node]
        kubelet = self._cluster.kubelet(node)
        if kubelet is None:
            return msgspec.structs.replace(simulated, node=node)
        is_exact = self._trial.precision(node) == "exact"
        return msgspec.structs.replace(simulated, node=node, containers=placements(kubelet, uid, is_exact=is_exact))

    def _refusals(self, workload: Workload, pod: Pod) -> dict[str, Reason]:
        """The refusal of each node, "" if it takes the pod."""
        changed = self._changed if self._serial == workload.serial else self._trial.names
        self._serial = workload.serial
        refusals = self._trial.refusals(self._trial.record(pod), changed)
        self._against |= {name: refusal.words if refusal else "" for name, refusal in refusals}
        candidates = [name for name, refusal in self._against.items() if not refusal]
        refused = self._view.kubelet_refusals(pod, candidates)
        return {**self._against, **{name: refusal or "" for name, refusal in refused.items()}}


def _refused(pod: SimulatedPod, console: Console) -> list[Line]:
    """Each reason with its nodes."""
    nodes: dict[str, list[str]] = {}
    for name, why in pod.reasons.items():
        nodes.setdefault(why, []).append(name)
    rows = [[first_of(names), reasons.cell(why)] for why, names in nodes.items()]
    more = len(rows) - _MAX_REASONS
    text = columns(["NODE", "WHY NOT"], rows[:_MAX_REASONS], indent="  ", width=console.width)
    return [*text, f"  and {more} more (-o json has all)"] if more > 0 else text


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def change_of(options: argparse.Namespace) -> Change | None:
    """The change that the options name, None if they name no restart. Raises TopowiseError for an unknown version."""
    fields = {"topologyManagerPolicy": options.policy, "topologyManagerScope": options.scope}
    given = {name: value for name, value in fields.items() if value}
    if not (options.restart or options.kubelet_version or given):
        return None
    return Change(version_of(options.kubelet_version) if options.kubelet_version else None, given)


def restart(options: argparse.Namespace, console: Console, change: Change) -> Output:
    """The command. Raises SourceError for pods: a restart admits the pods of the nodes."""
    if options.pod or options.file:
        named = f"pod {options.pod}" if options.pod else f"-f {options.file[0]}"
        raise SourceError(named, "a restart places no pods, expected nodes from --nodes-file FILE or the cluster")
    there, _ = cluster.read(options)
    if not there.reports:
        raise objects.no_nodes(options.nodes_file)
    versions = there.kubelet_versions
    notes: list[str] = []
    reports = [
        read(reported.topology, versions.get(reported.topology.metadata.name, ""), size=reported.size)
        for reported in there.reports
    ]
    nodes = list(foresee_all(reports, there.pods or (), notes, change))
    remarks = dict.fromkeys(node.remark for node in nodes if node.remark)
    notes[:0] = [f"warning: {remark}" for remark in remarks]
    stops, refuses = [node for node in nodes if node.error], [node for node in nodes if node.refused]
    status = 1 if stops or refuses else 0
    if len(nodes) < len(reports):
        skipped = plural(len(reports) - len(nodes), "node")
        notes.append(f"note: {skipped} skipped: only an exact report describes the state of a kubelet")
    document = {"nodes": [{**msgspec.to_builtins(node), "outcome": node.outcome} for node in nodes]}
    body = json_output.printed(options.output, document)
    if body is not None:
        return Output(body, status, notes)

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD) if cell in (REFUSES, STOPS) else cell

    rows = [[node.node, node.outcome, str(node.admitted), str(len(node.refused))] for node in nodes]
    lines: list[Line] = [*columns(["NODE", "KUBELET", "ADMITTED", "REFUSED"], rows, width=console.width, paint=paint)]
    for node in [*stops, *refuses]:
        lines += ["", f"{node.node} {node.outcome}{': ' if node.error else ''}{node.error}"]
        pods_of_node = [[pod.pod, pod.reason, pod.message] for pod in node.refused]
        if pods_of_node:
            lines += columns(["POD", "REASON", "MESSAGE"], pods_of_node, indent="  ", width=console.width)
        lines.append(f"  {node.mend}")
    return Output(lines, status, notes)
