"""Gates that read what is known of a node, whatever its free capacity: policy, age, size, refusals, reservations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet, cost
from topowise_scheduler.ledger.gates.gate import Draft, Question, may_get_exclusive
from topowise_scheduler.ledger.pods.exporter_pods import ExporterPods, ExporterSettings, selects
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.report import timestamps
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.kube_scheduler import Node
from topowise_scheduler.verdicts.refusals import Refusal

_MAX_BYTES: Final = 4 << 20
# An exporter writes nothing if a refusal has changed nothing, so a quarantine ends by itself too.
QUARANTINE_S: Final = 300.0
# Bound of pairs, of some 200 bytes each; above it the oldest node is released. A large cluster stays below the bound
# unless every kubelet refuses a dozen kinds of pods within five minutes.
_MOST_PAIRS: Final = 1 << 16
Rows = NDArray[np.int32]


class PolicyGate:
    """Nodes whose Topology Manager policy is not the policy that the annotations of a pod ask for. A node without a
    report has no known policy, and is refused too."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        for accepted, refusal in question.record.demands.policy.rules():
            suits = np.zeros(len(question.names), np.bool_)
            known = question.rows >= 0
            suits[known] = np.isin(self._engine.policies[question.rows[known]], accepted)
            # The profile of a group has a policy, and its refusal is in the question.
            suits[list(question.templates)] = True
            draft.refuse(~suits, refusal)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        for accepted, refusal in record.demands.policy.rules():
            row = self._engine.row(name)
            if row < 0 or self._engine.policies[row] not in accepted:
                return refusal
        return None


class ReservedPlaces:
    """Pods of a job that was admitted as a whole: each goes to the node where a copy of its template was reserved for
    it.

    Pods that were placed together need not fit in another distribution: a pod that takes a better node may leave the
    remaining capacity in pieces.

    Invariant: a place ends by time, with the reservation that it comes from.

    By UID of the pod: the node, and the end of the place (seconds, monotonic).
    """

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, float]] = {}

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if not self.places or (place := self.places.get(question.record.uid)) is None:
            return
        draft.refuse(np.array([name != place[0] for name in question.names], np.bool_), Refusal.RESERVED_ELSEWHERE)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        node, _ = self.places.get(record.uid, (name, 0.0))
        return None if node == name else Refusal.RESERVED_ELSEWHERE

    def expire(self, now: float) -> None:
        """Ends the places whose time is over."""
        self.places = {uid: place for uid, place in self.places.items() if place[1] > now}


class SlowAdmissions:
    """Nodes whose kubelet would take too long to decide a pod, because it tries every set of its NUMA nodes.

    A kubelet decides pods one at a time, so a pod that takes minutes (kubelet/cost.py) stops its node. The time depends
    on what is free. The estimate is that of the empty node, which is the longest, so that verdicts do not fluctuate.

    Invariant: a reported node is in this gate exactly if it has more NUMA nodes than every kubelet decides quickly, and
    a limit is configured.

    `limit_s` in seconds; 0: no admission is too long. Not thread-safe.
    """

    def __init__(self, engine: Engine, limit_s: float) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._nodes: dict[str, Kubelet] = {}
        # By shape of pod, estimated once for identical nodes; cleared when a slow node changes.
        self._rows: Bounded[bytes, Rows] = Bounded(_MAX_BYTES, lambda _, rows: rows.nbytes)

    def put(self, node: str, empty: Kubelet | None) -> None:
        """Sets the empty state of a node, one object for identical nodes; None if the node has no report any more."""
        slow = empty if self._limit_s and empty is not None and not cost.is_quick(empty) else None
        if self._nodes.get(node) is not slow:
            self._rows.clear()
            if slow is None:
                del self._nodes[node]
            else:
                self._nodes[node] = slow

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        # Most clusters have no such node, so no pod shape needs memory.
        if self._nodes and (rows := self._closed(question.record)).size:
            draft.refuse_rows(question, rows, Refusal.TOO_SLOW)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        if not self._nodes:
            return None
        rows = self._closed(record)
        return Refusal.TOO_SLOW if self._engine.row(name) in rows[rows >= 0] else None

    def _closed(self, record: PodRecord) -> Rows:
        """Returns the engine's rows of nodes that would take too long with the pod."""
        return self._rows.once(record.shape, lambda: self._estimated(record))

    def _estimated(self, record: PodRecord) -> Rows:
        seconds = {id(empty): cost.estimate(empty, record.view(empty)).seconds for empty in self._distinct()}
        return self._engine.rows([name for name, empty in self._nodes.items() if seconds[id(empty)] > self._limit_s])

    def _distinct(self) -> list[Kubelet]:
        return list({id(empty): empty for empty in self._nodes.values()}.values())


