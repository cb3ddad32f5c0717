"""The cluster after some steps of a plan, on an overlay.

Every step is checked by the trial of the overlay, in all possible states of the node. A scene never changes; each step
makes a new scene.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from topowise.errors import ParseError
from topowise.pods import Amounts
from topowise_scheduler.kubelet import allocated_nodes, free_amounts
from topowise_scheduler.kubelet.allocated_nodes import Placed
from topowise_scheduler.overlay.candidates import Candidates, Classes
from topowise_scheduler.overlay.defrag.movable import Movable
from topowise_scheduler.overlay.overlay import Overlay, Placement, Unfit
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.kube_scheduler import Pod

# Lower than every pod's priority, so that all nominated pods count.
_LOWEST_PRIORITY: Final = -(1 << 31)
_TARGET: Final = "\0target/"


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


class Cluster:
    """The cluster before the first step, and the nodes that may take the pods of each class."""

    def __init__(self, trial: Trial, target: Pod) -> None:
        self.trial = trial
        names = [name for name in trial.names if trial.precision(name)]
        self.target = trial.question(target, names).record
        if self.target.is_too_large:
            raise ParseError("pod", target.metadata.name, str(self.target.problem))
        seen_by = msgspec.structs.replace(self.target, priority=_LOWEST_PRIORITY)
        self.overlay = Overlay(trial, seen_by=seen_by)
        self.classes = Classes(trial, names)
        self.homes = self.classes.of(target, self.target)
        """The nodes that may take target pods."""


class Scene(msgspec.Struct, frozen=True):
    """The cluster after some steps. `moved`: the node of each moved pod, by UID. `arrived`: number of placed target
    pods."""

    cluster: Cluster
    overlay: Overlay
    steps: tuple[Step, ...] = ()
    moved: Mapping[str, str] = {}
    arrived: int = 0

    def candidates(self, mover: Movable) -> Iterator[str]:
        """Yields the nodes that may take a pod, the best first, then possible nodes that the steps have changed."""
        return self._in_order(self.cluster.classes.of(mover.pod, mover.replacement))

    def move(self, mover: Movable, origin: str, name: str) -> Scene | None:
        """Places the replacement of a pod on another node, then removes the pod. Returns None if it is refused."""
        placed = self.overlay.move(mover.replacement, mover.uid, origin, name)
        if isinstance(placed, Unfit):
            return None
        step = Step("move", mover.name, name, self._containers(placed), origin)
        moved = {**self.moved, mover.uid: name}
        return Scene(self.cluster, placed.overlay, (*self.steps, step), moved, self.arrived)

    def place(self, name: str) -> Scene | None:
        """Places a target pod on a node. Returns None if the node refuses it."""
        target = self.cluster.target
        placed = self.overlay.place(target, name, f"{_TARGET}{self.arrived}")
        if isinstance(placed, Unfit):
            return None
        step = Step("new", f"{target.namespace}/{target.name}", name, self._containers(placed))
        return Scene(self.cluster, placed.overlay, (*self.steps, step), self.moved, self.arrived + 1)

    def fill(self, count: int) -> Scene:
        """Places as many target pods as fit, up to this number, on the best nodes."""
        scene = self
        for name in self.target_nodes():
            while scene.arrived < count and (after := scene.place(name)) is not None:
                scene = after
        return scene

    def target_nodes(self) -> Sequence[str]:
        """Returns the nodes on which target pods may fit now."""
        return list(self._in_order(self.cluster.homes))

    def _in_order(self, candidates: Candidates) -> Iterator[str]:
        yield from (name for name, is_open in candidates.possible.items() if is_open)
        changed = self.overlay.changed
        yield from (name for name, is_open in candidates.possible.items() if not is_open and name in changed)

    def changes(self) -> Iterator[Change]:
        """Yields the predicted changes of NUMA nodes."""
        for name, copy in sorted(self.overlay.changed.items()):
            before, after = self.overlay.untouched(name).states[0], copy.states[0]
            free = [free_amounts.by_position(state) for state in (before.emptied(), before, after)]
            for numa, *amounts in zip(before.node_ids, *free, strict=True):
                yield Change(name, numa, *amounts)

    def _containers(self, placed: Placement) -> dict[str, Placed]:
        is_exact = self.cluster.trial.precision(placed.node) == "exact"
        return allocated_nodes.placements(placed.state, placed.record.uid, is_exact=is_exact)
