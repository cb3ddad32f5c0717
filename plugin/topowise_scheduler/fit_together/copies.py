"""How many sets of pods fit at once, aligned: sets are placed one after the other until a pod fits on no node.

Pods are placed as by kube-scheduler (group_placement.py). So the number is what first fit reaches, and another order
might reach more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from topowise_scheduler import kube_scheduler
from topowise_scheduler.answers import Answers
from topowise_scheduler.engine import Outcome
from topowise_scheduler.fit_together.group_placement import GroupPlacer
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.presentation.explain.cluster_view import ClusterView


class Copies(msgspec.Struct, frozen=True):
    """Copies of a pod in a set."""

    pod: Pod
    count: int = 1


class SetCounter:
    """Counts sets beside the pods `before`, which are read as they are placed; pods that fit on no node are left out.

    `count` is the number of sets found so far, also between two steps, `has_begun` whether the pods `before` are
    placed. Raises ParseError for a pod that cannot be read.
    """

    def __init__(
        self, answers: Answers, view: ClusterView, one_set: Sequence[Copies], before: Iterable[Copies], most: int
    ) -> None:
        self._answers = answers
        self._view = view
        self._set = one_set
        self._before = iter(before)
        self._most = most
        self.count = 0
        self.has_begun = False

    def steps(self) -> Iterator[None]:
        """Tries one node a step."""
        names = self._view.names
        first = next(self._before, None)
        if first is None and len(self._set) == 1 and self._set[0].count == 1:
            question = self._answers.question(self._set[0].pod, names, is_simulation=True)
            if not question.record.is_too_large and not question.requests.can_be_aligned:
                yield from self._by_sums(names)
                return
        placer = GroupPlacer(self._answers, self._view, (), names)
        for copies in chain(() if first is None else (first,), self._before):
            for _ in range(copies.count):
                if isinstance((yield from placer.add(copies.pod)), str):
                    break
                yield
            yield
        self.has_begun = True
        while self.count < self._most:
            for copies in self._set:
                for _ in range(copies.count):
                    if isinstance((yield from placer.add(copies.pod)), str):
                        return
                    yield
            self.count += 1

    def _by_sums(self, names: Sequence[str]) -> Iterator[None]:
        """Counts copies of a pod that no kubelet aligns: any node has room for as many as its sums allow."""
        self.has_begun = True
        pod = self._set[0].pod
        yield from self._answers.steps(self._answers.question(pod, names, is_simulation=True))
        question = self._answers.question(pod, names, is_simulation=True)
        outcomes = self._answers.verdicts(question).outcomes
        record = self._view.record(pod)
        for at, (name, refusal) in enumerate(self._view.opposing(pod, names)):
            node = self._view.opposition.node(name)
            if refusal is None and node is not None and outcomes[at] == Outcome.FITS:
                used = self._view.opposition.used(record, name)
                self.count += kube_scheduler.room(node, question.requests.needs, used)[0]
                if self.count >= self._most:
                    self.count = self._most
                    return
            yield
