"""Which nodes kube-scheduler hears of, if not of all on which the pod fits.

kube-scheduler scores every node that it is left with by all its plug-ins and asks us for scores of them too; with one
node left it does neither. A few names are as good as all where only the NUMA nodes decide, and cost it and us next to
nothing. They are not where somebody else has a say as well, so a pod gets all names

- if its spec has preferences, or one of the best nodes is one to be avoided (`PreferNoSchedule`);
- if it is asked about again: whatever came to nothing with the best node is not to be tried with it for ever;
- if its NUMA nodes are all the same to it.

A member of a gang always gets one node. kube-scheduler goes on to the next member with this one placed in its own
memory and tells nobody where: only if there was no choice do both have the same picture of the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.answers import Answers, Question, Verdicts
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.engine import Outcome

# As kube-scheduler's encoder writes them; elsewhere in a pod, in an annotation say, they cost a pod its short list.
_PREFERENCES: Final = (b'"preferredDuringSchedulingIgnoredDuringExecution":[', b'"ScheduleAnyway"')
_AVOIDED: Final = "PreferNoSchedule"
# Pods that are remembered; one that is forgotten may get a second short list.
_MAX_GIVEN: Final = 10_000


class Shortlist:
    """Short lists of at most `most` nodes, one for a pod; 0: none are made but for gangs."""

    def __init__(self, answers: Answers, nodes: Nodes, most: int) -> None:
        self._answers = answers
        self._nodes = nodes
        self._most = most
        self._given: OrderedDict[str, None] = OrderedDict()

    def of(self, asked: Question, verdicts: Verdicts, body: bytes) -> NDArray[np.intp] | None:
        """Indices of the question's nodes, best first; None if kube-scheduler is to hear of all that fit."""
        if asked.is_simulation or not asked.requests.can_be_aligned:
            return None
        if asked.record.group:
            return self._best(asked, verdicts, 1)
        uid = asked.record.uid
        if not self._most or not uid or uid in self._given or any(text in body for text in _PREFERENCES):
            return None
        best = self._best(asked, verdicts, self._most)
        if best is None or self._are_avoided(asked, best):
            return None
        self._given[uid] = None
        if len(self._given) > _MAX_GIVEN:
            self._given.popitem(last=False)
        return best

    def _best(self, asked: Question, verdicts: Verdicts, most: int) -> NDArray[np.intp] | None:
        fitting = np.flatnonzero(verdicts.outcomes == Outcome.FITS)
        found = self._answers.best(asked, fitting, most) if fitting.size > most else fitting[:0]
        return found if found.size else None

    def _are_avoided(self, asked: Question, best: NDArray[np.intp]) -> bool:
        nodes = (self._nodes.get(asked.names[at]) for at in best.tolist())
        return any(taint.effect == _AVOIDED for node in nodes if node is not None for taint in node.taints)
