"""Whom to evict so that a pod fits: the ledger's side of preemption; the choice itself is made in `preemption`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topowise_scheduler import preemption
from topowise_scheduler.answers import Answers, Question
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.watch import Budgets


class Evictions:
    """Victims for kube-scheduler's candidates."""

    def __init__(self, ledger: Ledger, answers: Answers, budgets: Budgets) -> None:
        self._ledger = ledger
        self._answers = answers
        self._budgets = budgets

    def choose(self, asked: Question, proposed: Mapping[str, Sequence[str]]) -> dict[str, preemption.Choice]:
        """Per node on which evictions let the pod fit, whom to evict: kube-scheduler's proposal and whom it lacks.

        A node is left out if no evictions help, and if none are needed: kube-scheduler takes no empty list of victims.
        Such a node is looked at again for pods that wait.
        """
        budgets = self._budgets.all()
        allowed = {budget.key: budget.allowed for budget in budgets}
        chosen = {}
        for name, uids in proposed.items():
            state = next(iter(self._answers.states_for(asked, name)), None)
            if state is None:
                choice: preemption.Choice | None = preemption.Choice(tuple(uids), 0)
            else:
                running = [
                    preemption.Running(
                        uid=pod.uid,
                        priority=pod.priority,
                        started=pod.started,
                        budgets=preemption.matching(pod.name, pod.namespace, pod.labels, budgets),
                    )
                    for pod in self._ledger.pods_on(name)
                ]
                view = state.view(asked.record.uid, asked.needs)
                choice = preemption.choose(state, view, asked.record.priority, running, uids, allowed)
            if choice is not None and choice.victims:
                chosen[name] = choice
            elif choice is not None:
                self._ledger.improved.add(name)
        return chosen
