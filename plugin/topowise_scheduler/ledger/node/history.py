"""The history of a node: its last report, what happened since, and what is expected next.

Invariant: a history is a value. No field is reassigned; each event makes another history, and what the node is follows
from its history alone (fold.py). `turn` numbers entries and ends in the order in which the service heard of them.

Computes how precisely an allocation was predicted.

Invariant: MISSED means that the predicted state of the node was wrong. A choice that the kubelet makes in Go's map
order, or that a device plugin makes (GetPreferredAllocation), is never MISSED.

Pods that have ended by their own status and are not deleted yet, while reports may still list them.

Invariant: a pod is here from the event that shows its end until its deletion, so there are as many as objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.allocated_nodes import nodes_of_cpus
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.masks import Mask, mask_of
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.report import Placements, PodName, Report

# Seconds for which the service is unsure of the order of events on a node.
# It hears of simultaneous events of the API server within EARLY_S, and of events on a node within LATE_S.
EARLY_S: Final = 0.2
LATE_S: Final = 2.0
# A report that lists an ended pod is taken for an old report for so long, and for the present state after that.
ENDED_KEPT_S: Final = 120.0


class Precision(IntEnum):
    """What a prediction had in common with the allocation, from the least on."""

    MISSED = 0
    HINT = 1
    """CPUs and memory are on the predicted NUMA nodes. Some devices have other NUMA nodes, and satisfy the hint."""
    NUMA_NODES = 2
    """All NUMA nodes are as predicted, and some CPU or device is not."""
    IDS = 3
    """Every CPU, NUMA node of memory, and device is as predicted."""

    @property
    def label(self) -> str:
        """Returns the name in metrics."""
        return self.name.lower()


def precision_of(listed: Placement, predicted: Placement, node: Kubelet) -> Precision:
    """Returns the precision of a container's prediction; what the report does not list is ignored."""
    return min(_precisions(listed, predicted, node), default=Precision.IDS)


def _precisions(listed: Placement, predicted: Placement, node: Kubelet) -> Iterator[Precision]:
    if listed.cpus and listed.cpus != predicted.cpus:
        same = nodes_of_cpus(node, listed.cpus) == nodes_of_cpus(node, predicted.cpus or 0)
        yield Precision.NUMA_NODES if same else Precision.MISSED
    memory, predicted_memory = [
        {block.type: block.numa for block in placement.memory if block.size} for placement in (listed, predicted)
    ]
    if memory and memory != predicted_memory:
        yield Precision.MISSED
    for resource, ids in listed.devices.items():
        table = node.devices.tables.get(resource)
        if ids and table is not None:
            yield _precision_of_devices(table, ids, predicted.devices.get(resource, ()), predicted.numa, node)


def _precision_of_devices(
    table: DeviceTable, listed: Sequence[str], predicted: Sequence[str], hint: Sequence[int] | None, node: Kubelet
) -> Precision:
    if set(listed) == set(predicted):
        return Precision.IDS
    if not table.index.keys() >= {*listed, *predicted}:
        return Precision.MISSED if hint is not None else Precision.HINT
    if _numa_nodes(table, listed) == _numa_nodes(table, predicted):
        return Precision.NUMA_NODES
    if hint is None:
        return Precision.HINT
    # filterByAffinity takes devices near the hint first, so both sets must be near the hint.
    near = table.touching(mask_of(node.node_ids.index(numa) for numa in hint if numa in node.node_ids))
    return Precision.MISSED if table.select([*listed, *predicted]) & ~near else Precision.HINT


def _numa_nodes(table: DeviceTable, devices: Sequence[str]) -> Counter[Mask]:
    """Returns how many of the devices have each set of NUMA nodes."""
    numbers = [table.index[device] for device in devices]
    return Counter(mask_of(at for at, near in enumerate(table.near) if near >> number & 1) for number in numbers)


_replace = msgspec.structs.replace


