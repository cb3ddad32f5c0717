"""Who chooses a machine for a pod: topowise's own ledger and answers in simulated time, or kube-scheduler without it.

kube-scheduler's filter on the sums of nodes comes first in any case, and several nodes of the best score are one to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.density import schedulers
from bench.density.cluster import Sums
from bench.p5 import jobs
from topowise import nrt, pods
from topowise_scheduler import report, strategies
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import STARTUP_TAINT, Nodes
from topowise_scheduler.cluster.pods.records import Records
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine import Engine, Outcome

_UNREPORTED: Final = {"key": STARTUP_TAINT, "effect": "NoSchedule"}


class Places(NamedTuple):
    """Machines that kube-scheduler's own filters have left: their slots in the sums, and their names."""

    slots: NDArray[np.intp]
    names: Sequence[str]


class Chooser(Protocol):
    """Is told what watches would bring, and asked as kube-scheduler asks."""

    def join(self, name: str) -> None:
        """A machine is Ready."""

    def is_open(self, name: str) -> bool:
        """Whether no taint keeps pods from it."""

    def leave(self, name: str) -> None:
        """Its Node is deleted."""

    def report(self, topology: nrt.NodeResourceTopology) -> None:
        """What an exporter has written."""

    def come(self, pod: pods.Pod) -> None:
        """A pod is there, and waits."""

    def best(self, pod: pods.Pod, gpus: int, sums: Sums, places: Places) -> NDArray[np.intp]:
        """The slots of equally good machines, none if it fits nowhere."""

    def bind(self, pod: pods.Pod, name: str) -> str:
        """Why not, "" if it is bound."""

    def end(self, uid: str) -> None:
        """The pod is gone."""


class Blind:
    """NodeResourcesFit alone."""

    def __init__(self, score: Callable[[Sums, pods.Needs], schedulers.Scores]) -> None:
        self._score = score

    def join(self, name: str) -> None:
        """Nothing is known of its NUMA nodes then or later."""

    def is_open(self, _name: str) -> bool:
        """At once."""
        return True

    def leave(self, name: str) -> None:
        """Its sums go with it."""

    def report(self, topology: nrt.NodeResourceTopology) -> None:
        """Nobody reads it."""

    def come(self, pod: pods.Pod) -> None:
        """Its queue is that of the simulation."""

    def best(self, pod: pods.Pod, gpus: int, sums: Sums, places: Places) -> NDArray[np.intp]:
        """By the sums."""
        return _best(places.slots, self._score(sums, jobs.NEEDS[gpus])[places.slots])

    def bind(self, pod: pods.Pod, name: str) -> str:
        """Nothing is against it."""
        return ""

    def end(self, uid: str) -> None:
        """Its sums go with it."""


class Aligned:
    """The service's parts, put together as its daemon does; scores beside kube-scheduler's own."""

    def __init__(self, clock: Callable[[], float], *, tainted: bool) -> None:
        self._ledger = Ledger(Engine(), clock)
        self._records, self._nodes = Records(), Nodes()
        self._answers = Answers(self._ledger, self._records, strategies.make(strategies.NAMES[0], {}, Scoring()))
        self._tainted = tainted

    def join(self, name: str) -> None:
        """It registers with its start-up taint, if it has one."""
        self._ledger.reports.put_node(name)
        self._put_node(name, [_UNREPORTED] if self._tainted else [])

    def is_open(self, name: str) -> bool:
        """The taint goes when the leader sees it, which it does by what StartupTaint.due asks."""
        if name in self._nodes.tainted and self._ledger.reports.is_confirmed(name):
            self._put_node(name, [])
        return name not in self._nodes.tainted

    def leave(self, name: str) -> None:
        """The Node is deleted, and with it its report."""
        self._nodes.apply("DELETED", self._nodes.decode(_node(name, [])))
        self._ledger.reports.drop_node(name)
        self._ledger.reports.drop(name)

    def report(self, topology: nrt.NodeResourceTopology) -> None:
        """The watch brings it."""
        self._ledger.reports.put(report.read(topology))

    def come(self, pod: pods.Pod) -> None:
        """The watch brings it."""
        self._ledger.put_pod(self._records.record(pod))

    def best(self, pod: pods.Pod, gpus: int, sums: Sums, places: Places) -> NDArray[np.intp]:
        """By filter and prioritize."""
        self._ledger.tick()
        asked = self._answers.question(pod, places.names)
        fitting = np.flatnonzero(self._answers.verdicts(asked).outcomes == Outcome.FITS)
        if not fitting.size:
            return places.slots[:0]
        slots, needs = places.slots[fitting], jobs.NEEDS[gpus]
        asked = self._answers.question(pod, [places.names[at] for at in fitting.tolist()])
        own = schedulers.least_allocated(sums, needs) + schedulers.balanced(sums, needs)
        return _best(slots, self._answers.scores(asked) * schedulers.BESIDE_WEIGHT + own[slots])

    def bind(self, pod: pods.Pod, name: str) -> str:
        """The bind verb, and the event that follows."""
        record = self._records.record(pod)
        assert record.needs is not None
        refusal = self._ledger.reservations.assume(record, record.needs, name)
        if not refusal:
            spec = msgspec.structs.replace(pod.spec, nodeName=name)
            self._ledger.put_pod(self._records.record(msgspec.structs.replace(pod, spec=spec)))
        return refusal

    def end(self, uid: str) -> None:
        """The watch tells of its end."""
        self._ledger.drop_pod(uid)

    def _put_node(self, name: str, taints: list[dict[str, str]]) -> None:
        self._nodes.apply("MODIFIED", self._nodes.decode(_node(name, taints)))


def _node(name: str, taints: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode({"metadata": {"name": name}, "spec": {"taints": taints}})


def _best(slots: NDArray[np.intp], scores: schedulers.Scores) -> NDArray[np.intp]:
    return slots[scores == scores.max()] if slots.size else slots


ALIGNED: Final = "topowise"
UNTAINTED: Final = "topowise, no start-up taint"
NAMES: Final = (ALIGNED, UNTAINTED, *schedulers.BLIND)


def make(name: str, clock: Callable[[], float]) -> Chooser:
    """By one of NAMES."""
    if name in schedulers.BLIND:
        return Blind(schedulers.least_allocated if name == schedulers.BLIND[0] else schedulers.most_allocated)
    return Aligned(clock, tainted=name == ALIGNED)
