"""Victims of preemption: prepares the states of the ledger; `preemption` chooses the victims."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import compress
from typing import Final

from topowise.runtime.event_loop import TimeSlices, sliced
from topowise_scheduler.ledger.answers import Answers, Question
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.overlay import preemption
from topowise_scheduler.verdicts.engine import Outcome

# kube-scheduler proposes a hundred candidates or more and evicts from one node. Candidates that this time does not
# suffice for are left out.
_BUDGET_S: Final = 1.0


class Evictions:
    """Victims for kube-scheduler's candidates."""

    def __init__(self, ledger: Ledger, answers: Answers, budgets: Budgets, *, seconds: float = _BUDGET_S) -> None:
        self._ledger = ledger
        self._answers = answers
        self._budgets = budgets
        self._portions = TimeSlices(seconds)

    async def choose(
        self, question: Question, proposed: Mapping[str, preemption.Choice]
    ) -> dict[str, preemption.Choice]:
        """Returns the victims per node on which evictions let the pod fit: kube-scheduler's proposal, completed.

        From 1.38 on (kubernetes#135486), kube-scheduler proposes no victims on nodes that only an extender refuses:
        then the victims are pods whose eviction lets the kubelet align the pod.

        A node is omitted if no evictions help, for example because of its policy, and if no evictions are needed:
        kube-scheduler does not accept an empty list of victims. Such a node is evaluated again for waiting pods. Other
        requests are answered between two nodes, and after `seconds` the remaining nodes are omitted.
        """
        await sliced(self._answers.steps(question))
        question = self._answers.renewed(question)
        verdicts = self._answers.verdicts(question)
        thinkable = (verdicts.outcomes != Outcome.UNRESOLVABLE).tolist()
        chosen = {}
        for name in self._portions.of(list(compress(proposed, thinkable))):
            choice = self._on(question, name, proposed[name])
            if choice is not None and choice.victims:
                chosen[name] = choice
            elif choice is not None:
                self._ledger.node_states.note_improved(name)
            await asyncio.sleep(0)
        return chosen

    def _on(self, question: Question, name: str, proposal: preemption.Choice) -> preemption.Choice | None:
        state = next(self._answers.states_for(question, name), None)
        if state is None:
            return proposal
        pods = self._ledger.pods_on(name)
        return preemption.choose_on(self._answers, question.record, name, state, pods, self._budgets, proposal.victims)
