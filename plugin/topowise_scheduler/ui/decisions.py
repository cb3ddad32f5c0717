"""The last decisions: what was asked about a pod, what was said, and what became of it.

The verbs tell it (extender/replies.py, Observer) once an answer was sent, so that no request waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler import engine
from topowise_scheduler.answers import Question, Verdicts

_FITS: Final = int(engine.Outcome.FITS)
_EXAMPLES: Final = 3
_MAX_REASONS: Final = 16
_MAX_TEXT: Final = 300


Progress = Literal["asked", "fits", "expected", "reserved", "no room", "bound", "bind refused", "error"]


class Decision(msgspec.Struct):
    """One pod, one attempt. Times are in milliseconds, `at` in seconds since 1970.

    `outcome` is how far it came: asked about, fits somewhere, expected on a node (reserved: booked there), bound.

    `fits` is None until nodes were filtered. `reasons` counts the refused nodes by their words, `examples` names a few
    of each, those that fit under "". `expected` is the node that looked best. `bind_error` is None until the pod was to
    be bound, "" if it is.
    """

    number: int
    pod: str
    at: float
    outcome: Progress = "asked"
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

    def filtered(self, asked: Question, verdicts: Verdicts, seconds: float) -> None:
        """Nodes were filtered: another attempt to place the pod."""
        record = asked.record
        one = self._new(f"{record.namespace}/{record.name}", record.uid, record.shape)
        fitting = verdicts.outcomes == _FITS
        one.asked, one.fits, one.filter_ms = len(asked.names), int(np.count_nonzero(fitting)), _ms(seconds)
        one.outcome = "fits" if one.fits else "no room"
        counts = np.bincount(verdicts.words[~fitting])
        most = [word for word in np.argsort(-counts, kind="stable")[:_MAX_REASONS].tolist() if counts[word]]
        one.reasons = {verdicts.texts[word]: int(counts[word]) for word in most}
        one.examples = {verdicts.texts[word]: _first(asked, ~fitting & (verdicts.words == word)) for word in most}
        if one.fits:
            one.examples[""] = _first(asked, fitting)

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
        one = self._of.get(uid)
        if one is None:
            one = self._new(pod, uid, b"")
        one.bound, one.bind_ms, one.bind_error = node, _ms(seconds), error[:_MAX_TEXT]
        one.outcome = "bind refused" if one.bind_error else "bound"

    def failed(self, problem: str) -> None:
        """A request was refused."""
        one = self._new("", "", b"")
        one.problem, one.outcome = problem[:_MAX_TEXT], "error"

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


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _first(asked: Question, where: NDArray[np.bool_]) -> list[str]:
    return [asked.names[at] for at in np.flatnonzero(where)[:_EXAMPLES].tolist()]
