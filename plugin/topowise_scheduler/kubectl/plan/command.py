"""The command: reads what the options name, decides a scenario for today and for each change, and shows them."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from topowise import kubeletconfig
from topowise.errors import SourceError, TopowiseError
from topowise.runtime.output import Progress
from topowise_scheduler import report
from topowise_scheduler.kubectl import cluster, json_output, manifests, objects, reasons, selection, source
from topowise_scheduler.kubectl.console import Console, Output
from topowise_scheduler.kubectl.plan import changes, page
from topowise_scheduler.kubectl.plan.planned import Planned, document, lines
from topowise_scheduler.kubelet import version_of
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import Arrival, Change, Found, Inventory, NodeType, PlannedNode, Scenario, Workload

_CELLS: Final = 20
_MOST_NODES: Final = 5000


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    inventory, workloads, trace, notes = _read(options)
    alternatives = [
        change for text in options.change for change in changes.parse(text, lambda labels: _selected(inventory, labels))
    ]
    if options.smallest and not alternatives:
        raise SourceError("--smallest", "needs the changes to choose from, expected --change with it")
    base = Scenario(inventory, tuple(workloads), trace, existing=options.existing)
    with _stopping() as control:
        planned = _decide(base, alternatives, options, control)
    incomplete = [result for result in planned.results if not result.is_complete]
    if incomplete:
        notes.append("warning: the plan was stopped, so the numbers are incomplete")
    status = 130 if incomplete else _status(planned)
    body = page.text(planned) if options.output == "html" else json_output.printed(options.output, document(planned))
    return Output(lines(planned, console) if body is None else body, status, notes)


def _status(planned: Planned) -> int:
    """Returns 0 if all pods fit after the last change, or today without a change, or if a change was found."""
    if planned.found is not None:
        return 0 if planned.found.result is not None else 1
    return 0 if planned.results[-1].fits else 1


def _decide(base: Scenario, alternatives: Sequence[Change], options: argparse.Namespace, control: _Control) -> Planned:
    """Returns today and each change, or the smallest change."""
    control.scenarios = 1 + (0 if options.smallest else len(alternatives))
    results = [plan.decide(base, control)]
    found: Found | None = None
    if options.smallest and results[0].is_complete:
        found = plan.smallest(base, alternatives, longest_wait=options.max_wait, control=control)
        if found.result is not None and found.result.change != plan.TODAY:
            results.append(found.result)
    for change in () if options.smallest else alternatives:
        if not results[-1].is_complete:
            break
        control.scenario += 1
        results.append(plan.decide(msgspec.structs.replace(base, change=change), control))
    return Planned(tuple(results), options.existing, found)


class _Control:
    """Reports the progress of all scenarios as a bar, and stops a plan after Ctrl-C."""

    def __init__(self) -> None:
        self.scenario, self.scenarios = 1, 1
        self.is_stopped = False
        self._progress = Progress()

    def __call__(self, text: str, done: int, total: int) -> bool:
        """Returns whether to stop."""
        filled = _CELLS * min(done, total) // total if total else 0
        bar = f"[{'#' * filled}{'.' * (_CELLS - filled)}] " if total else ""
        of_all = f" of {total}" if total else ""
        self._progress(f"scenario {self.scenario} of {self.scenarios} {bar}{text} {done}{of_all}")
        return self.is_stopped

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The first Ctrl-C ends the plan; the next Ctrl-C ends the process as usual."""
        self.is_stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _stopping() -> Iterator[_Control]:
    control = _Control()
    before = signal.signal(signal.SIGINT, control.stop)
    try:
        yield control
    finally:
        signal.signal(signal.SIGINT, before)


