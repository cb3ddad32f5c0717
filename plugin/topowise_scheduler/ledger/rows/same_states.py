"""Numbers for the states of nodes: two nodes have the same number only if they treat every new pod alike.

In a burst of alike pods one node after the other comes into the same few states. What was found for a state is kept by
its number and need not be found again.

Invariant: the key has all that the admission of a new pod reads of a Kubelet (Kubelet.fork copies what changes), and
all that possible_placements reads of uncertain pods. A number is never given twice, so that a state that is forgotten
here gets another number.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import constant_parts
from topowise_scheduler.ledger.node.possible_placements import Possible

_MOST_BYTES: Final = 4 << 20
# States of nodes with more CPUs and devices are not recognised: their keys are too long.
_LARGE: Final = 1024
# The CPUs that count as much as a table of devices.
_TABLE: Final = 8
_NODE_BYTES: Final = 1 << 17
_MOST_NODE_BYTES: Final = 64 << 20


class SameStates:
    """The numbers by state. Not thread-safe."""

    def __init__(self) -> None:
        self._count = count(1)
        # Keys have some objects by identity, so these live as long as their number is in use.
        self._lasting: Bounded[tuple[int, ...], tuple[int, object]] = Bounded(_MOST_NODE_BYTES, lambda *_: _NODE_BYTES)
        self._numbers: Bounded[tuple[Hashable, ...], int] = Bounded(_MOST_BYTES, lambda key, _: _bytes(key))

    def number(self, empty: Kubelet, expected: Possible) -> int:
        """Returns the number of a node. `empty` is the node without pods."""
        devices = sum(_TABLE + len(table.ids) for table in empty.devices.tables.values())
        if empty.topology.cpus.bit_count() + devices > _LARGE:
            return next(self._count)
        lasting = (empty, *constant_parts(expected.node), *(pod.containers for pod in expected.uncertain))
        number, _ = self._lasting.once(tuple(map(id, lasting)), lambda: (next(self._count), lasting))
        states = (expected.node, *expected.alternatives)
        key = (number, *[part for state in states for part in (*_held(state), *_of_uncertain(state, expected))])
        return self._numbers.once(key, lambda: next(self._count))


def _bytes(key: Hashable) -> int:
    """Returns the bytes of a key with all its parts."""
    total, parts = 0, [key]
    while parts:
        part = parts.pop()
        total += sys.getsizeof(part)
        if isinstance(part, tuple | frozenset):
            parts.extend(part)
    return total


def _held(node: Kubelet) -> Iterator[Hashable]:
    """Yields what pods hold in all."""
    yield len(node.active)
    yield frozenset([(name, amount) for name, amount in node.requested.items() if amount])
    if node.cpu is not None:
        yield node.cpu.default
    if node.memory is not None:
        tables = node.memory.tables
        yield from (*tables.assignments, *tables.cells)
        for free in tables.free.items():
            yield free[0]
            yield tuple(free[1])
    yield from node.devices.allocated.items()


def _of_uncertain(node: Kubelet, expected: Possible) -> Iterator[Hashable]:
    """Yields what uncertain pods hold in a state, and their highest positions."""
    for pod in expected.uncertain:
        yield expected.highest.get(pod.uid)
        yield pod.uid in node.active
        for manager in (node.cpu, node.memory):
            if manager is not None:
                yield tuple(manager.allocations.get(pod.uid, {}).items())
                yield pod.uid in manager.bubbles
        yield str(node.devices.allocations.get(pod.uid))
