"""The nodes that may take the pods of a class, the best first: verdicts and scores are made once for all copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np

from topowise_scheduler.ledger.answers import Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import Overlay, Placement
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Reason, Refusal


class Candidates:
    """The candidates for the pod of a question, from the engine's arrays.

    A node that has refused a copy is not asked again: nothing may be removed between two calls of `placing`. Nodes
    without a report do not count, because what their kubelets can align is not known.
    """

    def __init__(self, cluster: Trial, question: Question) -> None:
        self.record = question.record
        self._cluster = cluster
        verdicts = cluster.answers.verdicts(question)
        order = np.argsort(-cluster.answers.scores(question), kind="stable")
        fits = (verdicts.outcomes == Outcome.FITS) & (question.rows >= 0)
        self._fitting = [question.names[at] for at in order[fits[order]].tolist()]
        resolvable = (verdicts.outcomes != Outcome.UNRESOLVABLE)[order]
        self._resolvable = [question.names[at] for at in order[resolvable].tolist()]
        refused = [verdicts.refusal(at) for at in np.flatnonzero(~fits).tolist()]
        self.refused: Counter[Reason] = Counter(refusal or Refusal.NO_REPORT for refusal in refused)
        """The number of nodes that have refused the pod so far, by reason."""
        # The best node is the last.
        self._left = self._fitting[::-1]

    def placing(self, overlay: Overlay, record: PodRecord) -> Generator[None, None, Placement | None]:
        """Places a copy on the best node that takes it, and returns None if there is none. Tries one node a step."""
        while self._left:
            placed = overlay.place(record, self._left[-1])
            if isinstance(placed, Placement):
                return placed
            self._left.pop()
            self.refused[Refusal.TAKEN_BEFORE if placed.check == "kubelet" else placed.reason] += 1
            yield
        return None

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
