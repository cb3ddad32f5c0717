"""The last decisions: what was asked about a pod, what was said, and what became of it.

The verbs tell it (extender/replies.py, Observer) once an answer was sent, so that no request waits for it. What
happened before this process, or in another replica, is told by the pods themselves as far as they tell: a pod that was
bound carries what was predicted for it, one that was refused our words in a condition, and one that its kubelet did not
take the reason in its status.
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
from topowise_scheduler import engine, predicted_annotation
from topowise_scheduler.answers import Question, Verdicts
from topowise_scheduler.cluster.pods.records import KUBELET_REFUSALS
from topowise_scheduler.refusals import PREFIX

_FITS: Final = int(engine.Outcome.FITS)
_EXAMPLES: Final = 3
_MAX_REASONS: Final = 16
_MAX_TEXT: Final = 300


Progress = Literal[
    "asked", "fits", "expected", "reserved", "no room", "bound", "bind refused", "kubelet refused", "error"
]


class Decision(msgspec.Struct):
    """One pod, one attempt. Times are in milliseconds, `at` in seconds since 1970.

    `outcome` is how far it came: asked about, fits somewhere, expected on a node (reserved: booked there), bound,
    refused by the node's kubelet.

    `fits` is None until nodes were filtered. `reasons` counts the refused nodes by their words, `examples` names a few
    of each, those that fit under "". `expected` is the node that looked best. `bind_error` is None until the pod was to
    be bound, "" if it is. `numa` are the NUMA nodes that were predicted, "" if it is not told. `is_told`: all that is
    known of it is what the pod tells. `uid` is shown to nobody: whoever knows it can bind the pod.
    """

    number: int
    pod: str
    at: float
    uid: str = ""
    outcome: Progress = "asked"
    asked: int = 0
    fits: int | None = None
    reasons: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    expected: str = ""
    bound: str = ""
    bind_error: str | None = None
    numa: str = ""
    victims_on: int | None = None
    problem: str = ""
    is_told: bool = False
    filter_ms: float | None = None
    score_ms: float | None = None
    bind_ms: float | None = None


class Decisions:
    """The last `size` of them, and the last `size` pods that kubelets refused. `clock` gives seconds since 1970."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._size = size
        self._kept: list[Decision] = []
        self._refused: list[Decision] = []
        # The latest of each pod.
        self._of: dict[str, Decision] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> tuple[Decision, ...]:
        """The newest first."""
        return tuple(reversed(self._kept))

    @property
    def refused(self) -> tuple[Decision, ...]:
        """Of pods that kubelets refused, the newest first."""
        return tuple(reversed(self._refused))

    def get(self, number: str) -> Decision | None:
        """One of them by its number, None if it is not kept any more."""
        return next((one for one in (*self._kept, *self._refused) if str(one.number) == number), None)

    # What the verbs tell

    def filtered(self, asked: Question, verdicts: Verdicts, seconds: float) -> None:
        """Nodes were filtered: another attempt to place the pod."""
        record = asked.record
        one = self._new(f"{record.namespace}/{record.name}", record.uid)
        fitting = verdicts.outcomes == _FITS
        one.asked, one.fits, one.filter_ms = len(asked.names), int(np.count_nonzero(fitting)), _ms(seconds)
        one.outcome = "fits" if one.fits else "no room"
        one.reasons, one.examples = reasons_of(asked.names, verdicts)

    def scored(self, asked: Question, seconds: float) -> None:
        """Nodes were scored."""
        self._about(asked).score_ms = _ms(seconds)

    def expected(self, asked: Question, at: int) -> None:
        """The pod will most likely go to this node of the question."""
        one = self._about(asked)
        one.expected = asked.names[at]
        one.outcome = "expected" if asked.is_simulation else "reserved"

    def preempted(self, asked: Question, nodes: int) -> None:
        """Victims were named on so many nodes."""
        self._about(asked).victims_on = nodes

    def bound(self, pod: str, uid: str, node: str, error: str, seconds: float) -> None:
        """A pod was bound, or with an error was not."""
        one = self._of.get(uid) or self._new(pod, uid)
        one.bound, one.bind_ms, one.bind_error = node, _ms(seconds), error[:_MAX_TEXT]
        one.outcome = "bind refused" if one.bind_error else "bound"

    def failed(self, problem: str) -> None:
        """A request was refused."""
        one = self._new("", "")
        one.problem, one.outcome = problem[:_MAX_TEXT], "error"

    # What pods tell

    def seen(self, pod: pods.Pod) -> None:
        """A pod as it is now: it comes with the first list, and whenever it changes."""
        status = pod.status or pods.Status()
        if status.phase == "Failed" and status.reason in KUBELET_REFUSALS:
            self._refuse(pod, status)
        elif pod.spec.nodeName and (numa := predicted_annotation.numa_nodes(pod.metadata.annotations)) is not None:
            one = self._of.get(pod.metadata.uid) or self._told(pod, _scheduled(status).lastTransitionTime)
            if one.is_told or one.outcome == "bound":
                one.outcome, one.bound = "bound", pod.spec.nodeName
                one.numa = cpuset.spell(numa)[:_MAX_TEXT]
        elif PREFIX in (words := _scheduled(status).message) and pod.metadata.uid not in self._of:
            one = self._told(pod, _scheduled(status).lastTransitionTime)
            one.outcome, one.problem = "no room", words[:_MAX_TEXT]

    def _refuse(self, pod: pods.Pod, status: pods.Status) -> None:
        if any(one.uid == pod.metadata.uid for one in self._refused):
            return
        one = self._of.get(pod.metadata.uid) or self._told(pod, status.startTime)
        one.outcome, one.bound, one.problem = "kubelet refused", pod.spec.nodeName, status.reason
        _keep(self._refused, one, self._size)

    def _told(self, pod: pods.Pod, at: str | None) -> Decision:
        meta = pod.metadata
        one = self._new(f"{meta.namespace}/{meta.name}", meta.uid, _seconds(at, self._clock()))
        one.is_told = True
        return one

    def _about(self, asked: Question) -> Decision:
        record = asked.record
        return self._of.get(record.uid) or self._new(f"{record.namespace}/{record.name}", record.uid)

    def _new(self, pod: str, uid: str, at: float | None = None) -> Decision:
        self._number += 1
        one = Decision(self._number, pod[:_MAX_TEXT], round(self._clock() if at is None else at, 3), uid)
        gone = _keep(self._kept, one, self._size)
        if gone is not one and uid:
            self._of[uid] = one
        if gone is not None and self._of.get(gone.uid) is gone:
            del self._of[gone.uid]
        return one


