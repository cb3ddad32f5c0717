"""Nodes whose kubelet would refuse the pod, in any placement that the newest pods of the node may have.

Most nodes are answered from the engine's arrays. A node whose state is another for this very pod (the pod is nominated
there, or a pod of lower priority is) is tried by the one-node model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import first_refusal
from topowise_scheduler.ledger.gates.gate import FITS, Draft, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.node.exact_placements import EXACT
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.ledger.rows.possible_rows import bytes_of
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.engine import Engine, Outcome
from topowise_scheduler.verdicts.refusals import Refusal

# Of trials of nodes without their pods of lower priority, with the uids of these pods.
_MAX_TRIAL_BYTES: Final = 16 << 20
# Of possible states of nodes that were tried for pods that had to wait otherwise.
_MAX_EXACT_BYTES: Final = 8 << 20
# What a number of Engine.reasons takes.
_REASON_BITS: Final = 4
_FEW: Final = 64
# Nodes that are tried for a pod that no other node takes.
_MOST_TRIED: Final = 4
_NO_PODS: Final[frozenset[str]] = frozenset()

_ALL: Final = slice(None)

Subset = NDArray[np.intp] | slice


class CapacityGate:
    """See `Gate`. The node that has no report fits: nothing is known against it."""

    def __init__(self, engine: Engine, node_states: NodeStates, ignored: IgnoredPods) -> None:
        self._engine = engine
        self._node_states = node_states
        self._ignored = ignored
        # By outcome and reason.
        self._refusals: NDArray[np.int8] = np.zeros(len(Outcome) << _REASON_BITS, np.int8)
        for refused in (Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE):
            for number, reason in enumerate(engine.reasons):
                refusal = refusals.of(reason, ever=refused is Outcome.UNRESOLVABLE)
                self._refusals[(refused << _REASON_BITS) + number] = refusal or 0
        self._exact: Bounded[str, tuple[int, Sequence[Kubelet]]]
        self._exact = Bounded(_MAX_EXACT_BYTES, lambda _, kept: bytes_of(kept[1]))
        self._trials: Bounded[tuple[str, bytes, frozenset[str]], tuple[int, Refusal | None]]
        self._trials = Bounded(_MAX_TRIAL_BYTES, lambda key, _: len(key[0]) + 100 * len(key[2]))

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if draft.is_open:
            self._write(question, draft.outcomes, draft.refusals)
            draft.is_open = False
        else:
            outcomes, numbers = np.full_like(draft.outcomes, FITS), np.zeros_like(draft.refusals)
            self._write(question, outcomes, numbers)
            is_open = draft.outcomes == FITS
            draft.outcomes[is_open], draft.refusals[is_open] = outcomes[is_open], numbers[is_open]
        if FITS not in draft.outcomes:
            self._try_uncertain(question, draft)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        node_state = self._node_states.of(name)
        # A question is about the pod as the kubelet would place it by itself.
        if node_state is None or (record.steered is None and node_state.is_as_judged(record.uid)):
            return None
        ignored = self._ignored.on(record.uid, record.priority, name)
        return self._refusal_of(record, name, {record.uid, *ignored, *leaving})

    def states(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Iterator[Kubelet]:
        """Yields copies of the states that the node may have for this pod (`NodeStates.states`), once the pods
        `leaving` have left: none for a node without a report. The caller may change the copies."""
        ignored = self._ignored.on(record.uid, record.priority, name)
        return self._node_states.states(name, {record.uid, *ignored, *leaving})

    def _write(self, question: Question, outcomes: NDArray[np.int8], numbers: NDArray[np.int8]) -> None:
        own = self._own_nodes(question)
        # The node of a nominated pod is asked about alone, and is another node for that pod than for all others.
        if len(question.names) > 1 or not own:
            self._ask_engine(question, outcomes, numbers)
        if len(question.names) > 1:
            self._ask_without_lower_priority(question, outcomes, numbers)
        for name, ignored in own.items():
            node_state = self._node_states.of(name)
            if name in question.names and node_state is not None and node_state.kubelet is not None:
                is_as_judged = node_state.is_as_judged(question.record.uid)
                refusal = None if is_as_judged else self._refusal_without(question.record, name, ignored)
                at = question.names.index(name)
                # Other pods can be evicted, as far as this pod is concerned; preemption finds out whether that helps.
                outcomes[at], numbers[at] = Outcome.UNSCHEDULABLE if refusal else Outcome.FITS, refusal or 0

    def _ask_engine(self, question: Question, outcomes: NDArray[np.int8], numbers: NDArray[np.int8]) -> None:
        """Judges nodes with a report, together with the further states of nodes whose placements are uncertain."""
        known: Subset = known_rows(question.rows)
        rows = question.rows[known]
        if not len(rows):
            return
        possible = self._node_states.possible
        further, owners = possible.all() if len(rows) > _FEW else possible.of(rows.tolist())
        if len(rows) < len(further) // 4:
            is_in_question = np.isin(owners, rows)
            further, owners = further[is_in_question], owners[is_in_question]
        count = len(rows)
        every = np.concatenate([rows, further]) if len(further) else rows
        outcome, reason = self._engine.verdicts(question.requests, every)
        predicted = outcome[:count]
        of_engine = self._refusals.take((predicted.astype(np.intp) << _REASON_BITS) + reason[:count])
        tight = owners[outcome[count:] != FITS]
        if len(tight):
            is_tight = np.zeros(int(max(tight.max(), rows.max())) + 1, np.bool_)
            is_tight[tight] = True
            refused = is_tight[rows] & (predicted == FITS)
            predicted[refused], of_engine[refused] = Outcome.UNSCHEDULABLE, Refusal.UNCERTAIN
        outcomes[known], numbers[known] = predicted, of_engine

    def _own_nodes(self, question: Question) -> Mapping[str, Set[str]]:
        """Returns nodes that are tried by the one-node model, with the pods that do not count there: nodes of the pod
        itself, and the only node of a question, as kube-scheduler asks it for a nominated pod."""
        uid, priority, names = question.record.uid, question.record.priority, question.names
        if len(names) > 1:
            return self._ignored.on_own_nodes(uid, priority)
        ignored = {name: self._ignored.on(uid, priority, name) for name in names}
        return {name: uids for name, uids in ignored.items() if uids}

    def _ask_without_lower_priority(
        self, question: Question, outcomes: NDArray[np.int8], numbers: NDArray[np.int8]
    ) -> None:
        without = self._ignored.rows(question.record.priority)
        if without is None:
            return
        outcome, reason = self._engine.verdicts(question.requests, without.rows)
        of_nodes = np.full(int(max(without.owners.max(initial=0), question.rows.max(initial=0))) + 2, -1, np.int8)
        of_nodes[without.owners[without.at]] = 0
        # The first of a node's states that refuses the pod says why, so it is written last.
        refused = np.flatnonzero(outcome != FITS)[::-1]
        by_reason = self._refusals[Outcome.UNSCHEDULABLE << _REASON_BITS :]
        of_nodes[without.owners[without.at[refused]]] = by_reason[reason[refused]]
        # A row of -1 reads the last element, which belongs to no node.
        of_nodes = of_nodes[question.rows]
        # The nominated pods can be evicted, as far as this pod is concerned.
        outcomes[of_nodes == 0], outcomes[of_nodes > 0] = Outcome.FITS, Outcome.UNSCHEDULABLE
        numbers[of_nodes >= 0] = of_nodes[of_nodes >= 0]

    def _refusal_without(self, record: PodRecord, name: str, ignored: Set[str]) -> Refusal | None:
        """Returns why the kubelet of a reported node would refuse the pod without the ignored pods, None if it would
        not."""
        key = (name, record.shape, frozenset(ignored))
        changed_at, refusal = self._trials.get(key) or (-1, None)
        if changed_at != self._node_states.changed_at(name):
            refusal = self._refusal_of(record, name, ignored)
            self._trials.put(key, (self._node_states.changed_at(name), refusal))
        return refusal

    def _refusal_of(self, record: PodRecord, name: str, without: Collection[str]) -> Refusal | None:
        """Returns why the kubelet would refuse the pod in one of the possible states, None if it would not."""
        states = self._node_states.states(name, without)
        reason = first_refusal(islice(states, 1), record.view)
        if reason is None and first_refusal(states, record.view):
            reason = first_refusal(self._node_states.states(name, without, EXACT), record.view)
        return refusals.of(reason, ever=False)

    def _try_uncertain(self, question: Question, draft: Draft) -> None:
        """Tries nodes with uncertain pods by the one-node model, with more effort, until a node fits: the pod would
        have to wait otherwise. The arrays may have a state there that is worse than all possible states."""
        record, tried = question.record, 0
        for at in np.flatnonzero(draft.refusals == Refusal.UNCERTAIN).tolist():
            name = question.names[at]
            key = (name, record.shape, _NO_PODS)
            changed_at, refusal = self._trials.get(key) or (-1, None)
            if changed_at != self._node_states.changed_at(name):
                if tried == _MOST_TRIED:
                    return
                tried += 1
                refusal = refusals.of(first_refusal(self._exact_states(name), record.view), ever=False)
                self._trials.put(key, (self._node_states.changed_at(name), refusal))
            if refusal is None:
                draft.outcomes[at], draft.refusals[at] = FITS, 0
                return

    def _exact_states(self, name: str) -> Sequence[Kubelet]:
        """Returns the possible states of a node by the greatest effort, kept until the node changes."""
        changed_at, states = self._exact.get(name) or (-1, ())
        if changed_at != self._node_states.changed_at(name):
            states = tuple(self._node_states.states(name, _NO_PODS, EXACT))
            self._exact.put(name, (self._node_states.changed_at(name), states))
        return states


def known_rows(rows: NDArray[np.int32]) -> Subset:
    """Returns the indices of rows that have a node."""
    return _ALL if not rows.size or int(rows.min()) >= 0 else np.flatnonzero(rows >= 0)
