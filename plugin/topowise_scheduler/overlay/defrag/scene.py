"""The cluster after some steps of a plan, on copies of node states.

Every step is checked by the model, in all possible placements of the node, and by kube-scheduler's own filters. A scene
never changes; each step makes a new scene.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from topowise.errors import ParseError
from topowise.pods import Amounts
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.kubelet import Kubelet, free_amounts, numa_placement
from topowise_scheduler.kubelet.numa_placement import Placed
from topowise_scheduler.kubelet.trial import place
from topowise_scheduler.ledger.answers import Answers, Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.defrag.movable import Movable
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import Pod

# Lower than every pod's priority, so that all nominated pods count.
_LOWEST_PRIORITY: Final = -(1 << 31)
_TARGET: Final = "\0target/"
_encode = msgspec.json.Encoder(order="deterministic").encode


class Step(msgspec.Struct, frozen=True):
    """A pod is moved, or a target pod is placed; and the predicted placement of its containers."""

    kind: Literal["move", "new"]
    pod: str
    node: str
    containers: Mapping[str, Placed]
    origin: str = ""
    """The node that a moved pod leaves."""


class Change(msgspec.Struct, frozen=True):
    """A NUMA node that the steps change: its total amounts, and the free amounts before and after the steps. CPUs are
    whole CPUs."""

    node: str
    numa: int
    whole: Amounts
    before: Amounts
    after: Amounts


class Candidates(msgspec.Struct, frozen=True):
    """Nodes for pods of a class: `open` nodes take a pod as they are, the best first; `possible` nodes after moves."""

    open: Sequence[str]
    possible: Sequence[str]
    possible_set: frozenset[str]


class Cluster:
    """The cluster before the first step; caches its answers."""

    def __init__(self, answers: Answers, view: ClusterView, target: Pod, names: Sequence[str]) -> None:
        self.answers = answers
        self.view = view
        self.names = [name for name in names if view.precision(name)]
        self.question: Question = answers.question(target, self.names, is_simulation=True)
        if self.question.record.is_too_large:
            raise ParseError("pod", target.metadata.name, str(self.question.record.problem))
        self.target = target
        record = msgspec.structs.replace(self.question.record, priority=_LOWEST_PRIORITY)
        self._lowest_priority = msgspec.structs.replace(self.question, record=record)
        self._states: dict[str, tuple[Kubelet, ...]] = {}
        self._candidates: dict[bytes, Candidates] = {}

    def states(self, name: str) -> tuple[Kubelet, ...]:
        """Returns the possible states of a node, which the caller must not change."""
        states = self._states.get(name)
        if states is None:
            states = self._states[name] = tuple(self.answers.states_for(self._lowest_priority, name))
        return states

    def candidates(self, pod: Pod, record: PodRecord) -> Candidates:
        """Returns the candidate nodes for pods like this pod."""
        # Volume names differ from pod to pod. Volumes that matter exclude a pod from being moved.
        spec = msgspec.structs.replace(pod.spec, volumes=None)
        key = _encode((spec, str(record.demands)))
        candidates = self._candidates.get(key)
        if candidates is None:
            candidates = self._candidates[key] = self._find_candidates(pod)
        return candidates

    def _find_candidates(self, pod: Pod) -> Candidates:
        question = self.answers.question(pod, self.names, is_simulation=True)
        verdicts = self.answers.verdicts(question)
        against = self.view.against(pod, self.names)
        possible = np.array([refusal is None or refusal.verdict == "not now" for refusal in against.values()], np.bool_)
        possible &= verdicts.outcomes != Outcome.UNRESOLVABLE
        is_open = possible & (verdicts.outcomes == Outcome.FITS)
        is_open &= np.array([refusal is None for refusal in against.values()], np.bool_)
        order = np.argsort(-self.answers.scores(question), kind="stable")
        names = [self.names[at] for at in order[possible[order]].tolist()]
        return Candidates([self.names[at] for at in order[is_open[order]].tolist()], names, frozenset(names))


class Scene:
    """The cluster after some steps; new steps return new scenes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.steps: tuple[Step, ...] = ()
        # Nodes that the steps have changed: their states, and the change of their summed requests.
        self.changed: dict[str, tuple[Kubelet, ...]] = {}
        self._requested: dict[str, Amounts] = {}
        self.moved: Mapping[str, str] = {}
        """The node of each moved pod, by UID."""
        self.arrived = 0
        """Number of placed target pods."""

    def states(self, name: str) -> tuple[Kubelet, ...]:
        """Returns the possible states of a node."""
        return self.changed.get(name) or self.cluster.states(name)

    def candidates(self, mover: Movable) -> Iterator[str]:
        """Yields the nodes that may take a pod, the best first, then possible nodes that the steps have changed."""
        return self._in_order(self.cluster.candidates(mover.pod, mover.record))

    def move(self, mover: Movable, origin: str, name: str) -> Scene | None:
        """Places the replacement of a pod on another node, then removes the pod. Returns None if it is refused."""
        record = msgspec.structs.replace(mover.record, node="")
        states = self._admitted(name, record, mover.pod)
        if states is None:
            return None
        after = self._with(name, states, record, 1)
        left = tuple([state.without((record.uid,)) for state in after.states(origin)])
        after = after._with(origin, left, record, -1)
        after.moved = {**self.moved, record.uid: name}
        after.steps = (
            *self.steps,
            Step("move", mover.name, name, self._placement_of(states[0], record.uid, name), origin),
        )
        return after

    def place(self, name: str) -> Scene | None:
        """Places a target pod on a node. Returns None if the node refuses it."""
        target = self.cluster.target
        record = msgspec.structs.replace(self.cluster.question.record, uid=f"{_TARGET}{self.arrived}")
        states = self._admitted(name, record, target)
        if states is None:
            return None
        after = self._with(name, states, record, 1)
        after.arrived += 1
        text = f"{record.namespace}/{record.name}"
        after.steps = (*self.steps, Step("new", text, name, self._placement_of(states[0], record.uid, name)))
        return after

    def fill(self, count: int) -> Scene:
        """Places as many target pods as fit, up to this number, on the best nodes."""
        scene = self
        for name in self.target_nodes():
            while scene.arrived < count and (after := scene.place(name)) is not None:
                scene = after
        return scene

    def target_nodes(self) -> Sequence[str]:
        """Returns the nodes on which target pods may fit now."""
        return list(self._in_order(self.cluster.candidates(self.cluster.target, self.cluster.question.record)))

    def _in_order(self, candidates: Candidates) -> Iterator[str]:
        yield from candidates.open
        is_open = set(candidates.open)
        yield from (name for name in candidates.possible if name in self.changed and name not in is_open)

    def changes(self) -> Iterator[Change]:
        """Yields the predicted changes of NUMA nodes."""
        for name, states in sorted(self.changed.items()):
            before, after = self.cluster.states(name)[0], states[0]
            empty = before.without(list(before.active))
            free = [free_amounts.by_position(state) for state in (empty, before, after)]
            for numa, *amounts in zip(before.node_ids, *free, strict=True):
                yield Change(name, numa, *amounts)

    def has_sums(self, pod: Pod, name: str, leaving: Sequence[Amounts] = ()) -> bool:
        """Returns whether the summed requests leave room for the pod, as kube-scheduler sums, after some pods left."""
        change = dict(self._requested.get(name, {}))
        for requests in leaving:
            _add(change, requests, -1)
        return not self.cluster.view.lacks(pod, name, change)

    def are_near(self, record: PodRecord, name: str, states: Iterable[Kubelet]) -> bool:
        """Returns whether the devices of a node in these states would be as near each other as the pod requires."""
        # The devices of pods that the steps have placed are unknown.
        brought = [*self.moved, *(f"{_TARGET}{number}" for number in range(self.arrived))]
        return not self.cluster.answers.affinity_refusal(record, name, states, brought)

    def _admitted(self, name: str, record: PodRecord, pod: Pod) -> tuple[Kubelet, ...] | None:
        """Returns the states of a node with the pod, None if the pod is refused."""
        if name in self.changed and not self.has_sums(pod, name):
            return None
        states = self.states(name)
        placed_states = place(states, record.view)
        return placed_states if placed_states is not None and self.are_near(record, name, states) else None

    def _with(self, name: str, states: tuple[Kubelet, ...], record: PodRecord, sign: int) -> Scene:
        after = Scene(self.cluster)
        after.arrived, after.moved, after.steps = self.arrived, self.moved, self.steps
        after.changed = {**self.changed, name: states}
        assert record.needs is not None
        requested = dict(self._requested.get(name, {}))
        _add(requested, record.needs.requests, sign)
        after._requested = {**self._requested, name: requested}
        return after

    def _placement_of(self, state: Kubelet, uid: str, name: str) -> dict[str, Placed]:
        return numa_placement.of(state, uid, is_exact=self.cluster.view.precision(name) == "exact")


def _add(amounts: Amounts, requests: Amounts, sign: int) -> None:
    for resource, amount in {**requests, "pods": 1}.items():
        amounts[resource] = amounts.get(resource, 0) + sign * amount
