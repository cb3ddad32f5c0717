"""Keeps capacity free for declared pod shapes: evicts pods whose replacements are placed elsewhere.

Every half minute the defragmenter counts how many pods of a shape would fit. If too few fit, it searches some nodes for
the fewest moves after which another pod fits (defrag/), and makes the first move: an eviction by policy/v1, which
respects budgets. kube-scheduler decides where the replacement goes, so only this move is planned; the next plan is made
once the replacement is placed. If three evictions in a row do not bring the goal nearer, the shape rests for an hour,
then for two, up to a day.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from topowise.bounded import Bounded
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.runtime.event_loop import collected, sliced
from topowise.runtime.log import kv
from topowise_scheduler import declared_shapes, defrag
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.configuration import Defragmenter as Settings
from topowise_scheduler.defrag import Plan, Step
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.leader import controller, events, evictions, pod_lists
from topowise_scheduler.preemption import Budgets
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.text import plural

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 5.0
_PAUSE_S: Final = 30.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
# Nodes of a plan: a tenth of a second of work, in slices.
_MAX_NODES: Final = 64
# Bound of the wait for a victim to end, and the time that its controller gets to replace it.
_LONGEST_END_S: Final = 600.0
_SETTLED_S: Final = 30.0
_MAX_FAILURES: Final = 3
_ANNOUNCED_BYTES: Final = 1 << 19


class _ShapeState(msgspec.Struct):
    """State of a declared shape.

    `victim`: UID of the pod that was evicted last, while the eviction is in progress, at most `until` a time.
    `expected`: moves that remain if that eviction helped, None before the first. `failures`: evictions in a row that
    did not help, after which the shape rests for `rest` seconds.
    """

    pod: Pod
    text: str
    count: int
    not_before: float = 0.0
    victim: str = ""
    until: float = 0.0
    expected: int | None = None
    failures: int = 0
    rest: float = _HOUR_S


class Defragmenter:
    """Makes room for the shapes in turn. `clock` gives seconds, monotonic, `now` the time in UTC."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        answers: Answers,
        view: ClusterView,
        budgets: Budgets,
        settings: Settings,
        clock: Callable[[], float] = clock.monotonic,
        now: Callable[[], datetime] = clock.utc_now,
    ) -> None:
        self._api = api
        self._ledger, self._answers, self._view, self._budgets = ledger, answers, view, budgets
        self._settings = settings
        self._clock, self._now = clock, now
        declared = [declared_shapes.shape(settings_of_shape) for settings_of_shape in settings.shapes]
        self._shapes = {
            str(shape): _ShapeState(shape.pod(settings.priority), str(shape), shape.count) for shape in declared
        }
        self._random = random.Random()
        self._evicted_at: list[float] = []
        self._announced: Bounded[str, bool] = Bounded(_ANNOUNCED_BYTES, lambda uid, _: len(uid))

    async def run(self) -> None:
        """Evicts pods until cancelled."""
        await controller.run("open room for a declared shape", self.due, self._look, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, _ShapeState]:
        """Returns the shapes to look at now."""
        now = self._clock()
        self._evicted_at = [at for at in self._evicted_at if at > now - _HOUR_S]
        if not self._settings.is_quiet(self._now().time()) or len(self._evicted_at) >= self._settings.per_hour:
            return {}
        return {text: shape for text, shape in self._shapes.items() if now >= shape.not_before}

    async def _look(self, shape: _ShapeState) -> None:
        """Makes the first move for a shape if a plan has moves. Raises ApiError."""
        now = self._clock()
        shape.not_before = now + _PAUSE_S
        if len(self._evicted_at) >= self._settings.per_hour or self._is_in_progress(shape, now):
            return
        planned_at = self._ledger.node_states.changes
        names = await self._nodes(shape)
        plan = await _sliced(
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
        if not self._needs_move(shape, plan):
            return
        step = next((step for step in plan.steps if step.kind == "move"), None)
        changed_at = self._ledger.node_states.changed_at
        changed = max(changed_at(step.origin), changed_at(step.node)) if step else 0
        if step is None or changed > planned_at:
            return
        await self._move(shape, step, plan)

    def _is_in_progress(self, shape: _ShapeState, now: float) -> bool:
        """Returns whether the last eviction is in progress: the victim ends first, then its replacement is placed."""
        if not shape.victim:
            return False
        if self._ledger.pods.of(shape.victim).node and now < shape.until:
            return True
        shape.victim, shape.not_before = "", now + _SETTLED_S
        return True

    async def _nodes(self, shape: _ShapeState) -> list[str]:
        """Returns some nodes on which the shape fits, and some on which it might fit after moves."""
        verdicts = await collected(self._view.verdicts(self._view.record(shape.pod), self._view.names))
        fits = [node.name for node in verdicts if node.verdict == "fits"]
        tight = [node.name for node in verdicts if node.obstacle in ("alignment", "resources")]
        return [*self._sample(fits, _MAX_NODES // 2), *self._sample(tight, _MAX_NODES // 2)]

    def _sample(self, names: Sequence[str], most: int) -> list[str]:
        return list(names) if len(names) <= most else self._random.sample(names, most)

    async def _movable(self, names: Sequence[str]) -> list[defrag.Movable]:
        """Returns the movable pods. Reads the pods of the nodes: records lack owner references and most of the spec."""
        pods: list[tuple[Pod, PodRecord]] = []
        for name in names:
            records = {record.uid: record for record in self._ledger.pods_on(name)}
            listed = await pod_lists.on_node(self._api, name)
            pods += [(pod, records[pod.metadata.uid]) for pod in listed if pod.metadata.uid in records]
        claimed = self._ledger.gates.claimed
        owns_claims = None if claimed.settings is None else claimed.are_made_for
        return defrag.sort(pods, self._budgets, self._settings.priority, owns_claims)[0]

    def _needs_move(self, shape: _ShapeState, plan: Plan) -> bool:
        """Returns whether a pod is to be moved now; counts evictions that did not help."""
        if plan.already >= shape.count:
            shape.expected, shape.failures, shape.rest = None, 0, _HOUR_S
            return False
        if shape.expected is not None:
            is_nearer = 0 < plan.moves <= shape.expected
            shape.expected, shape.failures = None, 0 if is_nearer else shape.failures + 1
        if shape.failures < _MAX_FAILURES:
            return bool(plan.moves)
        log.warning("Moving pods does not help", extra=kv(shape=shape.text, pause_s=int(shape.rest)))
        shape.failures, shape.not_before = 0, self._clock() + shape.rest
        shape.rest = min(_DAY_S, 2 * shape.rest)
        return False

    async def _move(self, shape: _ShapeState, step: Step, plan: Plan) -> None:
        namespace, _, name = step.pod.partition("/")
        here = self._ledger.pods_on(step.origin)
        victim = next((pod for pod in here if (pod.namespace, pod.name) == (namespace, name)), None)
        if victim is None:
            return
        # The last new pod is the pod that the moves make room for.
        goal = [step.node for step in plan.steps if step.kind == "new"][-1]
        note = (
            f"so that {goal} has {shape.text} free in one piece: {plan.already} of {shape.count} such pods fit, "
            f"and a further pod after {plural(plan.moves, 'move')}. The evicted pod fits on {step.node}."
        )
        if self._settings.dry_run:
            if victim.uid not in self._announced:
                self._announced.put(victim.uid, True)
                await events.post(
                    self._api, victim, "WouldMove", f"The pod would be evicted {note}", kind="Normal", action="Move"
                )
            return
        if not await evictions.evict(self._api, victim):
            return
        now = self._clock()
        self._evicted_at.append(now)
        shape.victim, shape.until, shape.expected = victim.uid, now + _LONGEST_END_S, plan.moves - 1
        self._ledger.count("evicted_for_room")
        await events.post(self._api, victim, "Moved", f"The pod was evicted {note}", kind="Normal", action="Move")


async def _sliced(steps: Generator[None, None, Plan]) -> Plan:
    """Returns the plan, made in slices of the event loop."""
    plans: list[Plan] = []

    def keep_plan() -> Generator[None, None, None]:
        plans.append((yield from steps))

    await sliced(keep_plan())
    return plans[0]
