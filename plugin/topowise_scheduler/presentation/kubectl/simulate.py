"""`kubectl topowise simulate`: where the pods of some manifests would go, one after the other, and which nowhere.

In the order in which kube-scheduler takes them from its queue: by priority, then as they come. Nobody is evicted for a
pod of higher priority.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import documents
from topowise.runtime.progress import Progress
from topowise.text import Line, Styled
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.presentation.explain import numa_placement as placing
from topowise_scheduler.presentation.kubectl import cluster
from topowise_scheduler.presentation.kubectl import console as colours
from topowise_scheduler.presentation.kubectl.console import Answer, Console
from topowise_scheduler.presentation.kubectl.explain import ordered
from topowise_scheduler.presentation.kubectl.manifests import Wanted, not_looked_at
from topowise_scheduler.presentation.kubectl.table import columns
from topowise_scheduler.presentation.text import first_of, plural, unschedulable

_MAX_REASONS: Final = 5
_NOWHERE: Final = "(nowhere)"


class SimulatedPod(msgspec.Struct, frozen=True):
    """What became of a pod: a node ("" for none), and where on it, or what each node had against it.

    `reasons` tell more than `refusals`, for the first refused pod of each kind.
    """

    pod: str
    origin: str
    priority: int
    node: str = ""
    containers: Mapping[str, placing.Placed] = {}
    refusals: Mapping[str, str] = {}
    reasons: Mapping[str, str] = {}

    @property
    def summary(self) -> str:
        """As kube-scheduler sums up."""
        return unschedulable(Counter(self.refusals.values()))

    def as_json(self) -> dict[str, Any]:
        """With names."""
        document: dict[str, Any] = {"pod": self.pod, "from": self.origin, "priority": self.priority, "node": self.node}
        if self.node:
            document["containers"] = {name: place.as_json() for name, place in self.containers.items()}
        else:
            document["refusals"] = {name: self.reasons.get(name, words) for name, words in self.refusals.items()}
        return document


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    known, wanted, notes = cluster.open_with_manifests(options, options.strategy)
    notes += not_looked_at(wanted)
    placed = Simulation(known).place(wanted, Progress())
    refused = [one for one in placed if not one.node]
    status = 1 if refused else 0
    if options.output in ("json", "yaml"):
        document = {
            "strategy": options.strategy,
            "placed": len(placed) - len(refused),
            "refused": len(refused),
            "pods": [one.as_json() for one in placed],
        }
        return Answer(documents.spell(document, options.output), status, notes)
    header, rows = _rows(placed, is_wide=options.output == "wide")

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD) if cell == _NOWHERE else cell

    lines: list[Line] = [*columns(header, rows, width=console.width, paint=paint), ""]
    used = len({one.node for one in placed if one.node})
    lines.append(
        f"{len(placed) - len(refused)} of {len(placed)} pods placed on {used} of "
        f"{plural(len(known.view.names), 'node')} by {options.strategy}."
    )
    for one in refused:
        if one.reasons:
            lines += ["", f"{one.pod} fits nowhere then:", *_refused(one, console)]
    return Answer(lines, status, notes)


def _rows(placed: Sequence[SimulatedPod], *, is_wide: bool) -> tuple[list[str], list[list[str]]]:
    """With `is_wide` what asked for the pod and how urgently, too."""
    header = ["POD", *(["FROM", "PRIORITY"] if is_wide else []), "NODE", "NUMA NODES"]
    return header, [
        [
            one.pod,
            *([one.origin, str(one.priority)] if is_wide else []),
            one.node or _NOWHERE,
            placing.in_words(one.containers) if one.node else one.summary,
        ]
        for one in placed
    ]


class Simulation:
    """A cluster that is filled pod by pod."""

    def __init__(self, known: cluster.Cluster) -> None:
        self._cluster = known
        self._view = known.view
        # What kube-scheduler has against the nodes for pods of one kind: the next one finds all as they were but one.
        self._against: dict[str, str] = {}
        self._serial = -1
        self._changed: list[str] = []

    def place(self, wanted: Sequence[Wanted], progress: Callable[[str], None] = lambda _: None) -> list[SimulatedPod]:
        """All wanted pods, by priority and then in order."""
        total = sum(one.count for one in wanted)
        # A pod that found no room leaves none to the next one of its kind.
        nowhere: dict[int, SimulatedPod] = {}
        placed: list[SimulatedPod] = []
        for one in sorted(wanted, key=lambda wanted: -(wanted.pod.spec.priority or 0)):
            for pod in map(one.numbered, range(one.count)):
                progress(f"pod {len(placed) + 1} of {total}")
                before = nowhere.get(one.serial)
                if before is not None:
                    placed.append(msgspec.structs.replace(before, pod=_name(pod), reasons={}))
                    continue
                found = self._place(one, pod)
                if not found.node:
                    nowhere[one.serial] = found
                placed.append(found)
        return placed

    def _place(self, one: Wanted, pod: Pod) -> SimulatedPod:
        made = SimulatedPod(_name(pod), one.origin, pod.spec.priority or 0)
        refusals = self._refusals(one, pod)
        fitting = [name for name, refusal in refusals.items() if not refusal]
        if not fitting:
            reasons = {why.node: why.text for why in ordered(self._view.explanations(pod, self._view.names))}
            return msgspec.structs.replace(made, refusals=refusals, reasons=reasons)
        node = self._view.best(pod, fitting)
        uid = self._cluster.assign(pod, node)
        self._changed = [node]
        kubelet = self._cluster.kubelet(node)
        if kubelet is None:
            return msgspec.structs.replace(made, node=node)
        is_exact = self._view.precision(node) == "exact"
        return msgspec.structs.replace(made, node=node, containers=placing.of(kubelet, uid, is_exact=is_exact))

    def _refusals(self, one: Wanted, pod: Pod) -> dict[str, str]:
        """Why each node cannot have the pod, "" for one that can."""
        changed = self._changed if self._serial == one.serial else self._view.names
        self._serial = one.serial
        self._against |= self._view.refusals(pod, changed)
        asked = [name for name, refusal in self._against.items() if not refusal]
        return {**self._against, **self._view.kubelet_refusals(pod, asked)}


def _refused(one: SimulatedPod, console: Console) -> list[Line]:
    """Each reason once, with the nodes it is of."""
    nodes: dict[str, list[str]] = {}
    for name, why in one.reasons.items():
        nodes.setdefault(why, []).append(name)
    rows = [[first_of(names), why] for why, names in nodes.items()]
    more = len(rows) - _MAX_REASONS
    text = columns(["NODE", "WHY NOT"], rows[:_MAX_REASONS], indent="  ", width=console.width)
    return [*text, f"  and {more} more (-o json has all)"] if more > 0 else text


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
