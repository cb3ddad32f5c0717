"""Why a pod is where it is, or waits: what was decided about it, and what each kind of node says as things are now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from topowise.bounded import Bounded, size_of_json
from topowise.errors import TopowiseError
from topowise.runtime.turns import collected, sliced
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.presentation.dashboard.decisions import Decision, Decisions, reasons_of
from topowise_scheduler.presentation.explain import waiting_pod
from topowise_scheduler.presentation.explain.explanation import NodeExplanation
from topowise_scheduler.presentation.explain.waiting_pod import Obstacle

Explain = Callable[[str, Sequence[str]], Awaitable[list[NodeExplanation]]]
"""Why nodes say yes or no to a pod of the cluster ("namespace/name"). Raises TopowiseError."""

# A page asks every two seconds; the pod is read from the API server and explained anew as often as this.
_FRESH_S: Final = 10.0
_MOST_BYTES: Final = 8 << 20
_MOST_ATTEMPTS: Final = 10


class Why(msgspec.Struct, frozen=True):
    """`attempts` are the newest first, `since` is RFC 3339 while it waits, `problem` says why there is no explanation.

    `reasons` count all nodes by what is against a pod that waits; `explained` are a few of each, or those of the last
    attempt.
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


class Whys:
    """One at a time, and kept for a while. `monotonic` gives seconds."""

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
        self._known: Bounded[tuple[object, ...], tuple[float, Why]] = Bounded(_MOST_BYTES, size_of_json)
        self._lock = asyncio.Lock()

    async def read(self, pod: str) -> Why:
        """Of a pod, "namespace/name"."""
        async with self._lock:
            now = self._monotonic()
            attempts = tuple([one for one in self._decisions.all() if one.pod == pod][:_MOST_ATTEMPTS])
            attempts = attempts or tuple([one for one in self._decisions.refused if one.pod == pod])
            # Something has become of it.
            key = (pod, *((attempts[0].number, attempts[0].outcome) if attempts else ()))
            read_at, why = self._known.get(key) or (float("-inf"), Why(pod, ()))
            if now - read_at >= _FRESH_S:
                why = await self._read(pod, attempts)
                self._known.put(key, (now, why))
            return msgspec.structs.replace(why, attempts=attempts)

    async def _read(self, pod: str, attempts: tuple[Decision, ...]) -> Why:
        why = Why(pod, attempts)
        record = next((one for one in self._ledger.waiting.values() if f"{one.namespace}/{one.name}" == pod), None)
        names: list[str] = []
        if record is not None:
            why, names = await self._waiting(why, record)
        elif attempts:
            last = attempts[0]
            examples = [name for some in last.examples.values() for name in some]
            names = [name for name in (last.bound, last.expected, *examples) if name]
        if not names:
            return why
        try:
            explained = await self._explain(pod, list(dict.fromkeys(names)))
        except TopowiseError as exc:
            return msgspec.structs.replace(why, problem=f"cannot be explained now: {exc}")
        return msgspec.structs.replace(why, explained=tuple(explained))

    async def _waiting(self, why: Why, record: PodRecord) -> tuple[Why, list[str]]:
        """With what it waits for, and a few nodes of each reason, the one that comes nearest first."""
        why = msgspec.structs.replace(why, waits=True, priority=record.priority, since=record.started)
        names = self._ledger.node_states.reported()
        await sliced(self._answers.fitting(record, names))
        reasons, examples = reasons_of(names, self._answers.verdicts_of(record, names))
        found = await collected(waiting_pod.looking(self._ledger, self._answers, record, names))
        obstacle = found[0] if found else None
        nearest = [obstacle.nearest] if obstacle is not None and obstacle.nearest else []
        why = msgspec.structs.replace(why, obstacle=obstacle, reasons=reasons, fits=len(names) - sum(reasons.values()))
        return why, [*nearest, *(name for some in examples.values() for name in some)]
