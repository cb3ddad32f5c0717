"""The cluster while pods are moved about in it: its nodes on copies, and who would take whom.

Every step is asked of the model, in all possible placements of the node, and of kube-scheduler's own filters; a scene
never changes, a step makes another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from topowise.errors import ParseError
from topowise.pods import Amounts
from topowise_scheduler.answers import Answers, Question
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.defrag.movable import Movable
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.kubelet.trial import place
from topowise_scheduler.presentation.explain import numa_placement
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.explain.numa_placement import Placed

# Less than anybody's: whoever is nominated to a node stands in the way.
_LEAST_PRIORITY: Final = -(1 << 31)
_WANTED: Final = "\0wanted/"
_encode = msgspec.json.Encoder(order="deterministic").encode


class Step(msgspec.Struct, frozen=True):
    """A pod is moved, or one of those that room is made for comes; and where its containers will lie."""

    kind: Literal["move", "new"]
    pod: str
    node: str
    containers: Mapping[str, Placed]
    origin: str = ""
    """The node that it leaves."""


class Change(msgspec.Struct, frozen=True):
    """One NUMA node of a node that the steps change: what it can give out in all, before the steps and after them. CPUs
    are whole ones."""

    node: str
    numa: int
    whole: Amounts
    before: Amounts
    after: Amounts


class Homes(msgspec.Struct, frozen=True):
    """Where pods of one kind may go: `open` take one as they are, the best first; `thinkable` if they had room."""

    open: Sequence[str]
    thinkable: Sequence[str]
    thinkable_set: frozenset[str]


class Cluster:
    """What is asked about the cluster as it is; answers are kept."""

    def __init__(self, answers: Answers, view: ClusterView, wanted: Pod, names: Sequence[str]) -> None:
        self.answers = answers
        self.view = view
        self.names = [name for name in names if view.precision(name)]
        self.asked: Question = answers.question(wanted, self.names, is_simulation=True)
        if self.asked.record.is_too_large:
            raise ParseError("pod", wanted.metadata.name, self.asked.record.problem)
        self.wanted = wanted
        record = msgspec.structs.replace(self.asked.record, priority=_LEAST_PRIORITY)
        self._anybody = msgspec.structs.replace(self.asked, record=record)
        self._states: dict[str, tuple[Kubelet, ...]] = {}
        self._homes: dict[bytes, Homes] = {}

    def states(self, name: str) -> tuple[Kubelet, ...]:
        """The node as it may be now; not to be changed."""
        found = self._states.get(name)
        if found is None:
            found = self._states[name] = tuple(self.answers.states_for(self._anybody, name))
        return found

    def homes(self, pod: Pod, record: PodRecord) -> Homes:
        """Where pods like this one may go now."""
        # Names of volumes are another in each pod; what is in them keeps a pod from being moved.
        spec = msgspec.structs.replace(pod.spec, volumes=None)
        key = _encode((spec, str(record.demand), record.wishes))
        found = self._homes.get(key)
        if found is None:
            found = self._homes[key] = self._find_homes(pod)
        return found

    def _find_homes(self, pod: Pod) -> Homes:
        asked = self.answers.question(pod, self.names, is_simulation=True)
        verdicts = self.answers.verdicts(asked)
        against = self.view.against(pod, self.names)
        thinkable = np.array([one is None or one.verdict == "not now" for one in against.values()], np.bool_)
        thinkable &= verdicts.outcomes != Outcome.UNRESOLVABLE
        is_open = thinkable & (verdicts.outcomes == Outcome.FITS)
        is_open &= np.array([one is None for one in against.values()], np.bool_)
        order = np.argsort(-self.answers.scores(asked), kind="stable")
        names = [self.names[at] for at in order[thinkable[order]].tolist()]
        return Homes([self.names[at] for at in order[is_open[order]].tolist()], names, frozenset(names))


class Scene:
    """The cluster after some steps."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.steps: tuple[Step, ...] = ()
        # Of nodes that steps have changed: their states, and what is requested there beside what was.
        self.changed: dict[str, tuple[Kubelet, ...]] = {}
        self._requested: dict[str, Amounts] = {}
        self.moved: Mapping[str, str] = {}
        """The node of each pod that was moved, by uid."""
        self.arrived = 0
        """How many of the wanted pods are there."""

    def states(self, name: str) -> tuple[Kubelet, ...]:
        """A node as it may be now."""
        return self.changed.get(name) or self.cluster.states(name)

    def homes(self, mover: Movable) -> Iterator[str]:
        """The nodes that may take a pod, the most suitable first; nodes that have changed are asked anew."""
        homes = self.cluster.homes(mover.pod, mover.record)
        yield from homes.open
        is_open = set(homes.open)
        yield from (name for name in homes.thinkable if name in self.changed and name not in is_open)

    def move(self, mover: Movable, origin: str, name: str) -> Scene | None:
        """The pod is made anew on another node, and then gone from the one where it was; None if it is refused."""
        record = msgspec.structs.replace(mover.record, node="")
        taken = self._admitted(name, record, mover.pod)
        if taken is None:
            return None
        after = self._with(name, taken, record, 1)
        left = tuple([_without(state, record.uid) for state in after.states(origin)])
        after = after._with(origin, left, record, -1)
        after.moved = {**self.moved, record.uid: name}
        after.steps = (*self.steps, Step("move", mover.name, name, self._lies(taken[0], record.uid, name), origin))
        return after

    def place(self, name: str) -> Scene | None:
        """One of the wanted pods comes to a node; None if it is refused."""
        wanted = self.cluster.wanted
        record = msgspec.structs.replace(self.cluster.asked.record, uid=f"{_WANTED}{self.arrived}")
        taken = self._admitted(name, record, wanted)
        if taken is None:
            return None
        after = self._with(name, taken, record, 1)
        after.arrived += 1
        text = f"{record.namespace}/{record.name}"
        after.steps = (*self.steps, Step("new", text, name, self._lies(taken[0], record.uid, name)))
        return after

    def fill(self, count: int) -> Scene:
        """As many of the wanted pods as fit now, up to this number, on the most suitable nodes."""
        scene = self
        for name in self.wanted_homes():
            while scene.arrived < count and (after := scene.place(name)) is not None:
                scene = after
        return scene

    def wanted_homes(self) -> Sequence[str]:
        """Where the wanted pods may fit as it is now."""
        homes = self.cluster.homes(self.cluster.wanted, self.cluster.asked.record)
        is_open = set(homes.open)
        return [*homes.open, *(name for name in homes.thinkable if name in self.changed and name not in is_open)]

    def changes(self) -> Iterator[Change]:
        """What the steps have changed, as it is predicted."""
        for name, states in sorted(self.changed.items()):
            before, after = self.cluster.states(name)[0], states[0]
            empty = before.fork()
            for uid in list(empty.active):
                empty.remove(uid)
            free = [free_amounts.by_position(state) for state in (empty, before, after)]
            for numa, *amounts in zip(before.node_ids, *free, strict=True):
                yield Change(name, numa, *amounts)

    def has_sums(self, pod: Pod, name: str, leaving: Sequence[Amounts] = ()) -> bool:
        """Whether what pods request leaves room for this one on a node, as kube-scheduler counts, once some left."""
        change = dict(self._requested.get(name, {}))
        for requests in leaving:
            _add(change, requests, -1)
        return not self.cluster.view.lacks(pod, name, change)

    def are_near(self, record: PodRecord, name: str, states: Iterable[Kubelet]) -> bool:
        """Whether the devices of a node in these states would be as near each other as the pod requires."""
        # Of those that the steps have brought nobody knows which devices they would have.
        brought = [*self.moved, *(f"{_WANTED}{number}" for number in range(self.arrived))]
        return not self.cluster.answers.affinity_refusal(record, name, states, brought)

    def _admitted(self, name: str, record: PodRecord, pod: Pod) -> tuple[Kubelet, ...] | None:
        if name in self.changed and not self.has_sums(pod, name):
            return None
        placed_states = place(self.states(name), record.view)
        if placed_states is None or not self.are_near(record, name, self.states(name)):
            return None
        return placed_states

    def _with(self, name: str, states: tuple[Kubelet, ...], record: PodRecord, sign: int) -> Scene:
        after = Scene(self.cluster)
        after.arrived, after.moved, after.steps = self.arrived, self.moved, self.steps
        after.changed = {**self.changed, name: states}
        assert record.needs is not None
        requested = dict(self._requested.get(name, {}))
        _add(requested, record.needs.requests, sign)
        after._requested = {**self._requested, name: requested}
        return after

    def _lies(self, state: Kubelet, uid: str, name: str) -> dict[str, Placed]:
        return numa_placement.of(state, uid, is_exact=self.cluster.view.precision(name) == "exact")


def _add(amounts: Amounts, requests: Amounts, sign: int) -> None:
    for resource, amount in {**requests, "pods": 1}.items():
        amounts[resource] = amounts.get(resource, 0) + sign * amount


def _without(state: Kubelet, uid: str) -> Kubelet:
    copy = state.fork()
    copy.remove(uid)
    return copy
