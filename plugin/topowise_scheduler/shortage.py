"""Metrics of fragmentation: the free resources of NUMA nodes, and the pods that wait for free resources.

A cluster may have free resources for hundreds of pods in sum, and no NUMA node with enough for a single pod. These
metrics show that before the first pod waits. A task updates them in slices of the event loop, and a scrape only reads
them. A sync looks at the nodes that have changed, and at a pod of each class.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import zip_longest
from typing import Final

import msgspec

from topowise.runtime.event_loop import sliced
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.explain.waiting import CAUSES, Cause, looking

_INTERVAL_S: Final = 5.0
# Writers of reports may invent resources; machines have no more kinds of devices than this.
_MAX_RESOURCES: Final = 32
# Bytes: smaller amounts do not count, and larger ones are rounded to these binary digits, so that few values differ.
_GIB: Final = 1 << 30
_DIGITS: Final = 7
# Pod classes of a sync; the remaining classes come in the next syncs.
_MAX_CLASSES: Final = 8

_Zones = tuple[tuple[tuple[str, int], ...], ...]


class Holes:
    """Free resources by NUMA node.

    Invariant: the counts are of the reported nodes in the state in which they were last looked at.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._zones: dict[str, _Zones] = {}
        # By resource: how many NUMA nodes have an amount free, and how many pieces of a size fit on them.
        self._amounts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._pieces: dict[str, Counter[int]] = {}

    def sync(self) -> Iterator[None]:
        """Updates the counts of changed nodes, a node per step."""
        for name in self._ledger.node_states.take_reshaped():
            before = self._zones.pop(name, ())
            node_state = self._ledger.node_states.of(name)
            zones: _Zones = ()
            if node_state is not None and node_state.report is not None and node_state.kubelet is not None:
                zones = self._zones[name] = _zones(node_state.kubelet)
            # Most zones of a changed node have not changed.
            for was, is_now in zip_longest(before, zones, fillvalue=()):
                if was != is_now:
                    self._count(was, -1)
                    self._count(is_now, 1)
            yield

    def largest(self) -> dict[str, int]:
        """Returns by resource the largest amount that is free on a NUMA node."""
        return {name: max(amounts, default=0) for name, amounts in self._amounts.items()}

    def pieces(self) -> dict[str, Mapping[int, int]]:
        """Returns by resource and size how many free pieces there are; 0 for sizes that fitted before."""
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
    """Returns the free amounts of each NUMA node, without devices that have none: they would count on each node."""
    tables = node.devices.tables if len(node.node_ids) > 1 else {}
    nowhere = {name for name, table in tables.items() if not table.has_topology}
    return tuple(
        [
            tuple([(name, _rounded(amount)) for name, amount in free.items() if name not in nowhere])
            for free in free_amounts.by_position(node)
        ]
    )


def _unit(resource: str) -> int:
    """Returns the smallest size that is counted."""
    return _GIB if resource == "memory" or resource.startswith("hugepages-") else 1


def _rounded(amount: int) -> int:
    """Returns the amount rounded down by less than a sixtieth."""
    digits = max(0, amount.bit_length() - _DIGITS)
    return amount if amount < _GIB else amount >> digits << digits


class _Wait(msgspec.Struct):
    """Since when (seconds, monotonic) a pod is known to wait, and why. `is_refused`: this service has refused it."""

    since: float
    cause: Cause | None = None
    is_refused: bool = False


class Waits:
    """Pods for which kube-scheduler found no node: why each waits, and how long bound pods have waited.

    `clock` gives seconds, monotonic; `bound` is called with the seconds that a bound pod, which this service had
    refused, has waited.
    """

    def __init__(
        self, ledger: Ledger, view: ClusterView, bound: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._ledger, self._view = ledger, view
        self._bound, self._clock = bound, clock
        self._waits: dict[str, _Wait] = {}
        self._evaluated_at: dict[Hashable, tuple[int, int]] = {}

    def sync(self) -> Iterator[None]:
        """Updates the causes of waiting pods, in steps of some milliseconds."""
        now, waiting = self._clock(), self._ledger.unscheduled
        for uid in self._waits.keys() - waiting.keys():
            wait = self._waits.pop(uid)
            if wait.is_refused and self._ledger.pods.of(uid).node:
                self._bound(now - wait.since)
        classes: dict[Hashable, list[PodRecord]] = {}
        for uid, record in waiting.items():
            self._waits.setdefault(uid, _Wait(now)).is_refused |= record.waits
            classes.setdefault(record.pod_class, []).append(record)
        self._evaluated_at = {pod_class: self._evaluated_at.get(pod_class, (-1, -1)) for pod_class in classes}
        # The classes that were evaluated longest ago come first; without a change of a node the cause stays.
        due = [pod_class for pod_class in classes if self._is_due(classes[pod_class], pod_class)]
        due.sort(key=self._evaluated_at.__getitem__)
        for pod_class in due[:_MAX_CLASSES]:
            self._evaluated_at[pod_class] = self._view.changes
            for pod in looking(self._view, classes[pod_class][0]):
                if pod is None:
                    yield
                    continue
                for record in classes[pod_class]:
                    if (wait_of := self._waits.get(record.uid)) is not None:
                        wait_of.cause = pod.cause
            yield

    def counts(self) -> dict[Cause, int]:
        """Returns the number of waiting pods by cause."""
        counts = Counter(wait.cause for wait in self._waits.values())
        return {cause: counts[cause] for cause in CAUSES}

    def longest(self) -> dict[Cause, float]:
        """Returns by cause the longest wait in seconds."""
        now, longest = self._clock(), dict.fromkeys(CAUSES, 0.0)
        for wait in self._waits.values():
            if wait.cause is not None:
                longest[wait.cause] = max(longest[wait.cause], now - wait.since)
        return longest

    def _is_due(self, pods: list[PodRecord], pod_class: Hashable) -> bool:
        is_changed = self._evaluated_at[pod_class] != self._view.changes
        return is_changed or any(self._waits[pod.uid].cause is None for pod in pods)


class Shortage:
    """Holes and waits, updated by `run`."""

    def __init__(
        self,
        ledger: Ledger,
        view: ClusterView,
        bound: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holes = Holes(ledger)
        self.waits = Waits(ledger, view, bound, clock)

    async def run(self) -> None:
        """Updates both until cancelled."""
        while True:
            await sliced(self.holes.sync())
            await sliced(self.waits.sync())
            await asyncio.sleep(_INTERVAL_S)