class Resize(msgspec.Struct, frozen=True):
    """A pod was resized in place (KEP-1287): when, and what the report of that time said of it."""

    at: float
    version: str
    held: object


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """What was seen of a pod on its node. Times are seconds, monotonic."""

    since: float
    """When the pod came to its booking state."""
    acknowledged: float | None = None
    """When its kubelet was seen to have admitted it."""
    was_there: bool = False
    """The pod was there before the service, so that nobody saw what happened around its admission."""
    listed: Placements | None = None
    """What the last report that listed all of the pod said, None if no report has."""
    resized: Resize | None = None
    """Until a report shows the new amounts."""
    compared: bool = False
    """The prediction has been counted."""
    precision: Precision = Precision.IDS
    """The precision of the prediction of the parts that reports have listed."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A pod on the node, bound or expected. `uid` is the UID of the record, which all keys are made of."""

    uid: str
    record: PodRecord
    needs: pods.Needs
    state: BookingState
    seen: Evidence
    turn: int = 0

    @property
    def name(self) -> PodName:
        """Returns namespace and name of the pod."""
        return self.record.namespace, self.record.name

    @property
    def is_bound(self) -> bool:
        """Returns whether the pod is bound to the node, or its Binding is on the way."""
        return self.state is BookingState.ASSIGNED

    def seen_as(self, **evidence: object) -> Entry:
        """Returns the entry with other evidence."""
        return _replace(self, seen=_replace(self.seen, **evidence))


class Ended(msgspec.Struct, frozen=True):
    """A pod that has ended: when, in seconds, monotonic, and what it was."""

    at: float
    entry: Entry
    turn: int
    held: Placements | None = None
    """What the exact report of that time listed, None if it did not list all of the pod."""
    was_predicted: bool = False
    """No report had confirmed the pod when it ended."""

    @property
    def record(self) -> PodRecord:
        """Returns the record of the pod."""
        return self.entry.record

    def may_be(self, listed: Placements) -> bool:
        """Returns whether what an exact report lists under its name may be this pod, and not a pod made after it."""
        return self.held is None or self.held == listed


class History(msgspec.Struct, frozen=True):
    """All that is known of a node.

    `settled` are the bound pods by UID that the base of a fold has: pods that the report confirms, and pods to which no
    manager gives anything. `log` are the other bound pods, in turn; `expected` are reservations and nominations.
    `reported_at` is when the report was first received: seconds, monotonic. `ended` are the pods that ended lately, in
    turn, but for ends that the report is known to include; `finished` are the names in the report of pods that have
    ended by their status. `counted` are the pods that the numbers of a counts report are known to be of, if it tells
    where they lie.
    """

    report: Report | None = None
    reported_at: float = 0.0
    settled: Mapping[str, Entry] = {}
    log: tuple[Entry, ...] = ()
    expected: tuple[Entry, ...] = ()
    ended: tuple[Ended, ...] = ()
    finished: frozenset[PodName] = frozenset()
    counted: Mapping[str, tuple[PodName, pods.Needs]] = {}

    @property
    def ended_by_name(self) -> dict[PodName, Ended]:
        """Returns the last end of each name."""
        return {ended.entry.name: ended for ended in self.ended}

    @property
    def count(self) -> int:
        """Returns the number of entries."""
        return len(self.settled) + len(self.log) + len(self.expected)

    def entry(self, uid: str) -> Entry | None:
        """Returns the entry of a pod, None if the pod is not on the node."""
        settled = self.settled.get(uid)
        # Most entries are settled, so the dict is asked before the tuples.
        if settled is not None:
            return settled
        return next((entry for entry in (*self.log, *self.expected) if entry.uid == uid), None)

    def entries(self) -> Iterator[Entry]:
        """Yields all entries: bound pods first, in turn."""
        yield from sorted((*self.settled.values(), *self.log), key=_turn)
        # Expected pods come last, as in the fold: a bound pod never waits for a reservation.
        yield from self.expected

    def bound(self) -> list[Entry]:
        """Returns the bound pods in turn."""
        return sorted((*self.settled.values(), *self.log), key=_turn)

    def with_entry(self, entry: Entry, *, settled: bool) -> History:
        """Returns the history with this entry in place of the pod's entry, if it has one."""
        rest = self.without_entry(entry.uid)
        if not entry.is_bound:
            # Surer pods are placed first, then pods that came first.
            expected = sorted((*rest.expected, entry), key=lambda expected: (-expected.state, expected.turn))
            return _replace(rest, expected=tuple(expected))
        if settled:
            return _replace(rest, settled={**rest.settled, entry.uid: entry})
        return _replace(rest, log=tuple(sorted((*rest.log, entry), key=_turn)))

    def with_bound(self, bound: Mapping[str, Entry], settled: Mapping[str, Entry]) -> History:
        """Returns the history with these bound pods alone, of which some are settled."""
        log = tuple([entry for uid, entry in bound.items() if uid not in settled])
        return _replace(self, settled=settled, log=log)

    def with_settled(self, settled: Mapping[str, Entry]) -> History:
        """Returns the history with these pods settled as well."""
        if not settled:
            return self
        log = tuple([entry for entry in self.log if entry.uid not in settled])
        return _replace(self, settled={**self.settled, **settled}, log=log)

    def without_entry(self, uid: str) -> History:
        """Returns the history as if the pod had never been on the node."""
        if uid in self.settled:
            return _replace(self, settled={key: entry for key, entry in self.settled.items() if key != uid})
        if any(entry.uid == uid for entry in self.log):
            return _replace(self, log=tuple([entry for entry in self.log if entry.uid != uid]))
        if any(entry.uid == uid for entry in self.expected):
            return _replace(self, expected=tuple([entry for entry in self.expected if entry.uid != uid]))
        return self


