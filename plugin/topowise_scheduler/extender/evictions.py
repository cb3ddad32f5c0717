"""Whom to evict so that a pod fits: the ledger's side of preemption; the choice itself is made in `preemption`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from topowise_scheduler import preemption
from topowise_scheduler.answers import Answers, Question
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.watch import Budgets
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kubelet import Kubelet

# kube-scheduler proposes a hundred candidates or more and evicts from one of them; those that this does not suffice for
# are left out.
BUDGET_S: Final = 1.0


class Evictions:
    """Victims for kube-scheduler's candidates."""

    def __init__(self, ledger: Ledger, answers: Answers, budgets: Budgets) -> None:
        self._ledger = ledger
        self._answers = answers
        self._budgets = budgets

    async def choose(self, asked: Question, proposed: Mapping[str, preemption.Choice]) -> dict[str, preemption.Choice]:
        """Per node on which evictions let the pod fit, whom to evict: kube-scheduler's proposal and whom it lacks.

        A node is left out if no evictions help, because of its policy for one, and if none are needed: kube-scheduler
        takes no empty list of victims. Such a node is looked at again for pods that wait. Others are answered between
        two nodes, and after `BUDGET_S` the rest is left out.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + BUDGET_S
        verdicts = self._answers.verdicts(asked)
        chosen = {}
        for at, (name, proposal) in enumerate(proposed.items()):
            if verdicts.outcomes[at] == Outcome.UNRESOLVABLE:
                continue
            if loop.time() > until:
                break
            choice = self._on(asked, name, proposal)
            if choice is not None and choice.victims:
                chosen[name] = choice
            elif choice is not None:
                self._ledger.improved.add(name)
            await asyncio.sleep(0)
        return chosen

    def _on(self, asked: Question, name: str, proposal: preemption.Choice) -> preemption.Choice | None:
        states = self._answers.states_for(asked, name)
        state = next(states, None)
        if state is None:
            return proposal
        running = list(self._running(name))
        allowed = {budget.key: budget.allowed for budget in self._budgets.all()}
        view = asked.record.view(state)
        choice = preemption.choose(state, view, asked.record.priority, running, proposal.victims, allowed)
        if choice is None or not all(_fits_without(world, asked, choice) for world in states):
            return None
        return choice

    def _running(self, name: str) -> Iterator[preemption.Running]:
        budgets = self._budgets.all()
        for pod in self._ledger.pods_on(name):
            mine = preemption.matching(pod.name, pod.namespace, pod.labels, budgets)
            yield preemption.Running(uid=pod.uid, priority=pod.priority, started=pod.started, budgets=mine)


def _fits_without(world: Kubelet, asked: Question, choice: preemption.Choice) -> bool:
    for uid in choice.victims:
        world.remove(uid)
    return world.admit_view(asked.record.view(world)).admitted
