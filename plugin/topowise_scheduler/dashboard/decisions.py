"""The last decisions: the request for a pod, the answer, and the outcome.

The verbs report each decision once its answer is sent (extender/replies.py, Observer), so that no request waits.
Decisions of another replica, or before a restart, come from the pods themselves: a bound pod has the annotation
`topowise.io/predicted`, a refused pod has our text in its condition PodScheduled, and a pod that its kubelet refused
has the reason in its status.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import cpuset, pods
from topowise_scheduler.ledger.answers import Question, Verdicts
from topowise_scheduler.ledger.pods.records import KUBELET_REFUSALS
from topowise_scheduler.report import predicted_annotation
from topowise_scheduler.verdicts import engine
from topowise_scheduler.verdicts.refusals import PREFIX, Reason, Refusal

_FITS: Final = int(engine.Outcome.FITS)
_EXAMPLES: Final = 3
_MAX_REASONS: Final = 16
_MAX_TEXT: Final = 300


Outcome = Literal[
    "asked", "fits", "expected", "reserved", "no room", "bound", "bind refused", "kubelet refused", "error"
]


class Decision(msgspec.Struct):
    """An attempt to schedule a pod. `at` is in seconds since 1970, durations are in milliseconds.

    `fits` is None until nodes are filtered. `reasons` counts the refused nodes by refusal; `examples` has a few nodes
    for each refusal, and for "" a few nodes that fit. `expected` is the node with the best score. `bind_error` is None
    before the bind, "" after it. `numa` is a list of the predicted NUMA nodes, "" if unknown. `is_from_pod`: the pod's
    status is the only source. Nothing shows `uid`: a UID authorises a bind.
    """

    pod: str
    at: float
    uid: str = ""
    outcome: Outcome = "asked"
    candidates: int = 0
    fits: int | None = None
    reasons: dict[Reason, int] = {}
    examples: dict[Reason, list[str]] = {}
    expected: str = ""
    bound: str = ""
    bind_error: str | None = None
    numa: str = ""
    victims_on: int | None = None
    problem: str = ""
    is_from_pod: bool = False
    filter_ms: float | None = None
    score_ms: float | None = None
    bind_ms: float | None = None


class Decisions:
    """The last `size` decisions, and the last `size` pods that kubelets refused. `clock` returns seconds since 1970."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._size = size
        self._decisions: list[Decision] = []
        self._refused: list[Decision] = []
        self._latest: dict[str, Decision] = {}

    def __len__(self) -> int:
        return len(self._decisions)

    def all(self) -> tuple[Decision, ...]:
        """The decisions, the newest first."""
        return tuple(reversed(self._decisions))

    @property
    def refused(self) -> tuple[Decision, ...]:
        """Decisions on pods that kubelets refused, the newest first."""
        return tuple(reversed(self._refused))

    # Reported by the verbs

    def filtered(self, question: Question, verdicts: Verdicts, seconds: float) -> None:
        """Nodes were filtered: a new attempt to schedule the pod."""
        record = question.record
        decision = self._new(f"{record.namespace}/{record.name}", record.uid)
        fits = int(np.count_nonzero(verdicts.outcomes == _FITS))
        decision.candidates, decision.fits, decision.filter_ms = len(question.names), fits, _ms(seconds)
        decision.outcome = "fits" if fits else "no room"
        decision.reasons, decision.examples = reasons_of(question.names, verdicts)

    def scored(self, question: Question, seconds: float) -> None:
        """Nodes were scored."""
        self._about(question).score_ms = _ms(seconds)

    def expected(self, question: Question, at: int) -> None:
        """kube-scheduler will most likely choose this node of the question."""
        decision = self._about(question)
        decision.expected = question.names[at]
        decision.outcome = "expected" if question.is_simulation else "reserved"

    def preempted(self, question: Question, nodes: int) -> None:
        """Victims were named on this number of nodes."""
        self._about(question).victims_on = nodes

    def bound(self, pod: str, uid: str, node: str, error: str, seconds: float) -> None:
        """The pod was bound, or with an error was not."""
        decision = self._latest.get(uid) or self._new(pod, uid)
        decision.bound, decision.bind_ms, decision.bind_error = node, _ms(seconds), error[:_MAX_TEXT]
        decision.outcome = "bind refused" if decision.bind_error else "bound"

    def failed(self, problem: str) -> None:
        """A request was refused."""
        decision = self._new("", "")
        decision.problem, decision.outcome = problem[:_MAX_TEXT], "error"

    # Reported by the pods

    def seen(self, pod: pods.Pod) -> None:
        """A pod as listed, or as changed."""
        status = pod.status or pods.Status()
        scheduled = _scheduled(status)
        uid = pod.metadata.uid
        if status.phase == "Failed" and status.reason in KUBELET_REFUSALS:
            self._refuse(pod, status)
        elif pod.spec.nodeName and (numa := predicted_annotation.numa_nodes(pod.metadata.annotations)) is not None:
            decision = self._latest.get(uid) or self._from_pod(pod, scheduled.lastTransitionTime)
            if decision.is_from_pod or decision.outcome == "bound":
                decision.outcome, decision.bound = "bound", pod.spec.nodeName
                decision.numa = cpuset.to_text(numa)[:_MAX_TEXT]
        elif PREFIX in scheduled.message and uid not in self._latest:
            decision = self._from_pod(pod, scheduled.lastTransitionTime)
            decision.outcome, decision.problem = "no room", scheduled.message[:_MAX_TEXT]

    def _refuse(self, pod: pods.Pod, status: pods.Status) -> None:
        uid = pod.metadata.uid
        if any(decision.uid == uid for decision in self._refused):
            return
        decision = self._latest.get(uid) or self._from_pod(pod, status.startTime)
        decision.outcome, decision.bound, decision.problem = "kubelet refused", pod.spec.nodeName, status.reason
        _insert(self._refused, decision, self._size)

    def _from_pod(self, pod: pods.Pod, at: str | None) -> Decision:
        meta = pod.metadata
        decision = self._new(f"{meta.namespace}/{meta.name}", meta.uid, _seconds(at, self._clock()))
        decision.is_from_pod = True
        return decision

    def _about(self, question: Question) -> Decision:
        record = question.record
        return self._latest.get(record.uid) or self._new(f"{record.namespace}/{record.name}", record.uid)

    def _new(self, pod: str, uid: str, at: float | None = None) -> Decision:
        decision = Decision(pod[:_MAX_TEXT], round(self._clock() if at is None else at, 3), uid)
        removed = _insert(self._decisions, decision, self._size)
        if removed is not decision and uid:
            self._latest[uid] = decision
        if removed is not None and self._latest.get(removed.uid) is removed:
            del self._latest[removed.uid]
        return decision


