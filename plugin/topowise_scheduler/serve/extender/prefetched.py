"""Scores that are computed after a filter, while kube-scheduler runs its own plug-ins, for the prioritize that follows.

Without a prefetched score prioritize computes the same answer itself, so no call depends on an earlier call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.runtime import clock
from topowise_scheduler.ledger.answers import Question
from topowise_scheduler.serve.extender import wire
from topowise_scheduler.serve.extender.names import Names

# kube-scheduler asks for scores within a few milliseconds after the verdicts, or never.
_VALID_S: Final = 0.1
# Pods that schedulers decide at the same time, and bytes of their names, each list with its answers.
_MAX_PODS: Final = 4
_MAX_BYTES: Final = 16 << 20


class Prefetched(NamedTuple):
    """Scores of the nodes that a filter has left; `judged_at` is the ledger's `changes` of its verdicts."""

    question: Question
    judged_at: int
    scores: NDArray[np.int64]
    names: Names

    def answer(self, names: Names) -> bytes | None:
        """The HostPriorityList of these names; None if they are not the names that were scored."""
        if names is self.names:
            return names.scored(self.scores)
        by_name = dict(zip(self.names.names, self.scores.tolist(), strict=True))
        if len(names.names) != len(by_name) or by_name.keys() != set(names.names):
            return None
        return wire.encode([wire.HostPriority(name, by_name[name]) for name in names.names])


class PrefetchedScores:
    """The latest scores by pod uid, each for one prioritize and for a short time."""

    def __init__(self, clock: Callable[[], float] = clock.monotonic) -> None:
        self._clock = clock
        self._by_uid: OrderedDict[str, tuple[float, Prefetched]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_uid)

    def put(self, scores: Prefetched) -> None:
        """Scores of a pod without a uid are not kept."""
        self.drop(scores.question.record.uid)
        if scores.question.record.uid:
            self._by_uid[scores.question.record.uid] = self._clock() + _VALID_S, scores
        while len(self._by_uid) > _MAX_PODS or sum(entry.names.size for _, entry in self._by_uid.values()) > _MAX_BYTES:
            self._by_uid.popitem(last=False)

    def drop(self, uid: str) -> None:
        """A new filter of the pod has begun."""
        self._by_uid.pop(uid, None)

    def take(self, uid: str, version: str) -> Prefetched | None:
        """The scores of the pod in this resourceVersion, which are removed; None if they are missing or too old."""
        valid_until, scores = self._by_uid.pop(uid, (0.0, None))
        is_valid = (
            scores is not None and scores.question.record.status.version == version and self._clock() <= valid_until
        )
        return scores if is_valid else None
