"""Metrics of fragmentation: the free resources of NUMA nodes.

A cluster may have free resources for hundreds of pods in sum, and no NUMA node with enough for a single pod. These
metrics show that before the first pod waits. A sync looks at the nodes that have changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Final

from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.kubelet import Kubelet, free_amounts

# Writers of reports may invent resources; machines have no more kinds of devices than this.
_MAX_RESOURCES: Final = 32
# Bytes: smaller amounts do not count, and larger ones are rounded to these binary digits, so that few values differ.
_GIB: Final = 1 << 30
_DIGITS: Final = 7

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