class NewNodes:
    """New nodes that an exporter will soon report for the first time.

    A new node is Ready seconds before its first report. Until then nothing is known of its NUMA nodes, so its kubelet
    may refuse a pod to align, for good. Such pods wait for the report, for a limited time since the creation of the
    Node: a node on which no exporter can run takes them after that time.

    Invariant: a node is in this gate at most for `first_report_s` after the service has first seen it.

    Nodes by name with the end of the wait (seconds, monotonic). Not thread-safe.
    """

    def __init__(self, engine: Engine, exporters: ExporterPods, settings: ExporterSettings) -> None:
        self._engine = engine
        self._exporters = exporters
        self._settings = settings
        self.until: dict[str, float] = {}
        """To be read."""
        # Nodes in `until` that the nodeSelector of the exporter selects.
        self._selected: set[str] = set()

    def __len__(self) -> int:
        return sum([self._waits(name) for name in self.until])

    def put(self, node: Node, *, is_first: bool, wall: float, now: float) -> None:
        """Takes a Node event. The age of the Node counts when the service sees the Node first, so that a clock that
        differs from the API server's clock does not extend the wait. `wall`: seconds since 1970; `now`: monotonic."""
        if is_first:
            rest = self._settings.first_report_s - max(0.0, wall - timestamps.seconds(node.created))
            if rest > 0:
                self.until[node.name] = now + rest
        if node.name in self.until and selects(self._settings.node_selector, node):
            self._selected.add(node.name)
        else:
            # A label that the nodeSelector requires may come later, or go.
            self._selected.discard(node.name)

    def drop(self, name: str) -> None:
        """Drops a deleted node."""
        self.until.pop(name, None)
        self._selected.discard(name)

    def expire(self, now: float) -> list[str]:
        """Ends the waits that are over. Returns their nodes."""
        late = [name for name, until in self.until.items() if until <= now]
        for name in late:
            self.drop(name)
        return late

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if not self.until or not may_get_exclusive(question.record):
            return
        is_new = np.zeros(len(question.names), np.bool_)
        for at in np.flatnonzero(question.rows < 0).tolist():
            is_new[at] = self._waits(question.names[at])
        if is_new.any():
            draft.refuse(is_new, Refusal.NEW_NODE)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        return Refusal.NEW_NODE if name in self.until and may_get_exclusive(record) and self._waits(name) else None

    def _waits(self, name: str) -> bool:
        if name not in self.until or self._engine.row(name) >= 0:
            return False
        # The DaemonSet controller takes minutes to create the pods of many new nodes, so a pod elsewhere is enough.
        return self._exporters.is_covered(name) or (self._exporters.is_known and name in self._selected)


class Quarantine:
    """Nodes whose kubelet has refused a pod that this service predicted to fit: pods of equal requests stay off the
    node until its next report, or until its Node shows other allocatable amounts, another boot, kubelet or readiness.

    Invariant: every pair of shape and node expires, and neither a shape nor a node without pairs is kept.

    Pairs of shape and node, each with its end (seconds, monotonic).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._until: dict[bytes, dict[str, float]] = {}
        # In the order of the first pair of each node.
        self._shapes: dict[str, set[bytes]] = {}
        self._pairs = 0

    def __len__(self) -> int:
        return self._pairs

    @property
    def all_nodes(self) -> Set[str]:
        """Returns the nodes with a pair."""
        return self._shapes.keys()

    def nodes(self, shape: bytes) -> Mapping[str, float]:
        """Returns the nodes that do not get pods of this shape, each with the end of the pair."""
        return self._until.get(shape, {})

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if self._until and (nodes := self.nodes(question.record.shape)):
            draft.refuse_rows(question, self._engine.rows(list(nodes)), Refusal.QUARANTINED)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        return Refusal.QUARANTINED if self._until and name in self.nodes(record.shape) else None

    def put(self, shape: bytes, node: str, now: float) -> None:
        """Starts or extends the quarantine of a node for pods of this shape."""
        nodes = self._until.setdefault(shape, {})
        self._pairs += node not in nodes
        nodes[node] = now + QUARANTINE_S
        self._shapes.setdefault(node, set()).add(shape)
        while self._pairs > _MOST_PAIRS:
            self.release(next(iter(self._shapes)))

    def release(self, node: str, before: float = float("inf")) -> None:
        """Ends the pairs of a node that would end before a time."""
        for shape in [shape for shape in self._shapes.get(node, ()) if self._until[shape][node] < before]:
            nodes = self._until[shape]
            del nodes[node]
            if not nodes:
                del self._until[shape]
            self._pairs -= 1
            self._shapes[node].discard(shape)
            if not self._shapes[node]:
                del self._shapes[node]

    def expire(self, now: float) -> set[str]:
        """Ends the pairs that are over. Returns their nodes."""
        late = {node for nodes in self._until.values() for node, until in nodes.items() if until < now}
        for node in late:
            self.release(node, before=now)
        return late
