"""Nodes that lack markers for the pod, or the NUMA node that the pod requires (`topowise.io/numa-node`).

kube-scheduler ignores requests of markers (`ignoredResources`), so that a pod with a marker also goes to nodes without
steering. A kubelet ignores the request too if its Node does not list the resource (removeMissingExtendedResources).
Otherwise the kubelet counts, so this gate counts.

Invariant: a cached verdict is used only until its node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from typing import Final, TypeAlias

import msgspec
import numpy as np

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler import refusals
from topowise_scheduler.cluster.gates.affinity import CacheUntilChange
from topowise_scheduler.cluster.gates.gate import FITS, Draft, Question
from topowise_scheduler.cluster.gates.ignored_pods import IgnoredPods
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.cluster.rows.node_states import NodeStates
from topowise_scheduler.kubelet.trial import View
from topowise_scheduler.steering.choice import Choice, Views, choose, problem_of

_TEXTS: Final = {
    "": "",
    "policy": refusals.NOT_STEERED_BY_POLICY,
    "markers": refusals.NO_MARKERS,
    "missing": refusals.NO_SUCH_NUMA_NODE,
    "full": refusals.NUMA_NODE_FULL,
}


Markers: TypeAlias = Callable[[str], int | None]
"""Returns how many markers a Node lists as allocatable, None if it does not list the resource."""


class NumaNodeGate:
    """See `Gate`. `markers` is None without steering. Then no pod with a required NUMA node fits: the kubelet alone
    would choose.

    Preemption is not planned for this gate: it does not know which pods are on a NUMA node.
    """

    temporary: Final[frozenset[str]] = frozenset()

    def __init__(self, node_states: NodeStates, ignored: IgnoredPods, markers: Markers | None) -> None:
        self._node_states = node_states
        self._ignored = ignored
        self._markers = markers
        self._used_by_node = CacheUntilChange[int, tuple[str, frozenset[str]]](node_states)
        self._cache = CacheUntilChange[str, tuple[str, bytes, int, frozenset[str]]](node_states)

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if question.record.numa_node is None and not wanted_markers(question.record):
            return
        for at in np.flatnonzero(draft.outcomes == FITS).tolist():
            text = self.refusal(question.record, question.names[at])
            if text:
                draft.refuse_node(at, text)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """See `Gate`."""
        numa, wanted = record.numa_node, wanted_markers(record)
        if self._markers is None or (numa is None and not wanted):
            return "" if numa is None else refusals.STEERING_IS_OFF
        markers = self._markers(name)
        if markers is None:
            return "" if numa is None else refusals.NODE_HAS_NO_MARKERS
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        if wanted > markers - self._used(name, {record.uid, *ignored}):
            return refusals.TOO_FEW_MARKERS
        return "" if numa is None else self._numa_refusal(record, name, numa, ignored)

    def _used(self, name: str, ignored: Set[str]) -> int:
        """Returns the number of markers that pods on a node have, or will have, without the pods `ignored`."""
        node_state = self._node_states.of(name)
        if node_state is None:
            return 0
        history, key = node_state.history, (name, frozenset[str]())
        # A node without a report notes no changes.
        used = None if node_state.report is None else self._used_by_node.get(key)
        if used is None:
            used = sum([entry.needs.requests.get(MARKER, 0) for entry in history.entries()])
            self._used_by_node.put(key, used)
        absent = [entry for entry in map(history.entry, ignored) if entry is not None]
        return used - sum([entry.needs.requests.get(MARKER, 0) for entry in absent])

    def _numa_refusal(self, record: PodRecord, name: str, numa: int, ignored: frozenset[str]) -> str:
        key = (name, record.shape, numa, ignored)
        text = self._cache.get(key)
        if text is None:
            states = list(self._node_states.states(name, {record.uid, *ignored}))
            problem = problem_of(states, views_of(record), numa) if states else "missing"
            text = _TEXTS[problem]
            self._cache.put(key, text)
        return text

    def choice(self, record: PodRecord, name: str) -> Choice:
        """Returns the choice of a NUMA node for a pod, nothing to send if the pod requests no marker, or the node has
        no markers or no report."""
        if self._markers is None or not self._markers(name) or not wanted_markers(record):
            return Choice()
        states = list(
            self._node_states.states(name, {record.uid, *self._ignored.on(record.uid, record.priority, name)})
        )
        return choose(states, views_of(record), record.numa_node) if states else Choice()


def wanted_markers(record: PodRecord) -> int:
    """Returns the number of markers that a pod requests."""
    return 0 if record.needs is None else record.needs.requests.get(MARKER, 0)


def views_of(record: PodRecord) -> Views:
    """Returns the views of a pod by the NUMA node of the markers."""

    def view(numa: int | None) -> View:
        return msgspec.structs.replace(record, steered=numa).view

    return view
