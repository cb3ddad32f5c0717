"""Keeps room open for declared shapes: pods are evicted so that their owners' new ones are less in the way.

Every half minute it is counted how many pods of a shape would fit. Where that is too few, the fewest moves that make
room for one more are looked for on some nodes (defrag/), and the first of them is made: the pod is evicted by
policy/v1, which respects budgets. Nothing is planned beyond that one: where the new pod goes is kube-scheduler's
decision, so when it is there, it is looked again. If evictions do not bring room nearer three times in a row, the shape
is left alone for an hour, then for two, up to a day.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np

from topowise.bounded import Bounded
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.log import kv
from topowise.runtime.turns import sliced
from topowise_scheduler import declared_shapes, defrag
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.configuration import Defragmenter as Settings
from topowise_scheduler.defrag import Plan, Step
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.leader import chore, events, evictions
from topowise_scheduler.preemption import Budgets
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.text import plural

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 5.0
_PAUSE_S: Final = 30.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
# Nodes that a plan is made for: a tenth of a second of work, in slices.
_MAX_NODES: Final = 64
# A pod whose end takes longer is not waited for; and how long its owner may take to make another.
_LONGEST_END_S: Final = 600.0
_SETTLED_S: Final = 30.0
_MOST_IN_VAIN: Final = 3
_TOLD_BYTES: Final = 1 << 19


class _Pods(msgspec.Struct, frozen=True):
    """v1.PodList."""

    items: tuple[Pod, ...] = ()


class _Shape(msgspec.Struct):
    """One of those declared. `expected` moves are left if the last eviction helped; None before the first."""

    pod: Pod
    text: str
    count: int
    not_before: float = 0.0
    going: str = ""
    until: float = 0.0
    expected: int | None = None
    in_vain: int = 0
    rest: float = _HOUR_S


class Defragmenter:
    """For one shape after the other. `clock` gives seconds, monotonic, `now` the time in UTC."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        answers: Answers,
        view: ClusterView,
        budgets: Budgets,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._ledger, self._answers, self._view, self._budgets = ledger, answers, view, budgets
        self._settings = settings
        self._clock, self._now = clock, now
        declared = [declared_shapes.shape(one) for one in settings.shapes]
        self._shapes = {str(one): _Shape(one.pod(settings.priority), str(one), one.count) for one in declared}
        self._random = random.Random()
        self._evicted_at: list[float] = []
        self._told: Bounded[str, bool] = Bounded(_TOLD_BYTES, lambda uid, _: len(uid))

    async def run(self) -> None:
        """Until cancelled."""
        await chore.run("open room for a declared shape", self.due, self._look, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, _Shape]:
        """The shapes to be looked at now."""
        now = self._clock()
        self._evicted_at = [at for at in self._evicted_at if at > now - _HOUR_S]
        if not self._settings.is_quiet(self._now().time()) or len(self._evicted_at) >= self._settings.per_hour:
            return {}
        return {text: shape for text, shape in self._shapes.items() if now >= shape.not_before}

    async def _look(self, shape: _Shape) -> None:
        """Makes the first move for a shape if there is one. Raises ApiError."""
        now = self._clock()
        shape.not_before = now + _PAUSE_S
        if len(self._evicted_at) >= self._settings.per_hour or self._is_going(shape, now):
            return
        judged_at = self._ledger.node_states.changes
        names = self._nodes(shape)
        found = await _sliced(
            defrag.one_more(
                self._answers,
                self._view,
                shape.pod,
                shape.count,
                await self._movable(names),
                self._settings.max_moves,
                names,
            )
        )
        if not self._helps(shape, found):
            return
        step = next((one for one in found.steps if one.kind == "move"), None)
        changed_at = self._ledger.node_states.changed_at
        changed = max(changed_at(step.origin), changed_at(step.node)) if step else 0
        if step is None or changed > judged_at:
            return
        await self._move(shape, step, found)

    def _is_going(self, shape: _Shape, now: float) -> bool:
        """Whether the last pod is still on its way: first it has to end, then its owner's new one has to come."""
        if not shape.going:
            return False
        if self._ledger.pods.of(shape.going).node and now < shape.until:
            return True
        shape.going, shape.not_before = "", now + _SETTLED_S
        return True

    def _nodes(self, shape: _Shape) -> list[str]:
        """Some that have room, and some that might have it."""
        names = self._ledger.node_states.reported()
        asked = self._answers.question(shape.pod, names, is_simulation=True)
        outcomes = self._answers.verdicts(asked).outcomes
        fits = [names[at] for at in np.flatnonzero(outcomes == Outcome.FITS).tolist()]
        tight = [names[at] for at in np.flatnonzero(outcomes == Outcome.UNSCHEDULABLE).tolist()]
        return [*self._some(fits, _MAX_NODES // 2), *self._some(tight, _MAX_NODES // 2)]

    def _some(self, names: Sequence[str], most: int) -> list[str]:
        return list(names) if len(names) <= most else self._random.sample(names, most)

    async def _movable(self, names: Sequence[str]) -> list[defrag.Movable]:
        """Who may be moved. What the ledger keeps of a pod does not tell, so that these are read."""
        pods: list[tuple[Pod, PodRecord]] = []
        for name in names:
            records = {one.uid: one for one in self._ledger.pods_on(name)}
            query = {"fieldSelector": f"spec.nodeName={name}", "resourceVersion": "0"}
            raw = await self._api.request("GET", paths.PODS, query=query, timeout=chore.REQUEST_TIMEOUT_S)
            listed = _decode(raw).items
            pods += [(one, records[one.metadata.uid]) for one in listed if one.metadata.uid in records]
        return defrag.sort(pods, self._budgets, self._settings.priority)[0]

    def _helps(self, shape: _Shape, found: Plan) -> bool:
        """Whether another pod is to be moved."""
        if found.already >= shape.count:
            shape.expected, shape.in_vain, shape.rest = None, 0, _HOUR_S
            return False
        if shape.expected is not None:
            is_nearer = 0 < found.moves <= shape.expected
            shape.expected, shape.in_vain = None, 0 if is_nearer else shape.in_vain + 1
        if shape.in_vain < _MOST_IN_VAIN:
            return bool(found.moves)
        log.warning("Moving pods does not help", extra=kv(shape=shape.text, pause_s=int(shape.rest)))
        shape.in_vain, shape.not_before = 0, self._clock() + shape.rest
        shape.rest = min(_DAY_S, 2 * shape.rest)
        return False

    async def _move(self, shape: _Shape, step: Step, found: Plan) -> None:
        namespace, _, name = step.pod.partition("/")
        here = self._ledger.pods_on(step.origin)
        victim = next((one for one in here if (one.namespace, one.name) == (namespace, name)), None)
        if victim is None:
            return
        # Those before it fit as it is.
        goal = [one.node for one in found.steps if one.kind == "new"][-1]
        note = (
            f"so that {goal} has room in one piece for {shape.text}: {found.already} of {shape.count} such pods fit, "
            f"and one more after {plural(found.moves, 'move')}. There is room for it on {step.node}."
        )
        if self._settings.dry_run:
            if victim.uid not in self._told:
                self._told.put(victim.uid, True)
                await events.post(
                    self._api, victim, "WouldMove", f"The pod would be evicted {note}", kind="Normal", action="Move"
                )
            return
        if not await evictions.evict(self._api, victim):
            return
        now = self._clock()
        self._evicted_at.append(now)
        shape.going, shape.until, shape.expected = victim.uid, now + _LONGEST_END_S, found.moves - 1
        self._ledger.count("evicted_for_room")
        await events.post(self._api, victim, "Moved", f"The pod was evicted {note}", kind="Normal", action="Move")


async def _sliced(steps: Generator[None, None, Plan]) -> Plan:
    """The plan, in turns of the event loop."""
    found: list[Plan] = []

    def kept() -> Generator[None, None, None]:
        found.append((yield from steps))

    await sliced(kept())
    return found[0]


_decode: Final = msgspec.json.Decoder(_Pods).decode
