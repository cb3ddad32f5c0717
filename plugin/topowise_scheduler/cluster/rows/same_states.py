"""Numbers for the states of nodes: two nodes have the same number only if every newcomer fares alike on them.

In a burst of alike pods one node after the other comes into the same few states. Whoever keeps what was said of a
state by its number need not ask again.

Invariant: what admissions of a newcomer read of a Kubelet (Kubelet.fork has all that changes) is in the key, and so is
all that possible_placements reads of pods that may lie elsewhere. A number is never given twice, so that what is
forgotten here is only not recognised again.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final

from topowise.bounded import Bounded
from topowise_scheduler.cluster.node.possible_placements import Possible
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.node_identity import constant_parts

_MOST_BYTES: Final = 4 << 20
# Of a node without pods; one with more CPUs and devices than that is not recognised. Hardly any is kept by this alone.
_LARGE: Final = 1024
# A table of devices takes as much as these CPUs.
_TABLE: Final = 8
_NODE_BYTES: Final = 1 << 17
_MOST_NODE_BYTES: Final = 64 << 20


class SameStates:
    """By state. Not thread-safe."""

    def __init__(self) -> None:
        self._count = count(1)
        # What keys have by identity has a number too, and lives as long as that is given out.
        self._lasting: Bounded[tuple[int, ...], tuple[int, object]] = Bounded(_MOST_NODE_BYTES, lambda *_: _NODE_BYTES)
        self._numbers: Bounded[tuple[Hashable, ...], int] = Bounded(_MOST_BYTES, lambda key, _: _bytes(key))

    def number(self, empty: Kubelet, expected: Possible) -> int:
        """The one of a node, of which `empty` is the state with no pods."""
        devices = sum(_TABLE + len(one.ids) for one in empty.devices.tables.values())
        if empty.topology.cpus.bit_count() + devices > _LARGE:
            return next(self._count)
        lasting = (empty, *constant_parts(expected.node), *(pod.containers for pod in expected.uncertain))
        number, _ = self._lasting.once(tuple(map(id, lasting)), lambda: (next(self._count), lasting))
        states = (expected.node, *expected.others)
        key = (number, *[part for state in states for part in (*_held(state), *_of_uncertain(state, expected))])
        return self._numbers.once(key, lambda: next(self._count))


def _bytes(part: Hashable) -> int:
    parts = part if isinstance(part, tuple | frozenset) else ()
    return sys.getsizeof(part) + sum([_bytes(one) for one in parts])


def _held(node: Kubelet) -> Iterator[Hashable]:
    """What is taken, whoever has it."""
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
    """What each of them has in one state, and how high it may lie."""
    for pod in expected.uncertain:
        yield expected.highest.get(pod.uid)
        yield pod.uid in node.active
        for manager in (node.cpu, node.memory):
            if manager is not None:
                yield tuple(manager.allocations.get(pod.uid, {}).items())
                yield pod.uid in manager.bubbles
        yield str(node.devices.allocations.get(pod.uid))
