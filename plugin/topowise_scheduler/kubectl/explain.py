"""`kubectl topowise explain`: why each node's kubelet would admit a pod, or not.

A running topowise-scheduler can be asked over HTTP at its /explain. `--hints` shows two tables for each merge of a
kubelet: the hints by resource, and the results of combinations of hints, the best first.
"""

from __future__ import annotations

import argparse
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topowise.errors import SourceError
from topowise.text import Line, Styled
from topowise_scheduler.explain.explanation import NodeExplanation, Step, nearness
from topowise_scheduler.explain.merge_table import Merged, MergeTable, ResourceHints
from topowise_scheduler.explain.text import plural, with_unit
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl import json_output, manifests, objects, reasons, selection
from topowise_scheduler.kubectl.console import Console, Output, age, columns, paragraphs
from topowise_scheduler.kubectl.source import Kubectl
from topowise_scheduler.verdicts.kube_scheduler import Metadata, Pod, Spec, unbound

_ORDER: Final = ("fits", "not now", "never", "excluded", "not reported")
_COLOURS: Final = {
    "fits": colours.GOOD,
    "not now": colours.WARN,
    "never": colours.BAD,
    "excluded": colours.BAD,
    "not reported": colours.DIM,
}
_TIMEOUT_S: Final = 10
# A resource has up to 15 hints on four NUMA nodes, and 255 on eight.
_MOST_HINTS: Final = 32
_MOST_MERGES: Final = 16


class Explained(msgspec.Struct, frozen=True):
    """A pod and the explanation of each node. `note` states a limit of the answer. `next_step` is "" if unknown."""

    pod: Pod
    nodes: list[NodeExplanation]
    note: str = ""
    next_step: str = ""

    @property
    def name(self) -> str:
        """Namespace and name."""
        return f"{self.pod.metadata.namespace or 'default'}/{self.pod.metadata.name}"

    @property
    def not_looked_at(self) -> Sequence[str]:
        """Terms of the pod that are not evaluated, the same for all nodes."""
        return self.nodes[0].not_looked_at if self.nodes else ()

    @property
    def fits(self) -> bool:
        """Whether the pod fits on any node."""
        return any(node.verdict == "fits" for node in self.nodes)


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    if options.pod:
        is_pod = selection.is_pod(options.pod)
        if options.service and not is_pod:
            raise SourceError("explain --service", f"accepts only pods, expected no {options.pod!r:.260}")
        options.pod = selection.bare_name(options.pod) if is_pod else options.pod
    options.node = [selection.node_name(name) for name in options.node]
    if options.service and not (options.pod or options.file):
        raise SourceError("explain --service", "expected a pod or -f FILE with it")
    if options.service and options.hints:
        raise SourceError("explain --hints", "is computed locally, expected no --service with it")
    if options.service and options.selector:
        raise SourceError("explain -l", "is computed locally, expected no --service with it")
    if not (options.pod or options.file) and options.output == "table" and not options.hints:
        return _list(options, console)
    answers, notes = _ask_service(options) if options.service else _ask_ourselves(options)
    notes += [
        manifests.note_on(f"Pod {answer.name}", unexamined)
        for answer in answers
        if (unexamined := answer.not_looked_at)
    ]
    status = 0 if all(answer.fits for answer in answers) else 1
    documents = [[{"pod": answer.name, **msgspec.to_builtins(node)} for node in answer.nodes] for answer in answers]
    fitting = [node for answer in answers for node in ordered(answer.nodes) if node.verdict == "fits"]
    body = json_output.printed(
        options.output,
        documents if len(documents) != 1 else documents[0],
        names=(node.node for node in fitting),
    )
    if body is None:
        body = paragraphs([_text(answer, console, options) for answer in answers])
    return Output(body, status, notes)


def ordered(nodes: Sequence[NodeExplanation]) -> list[NodeExplanation]:
    """Nodes that fit come first, by score; then the nodes that lack least."""
    return sorted(nodes, key=lambda node: (_ORDER.index(node.verdict), -node.score, _lacks(node), node.node))


def _lacks(node: NodeExplanation) -> tuple[bool, float]:
    """How much the nearest zone lacks."""
    step = node.steps[-1] if node.steps else None
    zones = len(step.resources[0].zones) if step is not None and step.resources else 0
    return min((nearness(step, at) for at in range(zones) if step is not None), default=(False, 0.0))


def _list(options: argparse.Namespace, console: Console) -> Output:
    """The waiting pods, the oldest first, with cause and next step."""
    from topowise_scheduler.explain.waiting import waiting_pod
    from topowise_scheduler.explain.waiting_texts import next_step
    from topowise_scheduler.kubectl import cluster

    known, workloads, notes = cluster.open_with_manifests(options, top_score=10)
    rows = []
    for workload in workloads:
        pod, metadata = waiting_pod(known.view, known.trial.record(workload.pod)), workload.pod.metadata
        notes += [manifests.note_on(workload.origin, pod.unexamined)] if pod.unexamined else []
        name = f"{metadata.namespace}/{metadata.name}" if options.all_namespaces else metadata.name
        rows.append([name, age(metadata.creationTimestamp or "", known.now), pod.cause, next_step(pod.step)])
    table = columns(["POD", "AGE", "CAUSE", "NEXT STEP"], rows, width=console.width) if rows else []
    return Output(table, 0, notes)