def _read(options: argparse.Namespace) -> tuple[Inventory, list[Workload], tuple[Arrival, ...], list[str]]:
    """Returns what the options name, and lines for stderr. Raises SourceError."""
    types, added = _machines(options)
    there, now = objects.Objects(), 0.0
    if options.nodes_file or not options.machine:
        there, now = cluster.read(options)
    wanted, notes = _workloads(options, there)
    inventory, problems = _inventory(there, now, types, added)
    if not inventory.nodes and not (types and options.change):
        raise objects.no_nodes(options.nodes_file)
    workloads = [_planned(workload, options) for workload in wanted]
    trace: tuple[Arrival, ...] = ()
    if options.trace:
        ((name, text),) = list(source.contents(options.trace))[:1]
        trace = changes.read(text, name, workloads)
        workloads = []
    return inventory, workloads, trace, [*notes, *manifests.not_looked_at(wanted), *reasons.notes(problems)]


def _workloads(options: argparse.Namespace, there: objects.Objects) -> tuple[list[manifests.Workload], list[str]]:
    manifests.check(options)
    workloads: list[manifests.Workload] = []
    notes: list[str] = []
    if options.pod or options.file:
        workloads, notes = manifests.workloads_of(options)
    elif options.all_namespaces:
        workloads, notes = manifests.waiting(options, there.pods or ())
    workloads, unknown = manifests.prioritised(workloads, there.classes)
    return workloads, [*notes, *unknown]


def _planned(workload: manifests.Workload, options: argparse.Namespace) -> Workload:
    count = None if options.fill else options.count or workload.count
    return Workload(workload.name, workload.pod, count, is_on_every_node=workload.is_on_every_node)


def _inventory(
    there: objects.Objects, now: float, types: dict[str, NodeType], added: Sequence[PlannedNode]
) -> tuple[Inventory, list[tuple[str, str]]]:
    """Returns the nodes of the cluster and of the machines, and the problems of the reports."""
    nodes = Nodes()
    for node in there.nodes or ():
        nodes.apply("ADDED", nodes.node(node))
    reports = [
        report.read(entry.topology, *nodes.kubelet(entry.topology.metadata.name), size=entry.size)
        for entry in there.reports
    ]
    problems = [(read.name, problem) for read in reports for problem in read.problems]
    inventory = plan.inventory_of(
        reports, there.nodes or (), there.pods or (), budgets=there.budgets, types=types, now=now
    )
    return msgspec.structs.replace(inventory, nodes=(*inventory.nodes, *added)), problems


def _machines(options: argparse.Namespace) -> tuple[dict[str, NodeType], list[PlannedNode]]:
    """Returns the types of the machines by the stems of their files, and their nodes. Raises SourceError."""
    configuration = kubeletconfig.KubeletConfiguration()
    if options.kubelet_config:
        ((name, text),) = list(source.contents(options.kubelet_config))[:1]
        try:
            configuration = kubeletconfig.with_defaults(kubeletconfig.parse(text, source=name))
        except TopowiseError as exc:
            raise SourceError(name, f"is no KubeletConfiguration: {exc}") from exc
    types: dict[str, NodeType] = {}
    nodes: list[PlannedNode] = []
    for entry in options.machine:
        file, separator, count = entry.rpartition("*")
        file = file if separator else entry
        # Without a number the file is a node, or with other nodes only a type for a change to add.
        count = count if separator else str(int(not options.nodes_file))
        number = int(count) if count.isascii() and count.isdigit() and len(count) < 6 else -1
        if not 0 <= number <= _MOST_NODES:
            raise SourceError(f"--machine {entry!r:.80}", f"{count!r:.20}, expected a number up to {_MOST_NODES}")
        ((name, text),) = list(source.contents(file))[:1]
        stem = Path(name).stem
        types[stem] = NodeType(plan.read_machine(text, name), configuration, version_of(""), "none")
        nodes += [PlannedNode(f"{stem}-{at}", types[stem]) for at in range(1, number + 1)]
    return types, nodes


def _selected(inventory: Inventory, labels: str) -> tuple[str, ...]:
    """Returns the nodes with these labels."""
    matches = selection.selector(labels)
    return tuple(
        node.name
        for node in inventory.nodes
        if matches({} if node.object is None else node.object.metadata.labels or {})
    )