def reasons_of(names: Sequence[str], verdicts: Verdicts) -> tuple[dict[str, int], dict[str, list[str]]]:
    """How many nodes are refused by which words, the most first, and a few names of each; "" are those that fit."""
    fitting = verdicts.outcomes == _FITS
    counts = np.bincount(verdicts.words[~fitting])
    most = [word for word in np.argsort(-counts, kind="stable")[:_MAX_REASONS].tolist() if counts[word]]
    examples = {verdicts.texts[word]: _first(names, ~fitting & (verdicts.words == word)) for word in most}
    if fitting.any():
        examples[""] = _first(names, fitting)
    return {verdicts.texts[word]: int(counts[word]) for word in most}, examples


def _keep(kept: list[Decision], one: Decision, size: int) -> Decision | None:
    """Puts one where it belongs by its time; the oldest, which there is no room for any more."""
    insort(kept, one, key=lambda other: other.at)
    return kept.pop(0) if len(kept) > size else None


def _scheduled(status: pods.Status) -> pods.Condition:
    return next((one for one in status.conditions or () if one.type == "PodScheduled"), pods.Condition())


def _seconds(text: str | None, now: float) -> float:
    """A time of the API server's; now for what is none, or not yet."""
    try:
        return max(0.0, min(now, datetime.fromisoformat(text or "").timestamp()))
    except (ValueError, OverflowError):
        return now


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _first(names: Sequence[str], where: NDArray[np.bool_]) -> list[str]:
    return [names[at] for at in np.flatnonzero(where)[:_EXAMPLES].tolist()]
