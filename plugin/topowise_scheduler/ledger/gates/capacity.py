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
from topowise_scheduler.ledger.gates.gate import FITS, Draft, Question, Texts
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.node.effort import EXACT
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.ledger.rows.possible_rows import bytes_of
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.engine import Engine, Outcome

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

    # An eviction ends `UNCERTAIN` too.
    temporary: Final[frozenset[str]] = frozenset()

    def __init__(self, engine: Engine, node_states: NodeStates, ignored: IgnoredPods, texts: Texts) -> None:
        self._engine = engine
        self._node_states = node_states
        self._ignored = ignored
        self._texts = texts
        # By outcome and reason, the number of the words for them.
        self._words: NDArray[np.int16] = np.zeros(len(Outcome) << _REASON_BITS, np.int16)
        for refused in (Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE):
            for number, reason in enumerate(engine.reasons):
                text = refusals.of(reason, ever=refused is Outcome.UNRESOLVABLE)
                self._words[(refused << _REASON_BITS) + number] = texts.number(text)
        self._exact: Bounded[str, tuple[int, Sequence[Kubelet]]]
        self._exact = Bounded(_MAX_EXACT_BYTES, lambda _, kept: bytes_of(kept[1]))
        self._trials: Bounded[tuple[str, bytes, frozenset[str]], tuple[int, str]]
        self._trials = Bounded(_MAX_TRIAL_BYTES, lambda key, _: len(key[0]) + 100 * len(key[2]))

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if draft.is_open:
            self._write(question, draft.outcomes, draft.words)
            draft.is_open = False
        else:
            outcomes, words = np.full_like(draft.outcomes, FITS), np.zeros_like(draft.words)
            self._write(question, outcomes, words)
            is_open = draft.outcomes == FITS
            draft.outcomes[is_open], draft.words[is_open] = outcomes[is_open], words[is_open]
        if FITS not in draft.outcomes:
            self._try_uncertain(question, draft)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """See `Gate`. Returns the kubelet's own reason."""
        node_state = self._node_states.of(name)
        # A question is about the pod as the kubelet would place it by itself.
        if node_state is None or (record.steered is None and node_state.is_as_judged(record.uid)):
            return ""
        ignored = self._ignored.on(record.uid, record.priority, name)
        return self._refusal_of(record, name, {record.uid, *ignored, *leaving})

    def states(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Iterator[Kubelet]:
        """Yields copies of the states that the node may have for this pod (`NodeStates.states`), once the pods
        `leaving` have left: none for a node without a report. The caller may change the copies."""
        ignored = self._ignored.on(record.uid, record.priority, name)
        return self._node_states.states(name, {record.uid, *ignored, *leaving})

    def _write(self, question: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
        own = self._own_nodes(question)
        # The node of a nominated pod is asked about alone, and is another node for that pod than for all others.
        if len(question.names) > 1 or not own:
            self._ask_engine(question, outcomes, words)
        if len(question.names) > 1:
            self._ask_without_lower_priority(question, outcomes, words)
        for name, ignored in own.items():
            if name in question.names and (reason := self._reason_without(question.record, name, ignored)) is not None:
                at = question.names.index(name)
                # Other pods can be evicted, as far as this pod is concerned; preemption finds out whether that helps.
                outcomes[at] = Outcome.UNSCHEDULABLE if reason else Outcome.FITS
                words[at] = self._texts.number(refusals.of(reason, ever=False))

    def _ask_engine(self, question: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]) -> None:
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
        numbers = self._words.take((predicted.astype(np.intp) << _REASON_BITS) + reason[:count])
        tight = owners[outcome[count:] != FITS]
        if len(tight):
            is_tight = np.zeros(int(max(tight.max(), rows.max())) + 1, np.bool_)
            is_tight[tight] = True
            refused = is_tight[rows] & (predicted == FITS)
            predicted[refused], numbers[refused] = Outcome.UNSCHEDULABLE, self._texts.number(refusals.UNCERTAIN)
        outcomes[known], words[known] = predicted, numbers

    def _own_nodes(self, question: Question) -> Mapping[str, Set[str]]:
        """Returns nodes that are tried by the one-node model, with the pods that do not count there: nodes of the pod
        itself, and the only node of a question, as kube-scheduler asks it for a nominated pod."""
        uid, priority, names = question.record.uid, question.record.priority, question.names
        if len(names) > 1:
            return self._ignored.on_own_nodes(uid, priority)
        ignored = {name: self._ignored.on(uid, priority, name) for name in names}
        return {name: uids for name, uids in ignored.items() if uids}

    def _ask_without_lower_priority(
        self, question: Question, outcomes: NDArray[np.int8], words: NDArray[np.int16]
    ) -> None:
        without = self._ignored.rows(question.record.priority)
        if without is None:
            return
        outcome, reason = self._engine.verdicts(question.requests, without.rows)
        of_nodes = np.full(int(max(without.owners.max(initial=0), question.rows.max(initial=0))) + 2, -1, np.int16)
        of_nodes[without.owners[without.at]] = 0
        # The first of a node's states that refuses the pod says why, so it is written last.
        refused = np.flatnonzero(outcome != FITS)[::-1]
        by_reason = self._words[Outcome.UNSCHEDULABLE << _REASON_BITS :]
        of_nodes[without.owners[without.at[refused]]] = by_reason[reason[refused]]
        # A row of -1 reads the last element, which belongs to no node.
        numbers = of_nodes[question.rows]
        # The nominated pods can be evicted, as far as this pod is concerned.
        outcomes[numbers == 0], outcomes[numbers > 0] = Outcome.FITS, Outcome.UNSCHEDULABLE
        words[numbers >= 0] = numbers[numbers >= 0]

    def _reason_without(self, record: PodRecord, name: str, ignored: Set[str]) -> str | None:
        """Returns why the kubelet would refuse the pod without the ignored pods, "" if it would not, None without a
        report."""
        node_state = self._node_states.of(name)
        if node_state is None or node_state.kubelet is None:
            return None
        if node_state.is_as_judged(record.uid):
            return ""
        key = (name, record.shape, frozenset(ignored))
        changed_at, reason = self._trials.get(key) or (-1, "")
        if changed_at != self._node_states.changed_at(name):
            reason = self._refusal_of(record, name, ignored)
            self._trials.put(key, (self._node_states.changed_at(name), reason))
        return reason

    def _refusal_of(self, record: PodRecord, name: str, without: Collection[str]) -> str:
        """Returns why the kubelet would refuse the pod in one of the possible states, "" if it would not."""
        states = self._node_states.states(name, without)
        if reason := first_refusal(islice(states, 1), record.view):
            return reason
        if not first_refusal(states, record.view):
            return ""
        return first_refusal(self._node_states.states(name, without, EXACT), record.view) or ""

    def _try_uncertain(self, question: Question, draft: Draft) -> None:
        """Tries nodes with uncertain pods by the one-node model, with more effort, until a node fits: the pod would
        have to wait otherwise. The arrays may have a state there that is worse than all possible states."""
        record, number, tried = question.record, self._texts.number(refusals.UNCERTAIN), 0
        for at in np.flatnonzero(draft.words == number).tolist():
            name = question.names[at]
            key = (name, record.shape, _NO_PODS)
            changed_at, reason = self._trials.get(key) or (-1, "")
            if changed_at != self._node_states.changed_at(name):
                if tried == _MOST_TRIED:
                    return
                tried += 1
                reason = first_refusal(self._exact_states(name), record.view) or ""
                self._trials.put(key, (self._node_states.changed_at(name), reason))
            if not reason:
                draft.outcomes[at], draft.words[at] = FITS, 0
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
