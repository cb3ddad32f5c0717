"""Nodes that are filled pod by pod: one scheduler, the gates of the service, and the kubelet of each node.

Invariant: a pod is bound only where the gates, kube-scheduler's filters and the model of the kubelet admit it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.pods import Amounts, Needs
from topowise_scheduler.ledger.answers import Question
from topowise_scheduler.ledger.gates.gate import FITS
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.overlay.plan.values import KUBE_SCHEDULER, PlanError
from topowise_scheduler.overlay.simulated_ledger import SimulatedLedger
from topowise_scheduler.verdicts import strategy_names
from topowise_scheduler.verdicts.kube_scheduler import Node, Pod
from topowise_scheduler.verdicts.refusals import Reason

TOP: Final = 100
_PODS = "pods"
_ANY = 1 << 62
Indices = NDArray[np.intp]
Scores = NDArray[np.int64]


class Sums:
    """The requests on nodes as kube-scheduler sums them, for all nodes at once, and its scores by these sums: those of
    NodeResourcesFit and NodeResourcesBalancedAllocation, 0 to 100.

    An array of shape (nodes,) for each resource. A node that is None has no limits: its Node is unknown.
    """

    def __init__(self, nodes: Sequence[Node | None]) -> None:
        names = dict.fromkeys(name for node in nodes if node is not None for name in node.allocatable)
        unknown = np.array([node is None for node in nodes], np.bool_)
        self._unlimited = np.where(unknown, _ANY, 0)
        self.allocatable = {
            name: np.array([_ANY if node is None else node.allocatable.get(name, 0) for node in nodes], np.int64)
            for name in names
        }
        self.requested: dict[str, NDArray[np.int64]] = {}

    def add(self, at: int, requests: Amounts | Mapping[str, int], pods: int = 1) -> None:
        """Adds the requests of pods to a node; takes them away if `pods` is negative."""
        for name, amount in (*requests.items(), (_PODS, 1)):
            self._requested(name)[at] += amount * pods

    def least_allocated(self, needs: Needs) -> Scores:
        """Returns the scores of NodeResourcesFit's LeastAllocated."""
        # Rounds down twice, as noderesources/least_allocated.go does.
        cpus, memory = [(total - used) * TOP // np.maximum(total, 1) for total, used in self.shares(needs)]
        return (cpus + memory) // 2

    def balanced(self, needs: Needs) -> Scores:
        """Returns the scores of NodeResourcesBalancedAllocation; the deviation of two shares is half their distance."""
        (cpus, used_cpus), (memory, used_memory) = self.shares(needs)
        shares = [
            np.minimum(used / np.maximum(total, 1), 1) for total, used in ((cpus, used_cpus), (memory, used_memory))
        ]
        scores: Scores = ((1 - np.abs(shares[0] - shares[1]) / 2) * TOP).astype(np.int64)
        return scores

    def shares(self, needs: Needs) -> Iterator[tuple[Scores, Scores]]:
        """Yields allocatable and requested amounts of CPUs and memory, the pod included."""
        for name in ("cpu", "memory"):
            yield self._allocatable(name), self._requested(name) + needs.requests.get(name, 0)

    def _allocatable(self, name: str) -> NDArray[np.int64]:
        return self.allocatable.get(name, self._unlimited)

    def _requested(self, name: str) -> NDArray[np.int64]:
        requested = self.requested.get(name)
        if requested is None:
            requested = self.requested[name] = np.zeros(self._unlimited.size, np.int64)
        return requested


class Scheduler(msgspec.Struct, frozen=True):
    """A scheduler: a strategy of topowise, or KUBE_SCHEDULER, whose score is of sums alone."""

    strategy: str = "TightFit"

    def __post_init__(self) -> None:
        if self.strategy != KUBE_SCHEDULER and self.strategy not in strategy_names.NAMES:
            names = ", ".join((*strategy_names.NAMES, KUBE_SCHEDULER))
            raise PlanError(f"scheduler {self.strategy!r}: expected one of {names}")

    @property
    def is_blind(self) -> bool:
        """Whether the scheduler does not know NUMA nodes."""
        return self.strategy == KUBE_SCHEDULER


class Kind:
    """What all copies of a pod have in common. `accepted` (nodes,): nodes that kube-scheduler itself accepted after the
    first `seen` changes of the fleet."""

    def __init__(self, record: PodRecord, nodes: int) -> None:
        self.record = record
        self.accepted: NDArray[np.bool_] = np.zeros(nodes, np.bool_)
        self.seen: int | None = None
        # `NodeStates.changes` when no node took the pod; only nodes that have changed since are asked again.
        self.refused_at: int | None = None
        # Nodes whose kubelet has refused a pod that kube-scheduler alone sent there, by the node's last change.
        self.kubelet_refused: dict[str, int] = {}

    @property
    def needs(self) -> Needs | None:
        """What each copy requests, None if that cannot be read."""
        return self.record.needs


class Fleet:
    """The nodes of a filled ledger, by name in order."""

    def __init__(self, ledger: SimulatedLedger, scheduler: Scheduler, *, is_steering: bool = True) -> None:
        self.ledger = ledger
        self.scheduler = scheduler
        self.names = ledger.trial.names
        self.kubelet_refusals = 0
        """Pods that a kubelet refused after a scheduler had sent them."""
        self._is_steering = is_steering
        self._states = ledger.ledger.node_states
        self._index = {name: at for at, name in enumerate(self.names)}
        self._all = np.arange(len(self.names))
        self._rows = ledger.answers.engine.rows(self.names)
        self.nodes = [ledger.trial.node(name) for name in self.names]
        self.sums = Sums(self.nodes)
        for at, name in enumerate(self.names):
            node_state = self._states.of(name)
            for entry in () if node_state is None else node_state.history.entries():
                self.sums.add(at, entry.needs.requests)
        self._kinds: dict[object, Kind] = {}
        # The nodes of all pods that came or went since the start.
        self._changed: list[str] = []
        self._bound: dict[str, tuple[int, Mapping[str, int]]] = {}

    def kind(self, pod: Pod) -> Kind:
        """Returns the kind of a pod. Raises ParseError for a pod that cannot be read."""
        record = self.ledger.trial.record(pod)
        # Terms about other pods select them by namespace and labels.
        key = record.pod_class, record.is_too_large, record.namespace, tuple(sorted(record.labels.items()))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(record, len(self.names))
        return kind

    def find(self, kind: Kind) -> str | None:
        """Returns the node that the scheduler chooses, None if it finds none, or only nodes that refuse the pod."""
        needs = kind.needs
        if needs is None or kind.record.is_too_large:
            return None
        if self.scheduler.is_blind:
            at = self._all[self.accepted(kind)]
            return self._by_sums(kind, needs, at) if at.size else None
        changes = self._states.changes
        at = self._all if kind.refused_at is None else self._changed_since(kind.refused_at)
        at = at[self.accepted(kind)[at]]
        name = self.by_gates(kind, needs, at) if at.size else None
        if name is None:
            kind.refused_at = changes
        return name

    def may_change(self, kind: Kind) -> bool:
        """Returns whether more pods may let the pod in, after `find` has found no node: kube-scheduler alone sends a
        pod to its best node, whatever its kubelet says, until another node is the best."""
        return self.scheduler.is_blind and kind.needs is not None and bool(self.accepted(kind).any())

    def accepted(self, kind: Kind) -> NDArray[np.bool_]:
        """Returns which nodes kube-scheduler itself accepts for the pod (nodes,). Only nodes that have changed since
        the last call are asked again: a node takes 5 us."""
        names = self.names if kind.seen is None else {*self._changed[kind.seen :]}
        for name, refusal in self.ledger.trial.refusals(kind.record, names):
            kind.accepted[self._index[name]] = refusal is None
        kind.seen = len(self._changed)
        return kind.accepted

    def fits_on(self, kind: Kind) -> NDArray[np.bool_]:
        """Returns which nodes would take the pod (nodes,)."""
        fits = np.zeros(len(self.names), np.bool_)
        if kind.needs is not None and not kind.record.is_too_large:
            at = self._all[self.accepted(kind)]
            if at.size:
                fits[at] = self.ledger.answers.verdicts(self.question(kind, at)).outcomes == FITS
        return fits

    def why(self, kind: Kind) -> dict[Reason, int]:
        """Returns the refusals of the pod, or kube-scheduler's own words, with the number of their nodes."""
        if kind.needs is None or kind.record.is_too_large:
            return {str(kind.record.problem): len(self.names)}
        verdicts = self.ledger.answers.verdicts(self.question(kind, self._all))
        reasons: Counter[Reason] = Counter()
        for at, (_, objection) in enumerate(self.ledger.trial.refusals(kind.record, self.names)):
            reason = verdicts.refusal(at) if objection is None else objection.words
            reasons.update([reason] if reason else ())
        return dict(reasons.most_common())

    def bind(self, kind: Kind, uid: str, pod_name: tuple[str, str], node: str) -> int | None:
        """Binds a copy of the pod, which must fit on the node. Returns the NUMA node of a request for steering."""
        needs = kind.needs
        assert needs is not None
        namespace, name = pod_name
        record = msgspec.structs.replace(kind.record, uid=uid, namespace=namespace, name=name)
        steering = self.ledger.ledger.gates.option(SteeringOption) if self._is_steering else None
        steered = None if steering is None else steering.choice(record, node).numa
        self.ledger.bind(record, node, steered=steered)
        node_state = self._states.of(node)
        assert node_state is None or node_state.report is None or node_state.is_placed(uid), f"{name} is not on {node}"
        at = self._index[node]
        self._changed.append(node)
        self.sums.add(at, needs.requests)
        self._bound[uid] = at, needs.requests
        return steered

    def end(self, uid: str) -> None:
        """Ends a pod that `bind` has bound."""
        at, requests = self._bound.pop(uid)
        self.ledger.end(uid)
        self._changed.append(self.names[at])
        self.sums.add(at, requests, -1)

    def adopt(self, uid: str, node: str, needs: Needs) -> None:
        """Lets `end` know a pod that was on its node before."""
        self._bound[uid] = self._index[node], needs.requests

    def by_gates(self, kind: Kind, needs: Needs, at: Indices) -> str | None:
        """Returns the best of these nodes, as the service would have it, None if none takes the pod."""
        answers, question = self.ledger.answers, self.question(kind, at)
        fitting = np.flatnonzero(answers.verdicts(question).outcomes == FITS)
        if not fitting.size:
            return None
        best = answers.best(question, fitting, 1)
        # Only nodes without a report have no rating.
        return question.names[int(best[0]) if best.size else int(fitting[0])]

    def _by_sums(self, kind: Kind, needs: Needs, at: Indices) -> str | None:
        """Sends the pod to the best node by sums: after a refusal its controller makes another pod, which goes to a
        node of the same score, and nowhere if there is none."""
        scores = self.blind_scores(needs)[at]
        for index in self.ties(at[scores == scores.max()]):
            name = self.names[index]
            changed_at = self._states.changed_at(name)
            if kind.kubelet_refused.get(name) == changed_at:
                continue
            kubelet = self.ledger.kubelet(name)
            if kubelet is None or isinstance(NodeCopy((kubelet,)).admit(kind.record), NodeCopy):
                return name
            kind.kubelet_refused[name] = changed_at
            self.kubelet_refusals += 1
        return None

    def blind_scores(self, needs: Needs) -> Scores:
        """Returns kube-scheduler's own scores of all nodes (nodes,)."""
        return self.sums.least_allocated(needs) + self.sums.balanced(needs)

    def ties(self, at: Indices) -> Iterable[int]:
        """Returns indices of equally good nodes in the order in which they are tried."""
        return map(int, at)

    def question(self, kind: Kind, at: Indices) -> Question:
        """Returns the question about a pod on these nodes."""
        requests = kind.record.requests
        assert requests is not None
        if at.size == len(self.names):
            return Question(kind.record, requests, self.names, self._rows, is_simulation=True)
        names = [self.names[index] for index in at.tolist()]
        return Question(kind.record, requests, names, self._rows[at], is_simulation=True)

    def _changed_since(self, changes: int) -> Indices:
        changed = {self._index[name] for name in self._states.changed_since(changes) if name in self._index}
        return np.array(sorted(changed), np.intp)