def _ask_service(options: argparse.Namespace) -> tuple[list[Explained], list[str]]:

    if options.pod:
        namespace = options.namespace or Kubectl(options.kubectl).namespace()
        pod = Pod(Metadata(options.pod, namespace), Spec())
        nodes, step = explain(options.service, f"{namespace}/{options.pod}", None, options.node)
        return [Explained(pod, nodes, next_step=step)], []
    workloads, notes = manifests.workloads_of(options)
    answers = []
    for workload in workloads:
        nodes, step = explain(options.service, "", msgspec.to_builtins(workload.pod), options.node)
        answers.append(Explained(workload.pod, nodes, next_step=step))
    return answers, notes


def _ask_ourselves(options: argparse.Namespace) -> tuple[list[Explained], list[str]]:
    from topowise_scheduler.explain.waiting import waiting_pod
    from topowise_scheduler.explain.waiting_texts import step_of_refused
    from topowise_scheduler.kubectl import cluster
    from topowise_scheduler.kubectl.doctor import kubelets

    present = []
    if options.pod and selection.is_pod(options.pod):
        manifests.check(options)
        pod = objects.pod_of(manifests.named(options)[0], options.pod)
        known = cluster.Cluster(*cluster.read(options))
        present = [pod]
        # The question is where the pod would go, so its present booking must not count.
        known.ledger.drop_pod(pod.metadata.uid)
        pods, notes = [(unbound(pod), _already(pod))], known.notes
    else:
        known, workloads, notes = cluster.open_with_manifests(options, top_score=10)
        pods = [(workload.pod, "") for workload in workloads]
    there_are = known.trial.names
    if not there_are:
        raise objects.no_nodes(options.nodes_file)
    named = selection.existing_nodes(options.node, there_are, "--node") or there_are
    # A single node, as each node costs an admission of all its pods.
    single = named if len(options.node) == 1 else [pod.spec.nodeName for pod in present]
    notes += [line for node in single for line in kubelets.restart_lines(known.objects, node)]
    nodes = selection.labelled(named, options.selector, known.nodes)
    return [
        Explained(
            pod,
            known.view.explanations(pod, nodes, with_hints=options.hints),
            note,
            step_of_refused(waiting_pod(known.view, known.trial.record(pod))),
        )
        for pod, note in pods
    ], notes


def _already(pod: Pod) -> str:
    if pod.is_terminal:
        return "It has ended; this is the answer for a new pod like it."
    if pod.spec.nodeName:
        return f"It is on {pod.spec.nodeName}; this is the answer as if it were not there."
    return ""


def _text(explained: Explained, console: Console, options: argparse.Namespace) -> list[Line]:
    nodes = ordered(explained.nodes)
    is_wide, with_hints = options.output == "wide", options.hints
    fitting = sum(node.verdict == "fits" for node in nodes)
    title = f"Pod {explained.name}: fits {fitting} of {plural(len(nodes), 'node')}"
    lines: list[Line] = [[console.paint(title, colours.BOLD)], *([explained.note] if explained.note else [])]
    lines += [*([f"Next step: {explained.next_step}"] if explained.next_step else []), ""]
    is_summed_up = len(nodes) > reasons.MOST_ROWS and not (options.all or is_wide or with_hints)
    if is_summed_up:
        header, rows = ["VERDICT", "NODES", "WHY"], reasons.rows(nodes)
    else:
        header, rows = ["NODE", "VERDICT", "SCORE", "WHY"], [_row(node, is_wide=is_wide) for node in nodes]
    verdicts = header.index("VERDICT")

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, _COLOURS.get(cell, "")) if column == verdicts else cell

    lines += columns(header, rows, width=console.width, paint=paint)
    if is_summed_up:
        lines += ["", f"{reasons.ALL} --node NAME has that of one."]
    if is_wide:
        matrices = [_matrix(node, step, console) for node in nodes for step in node.steps if step.resources]
        lines = paragraphs([lines, *matrices])
    if with_hints:
        lines = paragraphs([lines, *[hint_lines for node in nodes if (hint_lines := text(node, console))]])
    return lines


def _row(node: NodeExplanation, *, is_wide: bool) -> list[str]:
    text = reasons.cell(node.text, is_wide=is_wide)
    why = f"{text} (by counts alone)" if node.precision == "counts" else text
    return [node.node, node.verdict, str(node.score) if node.verdict == "fits" else "-", why]


