"""The last decisions: what was asked about a pod, what was said, and what became of it.

A request pays for a reference or two (`Observed`); counting and keeping happen after its answer was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise_scheduler import engine
from topowise_scheduler.answers import Answers, Question, Verdicts

Noted = tuple[Question, Verdicts | None]
"""What an answer was about; no verdicts if nodes were only scored."""

_FITS: Final = int(engine.Outcome.FITS)
_EXAMPLES: Final = 3
_MAX_REASONS: Final = 16
_MAX_TEXT: Final = 300


Outcome = Literal["asked", "fits", "expected", "claimed", "no room", "bound", "bind refused", "error"]


class Decision(msgspec.Struct):
    """One pod, one attempt. Times are in milliseconds, `at` in seconds since 1970.

    `outcome` is how far it came: asked about, fits somewhere, expected on a node (claimed: booked there), bound.

    `fits` is None until nodes were filtered. `reasons` counts the refused nodes by their words, `examples` names a few
    of each, those that fit under "". `expected` is the node that looked best. `bind_error` is None until the pod was to
    be bound, "" if it is.
    """

    number: int
    pod: str
    at: float
    outcome: Outcome = "asked"
    asked: int = 0
    fits: int | None = None
    reasons: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    expected: str = ""
    bound: str = ""
    bind_error: str | None = None
    victims_on: int | None = None
    problem: str = ""
    filter_ms: float | None = None
    score_ms: float | None = None
    bind_ms: float | None = None


class _Binding(msgspec.Struct, frozen=True):
    PodName: str = ""
    PodNamespace: str = ""
    PodUID: str = ""
    Node: str = ""


class _Bound(msgspec.Struct, frozen=True):
    Error: str = ""


class _OfPod(msgspec.Struct, frozen=True):
    metadata: pods.Metadata


class _Preempted(msgspec.Struct, frozen=True):
    Pod: _OfPod


class _Evicted(msgspec.Struct, frozen=True):
    NodeNameToMetaVictims: dict[str, msgspec.Raw] = {}


_binding = msgspec.json.Decoder(_Binding).decode
_bound = msgspec.json.Decoder(_Bound).decode
_preempted = msgspec.json.Decoder(_Preempted).decode
_evicted = msgspec.json.Decoder(_Evicted).decode


class Decisions:
    """The last `size` of them. `clock` gives seconds since 1970."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: deque[Decision] = deque()
        self._size = size
        self._uids: deque[str] = deque()
        self._of: dict[str, Decision] = {}
        self._shapes: dict[bytes, None] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> tuple[Decision, ...]:
        """The newest first."""
        return tuple(reversed(self._kept))

    def get(self, number: str) -> Decision | None:
        """One of them by its number, None if it is not kept any more."""
        return next((one for one in self._kept if str(one.number) == number), None)

    @property
    def shapes(self) -> list[bytes]:
        """Shapes (PodRecord.shape) of the pods that were decided lately."""
        return list(self._shapes)

    def keep(self, verb: str, noted: Noted | None, body: bytes, answer: bytes, seconds: float, problem: str) -> None:
        """An answer was given: which verb, to what and in which time, or why it could not."""
        ms = round(seconds * 1000, 3)
        try:
            if verb == "bind":
                self._keep_bind(body, answer, ms, problem)
                return
            if problem:
                one = self._new("", "", b"")
                one.problem, one.outcome = problem[:_MAX_TEXT], "error"
                return
            if verb == "preempt":
                # Others are asked about while it is worked on, so `noted` is of any of them.
                self._keep_preemption(_preempted(body).Pod.metadata, answer)
                return
            if noted is None:
                return
            asked, verdicts = noted
            if verb == "filter" and verdicts is not None:
                self._keep_filter(asked, verdicts, ms)
            elif verb == "prioritize":
                one = self._about(asked)
                one.score_ms = ms
        except (msgspec.DecodeError, UnicodeDecodeError):
            return

    def expect(self, asked: Question, at: int) -> None:
        """The pod will most likely go to this node of the question."""
        one = self._about(asked)
        one.expected = asked.names[at]
        one.outcome = "expected" if asked.is_simulation else "claimed"

    def _keep_filter(self, asked: Question, verdicts: Verdicts, ms: float) -> None:
        record = asked.record
        one = self._new(f"{record.namespace}/{record.name}", record.uid, record.shape)
        fitting = verdicts.outcomes == _FITS
        one.asked, one.fits, one.filter_ms = len(asked.names), int(np.count_nonzero(fitting)), ms
        one.outcome = "fits" if one.fits else "no room"
        counts = np.bincount(verdicts.words[~fitting])
        told = np.flatnonzero(counts)[:_MAX_REASONS].tolist()
        one.reasons = {verdicts.texts[word]: int(counts[word]) for word in told}
        one.examples = {verdicts.texts[word]: _first(asked, ~fitting & (verdicts.words == word)) for word in told}
        if one.fits:
            one.examples[""] = _first(asked, fitting)

    def _keep_bind(self, body: bytes, answer: bytes, ms: float, problem: str) -> None:
        args = _binding(body)
        one = self._of.get(args.PodUID)
        if one is None:
            one = self._new(f"{args.PodNamespace}/{args.PodName}", args.PodUID, b"")
        one.bound, one.bind_ms = args.Node, ms
        one.bind_error = (problem or _bound(answer).Error)[:_MAX_TEXT]
        one.outcome = "bind refused" if one.bind_error else "bound"

    def _keep_preemption(self, pod: pods.Metadata, answer: bytes) -> None:
        one = self._of.get(pod.uid) or self._new(f"{pod.namespace}/{pod.name}", pod.uid, b"")
        one.victims_on = len(_evicted(answer).NodeNameToMetaVictims)

    def _about(self, asked: Question) -> Decision:
        record = asked.record
        one = self._of.get(record.uid)
        if one is None:
            return self._new(f"{record.namespace}/{record.name}", record.uid, record.shape)
        return one

    def _new(self, pod: str, uid: str, shape: bytes) -> Decision:
        self._number += 1
        one = Decision(self._number, pod[:_MAX_TEXT], round(self._clock(), 3))
        if len(self._kept) == self._size:
            gone, of_uid = self._kept.popleft(), self._uids.popleft()
            if self._of.get(of_uid) is gone:
                del self._of[of_uid]
        self._kept.append(one)
        self._uids.append(uid)
        if uid:
            self._of[uid] = one
        if shape:
            self._shapes.pop(shape, None)
            self._shapes[shape] = None
            if len(self._shapes) > self._size:
                del self._shapes[next(iter(self._shapes))]
        return one


class Observed(Answers):
    """Answers that remember what the last one was about, until it is taken."""

    decisions: Decisions | None = None
    _asked: Question | None = None
    _verdicts: Verdicts | None = None

    def question(self, pod: pods.Pod, names: Sequence[str], *, is_simulation: bool = False) -> Question:
        """As Answers.question."""
        asked = super().question(pod, names, is_simulation=is_simulation)
        self._asked, self._verdicts = asked, None
        return asked

    def verdicts(self, asked: Question) -> Verdicts:
        """As Answers.verdicts."""
        self._verdicts = found = super().verdicts(asked)
        return found

    def expect(self, asked: Question, at: int) -> None:
        """As Answers.expect; it comes after the answer was sent."""
        super().expect(asked, at)
        if self.decisions is not None:
            self.decisions.expect(asked, at)

    def take(self) -> Noted | None:
        """What the last answer was about; once, and before anything else is answered."""
        asked, verdicts = self._asked, self._verdicts
        self._asked = self._verdicts = None
        return None if asked is None else (asked, verdicts)


def _first(asked: Question, where: NDArray[np.bool_]) -> list[str]:
    return [asked.names[at] for at in np.flatnonzero(where)[:_EXAMPLES].tolist()]
