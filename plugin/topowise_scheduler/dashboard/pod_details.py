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
from topowise.runtime.event_loop import collected
from topowise_scheduler.dashboard import pod_search
from topowise_scheduler.dashboard.decisions import Decision, Decisions
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.explain.waiting import WaitingPod, looking
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import PodRecord

Explain = Callable[[str, Sequence[str]], Awaitable[list[NodeExplanation]]]
"""Explains nodes for a pod of the cluster ("namespace/name"). Raises TopowiseError."""

# A page is read every two seconds; the pod is fetched and explained again only after this time.
_FRESH_S: Final = 10.0
_MOST_BYTES: Final = 8 << 20
_MOST_ATTEMPTS: Final = 10


_UNKNOWN: Final = (
    "the cluster has no such pod that waits or is assigned to a node; "
    "expected NAMESPACE/NAME of a pod that is not deleted"
)


class PodDetails(msgspec.Struct, frozen=True):
    """`attempts` are the newest first, `since` is RFC 3339 while the pod waits.

    For a waiting pod `explained` has a few nodes of each reason of `why`, otherwise the nodes of the last attempt.
    `problem` says why there is no explanation.
    """

    pod: str
    attempts: tuple[Decision, ...]
    priority: int = 0
    since: str = ""
    why: WaitingPod | None = None
    explained: tuple[NodeExplanation, ...] = ()
    problem: str = ""


class PodReader:
    """Reads pods; the last few answers are kept. `monotonic` returns seconds."""

    def __init__(
        self,
        ledger: Ledger,
        view: ClusterView,
        decisions: Decisions,
        explain: Explain,
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._view = view
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
        waiting = self._ledger.unscheduled.values()
        record = next((record for record in waiting if f"{record.namespace}/{record.name}" == pod), None)
        names: list[str] = []
        if record is not None:
            details, names = await self._waiting(details, record)
        elif attempts:
            last = attempts[0]
            examples = [name for group in last.examples.values() for name in group]
            names = [name for name in (last.bound, last.expected, *examples) if name]
        if not names:
            is_known = pod in await collected(pod_search.matching(self._ledger, pod))
            return details if is_known else msgspec.structs.replace(details, problem=_UNKNOWN)
        try:
            explained = await self._explain(pod, list(dict.fromkeys(names)))
        except TopowiseError as exc:
            return msgspec.structs.replace(details, problem=f"cannot be explained now: {exc}")
        return msgspec.structs.replace(details, explained=tuple(explained))

    async def _waiting(self, details: PodDetails, record: PodRecord) -> tuple[PodDetails, list[str]]:
        """The details of a waiting pod, and the nodes to explain: the nearest node, then a few for each reason."""
        (why,) = await collected(looking(self._view, record))
        details = msgspec.structs.replace(details, priority=record.priority, since=record.status.started, why=why)
        nearest = [why.nearest] if why.nearest else []
        return details, [*nearest, *(name for group in why.examples.values() for name in group)]