def _turn(entry: Entry) -> int:
    return entry.turn


class FinishedPods:
    """The finished pods of a node, by UID and by name: the API server has one pod of a name."""

    __slots__ = ("_names", "_uids", "_unseen")

    def __init__(self) -> None:
        self._names: dict[str, PodName] = {}
        self._uids: dict[PodName, str] = {}
        # When the service heard of a pod whose end it did not see, such as from before the service started.
        self._unseen: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    @property
    def will_change(self) -> bool:
        """Returns whether `forget` will have something to do."""
        return bool(self._unseen)

    def put(self, uid: str, name: PodName, unseen_at: float | None) -> None:
        """A kubelet writes the status when nothing of the pod runs. `unseen_at`: seconds, monotonic, None for a pod
        whose end the service saw."""
        if unseen_at is not None and uid not in self._names:
            self._unseen[uid] = unseen_at
        self._names[uid], self._uids[name] = name, uid

    def drop(self, uid: str) -> None:
        """The pod was deleted."""
        name = self._names.pop(uid, None)
        self._unseen.pop(uid, None)
        # A StatefulSet reuses the name; the entry may belong to the successor by now.
        if name is not None and self._uids.get(name) == uid:
            del self._uids[name]

    def forget(self, now: float) -> None:
        """Ends that were not seen are long ago by now: a report is newer than they are."""
        for uid in [uid for uid, at in self._unseen.items() if now - at >= ENDED_KEPT_S]:
            del self._unseen[uid]

    def listed(self, report: Report | None) -> frozenset[PodName]:
        """Returns the names under which a report lists what the pods held, and what no pod holds any more.

        By its UID alone a report lists what finished init containers left to a pod. By its name it lists a pod only if
        the report is older than the end, or if the kubelet lists ended pods (up to 1.33, kubernetes#132028).
        """
        if report is None or not self._names:
            return _NONE
        return frozenset([name for name in report.held if self._is_over(name, report)])

    def _is_over(self, name: PodName, report: Report) -> bool:
        namespace, pod = name
        if not namespace:
            return pod in self._names
        uid = self._uids.get(name)
        return uid is not None and (report.lists_ended or uid in self._unseen)


_NONE: frozenset[PodName] = frozenset()
