"""Nodes on which the pod cannot have the NUMA node that it requires (`topowise.io/numa-node`).

Invariant: a cached verdict is used only until its node changes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np

from topowise_scheduler import refusals, steering
from topowise_scheduler.cluster.gates.affinity import CacheUntilChange
from topowise_scheduler.cluster.gates.gate import FITS, Draft, Question
from topowise_scheduler.cluster.gates.ignored_pods import IgnoredPods
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.cluster.rows.node_states import NodeStates
from topowise_scheduler.kubelet.trial import View
from topowise_scheduler.steering import Choice

_TEXTS: Final = {
    "": "",
    "policy": refusals.NOT_STEERED_BY_POLICY,
    "markers": refusals.NO_MARKERS,
    "missing": refusals.NO_SUCH_NUMA_NODE,
    "full": refusals.NUMA_NODE_FULL,
}


class NumaNodeGate:
    """See `Gate`. Without steering no pod with such a requirement fits: the kubelet alone would choose.

    Preemption is not planned for this gate: it does not know which pods are on a NUMA node.
    """

    temporary: Final[frozenset[str]] = frozenset()

    def __init__(self, node_states: NodeStates, ignored: IgnoredPods, *, is_enabled: bool) -> None:
        self._node_states = node_states
        self._ignored = ignored
        self.is_enabled = is_enabled
        """Steering is enabled in the configuration."""
        self._cache = CacheUntilChange[str, tuple[str, bytes, int, frozenset[str]]](node_states)

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if question.record.numa_node is None:
            return
        for at in np.flatnonzero(draft.outcomes == FITS).tolist():
            text = self.refusal(question.record, question.names[at])
            if text:
                draft.refuse_node(at, text)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """See `Gate`."""
        numa = record.numa_node
        if numa is None:
            return ""
        if not self.is_enabled:
            return refusals.STEERING_IS_OFF
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        key = (name, record.shape, numa, ignored)
        text = self._cache.get(key)
        if text is None:
            states = list(self._node_states.states(name, {record.uid, *ignored}))
            problem = steering.problem_of(states, views_of(record), numa) if states else "missing"
            text = _TEXTS[problem]
            self._cache.put(key, text)
        return text

    def choice(self, record: PodRecord, name: str) -> Choice:
        """Returns the choice of a NUMA node for a pod, nothing to send if the pod requests no marker or the node is not
        reported."""
        states = list(
            self._node_states.states(name, {record.uid, *self._ignored.on(record.uid, record.priority, name)})
        )
        if not self.is_enabled or not states or not steering.requests_marker(record.seen(states[0])):
            return Choice()
        return steering.choose(states, views_of(record), record.numa_node)


def views_of(record: PodRecord) -> steering.Views:
    """Returns the views of a pod by the NUMA node of the markers."""

    def view(numa: int | None) -> View:
        return msgspec.structs.replace(record, steered=numa).view

    return view