def reasons_of(names: Sequence[str], verdicts: Verdicts) -> tuple[dict[Reason, int], dict[Reason, list[str]]]:
    """The number of nodes by refusal, the most frequent first, and a few names for each; "" has nodes that fit."""
    fitting = verdicts.outcomes == _FITS
    counts = np.bincount(verdicts.refusals[~fitting])
    most = [number for number in np.argsort(-counts, kind="stable")[:_MAX_REASONS].tolist() if counts[number]]
    examples: dict[Reason, list[str]] = {
        Refusal(number): _first(names, ~fitting & (verdicts.refusals == number)) for number in most
    }
    if fitting.any():
        examples[""] = _first(names, fitting)
    return {Refusal(number): int(counts[number]) for number in most}, examples


def _insert(decisions: list[Decision], decision: Decision, size: int) -> Decision | None:
    """Inserts a decision by its time; returns the oldest if it has to go."""
    insort(decisions, decision, key=lambda other: other.at)
    return decisions.pop(0) if len(decisions) > size else None


def _scheduled(status: pods.Status) -> pods.Condition:
    conditions = status.conditions or ()
    return next((condition for condition in conditions if condition.type == "PodScheduled"), pods.Condition())


def _seconds(timestamp: str | None, now: float) -> float:
    """A time of the API server; now if it cannot be read or is in the future."""
    try:
        return max(0.0, min(now, datetime.fromisoformat(timestamp or "").timestamp()))
    except (ValueError, OverflowError):
        return now


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _first(names: Sequence[str], where: NDArray[np.bool_]) -> list[str]:
    return [names[at] for at in np.flatnonzero(where)[:_EXAMPLES].tolist()]
