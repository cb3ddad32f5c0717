"""Whom to evict for a pod that waits for its alignment alone, and on which node.

kube-scheduler has called such a pod unschedulable, and has nothing against some node itself: in sum there is room, but
not on the NUMA nodes where it would have to be. Up to 1.37 kube-scheduler evicts nobody then, as that helps its own
plug-ins nothing. Chosen are the least harmful victims of all such nodes in kube-scheduler's own order; nobody whose
eviction violates a budget, and nobody for a pod of which we cannot tell that it would come to the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from topowise.runtime.turns import Portions, collected, sliced
from topowise_scheduler import kube_scheduler, preemption, refusals
from topowise_scheduler.answers import Answers, Question, Verdicts
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.preemption import Budgets
from topowise_scheduler.presentation.explain.cluster_view import ClusterView

# A busy node takes some 100 ms; those that are left come another time.
_BUDGET_S: Final = 1.0
_PRIORITY_SHIFT: Final = 1 << 31


class Victims(msgspec.Struct, frozen=True):
    """The node on which a pod fits once these have left, the most important first."""

    node: str
    pods: tuple[PodRecord, ...]


class _Harm(NamedTuple):
    """What kube-scheduler compares of nodes, in its order (pickOneNodeForPreemption); no budget is ever violated."""

    highest_priority: int
    priorities: int
    victims: int


class AlignmentPreemption:
    """Chooses. Nothing is changed by it."""

    def __init__(self, ledger: Ledger, answers: Answers, view: ClusterView, budgets: Budgets) -> None:
        self._ledger = ledger
        self._answers = answers
        self._view = view
        self._budgets = budgets
        self._portions = Portions(_BUDGET_S)

    async def choose(self, pod: Pod, most: int, spared: Collection[str]) -> Victims | None:
        """At most `most` victims, none of these `spared` uids. None if the pod needs none, or none help.

        Raises ParseError for a pod that cannot be read.
        """
        if not may_preempt(pod):
            return None
        best: tuple[_Harm, Victims] | None = None
        asked, names = await self._candidates(pod)
        for name in self._portions.of(names):
            found = self._on(asked, name, most, spared)
            await asyncio.sleep(0)
            if found is None:
                continue
            if not found.pods:
                # There is room by now; it is requeued for that.
                return None
            harm = _harm(found)
            if best is None or harm < best[0] or (harm == best[0] and _since(found) > _since(best[1])):
                best = harm, found
        return None if best is None else best[1]

    def still_needs(self, pod: Pod, node: str, gone: Collection[str], rest: Collection[str]) -> bool:
        """Whether the pod does not fit there now that some are gone, and would without the rest."""
        asked = self._answers.question(pod, [node], is_simulation=True)
        record = asked.record
        if self._view.against(pod, [node])[node] is not None:
            return False
        needs = False
        for state in self._answers.states_for(asked, node):
            for uid in gone:
                state.remove(uid)
            needs |= not trial(state, record.view(state)).admission.admitted
            for uid in rest:
                state.remove(uid)
            if not trial(state, record.view(state)).admission.admitted:
                return False
        return needs and not self._answers.is_in_vain(asked, node, (*gone, *rest))

    async def _candidates(self, pod: Pod) -> tuple[Question, list[str]]:
        """The nodes that only lack alignment; none if a node takes the pod as it is."""
        asked = self._answers.question(pod, self._view.names, is_simulation=True)
        await sliced(self._answers.steps(asked))
        asked = self._answers.renewed(asked)
        verdicts = self._answers.verdicts(asked)
        fits = {name: not text for name, text in self._thinkable(asked.names, verdicts)}
        opposing = await collected(self._view.opposing(pod, list(fits)))
        found = [name for name, refusal in opposing if refusal is None]
        return asked, [] if any(fits[name] for name in found) else found

    def _thinkable(self, names: Sequence[str], verdicts: Verdicts) -> Iterator[tuple[str, str]]:
        """Nodes that take the pod, or would without others, and why they do not."""
        for at in np.flatnonzero(verdicts.outcomes != Outcome.UNRESOLVABLE).tolist():
            if (text := verdicts.text(at)) != refusals.UNCERTAIN:
                yield names[at], text

    def _on(self, asked: Question, name: str, most: int, spared: Collection[str]) -> Victims | None:
        states = self._answers.states_for(asked, name)
        state = next(states, None)
        if state is None:
            return None
        record = asked.record
        pods = {one.uid: one for one in self._ledger.pods_on(name) if one.uid not in spared}
        choice = preemption.choose_for_all(
            state, states, record.view, record.priority, pods.values(), (), self._budgets
        )
        if choice is None or choice.violations or len(choice.victims) > most:
            return None
        if self._answers.is_in_vain(asked, name, choice.victims):
            return None
        victims = tuple([pods[uid] for uid in choice.victims])
        # The eviction API takes no pod of two budgets.
        is_free = all(len(self._budgets.matching(one.name, one.namespace, one.labels)) < 2 for one in victims)
        return Victims(name, victims) if is_free else None


def may_preempt(pod: Pod) -> bool:
    """Whether a pod that waits may have others evicted for it, and nothing keeps it from coming that we cannot see."""
    if pod.spec.preemptionPolicy == "Never" or pod.spec.nodeName or pod.metadata.deletionTimestamp:
        return False
    if kube_scheduler.unexamined(pod.spec):
        return False
    conditions = (pod.status.conditions if pod.status is not None else None) or ()
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable" for one in conditions
    )


def _harm(found: Victims) -> _Harm:
    return _Harm(found.pods[0].priority, sum(one.priority + _PRIORITY_SHIFT for one in found.pods), len(found.pods))


def _since(found: Victims) -> str:
    """When the first of the most important victims started: the later, the less is lost."""
    return min(one.started for one in found.pods if one.priority == found.pods[0].priority)
