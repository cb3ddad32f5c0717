"""How short of room the cluster is for pods that have to lie on one NUMA node: the holes there are, and who waits.

In sum there may be room for hundreds while no NUMA node has it in one piece, which shows here before the first pod
waits. Both are kept by a task in the turns of the event loop and only read by a scrape: of nodes those that have
changed since the last sync are looked at, of pods one of each kind.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Final, Literal

import msgspec
import numpy as np

from topowise.runtime.turns import sliced
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kubelet import Kubelet, free_amounts

_INTERVAL_S: Final = 5.0
# Whoever may write reports may make up resources; these are as many as machines have kinds of devices.
_MAX_RESOURCES: Final = 32
# Amounts of bytes: a hole of less is none, and of the others the first binary digits count, so that few differ.
_GIB: Final = 1 << 30
_DIGITS: Final = 7
# Kinds of pods judged in one sync; the others come in the next ones.
_MAX_KINDS: Final = 64

Cause = Literal["room", "never", "none"]
CAUSES: Final[Mapping[Cause, str]] = {
    "room": "a node would do if it had the room in one piece",
    "never": "no node could align it, were it empty",
    "none": "a node takes it now: it waits for kube-scheduler to try",
}
_Zones = tuple[tuple[tuple[str, int], ...], ...]


class Holes:
    """Invariant: what is counted are the NUMA nodes of the reported nodes as they were when they were looked at."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._zones: dict[str, _Zones] = {}
        # By resource, how many NUMA nodes have so much free; and by size how many pieces of it fit on them.
        self._amounts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._pieces: dict[str, Counter[int]] = {}

    def sync(self) -> Iterator[None]:
        """Looks at what has changed, in steps of a node."""
        for name in self._ledger.node_states.take_reshaped():
            before = self._zones.pop(name, ())
            node_state = self._ledger.node_states.of(name)
            zones: _Zones = ()
            if node_state is not None and node_state.report is not None and node_state.kubelet is not None:
                zones = self._zones[name] = _zones(node_state.kubelet)
            # Of a node that has changed most zones have not.
            for was, is_now in zip_longest(before, zones, fillvalue=()):
                if was != is_now:
                    self._count(was, -1)
                    self._count(is_now, 1)
            yield

    def largest(self) -> dict[str, int]:
        """By resource, the most that one NUMA node has free."""
        return {name: max(amounts, default=0) for name, amounts in self._amounts.items()}

    def pieces(self) -> dict[str, Mapping[int, int]]:
        """By resource and size, how many pieces of that size fit on NUMA nodes; 0 for sizes that once fitted."""
        return {name: dict(sorted(pieces.items())) for name, pieces in self._pieces.items()}

    def _count(self, zone: tuple[tuple[str, int], ...], sign: int) -> None:
        for name, amount in zone:
            if name not in self._pieces:
                if len(self._pieces) >= _MAX_RESOURCES:
                    continue
                self._pieces[name] = Counter()
            amounts, pieces = self._amounts[name], self._pieces[name]
            amounts[amount] += sign
            if not amounts[amount]:
                del amounts[amount]
            size = _unit(name)
            while size <= amount:
                pieces[size] += sign * (amount // size)
                size *= 2


def _zones(node: Kubelet) -> _Zones:
    """What each NUMA node has free, without devices that lie on none: they would be counted on each of several."""
    tables = node.devices.tables if len(node.node_ids) > 1 else {}
    nowhere = {name for name, table in tables.items() if not table.has_topology}
    return tuple(
        [
            tuple([(name, _rounded(amount)) for name, amount in free.items() if name not in nowhere])
            for free in free_amounts.by_position(node)
        ]
    )


def _unit(resource: str) -> int:
    """The smallest size of pieces that are counted."""
    return _GIB if resource == "memory" or resource.startswith("hugepages-") else 1


def _rounded(amount: int) -> int:
    """Down, by less than a sixtieth."""
    digits = max(0, amount.bit_length() - _DIGITS)
    return amount if amount < _GIB else amount >> digits << digits


class _Wait(msgspec.Struct):
    """Since when (seconds, monotonic) a pod is known to wait, and for what."""

    since: float
    cause: Cause | None = None


class Waits:
    """Pods that were refused here: why each waits, and how long those have waited that were bound.

    `clock` gives seconds, monotonic; `bound` is told seconds.
    """

    def __init__(
        self, ledger: Ledger, answers: Answers, bound: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._ledger, self._answers = ledger, answers
        self._bound, self._clock = bound, clock
        self._waits: dict[str, _Wait] = {}
        self._judged_at: dict[tuple[bytes, int], int] = {}

    def sync(self) -> Iterator[None]:
        """Looks at those who wait, in steps of some milliseconds."""
        now, waiting = self._clock(), self._ledger.waiting
        for uid in self._waits.keys() - waiting.keys():
            wait = self._waits.pop(uid)
            if self._ledger.pods.of(uid).node:
                self._bound(now - wait.since)
        kinds: dict[tuple[bytes, int], list[PodRecord]] = {}
        for uid, record in waiting.items():
            self._waits.setdefault(uid, _Wait(now))
            kinds.setdefault((record.shape, record.priority), []).append(record)
        self._judged_at = {kind: self._judged_at.get(kind, -1) for kind in kinds}
        # Those first that were judged longest ago; nothing is new where nothing has changed.
        due = sorted((kind for kind in kinds if self._is_due(kinds[kind], kind)), key=self._judged_at.__getitem__)
        names = self._ledger.node_states.reported() if due else []
        for kind in due[:_MAX_KINDS]:
            self._judged_at[kind] = self._ledger.node_states.changes
            yield from self._answers.fitting(kinds[kind][0], names)
            cause = self._cause(kinds[kind][0], names)
            for record in kinds[kind]:
                if (wait_of := self._waits.get(record.uid)) is not None:
                    wait_of.cause = cause
            yield

    def counts(self) -> dict[Cause, int]:
        """How many pods wait, by cause."""
        found = Counter(wait.cause for wait in self._waits.values())
        return {cause: found[cause] for cause in CAUSES}

    def longest(self) -> dict[Cause, float]:
        """For how many seconds, by cause, the one has waited that has waited longest."""
        now, found = self._clock(), dict.fromkeys(CAUSES, 0.0)
        for wait in self._waits.values():
            if wait.cause is not None:
                found[wait.cause] = max(found[wait.cause], now - wait.since)
        return found

    def _is_due(self, pods: list[PodRecord], kind: tuple[bytes, int]) -> bool:
        changes = self._ledger.node_states.changes
        return self._judged_at[kind] < changes or any(self._waits[one.uid].cause is None for one in pods)

    def _cause(self, record: PodRecord, names: list[str]) -> Cause | None:
        if record.requests is None:
            return None
        outcomes = self._answers.verdicts_of(record, names).outcomes
        if np.any(outcomes == Outcome.FITS):
            return "none"
        return "room" if np.any(outcomes == Outcome.UNSCHEDULABLE) else "never"


class Shortage:
    """Both of them, kept while `run` does."""

    def __init__(
        self,
        ledger: Ledger,
        answers: Answers,
        bound: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holes = Holes(ledger)
        self.waits = Waits(ledger, answers, bound, clock)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await sliced(self.holes.sync())
            await sliced(self.waits.sync())
            await asyncio.sleep(_INTERVAL_S)
