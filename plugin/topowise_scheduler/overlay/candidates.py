"""The nodes that may take the pods of a class, the best first.

Whoever places pods on an overlay asks here for the next node:

    classes, overlay = Classes(cluster, names), Overlay(cluster)
    for pod, record in pods:                       # of one class, or of several
        placed = yield from classes.of(pod, record).placing(overlay, record)
        if placed is None: ...                     # no node takes it: keep `overlay`, or an overlay before
        overlay = placed.overlay
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.ledger.answers import Looks, Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import NodeCopy, Overlay, Placement
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.engine import Engine, Outcome, Ratings
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Reason, Refusal

# By index of the node (nodes,): `open` nodes may take the pod, `rated` ones before others.
_RATING: Final = np.dtype(
    [("open", np.bool_), ("rated", np.bool_), ("raw", np.int64), ("ranks", np.int64), ("in_cache", np.int8)]
)


class Candidates:
    """The candidates for the pods of a class, one after the other: the best node first, as the extender would have it
    if each pod were booked before the next question.

    The first verdicts and ratings are of all nodes, from the engine's arrays. From then on a pod costs one node: only a
    node whose copy has changed since the last call of `placing` is judged and rated again, whichever class of pods
    changed it, and whether pods came, left, or the caller has gone back to an overlay before. A node that has refused a
    pod is not asked again until then. So the cost of n pods is that of one question about all nodes, and of n trials.

    Two things stay as they were at first: devices of claims that a node lacks because a pod on another node has taken
    them lower no score (`Overlay.place` refuses the node), and Node objects.

    Nodes without a report do not count, because what their kubelets can align is not known.
    """

    def __init__(self, cluster: Trial, question: Question) -> None:
        self.record = question.record
        self._cluster = cluster
        self._answers = cluster.answers
        self._question = question
        self._index = {name: at for at, name in enumerate(question.names)}
        verdicts = self._answers.verdicts(question)
        order = np.argsort(-self._answers.scores(question), kind="stable")
        fits = (verdicts.outcomes == Outcome.FITS) & (question.rows >= 0)
        self._fitting = [question.names[at] for at in order[fits[order]].tolist()]
        resolvable = (verdicts.outcomes != Outcome.UNRESOLVABLE)[order]
        self._resolvable = [question.names[at] for at in order[resolvable].tolist()]
        self._ratings = np.zeros(fits.size, _RATING)
        self._ratings["open"] = fits
        if not self.record.is_too_large:
            self._write(self._answers.ratings(question))
        self._first = self._ratings.copy()
        # Why nodes refuse the pod, by index: before the first pod, and in the end.
        refused = np.flatnonzero(~fits).tolist()
        self._first_refusals: dict[int, Reason] = {at: verdicts.refusal(at) or Refusal.NO_REPORT for at in refused}
        self._refusals: dict[int, Reason] = {}
        # The changed nodes as they were looked at last, and the engine that rates them.
        self._copies: dict[str, NodeCopy] = {}
        self._looks = Looks(self._copies, self._confirm_caches)
        self._engine = Engine()

    @property
    def refused(self) -> Counter[Reason]:
        """The number of nodes that refuse the pod, as far as they were asked, by reason."""
        refusing = np.flatnonzero(~self._ratings["open"]).tolist()
        return Counter([self._refusals.get(at) or self._first_refusals[at] for at in refusing])

    def placing(self, overlay: Overlay, record: PodRecord) -> Generator[None, None, Placement | None]:
        """Places a pod of the class on the best node that takes it, and returns None if there is none. Tries one node a
        step."""
        self._look_at(overlay)
        while (at := self._best()) is not None:
            placed = overlay.place(record, self._question.names[at])
            if isinstance(placed, Placement):
                return placed
            self._ratings["open"][at] = False
            self._refusals[at] = Refusal.TAKEN_BEFORE if placed.check == "kubelet" else placed.reason
            yield
        return None

    def _look_at(self, overlay: Overlay) -> None:
        """Renews the ratings of the nodes that are not as they were at the last call."""
        for name in self._copies.keys() - overlay.changed.keys():
            del self._copies[name]
            at = self._index[name]
            self._ratings[at] = self._first[at]
            self._refusals.pop(at, None)
        for name, copy in overlay.changed.items():
            if self._copies.get(name) is copy or not copy.states or name not in self._index:
                continue
            at, self._copies[name] = self._index[name], copy
            self._engine.put(name, copy.states[0])
            # A node without a rating is asked at last, for its refusal.
            self._ratings["open"][at], self._ratings["rated"][at] = True, False
            self._write(self._answers.rating_of(self._question, self._engine, name, at, self._looks))

    def _write(self, found: Ratings) -> None:
        self._ratings["rated"][found.at] = True
        for kind in ("raw", "ranks", "in_cache"):
            self._ratings[kind][found.at] = getattr(found, kind)

    def _best(self) -> int | None:
        """Returns the index of the best node that has not refused, or then of a node without a rating."""
        is_open = self._ratings["open"]
        at = np.flatnonzero(is_open & self._ratings["rated"])
        if not at.size:
            unrated = np.flatnonzero(is_open)
            return int(unrated[0]) if unrated.size else None
        ratings = Ratings(at, *(self._ratings[kind][at] for kind in ("raw", "ranks", "in_cache")))
        return int(self._answers.in_order(self._question, ratings, self._looks).best(1)[0])

    def _confirm_caches(self, indices: NDArray[np.intp]) -> NDArray[np.bool_]:
        names = [self._question.names[at] for at in indices.tolist()]
        is_changed = np.array([name in self._copies for name in names], np.bool_)
        confirmed = np.zeros(len(names), np.bool_)
        for engine, of_engine in ((self._engine, is_changed), (self._answers.engine, ~is_changed)):
            rows = engine.rows(names)
            # Nodes may have gone since the first verdicts.
            of_engine &= rows >= 0
            confirmed[of_engine] = engine.confirm_caches(self._question.requests, rows[of_engine])
        return confirmed

    @cached_property
    def possible(self) -> Mapping[str, bool]:
        """The nodes that no taint, selector or gate keeps the pod from, and whether they take it as they are; other
        nodes may take it once pods have left."""
        fitting = frozenset(self._fitting)
        return {
            name: refusal is None and name in fitting
            for name, refusal in self._cluster.refusals(self.record, self._resolvable)
            if refusal is None or refusal.verdict == "not now"
        }


class Classes:
    """The candidates among these nodes by class of pods, made on demand. Raises ParseError for a pod that cannot be
    read."""

    def __init__(self, cluster: Trial, names: Sequence[str]) -> None:
        self._cluster = cluster
        self._names = names
        self._candidates: dict[Hashable, Candidates] = {}

    def steps(self, pod: Pod, record: PodRecord) -> Iterator[None]:
        """Yields between the steps that `of` would take long for."""
        if _class_of(pod, record) not in self._candidates:
            yield from self._cluster.answers.steps(self._cluster.question(pod, self._names))

    def of(self, pod: Pod, record: PodRecord) -> Candidates:
        """Returns the candidates for pods like this pod."""
        key = _class_of(pod, record)
        candidates = self._candidates.get(key)
        if candidates is None:
            question = self._cluster.question(pod, self._names)
            candidates = self._candidates[key] = Candidates(self._cluster, question)
        return candidates


def _class_of(pod: Pod, record: PodRecord) -> Hashable:
    """Returns a key of pods that get the same answers, also if each has claims of its own from the same template."""
    nameless = msgspec.structs.replace(record, claims=())
    return nameless.pod_class, record.namespace, record.is_too_large, pod.spec.resourceClaims