def _matrix(node: NodeExplanation, step: Step, console: Console) -> list[Line]:
    """The amounts of a merge of hints: a row for each resource, a column for each zone."""
    scope = f"container {step.container}" if step.container else "the pod"
    # A hint that is not preferred is refused, or is not the actual allocation.
    chosen = "" if step.chosen is None or not step.preferred else f" -> NUMA {'+'.join(map(str, step.chosen))}"
    rows = []
    for room in sorted(step.resources, key=lambda room: (room.resource != "cpu", room.resource != "memory")):
        cells = [
            f"{'' if zone.fits else '!'}{with_unit(room.resource, max(0, zone.available))}"
            f"/{with_unit(room.resource, max(0, zone.allocatable))}"
            for zone in room.zones
        ]
        rows.append([room.resource, with_unit(room.resource, room.asked), *cells])
    header = ["RESOURCE", "ASKED", *(f"NUMA {zone.numa}" for zone in step.resources[0].zones)]

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD) if column > 1 and cell.startswith("!") else cell

    title = f"{node.node}, {scope}{chosen} (free of allocatable; ! is not enough)"
    return [title, *columns(header, rows, indent="  ", paint=paint)]


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    error: str = ""
    next_step: str = ""
    nodes: list[NodeExplanation] = []


def explain(url: str, pod: str, manifest: Any, names: Sequence[str]) -> tuple[list[NodeExplanation], str]:
    """The explanations of the service for a pod of the cluster ("namespace/name"), or for a manifest, and the next
    step, "" for a pod that fits and from a service of an earlier version."""
    query = [("view", "waiting"), *[("node", name) for name in names]]
    if manifest is None:
        query.insert(0, ("pod", pod))
    address = f"{url.rstrip('/')}/explain?{urllib.parse.urlencode(query)}"
    body = None if manifest is None else msgspec.json.encode(manifest)
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise SourceError(url, "is not an address, expected http://HOST:PORT such as http://127.0.0.1:8081")
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            received = response.read()
    except (OSError, ValueError) as exc:
        why = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise SourceError(url, f"cannot be asked: {why}; is it forwarded (kubectl port-forward)?") from exc
    try:
        answer = msgspec.json.decode(received, type=list[NodeExplanation] | _Reply)
    except msgspec.DecodeError as exc:
        raise SourceError(url, f"sent an invalid answer: {exc}") from exc
    if isinstance(answer, list):
        return answer, ""
    if answer.error:
        raise SourceError(url, answer.error)
    return answer.nodes, answer.next_step


_TAKEN, _REFUSED = "taken", "refused"


def text(node: NodeExplanation, console: Console) -> list[Line]:
    """Lines of a node, none if the node has no report."""
    if node.verdict == "not reported":
        return []
    merges = [(step, step.merge) for step in node.steps if step.merge is not None]
    if not merges:
        why = "policy none asks for no hints" if node.policy == "none" else "no hints were merged"
        return [f"{node.node}: {why}"]
    return paragraphs([_step(node, step, merge, console) for step, merge in merges])


def _step(node: NodeExplanation, step: Step, merge: MergeTable, console: Console) -> list[Line]:
    scope = f"container {step.container}" if step.container else "the pod"
    title = f"{node.node}, {scope}, policy {node.policy}"
    if merge.too_many:
        return [f"{title}: more NUMA nodes than hints can be listed for"]
    if not merge.resources:
        return [f"{title}: no manager has a hint, so any NUMA node is possible"]
    parts: list[Line] = [f"{title}: hints (* is preferred)", *_hints(merge.resources, console)]
    if merge.merges:
        parts += ["  merged, the best first", *_merges(node, step, merge, console)]
    else:
        parts.append("  merged: no combination has a NUMA node in common; all nodes are taken, not preferred")
    return parts


def _hints(resources: Sequence[ResourceHints], console: Console) -> list[Line]:
    rows = []
    for resource in resources:
        shown = [f"{_set(hint.numa)}{'*' if hint.preferred else ''}" for hint in resource.hints[:_MOST_HINTS]]
        more = [f"and {len(resource.hints) - _MOST_HINTS} more"] if len(resource.hints) > _MOST_HINTS else []
        rows.append([resource.manager, resource.resource, "  ".join([*shown, *more]) or "none: it fits nowhere"])
    return columns(["MANAGER", "RESOURCE", "HINTS"], rows, indent="    ", width=console.width)


def _merges(node: NodeExplanation, step: Step, merge: MergeTable, console: Console) -> list[Line]:
    verdict = _REFUSED if node.policy in ("restricted", "single-numa-node") and not step.preferred else _TAKEN
    rows = [_result_row(merged, verdict if not at else "") for at, merged in enumerate(merge.merges[:_MOST_MERGES])]
    if len(merge.merges) > _MOST_MERGES:
        blank = [""] * (len(rows[0]) - 1)
        rows.append([f"and {len(merge.merges) - _MOST_MERGES} more", *blank])
    header = ["MERGED", "PREFERRED", "VERDICT", "WAYS", *(f"OF {merged.resource}" for merged in merge.resources)]

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, {_TAKEN: colours.GOOD, _REFUSED: colours.BAD}.get(cell, "")) if column == 2 else cell

    return columns(header, rows, indent="    ", paint=paint)


def _result_row(merged: Merged, verdict: str) -> list[str]:
    return [
        _set(merged.numa),
        "yes" if merged.preferred else "no",
        verdict,
        str(merged.ways),
        *("none" if numa is None else _set(numa) for numa in merged.hints),
    ]


def _set(numa: Sequence[int]) -> str:
    return "+".join(map(str, numa))
