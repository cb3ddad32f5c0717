"""Numbers of nodes that kube-scheduler's score plug-ins cannot distinguish for a pod.

Two nodes have the same number if the default score plug-ins read the same from both:

- NodeResourcesFit, NodeResourcesBalancedAllocation: allocatable and requests of CPU, memory and extended resources, to
  0.2 percent, because equal machines differ by some KiB of memory;
- TaintToleration: taints `PreferNoSchedule`;
- PodTopologySpread with the default constraints: the zone, and the labels that each pod of the namespace shares with
  the pod. A selector that matches the pod matches another pod by these labels alone;
- ImageLocality: which images of the pod the node has.

InterPodAffinity and NodeAffinity depend on terms, which this module does not read: the caller excludes pods with terms
(AttractingPods). Upstream: pkg/scheduler/framework/plugins (1.36).

Invariant: equal numbers of one call mean equal nodes. -1 is a node without a report or without a Node object.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise import pods
from topowise.bounded import Bounded
from topowise_scheduler.ledger.changes import Changes
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.kube_scheduler import PREFER_NO_SCHEDULE, Node

Numbers = NDArray[np.int64]
Labels = frozenset[tuple[str, str]]

_ZONE: Final = "topology.kubernetes.io/zone"
# What kube-scheduler assumes of a container without requests (pkg/scheduler/util, pod_resources.go).
_ASSUMED: Final = {"cpu": 100, "memory": 200 << 20}
# Bits of an amount that count: 0.1 to 0.2 percent.
_PRECISION: Final = 10
# Nodes that a call examines: some milliseconds.
_MAX_NODES: Final = 128
_MAX_KEY_BYTES: Final = 16 << 20
# Each column takes 40 kB on 5,000 nodes.
_MAX_COLUMNS: Final = 64
_MAX_COLUMN_BYTES: Final = 4 << 20


class EqualNodes:
    """Numbers by row of the engine. Not thread-safe."""

    def __init__(self, ledger: Ledger, nodes: Nodes) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._due: dict[str, None] = {}
        self._seen_changes = (0, 0)
        self._membership = -1
        # Labels of the pods on each node by namespace.
        self._labels: dict[str, dict[str, list[Mapping[str, str]]]] = {}
        self._examined = Changes()
        count = itertools.count(1)
        self._numbers: Bounded[Hashable, int] = Bounded(_MAX_KEY_BYTES, _bytes)
        self._number: Callable[[Hashable], int] = lambda key: self._numbers.once(key, lambda: next(count))
        self._resources = _Column(-1)
        self._by_images: Bounded[tuple[str, ...], _Column]
        self._by_images = Bounded(_MAX_COLUMN_BYTES, _bytes, _MAX_COLUMNS)
        self._by_labels: Bounded[tuple[str, Labels], _Column]
        self._by_labels = Bounded(_MAX_COLUMN_BYTES, _bytes, _MAX_COLUMNS)

    def of(self, record: PodRecord, images: tuple[str, ...], rows: NDArray[np.int32]) -> Numbers | None:
        """Returns a number for each row (nodes,); None while too many nodes have changed since the last call."""
        if not self._refresh():
            return None
        labels = frozenset(record.labels.items())
        shared = self._by_labels.once((record.namespace, labels), _Column)
        parts: dict[int, Labels] = {}
        self._fill(shared, lambda name: _shared_labels(self._labels[name].get(record.namespace, ()), labels, parts))
        local = self._by_images.once(images, _Column)
        self._fill(local, lambda name: self._images_on(name, images))
        numbers = self._resources.at(rows)
        is_known = numbers >= 0
        for column in (shared.at(rows), local.at(rows)):
            if column.any():
                numbers = np.unique(numbers, return_inverse=True)[1] * (int(column.max()) + 1) + column
        return np.where(is_known, numbers, -1)

    def _refresh(self) -> bool:
        states, engine = self._ledger.node_states, self._ledger.engine
        self._due.update(dict.fromkeys(states.changed_since(self._seen_changes[0])))
        self._due.update(dict.fromkeys(self._nodes.changed_since(self._seen_changes[1])))
        self._seen_changes = states.changes, self._nodes.changes
        if self._membership != engine.membership:
            self._membership = engine.membership
            self._labels = {name: labels for name, labels in self._labels.items() if engine.row(name) >= 0}
        for name in list(itertools.islice(self._due, _MAX_NODES)):
            del self._due[name]
            if (row := engine.row(name)) >= 0:
                self._examine(name, row)
        return not self._due

    def _examine(self, name: str, row: int) -> None:
        node, state = self._nodes.get(name), self._ledger.node_states.of(name)
        entries = () if state is None else tuple(state.history.entries())
        labels = self._labels[name] = {}
        for entry in entries:
            # PodTopologySpread does not count pods that are being deleted.
            if entry.record.labels and not entry.record.status.leaving:
                labels.setdefault(entry.record.namespace, []).append(entry.record.labels)
        self._resources.put(row, -1 if node is None else self._number(_resources_of(node, entries)))
        self._examined.note(name)

    def _fill(self, column: _Column, value: Callable[[str], Hashable]) -> None:
        """Updates a column for all nodes that were examined since; an empty value has number 0."""
        for name in self._examined.since(column.seen):
            if (row := self._ledger.engine.row(name)) >= 0:
                key = value(name)
                column.put(row, self._number(key) if key else 0)
        column.seen = self._examined.count

    def _images_on(self, name: str, images: tuple[str, ...]) -> tuple[str, ...]:
        node = self._nodes.get(name)
        return () if node is None else tuple([image for image in images if image in node.images])


class _Column:
    """A number for each row; `seen` is the `count` of the changes that it includes."""

    def __init__(self, unset: int = 0) -> None:
        self.seen = 0
        self._unset = unset
        self._numbers: Numbers = np.zeros(0, np.int64)

    def put(self, row: int, number: int) -> None:
        if row >= self._numbers.size:
            more = np.full(row + 64, self._unset, np.int64)
            self._numbers = np.concatenate((self._numbers, more))
        self._numbers[row] = number

    def at(self, rows: NDArray[np.int32]) -> Numbers:
        """Returns the numbers of these rows; unset numbers for rows without a node."""
        numbers = np.full(rows.size, self._unset, np.int64)
        is_row = (rows >= 0) & (rows < self._numbers.size)
        numbers[is_row] = self._numbers[rows[is_row]]
        return numbers


def _resources_of(node: Node, entries: Iterable[Entry]) -> Hashable:
    """Returns what score plug-ins read of a node for every pod."""
    requested, assumed = Counter[str](), Counter[str]()
    for entry in entries:
        requested.update(entry.needs.requests)
        for resource in _ASSUMED:
            assumed[resource] += sum(resource not in container.requests for container in entry.needs.containers)
    taints = tuple([taint for taint in node.taints if taint.effect == PREFER_NO_SCHEDULE])
    return (node.labels.get(_ZONE), taints, *_rounded(node.allocatable, requested, assumed))


def _rounded(allocatable: pods.Amounts, requested: Counter[str], assumed: Counter[str]) -> Iterator[Hashable]:
    for resource, amount in allocatable.items():
        if resource in _ASSUMED or "/" in resource:
            unit = max(0, amount.bit_length() - _PRECISION)
            used = requested[resource]
            with_assumed = used + assumed[resource] * _ASSUMED.get(resource, 0)
            yield resource, amount >> unit, unit, used >> unit, with_assumed >> unit


def _shared_labels(pods_labels: Iterable[Mapping[str, str]], labels: Labels, parts: dict[int, Labels]) -> Hashable:
    """Returns the labels that pods share with `labels`, with the number of pods; equal for equal pods in any order.
    `parts` has the result of each object of labels, which pods of a class share."""
    counts: dict[Labels, int] = {}
    for pod_labels in pods_labels:
        part = parts.get(id(pod_labels))
        if part is None:
            part = parts[id(pod_labels)] = labels.intersection(pod_labels.items())
        if part:
            counts[part] = counts.get(part, 0) + 1
    return frozenset(counts.items())


def _bytes(key: Hashable, _: object) -> int:
    return len(repr(key))
