"""Whom to evict so that a pod fits: the ledger's side of preemption; the choice itself is made in `preemption`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import compress
from typing import Final

from topowise.runtime.turns import Portions, sliced
from topowise_scheduler import preemption
from topowise_scheduler.answers import Answers, Question
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.engine import Outcome
from topowise_scheduler.preemption import Budgets

# kube-scheduler proposes a hundred candidates or more and evicts from one of them; those that this does not suffice for
# are left out this time.
_BUDGET_S: Final = 1.0


class Evictions:
    """Victims for kube-scheduler's candidates."""

    def __init__(self, ledger: Ledger, answers: Answers, budgets: Budgets, *, seconds: float = _BUDGET_S) -> None:
        self._ledger = ledger
        self._answers = answers
        self._budgets = budgets
        self._portions = Portions(seconds)

    async def choose(self, asked: Question, proposed: Mapping[str, preemption.Choice]) -> dict[str, preemption.Choice]:
        """Per node on which evictions let the pod fit, whom to evict: kube-scheduler's proposal and whom it lacks.

        From 1.38 on (kubernetes#135486) it also proposes nobody on nodes that nothing but an extender is against: then
        those are named whose eviction lets the kubelet align the pod.

        A node is left out if no evictions help, because of its policy for one, and if none are needed: kube-scheduler
        takes no empty list of victims. Such a node is looked at again for pods that wait. Others are answered between
        two nodes, and after `seconds` the rest is left out this time.
        """
        await sliced(self._answers.steps(asked))
        asked = self._answers.renewed(asked)
        verdicts = self._answers.verdicts(asked)
        thinkable = (verdicts.outcomes != Outcome.UNRESOLVABLE).tolist()
        chosen = {}
        for name in self._portions.of(list(compress(proposed, thinkable))):
            choice = self._on(asked, name, proposed[name])
            if choice is not None and self._answers.is_in_vain(asked, name, choice.victims):
                continue
            if choice is not None and choice.victims:
                chosen[name] = choice
            elif choice is not None:
                self._ledger.node_states.note_improved(name)
            await asyncio.sleep(0)
        return chosen

    def _on(self, asked: Question, name: str, proposal: preemption.Choice) -> preemption.Choice | None:
        states = self._answers.states_for(asked, name)
        state = next(states, None)
        if state is None:
            return proposal
        record, pods = asked.record, self._ledger.pods_on(name)
        return preemption.choose_for_all(
            state, states, record.view, record.priority, pods, proposal.victims, self._budgets
        )
