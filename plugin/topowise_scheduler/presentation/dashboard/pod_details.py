"""Why a pod waits, or was put where it is: its decisions, and why nodes accept or refuse it now.

An answer takes up to a second on a large cluster: answers are made in sequence, in slices, and reused for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from topowise.bounded import Bounded, size_of_json
from topowise.errors import TopowiseError
from topowise.runtime.event_loop import collected, sliced
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.presentation.dashboard.decisions import Decision, Decisions, reasons_of
from topowise_scheduler.presentation.explain import waiting_pod
from topowise_scheduler.presentation.explain.explanation import NodeExplanation
from topowise_scheduler.presentation.explain.waiting_pod import Obstacle

Explain = Callable[[str, Sequence[str]], Awaitable[list[NodeExplanation]]]
"""Explains nodes for a pod of the cluster ("namespace/name"). Raises TopowiseError."""

# A page is read every two seconds; the pod is fetched and explained again only after this time.
_FRESH_S: Final = 10.0
_MOST_BYTES: Final = 8 << 20
_MOST_ATTEMPTS: Final = 10


class PodDetails(msgspec.Struct, frozen=True):
    """`attempts` are the newest first, `since` is RFC 3339 while the pod waits.

    For a waiting pod `reasons` counts all refusing nodes and `explained` has a few nodes of each; otherwise
    `explained` has the nodes of the last attempt. `problem` says why there is no explanation.
    """

    pod: str
    attempts: tuple[Decision, ...]
    waits: bool = False
    priority: int = 0
    since: str = ""
    obstacle: Obstacle | None = None
    reasons: dict[str, int] = {}
    fits: int = 0
    explained: tuple[NodeExplanation, ...] = ()
    problem: str = ""


class PodReader:
    """Reads pods; the last few answers are kept. `monotonic` returns seconds."""

    def __init__(
        self,
        ledger: Ledger,
        answers: Answers,
        decisions: Decisions,
        explain: Explain,
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._answers = answers
        self._decisions = decisions
        self._explain = explain
        self._monotonic = monotonic
        self._cache: Bounded[tuple[object, ...], tuple[float, PodDetails]] = Bounded(_MOST_BYTES, size_of_json)
        self._lock = asyncio.Lock()

    async def read(self, pod: str) -> PodDetails:
        """The details of a pod ("namespace/name")."""
        async with self._lock:
            now = self._monotonic()
            attempts = tuple([decision for decision in self._decisions.all() if decision.pod == pod][:_MOST_ATTEMPTS])
            attempts = attempts or tuple([decision for decision in self._decisions.refused if decision.pod == pod])
            # A new attempt, or a new outcome, makes the kept answer stale.
            key = (pod, *((attempts[0].at, attempts[0].outcome) if attempts else ()))
            read_at, details = self._cache.get(key) or (float("-inf"), PodDetails(pod, ()))
            if now - read_at >= _FRESH_S:
                details = await self._read(pod, attempts)
                self._cache.put(key, (now, details))
            return msgspec.structs.replace(details, attempts=attempts)

    async def _read(self, pod: str, attempts: tuple[Decision, ...]) -> PodDetails:
        details = PodDetails(pod, attempts)
        waiting = self._ledger.waiting.values()
        record = next((record for record in waiting if f"{record.namespace}/{record.name}" == pod), None)
        names: list[str] = []
        if record is not None:
            details, names = await self._waiting(details, record)
        elif attempts:
            last = attempts[0]
            examples = [name for group in last.examples.values() for name in group]
            names = [name for name in (last.bound, last.expected, *examples) if name]
        if not names:
            return details
        try:
            explained = await self._explain(pod, list(dict.fromkeys(names)))
        except TopowiseError as exc:
            return msgspec.structs.replace(details, problem=f"cannot be explained now: {exc}")
        return msgspec.structs.replace(details, explained=tuple(explained))

    async def _waiting(self, details: PodDetails, record: PodRecord) -> tuple[PodDetails, list[str]]:
        """The details of a waiting pod, and the nodes to explain: the nearest node, then a few for each refusal."""
        names = self._ledger.node_states.reported()
        await sliced(self._answers.fitting(record, names))
        reasons, examples = reasons_of(names, self._answers.verdicts_of(record, names))
        obstacles = await collected(waiting_pod.looking(self._ledger, self._answers, record, names))
        obstacle = obstacles[0] if obstacles else None
        nearest = [obstacle.nearest] if obstacle is not None and obstacle.nearest else []
        details = msgspec.structs.replace(
            details,
            waits=True,
            priority=record.priority,
            since=record.started,
            obstacle=obstacle,
            reasons=reasons,
            fits=len(names) - sum(reasons.values()),
        )
        return details, [*nearest, *(name for group in examples.values() for name in group)]
