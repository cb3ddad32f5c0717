"""Chooses the victims, and their node, for a pod that waits only because no NUMA placement is free.

kube-scheduler reports such a pod as unschedulable although its own filters pass some node: the node has enough in
total, but not on the NUMA nodes that the pod needs. kube-scheduler up to 1.37 evicts no pod then, because an eviction
changes nothing for its own plug-ins. Of all such nodes the victims with the least harm are chosen, in the order of
kube-scheduler. No victim's eviction violates a disruption budget. No pod is evicted for a pod that might not come to
the node for reasons that this service does not check.

kube-scheduler evicts no pod for devices of claims either: its dry run of an eviction leaves them allocated (the plug-in
DynamicResources has no PreFilterExtensions). So a node also counts that only lacks devices, or devices and amounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from topowise.placement import GATE
from topowise.runtime.event_loop import TimeSlices, collected, sliced
from topowise_scheduler.ledger.answers import Question, Verdicts
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay import preemption
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import Objection, Pod
from topowise_scheduler.verdicts.refusals import Refusal

# Seconds for one choice. A busy node takes some 100 ms; the remaining nodes come in a later choice.
_BUDGET_S: Final = 1.0
_PRIORITY_SHIFT: Final = 1 << 31


class Victims(msgspec.Struct, frozen=True):
    """A node, and the pods after whose eviction the waiting pod fits there, the most important first."""

    node: str
    pods: tuple[PodRecord, ...]


class _Harm(NamedTuple):
    """What kube-scheduler compares, in its order (pickOneNodeForPreemption). Violated budgets are always 0 here."""

    highest_priority: int
    priorities: int
    victims: int


class AlignmentPreemption:
    """Chooses victims; changes nothing."""

    def __init__(self, cluster: Trial, budgets: Budgets) -> None:
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._answers = cluster.answers
        self._budgets = budgets
        self._portions = TimeSlices(_BUDGET_S)

    async def choose(self, pod: Pod, max_victims: int, spared: Collection[str]) -> Victims | None:
        """Returns at most `max_victims` victims, none of the `spared` UIDs; None if the pod needs none or none help.

        Raises ParseError for a pod that cannot be read.
        """
        if not self._may_preempt(pod):
            return None
        best: tuple[_Harm, Victims] | None = None
        question, names = await self._candidates(pod)
        for name in self._portions.of(names):
            victims = self._on(question, name, max_victims, spared)
            await asyncio.sleep(0)
            if victims is None:
                continue
            if not victims.pods:
                # The pod fits by now, so the requeuer handles it.
                return None
            harm = _harm_of(victims)
            if best is None or harm < best[0] or (harm == best[0] and _first_start(victims) > _first_start(best[1])):
                best = harm, victims
        return None if best is None else best[1]

    def still_needs(self, pod: Pod, node: str, evicted: Collection[str], remaining: Collection[str]) -> bool:
        """Returns whether the pod does not fit after the evictions so far, and would fit after the remaining ones."""
        record = self._cluster.question(pod, [node]).record
        exclusion, short = self._cluster.opposition(record, node)
        refusal = exclusion or short
        if refusal is not None and not self._is_left_to_us(record, node, refusal):
            return False
        takes_without = self._answers.takes_without
        return not takes_without(record, node, evicted) and takes_without(record, node, (*evicted, *remaining))

    async def _candidates(self, pod: Pod) -> tuple[Question, list[str]]:
        """Returns the question, and the nodes that lack only alignment; no nodes if a node takes the pod as it is."""
        question = self._cluster.question(pod, self._cluster.names)
        if self._ledger.gates.waits(question.record):
            # Its claims may be others once they exist.
            return question, []
        await sliced(self._answers.steps(question))
        question = self._answers.renewed(question)
        verdicts = self._answers.verdicts(question)
        fits = dict(self._preemptable(question.names, verdicts))
        opposing = await collected(self._cluster.refusals(question.record, list(fits)))
        if any(fits[name] for name, refusal in opposing if refusal is None):
            return question, []
        return question, [
            name for name, refusal in opposing if refusal is None or self._is_left_to_us(question.record, name, refusal)
        ]

    def _is_left_to_us(self, record: PodRecord, name: str, objection: Objection) -> bool:
        """Returns whether kube-scheduler evicts no pod from a node that it refuses: it sees no gated pods, and evicts
        none for devices."""
        is_left = record.status.is_placeable or self._ledger.gates.shortage(record, name) is not None
        return objection.verdict == "not now" and is_left

    def _preemptable(self, names: Sequence[str], verdicts: Verdicts) -> Iterator[tuple[str, bool]]:
        """Yields the nodes that take the pod as it is or after evictions, and whether they take it as it is."""
        for at in np.flatnonzero(verdicts.outcomes != Outcome.UNRESOLVABLE).tolist():
            if (refusal := verdicts.refusal(at)) is not Refusal.UNCERTAIN:
                yield names[at], refusal is None

    def _on(self, question: Question, name: str, max_victims: int, spared: Collection[str]) -> Victims | None:
        state = next(self._answers.states_for(question, name), None)
        if state is None:
            return None
        record = question.record
        pods = {pod.uid: pod for pod in self._ledger.pods_on(name) if pod.uid not in spared}
        lower = [pod.uid for pod in pods.values() if pod.priority < record.priority]
        if self._ledger.gates.shortage(record, name, lower) is not None:
            return None
        choice = preemption.choose_on(self._answers, record, name, state, pods.values(), self._budgets)
        if choice is None or choice.violations or len(choice.victims) > max_victims:
            return None
        if not self._answers.is_certain(record, name, choice.victims):
            return None
        victims = tuple([pods[uid] for uid in choice.victims])
        # The eviction API refuses a pod with two budgets.
        is_free = all(len(self._budgets.matching(pod.name, pod.namespace, pod.labels)) < 2 for pod in victims)
        return Victims(name, victims) if is_free else None

    def _may_preempt(self, pod: Pod) -> bool:
        """Returns whether a waiting pod may preempt, and has no requirement that this service does not check."""
        if pod.spec.preemptionPolicy == "Never" or pod.spec.nodeName or pod.metadata.deletionTimestamp:
            return False
        if self._ledger.gates.unexamined(kube_scheduler.unexamined(pod.spec)):
            return False
        if pod.spec.schedulingGates:
            # kube-scheduler never looks at it, and evicts for it nowhere.
            return [gate.name for gate in pod.spec.schedulingGates] == [GATE]
        conditions = (pod.status.conditions if pod.status is not None else None) or ()
        return any(
            condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"
            for condition in conditions
        )


def _harm_of(victims: Victims) -> _Harm:
    priorities = [pod.priority for pod in victims.pods]
    return _Harm(priorities[0], sum(priority + _PRIORITY_SHIFT for priority in priorities), len(priorities))


def _first_start(victims: Victims) -> str:
    """Returns the earliest start of the most important victims: the later it is, the less work is lost."""
    return min(pod.status.started for pod in victims.pods if pod.priority == victims.pods[0].priority)
