"""Jobs of one to eight GPUs with a proportional share of all resources, whose owners replace a refused pod.

On a machine with the policy single-numa-node, no pod may be refused, and no owner may replace pods endlessly.
"""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random
from typing import Any, Final

from lab.api import PODS, Json
from lab.cluster import Lab, is_refused
from lab.parts.loading import refusals
from lab.results import Part
from lab.series import container, pod

MACHINE: Final = "p5"
GPU: Final = "example.com/gpu"
_NIC: Final = "example.com/nic"
_ALL: Final = 8
_SIZES: Final = (1, 1, 1, 1, 2, 2, 4)
_SECONDS: Final = 240.0
_STEP_S: Final = 0.5
# The demand for GPUs, as a multiple of the machine's GPUs.
_LOAD: Final = 1.5
_LIFE_S: Final = (5.0, 40.0)
# Seconds until the machine is full for the first time.
_WARM_S: Final = 30.0
_REMADE: Final = "-again"


def job(name: str, gpus: int) -> Json:
    """Returns a pod whose share of every resource is its share of the machine's GPUs."""
    sizes = {"cpu": str(gpus), "memory": f"{100 * gpus}Mi", GPU: str(gpus), _NIC: str(4 * gpus)}
    return pod(name, "job", {"containers": [container("main", sizes)]})


def p5(lab: Lab) -> Part:
    """Runs jobs for some minutes. A job of all eight GPUs must wait throughout, as no NUMA node has eight."""
    lab.clear()
    problems = lab.settle()
    start, owner = time.time(), _Owner(lab)
    while time.time() < start + _SECONDS:
        owner.step(time.time() - start)
        time.sleep(_STEP_S)
    refused, again = refusals(lab.pods.since(start))
    refused += again
    figures: dict[str, Any] = {"s": round(_SECONDS), **owner.figures(), "refused": len(refused)}
    problems += [*refused, *owner.problems(), *lab.settle()]
    lab.clear()
    return Part("p5 in small: jobs of 1 to 8 GPUs", not problems, figures, tuple(problems[:20]))


class _Owner:
    """Creates and deletes pods according to a watch of pods."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._random = lab, Random(5)
        self._gpus: dict[str, int] = {}
        self._made: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._waits: defaultdict[int, list[float]] = defaultdict(list)
        self._used: list[int] = []
        self._remade = 0
        self._make("job-all", _ALL)

    def step(self, now: float) -> None:
        """Replaces refused pods, ends jobs that are due, and creates further jobs; `now` is seconds since the start."""
        pods = {name: self._lab.pods.objects[name] for name in self._gpus if name in self._lab.pods.objects}
        running = {name for name, document in pods.items() if document["spec"].get("nodeName")}
        for name, document in pods.items():
            if is_refused(document):
                self._make(f"{name}{_REMADE}", self._gpus[name])
                self._remade += 1
                self._drop(name)
            elif name in running and name not in self._ends:
                self._ends[name] = now + self._random.uniform(*_LIFE_S)
                self._waits[self._gpus[name]].append(time.time() - self._made[name])
            elif self._ends.get(name, now) < now:
                self._drop(name)
        if now > _WARM_S:
            self._used.append(sum(self._gpus[name] for name in running if name in self._gpus))
        while sum(self._gpus.values()) - _ALL < _LOAD * _ALL:
            self._make(f"job-{len(self._made)}", self._random.choice(_SIZES))

    def _make(self, name: str, gpus: int) -> None:
        self._lab.api.create(PODS, job(name, gpus))
        self._gpus[name], self._made[name] = gpus, time.time()

    def _drop(self, name: str) -> None:
        self._lab.api.delete(f"{PODS}/{name}", grace=1)
        del self._gpus[name]

    def figures(self) -> dict[str, Any]:
        """Returns the mean use of GPUs, and the longest waits from creation to bind."""
        used = sum(self._used) / max(1, len(self._used))
        waits = {f"longest wait of a job of {gpus}, s": round(max(seconds), 1) for gpus, seconds in self._waits.items()}
        return {
            "jobs": len(self._made) - self._remade,
            "GPUs in use, %": round(100 * used / _ALL, 1),
            **waits,
            "pods made again": self._remade,
        }

    def problems(self) -> list[str]:
        """Returns the job sizes that were never bound, and whether the oversized job was bound."""
        never = [f"no job of {gpus} GPUs was bound" for gpus in set(_SIZES) if gpus not in self._waits]
        return [*never, *(["a job of all GPUs was bound"] if _ALL in self._waits else [])]
