"""What the exporter says, how soon, and what it costs; nothing is disturbed for that."""

from __future__ import annotations

import time
from typing import Any, Final

from lab import truth
from lab.cluster import Lab, attribute
from lab.placing import Placing, Tally, until_placed
from lab.results import Part, percentile
from lab.series import Series, small

_LATENCIES: Final = 20
_IDLE_S: Final = 60
_PATIENCE_S: Final = 30


def object_equals_truth(lab: Lab) -> Part:
    """Compares object and node, on the empty node and with pods of all kinds."""
    problems = [f"empty: {difference}" for difference in lab.settle()]
    tally = Tally()
    for name in lab.nodes:
        placing = Placing(lab, 1, 0.0)
        for pod in Series(lab.machines[name], 1, f"object-{name}").pods(8):
            placing.place(pod)
        tally.counts += placing.tally.counts
    problems += [f"with {len(lab.live())} pods: {difference}" for difference in lab.settle()]
    zones = {name: len(lab.numa_nodes(name)) for name in lab.nodes}
    figures: dict[str, Any] = {"pods on the nodes": len(lab.live())}
    figures |= {f"NUMA nodes of {name}": count for name, count in zones.items()}
    lab.clear()
    return Part("The object equals the node", not problems, figures, tuple(problems))


def latency(lab: Lab) -> Part:
    """Measures the time from the kubelet's last state file of an admission until a watch shows the pod."""
    times: list[float] = []
    from_creation: list[float] = []
    problems = []
    for number in range(_LATENCIES):
        lab.settle()
        name = f"latency-{number}"
        created = time.time()
        placed = until_placed(lab, small(name), 60)
        where = placed["spec"]["nodeName"]
        changed = _changed(lab, where, ("default", name))
        seen = _first_seen(lab, where, name, created)
        if seen is None or changed is None:
            problems.append(f"{name} did not come into the object of {where}")
        else:
            times.append(seen - changed)
            from_creation.append(seen - created)
        lab.delete([name])
    figures: dict[str, Any] = {
        "pods": len(times),
        "state file to object, p50 s": percentile(times, 0.5),
        "state file to object, p90 s": percentile(times, 0.9),
        "creation to object, p50 s": percentile(from_creation, 0.5),
    }
    return Part("From admission to the object", not problems, figures, tuple(problems))


def _changed(lab: Lab, node: str, pod: tuple[str, str]) -> float | None:
    """Returns when the kubelet last wrote a state file, once the kubelet lists the pod."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        reported = truth.read(lab.nodes[node].seen())
        if any(map(any, reported.listed.get(pod, {}).values())):
            return reported.changed
        time.sleep(0.2)
    return None


def _first_seen(lab: Lab, node: str, name: str, since: float) -> float | None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for when, of_node, raw in lab.reports.since(since):
            if of_node == node and f'["default","{name}",[["' in attribute(raw, "topowise.io/holdings"):
                return when
        time.sleep(0.2)
    return None


def idle(lab: Lab) -> Part:
    """Checks that a minute without pod changes has no writes."""
    lab.settle()
    # What made the objects settle may be followed by a last change, of a condition of a pod say.
    time.sleep(5)
    before = {name: lab.reports.objects[name]["metadata"]["resourceVersion"] for name in lab.nodes}
    start = time.time()
    time.sleep(_IDLE_S)
    writes = len(lab.reports.since(start))
    seconds = time.time() - start
    problems = [] if writes == 0 else [f"{writes} writes of objects, expected none"]
    figures: dict[str, Any] = {"seconds": round(seconds), "writes": writes}
    problems += [
        f"the object of {name} has another resourceVersion"
        for name in lab.nodes
        if lab.reports.objects[name]["metadata"]["resourceVersion"] != before[name]
    ]
    return Part("Nothing is written while nothing happens", not problems, figures, tuple(problems))
