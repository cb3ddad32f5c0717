"""What the exporter says, and that it is silent while nothing happens; nothing is disturbed for that."""

from __future__ import annotations

import time
from typing import Any, Final

from lab.cluster import Lab
from lab.placing import Placing, Tally
from lab.results import Part
from lab.series import Series

_IDLE_S: Final = 60


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
