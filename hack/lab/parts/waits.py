"""How many decisions wait for a report of the node: pods arrive and end without a pause for the reports.

The same pods come three times: without markers, with markers, and with markers and a required NUMA node. So the figures
show what steering changes.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Final

from lab import results, series
from lab.api import PODS, Json
from lab.cluster import Lab, is_refused
from lab.parts.steered_binds import ANNOTATION, capacity, on_all, until_decided
from lab.results import Figure, Part, came_true
from topowise import steering

_PODS: Final = 40
_STAY: Final = 2
# A pod comes when the pod two before it is decided: so a node has up to two pods that no report has yet.
_AHEAD: Final = 2
_LATE: Final = "waiting for a"
KINDS: Final = {"without markers": (False, False), "with markers": (True, False), "on a NUMA node": (True, True)}
"""Whether the pods have markers, and whether they require a NUMA node."""


def waits(lab: Lab) -> Part:
    """Counts the pods and the verdicts that wait for a report."""
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    for kind, (has_marker, is_required) in KINDS.items():
        before = lab.predictions()
        on_all(lab, partial(_stream, lab, kind, has_marker, is_required, figures, problems))
        after = lab.predictions()
        counts = came_true(before, after)
        for name in (results.VERDICTS, results.WAITS, results.HITS, results.MISSES):
            figures[f"{kind}: {name}"] = counts[name]
        lab.clear()
        problems += lab.settle()
    return Part("Decisions that wait for a report", not problems, figures, tuple(problems))


def _stream(
    lab: Lab,
    kind: str,
    has_marker: bool,
    is_required: bool,
    figures: dict[str, Figure],
    problems: list[str],
    node: str,
) -> None:
    since = time.time()
    choose = random.Random(3)
    prefix = f"waits-{list(KINDS).index(kind)}-{node}"
    devices = {plugin.resource: plugin.near for plugin in lab.machines[node].devices[-1:]}
    names: list[str] = []
    counts = Counter[str]()
    for number in range(_PODS):
        cpus, has_device = choose.choice([1, 1, 2]), choose.random() < 0.4
        sizes = {"cpu": str(cpus), "memory": "32Mi", **(dict.fromkeys(devices, "1") if has_device else {})}
        # Not each NUMA node has devices of its own, or as many CPUs.
        numa_nodes = [
            numa
            for numa, of_node in lab.numa_nodes(node).items()
            if all(str(numa) in near for near in devices.values()) and capacity(numa, of_node) >= cpus
        ]
        numa = numa_nodes[number % len(numa_nodes)] if is_required else None
        lab.api.create(PODS, _pod(f"{prefix}-{number}", node, sizes, has_marker, numa))
        names.append(f"{prefix}-{number}")
        # Before the wait: a pod may need what this pod has.
        for name in names[-_AHEAD - _STAY - 1 : -_AHEAD - _STAY]:
            lab.api.delete(f"{PODS}/{name}", grace=1)
        for name in names[-_AHEAD - 1 : -_AHEAD]:
            counts.update(result(name, until_decided(lab, name), problems))
    for name in names[-_AHEAD:]:
        counts.update(result(name, until_decided(lab, name), problems))
    waited = late(lab.pods.since(since), prefix)
    figures[f"{kind} on {node}: pods"] = len(names)
    figures[f"{kind} on {node}: of them waiting for a report"] = len(waited)
    figures.update({f"{kind} on {node}: {result}": count for result, count in counts.items() if count})


def _pod(name: str, node: str, sizes: Json, has_marker: bool, numa: int | None) -> Json:
    pod = series.small(name, node, {**sizes, **({steering.RESOURCE: "1"} if has_marker else {})})
    if numa is not None:
        pod["metadata"]["annotations"] = {ANNOTATION: str(numa)}
    return pod


def result(name: str, pod: Json | None, problems: list[str]) -> Iterable[str]:
    """Returns what became of a pod, None if no kubelet has decided about it in time; adds what must not happen."""
    if pod is None:
        problems.append(f"{name}: not placed in time")
        return ["not placed"]
    if is_refused(pod):
        problems.append(f"{name}: {pod['status'].get('reason')}: {pod['status'].get('message')}")
        return ["refused"]
    return ["placed"]


def late(changes: Iterable[tuple[float, str, Json]], prefix: str) -> set[str]:
    """Returns the names of the pods that waited for a report: kube-scheduler writes the verdict into a condition."""
    return {
        name
        for _, name, pod in changes
        if name.startswith(f"{prefix}-")
        and any(_LATE in each.get("message", "") for each in pod.get("status", {}).get("conditions", ()))
    }
