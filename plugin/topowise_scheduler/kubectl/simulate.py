"""`kubectl topowise simulate`: where the pods of some manifests would go, one after the other, and which nowhere.

In the order in which kube-scheduler takes them from its queue: by priority, then as they come. Nobody is evicted for a
pod of higher priority.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import pods
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl import whereabouts
from topowise_scheduler.kubectl.columns import columns
from topowise_scheduler.kubectl.console import Answer, Console
from topowise_scheduler.kubectl.explain import ordered
from topowise_scheduler.kubectl.manifests import Wanted
from topowise_scheduler.kubectl.picture.words import counted
from topowise_scheduler.kubectl.whereabouts import Whereabouts
from topowise_scheduler.kubectl.yard import Yard, open_yard
from topowise_scheduler.refusals import PREFIX

_REASONS_TOLD: Final = 5
_NAMES_TOLD: Final = 3
_NOWHERE: Final = "(nowhere)"


class Placed(msgspec.Struct, frozen=True):
    """What became of a pod: a node ("" for none), and where on it, or what each node had against it.

    `reasons` tell more than `refusals`, for the first refused pod of each kind.
    """

    pod: str
    origin: str
    priority: int
    node: str = ""
    containers: Mapping[str, Whereabouts] = {}
    refusals: Mapping[str, str] = {}
    reasons: Mapping[str, str] = {}

    @property
    def summary(self) -> str:
        """As kube-scheduler sums up."""
        counts = sorted(Counter(self.refusals.values()).items(), key=lambda one: (-one[1], one[0]))
        return f"0/{len(self.refusals)} nodes: {', '.join(f'{count} {words}' for words, count in counts)}"

    def as_json(self) -> dict[str, Any]:
        """With names."""
        told: dict[str, Any] = {"pod": self.pod, "from": self.origin, "priority": self.priority, "node": self.node}
        if self.node:
            told["containers"] = {name: place.as_json() for name, place in self.containers.items()}
        else:
            told["refusals"] = {name: self.reasons.get(name, words) for name, words in self.refusals.items()}
        return told


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    yard, notes = open_yard(options, options.strategy)
    placed = list(place(yard))
    refused = [one for one in placed if not one.node]
    status = 1 if refused else 0
    if options.output == "json":
        told = {
            "strategy": options.strategy,
            "placed": len(placed) - len(refused),
            "refused": len(refused),
            "pods": [one.as_json() for one in placed],
        }
        return Answer(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n", status, notes)
    rows = [
        [one.pod, one.node or _NOWHERE, whereabouts.told(one.containers) if one.node else one.summary] for one in placed
    ]

    def paint(column: int, cell: str) -> str:
        return console.paint(cell, colours.BAD) if column == 1 and cell == _NOWHERE else cell

    lines = [columns(["POD", "NODE", "NUMA NODES"], rows, width=console.width, paint=paint), ""]
    used = len({one.node for one in placed if one.node})
    lines.append(
        f"{len(placed) - len(refused)} of {len(placed)} pods placed on {used} of {counted(len(yard.names), 'node')} "
        f"by {options.strategy}."
    )
    for one in refused:
        if one.reasons:
            lines += ["", f"{one.pod} fits nowhere then:", _told(one, console)]
    return Answer("\n".join(lines) + "\n", status, notes)


def place(yard: Yard) -> list[Placed]:
    """All wanted pods, by priority and then in order."""
    # A pod that found no room leaves none to the next one of its kind.
    hopeless: dict[int, Placed] = {}
    placed = []
    for one in sorted(yard.wanted, key=lambda wanted: -(wanted.pod.spec.priority or 0)):
        for pod in map(one.numbered, range(one.count)):
            before = hopeless.get(one.serial)
            if before is not None:
                placed.append(msgspec.structs.replace(before, pod=_name(pod), reasons={}))
                continue
            found = _place(yard, one, pod)
            if not found.node:
                hopeless[one.serial] = found
            placed.append(found)
    return placed


def _place(yard: Yard, one: Wanted, pod: pods.Pod) -> Placed:
    made = Placed(_name(pod), one.origin, pod.spec.priority or 0)
    refusals = yard.refusals(one, pod)
    fitting = [name for name, refusal in refusals.items() if not refusal]
    if not fitting:
        asked = [name for name in yard.names if yard.estate.precision(name)]
        told = {why.node: why.text for why in ordered(yard.estate.explain(pod, asked))}
        return msgspec.structs.replace(made, refusals=refusals, reasons=_reasons(refusals, told))
    node = yard.estate.best(pod, fitting)
    uid = yard.put(one, pod, node)
    kubelet = yard.estate.kubelet(node)
    if kubelet is None:
        return msgspec.structs.replace(made, node=node)
    is_exact = yard.estate.precision(node) == "exact"
    return msgspec.structs.replace(made, node=node, containers=whereabouts.of(kubelet, uid, is_exact=is_exact))


def _reasons(refusals: Mapping[str, str], told: Mapping[str, str]) -> dict[str, str]:
    """By node: what its kubelet lacks, or what is against it before a kubelet is asked."""
    ours = {name: why for name, why in told.items() if refusals[name].startswith(PREFIX)}
    return {**ours, **{name: words for name, words in refusals.items() if name not in ours}}


def _told(one: Placed, console: Console) -> str:
    """Each reason once, with the nodes it is of."""
    nodes: dict[str, list[str]] = {}
    for name, why in one.reasons.items():
        nodes.setdefault(why, []).append(name)
    rows = [[_names(names), why] for why, names in nodes.items()]
    more = len(rows) - _REASONS_TOLD
    text = columns(["NODE", "WHY NOT"], rows[:_REASONS_TOLD], indent="  ", width=console.width)
    return f"{text}\n  and {more} more (-o json has all)" if more > 0 else text


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_TOLD
    return ", ".join(names[:_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")


def _name(pod: pods.Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
