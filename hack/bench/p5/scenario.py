"""p5: a fleet that is cut in pieces by small jobs while large ones wait, and owners that make refused pods again.

The chain that users of such machines have told of (pytorch/ci-infra#696): small jobs lie on both NUMA nodes, a larger
pod is sent to a machine that has room in sum, its kubelet refuses it (TopologyAffinityError), its owner makes another,
which is sent there again. New machines join all the time, and are given pods before anybody knows their topology.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import numpy as np

from bench.density import schedulers
from bench.figures import percentile
from bench.p5 import choosing, jobs
from bench.p5.fleet import Fleet, Machine
from bench.p5.jobs import Job
from bench.p5.timeline import Timeline
from bench.results import Churned
from topowise import nrt
from topowise_scheduler.kubelet import Admission

LARGE: Final = 8
_OWNER_S: Final = 1.0
_TAINT_S: Final = 0.5
_AGAIN_S: Final = 1.0
_MINUTE_S: Final = 60.0


class Scenario:
    """One fleet, one stream of jobs, and who chooses."""

    def __init__(
        self, machines: int, hours: float, seed: int, make: Callable[[Callable[[], float]], choosing.Chooser]
    ) -> None:
        self._timeline, self._hours = Timeline(), hours
        self._chooser = make(self._timeline)
        self._ties = Random(f"ties {seed}")
        self._fleet = Fleet(machines, self._timeline, seed, self._joined, self._gone, self._reported)
        self._jobs = list(jobs.stream(machines, hours, seed))
        for job in self._jobs:
            self._timeline.after(job.at, partial(self._begin, job))
        # By uid: pods that wait for a machine, and those that run or are on their way to run.
        self._waiting: dict[str, tuple[Job, int]] = {}
        self._bound: dict[str, tuple[Job, int]] = {}
        self._open: dict[int, Machine] = {}
        self._pods = 0
        # GPUs that run pods, and that jobs ask for; with time they make GPU seconds.
        self._used = self._asked = 0
        self._since = self._used_s = self._bound_s = self._all_s = 0.0

    def run(self) -> Churned:
        """From its beginning to its end."""
        self._timeline.run(self._hours * jobs.HOUR_S)
        self._account()
        large = self._waits(lambda job: job.gpus == LARGE)
        return Churned(
            jobs=len(self._jobs),
            joined=self._fleet.ever,
            refused=sum(job.refused for job in self._jobs),
            most_refused=max(job.refused for job in self._jobs),
            of_bound=round(self._used_s / self._bound_s, 4),
            in_use=round(self._used_s / self._all_s, 4),
            wait=round(statistics.mean(self._waits(lambda _: True)), 2),
            large_wait=round(statistics.mean(large), 2),
            large_wait_p95=round(percentile(large, 95), 2),
            large_at_once=round(sum(one < 1 for one in large) / len(large), 4),
        )

    def _waits(self, is_meant: Callable[[Job], bool]) -> list[float]:
        """In minutes; who waits still has waited until now at least."""
        now = self._timeline()
        return [min(job.waited, now - job.at) / _MINUTE_S for job in self._jobs if is_meant(job)]

    def _account(self) -> None:
        """What is in use was so since the last change; to be called before the next."""
        seconds, gpus = self._timeline() - self._since, self._fleet.gpus
        self._since = self._timeline()
        self._used_s += seconds * self._used
        self._bound_s += seconds * min(self._asked, gpus)
        self._all_s += seconds * gpus

    # Jobs and their pods

    def _begin(self, job: Job) -> None:
        self._account()
        self._asked += job.gpus
        job.waits = len(job.pods)
        for gpus in job.pods:
            self._make(job, gpus)

    def _make(self, job: Job, gpus: int) -> None:
        self._pods += 1
        uid = f"job-{job.number}-{self._pods}"
        self._waiting[uid] = job, gpus
        self._chooser.come(jobs.pod(gpus, uid))
        self._try(uid)

    def _wake(self) -> None:
        """There may be room: those who have waited longest first, others may overtake."""
        stuck: set[int] = set()
        for uid, (_, gpus) in list(self._waiting.items()):
            if gpus not in stuck and not self._try(uid):
                stuck.add(gpus)

    def _try(self, uid: str) -> bool:
        """Whether the pod is bound."""
        job, gpus = self._waiting[uid]
        fits = schedulers.fitting(self._fleet.sums, jobs.NEEDS[gpus])
        slots = [slot for slot in np.flatnonzero(fits).tolist() if slot in self._open]
        places = choosing.Places(np.array(slots, np.intp), [self._open[slot].name for slot in slots])
        pod = jobs.pod(gpus, uid)
        best = self._chooser.best(pod, gpus, self._fleet.sums, places) if slots else places.slots
        if not best.size:
            return False
        machine = self._open[self._ties.choice(best.tolist())]
        if self._chooser.bind(pod, machine.name):
            self._timeline.after(_AGAIN_S, self._wake)
            return False
        del self._waiting[uid]
        self._bound[uid] = job, gpus
        self._fleet.bind(machine, uid, gpus, lambda admission: self._decided(machine, uid, admission))
        return True

    def _decided(self, machine: Machine, uid: str, admission: Admission) -> None:
        """The kubelet has."""
        job, gpus = self._bound[uid]
        if not admission.admitted:
            job.refused += 1
            self._drop(machine, uid)
            self._timeline.after(job.pause(), lambda: self._make(job, gpus))
            self._wake()
            return
        self._account()
        self._used += gpus
        job.waits -= 1
        if not job.waits:
            job.waited = min(job.waited, self._timeline() - job.at)
        self._timeline.after(job.runs_for, lambda: self._end(machine, uid))

    def _end(self, machine: Machine, uid: str) -> None:
        """It has run its time, if its machine has not gone before."""
        if uid not in self._bound:
            return
        self._account()
        _, gpus = self._bound[uid]
        self._used -= gpus
        self._asked -= gpus
        self._drop(machine, uid)
        self._wake()

    def _drop(self, machine: Machine, uid: str) -> None:
        del self._bound[uid]
        self._fleet.remove(machine, uid)
        self._chooser.end(uid)

    # Machines

    def _joined(self, machine: Machine) -> None:
        self._account()
        self._chooser.join(machine.name)
        self._look_at(machine)

    def _look_at(self, machine: Machine) -> None:
        if not machine.is_gone and machine.slot not in self._open and self._chooser.is_open(machine.name):
            self._open[machine.slot] = machine
            self._wake()

    def _reported(self, machine: Machine, topology: nrt.NodeResourceTopology) -> None:
        self._chooser.report(topology)
        if machine.slot in self._open:
            self._wake()
        else:
            self._timeline.after(_TAINT_S, lambda: self._look_at(machine))

    def _gone(self, machine: Machine) -> None:
        """Its pods are gone with it, and their owners make others."""
        self._account()
        self._open.pop(machine.slot, None)
        for uid in machine.pods:
            job, gpus = self._bound.pop(uid)
            if uid in machine.kubelet.active:
                self._used -= gpus
                job.waits += 1
            self._chooser.end(uid)
            self._timeline.after(_OWNER_S, partial(self._make, job, gpus))
        self._chooser.leave(machine.name)


def run(name: str, machines: int, hours: float, seed: int) -> Churned:
    """With one of choosing.NAMES."""
    return Scenario(machines, hours, seed, lambda clock: choosing.make(name, clock)).run()
