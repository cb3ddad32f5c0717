"""Metrics of fragmentation: the free resources of NUMA nodes, and the loss by fragmentation (fragmentation.py).

A cluster may have free resources for hundreds of pods in sum, and no NUMA node with enough for a single pod. These
metrics show that before the first pod waits. A sync looks at the nodes that have changed, in slices of the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Final

from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.fragmentation import MAX_RESOURCES, Fragmentation, most_frequent, steps

# Bytes: smaller amounts do not count, and larger ones are rounded to these binary digits, so that few values differ.
_GIB: Final = 1 << 30
_DIGITS: Final = 7

# Seconds of a sync for the fragmentation of nodes, 2 % of the interval; the remaining nodes come in the next syncs.
_SHARE_S: Final = 0.1
PODS: Final = "waiting pods"
"""The kind of these pods, beside the names of resources, which have no spaces."""
_NO_FRAGMENTATION: Final = Fragmentation()

_Zones = tuple[tuple[tuple[str, int], ...], ...]


class Holes:
    """Free resources by NUMA node, and the loss by fragmentation for these and for the waiting pods.

    `clock` gives seconds, monotonic.

    Invariant: the counts are of the reported nodes in the state in which they were last looked at.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._zones: dict[str, _Zones] = {}
        # By resource: how many pieces of a size fit on NUMA nodes.
        self._pieces: dict[str, Counter[int]] = {}
        self._pods: dict[str, PodRequests] = {}
        # Nodes whose fragmentation is due, the first due first; a dict because sets have no order.
        self._due: dict[str, None] = {}
        self._fragmentation: dict[str, Fragmentation] = {}
        # The sums of `now` and `together` over all nodes, by resource, or PODS.
        self._now: Counter[str] = Counter()
        self._together: Counter[str] = Counter({PODS: 0})

    def sync(self) -> Iterator[None]:
        """Updates the counts of changed nodes and the fragmentation of some of these nodes, in steps."""
        for name in self._ledger.node_states.take_reshaped():
            self._due[name] = None
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
        yield from self._sync_fragmentation()

    def loss(self, name: str) -> int | None:
        """Returns the loss of a node in percent, None if it is not known or nothing is free."""
        return self._fragmentation.get(name, _NO_FRAGMENTATION).loss

    def losses(self) -> dict[str, float]:
        """Returns the loss of all nodes together by resource, and of PODS: 0 to 1."""
        sums = self._together.items()
        return {kind: 1 - self._now[kind] / together for kind, together in sums if together}

    def pieces(self) -> dict[str, Mapping[int, int]]:
        """Returns by resource and size how many free pieces there are; 0 for sizes that fitted before."""
        return {name: dict(sorted(pieces.items())) for name, pieces in self._pieces.items()}

    def _sync_fragmentation(self) -> Iterator[None]:
        waiting = (
            (f"{record.namespace}/{record.name}", record.requests)
            for record in self._ledger.waiting.values()
            if record.requests is not None
        )
        pods = most_frequent(waiting)
        if {requests.shape for requests in pods.values()} != {requests.shape for requests in self._pods.values()}:
            self._due.update(dict.fromkeys(self._ledger.node_states.reported()))
        self._pods = pods
        spent = 0.0
        while self._due and spent < _SHARE_S:
            name = next(iter(self._due))
            del self._due[name]
            node_state = self._ledger.node_states.of(name)
            fragmentation = _NO_FRAGMENTATION
            if node_state is not None and node_state.report is not None and node_state.kubelet is not None:
                # A change during these steps makes the node due again.
                run = steps(node_state.kubelet.fork(), pods)
                while fragmentation is _NO_FRAGMENTATION:
                    since = self._clock()
                    try:
                        next(run)
                    except StopIteration as end:
                        fragmentation = end.value
                    spent += self._clock() - since
                    yield
            self._sum(self._fragmentation.pop(name, _NO_FRAGMENTATION), -1)
            if fragmentation is not _NO_FRAGMENTATION:
                self._fragmentation[name] = fragmentation
                self._sum(fragmentation, 1)
            yield

    def _sum(self, fragmentation: Fragmentation, sign: int) -> None:
        pods = [(PODS, figure) for figure in fragmentation.pods.values()]
        for kind, figure in (*fragmentation.resources.items(), *pods):
            if kind in self._together or len(self._together) <= MAX_RESOURCES:
                self._now[kind] += sign * figure.now
                self._together[kind] += sign * figure.together

    def _count(self, zone: tuple[tuple[str, int], ...], sign: int) -> None:
        for name, amount in zone:
            if name not in self._pieces:
                if len(self._pieces) >= MAX_RESOURCES:
                    continue
                self._pieces[name] = Counter()
            pieces = self._pieces[name]
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
