"""Machines that join, work and go: each a kubelet, which is the model of one node, and an exporter that follows it.

A kubelet sees a pod up to a second after it was bound, and the exporter's report is there up to a second after what it
tells of. A machine that joins is Ready some seconds before its exporter has looked; it goes without notice, and another
joins in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec
import numpy as np

from bench.density import machines
from bench.density.cluster import Sums
from bench.p5 import jobs
from bench.p5.timeline import Timeline
from sandbox.exported import exported
from topowise import nrt
from topowise_scheduler.kubelet import Admission, Kubelet

POLICY: Final = "single-numa-node"
SCOPE: Final = "pod"
_KUBELET_S: Final = (0.1, 1.0)
_REPORT_S: Final = (0.1, 1.0)
_FIRST_REPORT_S: Final = (3.0, 15.0)
_BOOT_S: Final = (60.0, 180.0)
_START_S: Final = (0.0, 600.0)
_MEAN_LIFE_S: Final = 12 * jobs.HOUR_S


class Machine:
    """One of them, as long as it is there."""

    def __init__(self, name: str, slot: int, kubelet: Kubelet) -> None:
        self.name, self.slot, self.kubelet = name, slot, kubelet
        self.pods: dict[str, int] = {}
        """GPUs of the pods bound to it, by uid."""
        self.is_gone = False
        # When its kubelet sees the pod that was bound last.
        self.seen_at = 0.0
        self.reports = 0
        self.is_reporting = False


class Fleet:
    """`joined`, `gone` and `reported` are told what happens."""

    def __init__(
        self,
        size: int,
        timeline: Timeline,
        seed: int,
        joined: Callable[[Machine], None],
        gone: Callable[[Machine], None],
        reported: Callable[[Machine, nrt.NodeResourceTopology], None],
    ) -> None:
        self._timeline, self._rng = timeline, Random(f"fleet {seed}")
        # The same for all who choose, whatever else they make happen.
        self._lives = Random(f"lives {seed}")
        self._joined, self._gone, self._reported = joined, gone, reported
        self.hardware = machines.machine(jobs.MACHINE, jobs.ZONES)
        self.configuration = machines.configuration(jobs.MACHINE, jobs.ZONES, POLICY, SCOPE)
        self.empty = Kubelet(self.hardware, self.configuration)
        has = self.empty.allocatable()
        self.sums = Sums(
            {name: np.full(size, amount, np.int64) for name, amount in has.items()},
            {name: np.zeros(size, np.int64) for name in has},
        )
        self.by_slot: list[Machine | None] = [None] * size
        self.ever = 0
        for slot in range(size):
            self._timeline.after(self._lives.uniform(*_START_S), partial(self._join, slot))

    @property
    def gpus(self) -> int:
        """Of all that are there."""
        return jobs.GPUS * sum(one is not None for one in self.by_slot)

    def bind(self, machine: Machine, uid: str, gpus: int, decided: Callable[[Admission], None]) -> None:
        """Its kubelet will see the pod, after those that were bound before, and tells what it decides."""
        machine.pods[uid] = gpus
        self._count(machine, gpus, 1)
        machine.seen_at = max(machine.seen_at, self._timeline() + self._rng.uniform(*_KUBELET_S))

        def see() -> None:
            if not machine.is_gone:
                kubelet = machine.kubelet
                admission = kubelet.admit_view(kubelet.view(uid, jobs.NEEDS[gpus]))
                self._report_soon(machine)
                decided(admission)

        self._timeline.after(machine.seen_at - self._timeline(), see)

    def remove(self, machine: Machine, uid: str) -> None:
        """The pod has ended there, or was refused."""
        self._count(machine, machine.pods.pop(uid), -1)
        machine.kubelet.remove(uid)
        self._report_soon(machine)

    def _join(self, slot: int) -> None:
        self.ever += 1
        machine = self.by_slot[slot] = Machine(f"p5-{self.ever}", slot, self.empty.fork())
        self._timeline.after(self._lives.expovariate(1 / _MEAN_LIFE_S), lambda: self._go(machine))
        self._timeline.after(self._rng.uniform(*_FIRST_REPORT_S), lambda: self._report(machine))
        # Until then whatever happens there is not reported.
        machine.is_reporting = True
        self._joined(machine)

    def _go(self, machine: Machine) -> None:
        machine.is_gone = True
        self.by_slot[machine.slot] = None
        self._gone(machine)
        for gpus in machine.pods.values():
            self._count(machine, gpus, -1)
        self._timeline.after(self._lives.uniform(*_BOOT_S), lambda: self._join(machine.slot))

    def _report_soon(self, machine: Machine) -> None:
        if not machine.is_reporting:
            machine.is_reporting = True
            self._timeline.after(self._rng.uniform(*_REPORT_S), lambda: self._report(machine))

    def _report(self, machine: Machine) -> None:
        machine.is_reporting = False
        if machine.is_gone:
            return
        machine.reports += 1
        made = exported(self.hardware, self.configuration, machine.kubelet)
        metadata = msgspec.structs.replace(made.metadata, name=machine.name, resourceVersion=str(machine.reports))
        self._reported(machine, msgspec.structs.replace(made, metadata=metadata))

    def _count(self, machine: Machine, gpus: int, pods: int) -> None:
        for name, amount in {**jobs.NEEDS[gpus].requests, "pods": 1}.items():
            self.sums.requested[name][machine.slot] += pods * amount
